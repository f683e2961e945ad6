"""Certificates hold on every loss, relationship, precision and layout: gaps are never negative, primal never below
dual.
"""

import numpy as np
import pytest
from scipy import sparse

from dmtrl import Execution, Problem, Settings, TaskData, solve
from dmtrl.losses import BUILTIN
from dmtrl.relationship import Learned
from dmtrl.solver.certificate import Certificate, scaled_dual
from support.problems import mean_losses, random_problem

CHAIN = sparse.diags([np.ones(3), np.ones(3)], [-1, 1]).tocsr()
COVARIANCE = np.array([[1, 0.9, 0, -0.5], [0.9, 1, 0, -0.5], [0, 0, 1, 0], [-0.5, -0.5, 0, 0.6]])
RELATIONSHIPS = {
    "learned": "learned",
    "independent": "independent",
    "shared": "shared",
    "graph": CHAIN,
    "given": COVARIANCE,
}
FEW_ROUNDS = Settings(tol=0.0, max_rounds=6, max_passes=2)


@pytest.mark.parametrize("csr", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("relationship", RELATIONSHIPS)
@pytest.mark.parametrize("loss", BUILTIN)
def test_gaps_are_never_negative(loss: str, relationship: str, dtype: type, csr: bool) -> None:
    for seed, common, method in [(0, 0.0, "splitting"), (1, 0.5, "auto"), (2, 0.0, "dual")]:
        data = random_problem(loss, seed=seed, dtype=dtype, csr=csr, weighted=seed == 1)
        settings = Settings(tol=0.0, max_rounds=6, max_passes=2, method=method)
        outcome = solve(
            Problem.of(data, loss=loss, reg_lambda=0.05, relationship=RELATIONSHIPS[relationship], common=common),
            Execution(settings=settings),
        )
        for record in outcome.history:
            scale = max(abs(record.primal), abs(record.dual))
            assert record.primal >= record.dual - 1e-9 * scale
            assert record.w_gap >= -1e-9
            assert record.objective >= record.primal - 1e-9 * scale


@pytest.mark.parametrize("loss", BUILTIN)
def test_primal_is_what_the_weights_attain(loss: str) -> None:
    data = random_problem(loss, weighted=True)
    outcome = solve(
        Problem.of(data, loss=loss, reg_lambda=0.05), Execution(settings=Settings(tol=1e-3, max_rounds=500))
    )
    nuclear = np.linalg.svd(outcome.W, compute_uv=False).sum()
    assert outcome.certificate.primal == pytest.approx(
        mean_losses(data, outcome.W, loss) + 0.025 * nuclear**2, rel=1e-9
    )
    assert outcome.certificate.relative_gap <= 1e-3


def test_dual_is_below_every_primal() -> None:
    """Weights from anywhere never beat the dual bound."""
    data = random_problem("hinge", m=5, d=3)
    outcome = solve(Problem.of(data, loss="hinge", reg_lambda=0.05), Execution(settings=FEW_ROUNDS))
    rng = np.random.default_rng(0)
    for scale in (0.01, 0.1, 1.0):
        for _ in range(20):
            W = outcome.W + scale * rng.normal(size=outcome.W.shape)
            nuclear = np.linalg.svd(W, compute_uv=False).sum()
            assert mean_losses(data, W, "hinge") + 0.025 * nuclear**2 >= outcome.certificate.dual


def test_scaled_dual_is_the_best_on_the_chord() -> None:
    rng = np.random.default_rng(0)
    grid = np.linspace(0, 1, 10_001)
    for _ in range(100):
        quadratic, conjugates, at_zero = rng.random() * 3, rng.normal(), rng.normal()
        best = (-(grid**2) * quadratic - grid * conjugates - (1 - grid) * at_zero).max()
        assert scaled_dual(quadratic, conjugates, at_zero) == pytest.approx(best, abs=1e-6)


def test_certificate_in_words() -> None:
    certificate = Certificate(2.0, 1.9)
    assert certificate.gap == pytest.approx(0.1)
    assert certificate.relative_gap == pytest.approx(0.05)
    assert "within 5.00% of the best possible" in str(certificate)
    assert Certificate(0.0, 0.0).relative_gap == 0.0


def test_rows_of_zero_single_rows_and_zero_weights() -> None:
    X = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, -1.0], [0.0, 0.0], [1.0, 1.0]])
    y = np.array([1.0, -1.0, 1.0, -1.0, 1.0])
    data = TaskData.from_long(X, y, [0, 0, 1, 2, 2], sample_weight=[1.0, 2.0, 0.5, 1.0, 0.0])
    for loss in BUILTIN:
        labels = (
            TaskData(data.X, np.abs(data.y), data.sample_weight, data.starts, data.names) if loss == "poisson" else data
        )
        outcome = solve(
            Problem.of(labels, loss=loss, reg_lambda=0.3), Execution(settings=Settings(tol=1e-5, max_rounds=2000))
        )
        assert outcome.certificate.relative_gap <= 1e-5


def test_a_relationship_with_a_wrong_conjugate_is_not_certified() -> None:
    """Half the conjugate would promise a bound that is none; that must not pass for a good answer."""

    class Hopeful(Learned):
        def conjugate(self, B: np.ndarray) -> float:
            return 0.5 * super().conjugate(B)

    data = random_problem("squared", m=3, rows=20)
    with pytest.raises(ValueError, match=r"which is impossible: the conjugate"):
        solve(
            Problem.of(data, loss="squared", reg_lambda=0.1, relationship=Hopeful()),
            Execution(settings=Settings(tol=1e-6)),
        )
