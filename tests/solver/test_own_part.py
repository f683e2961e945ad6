"""The tasks' own parts: optima against cvxpy for every method, limits, engines, checkpoints, and a task added later."""

from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from dmtrl import Execution, Problem, Settings, Strengths, TaskCovariance, TaskData, get_loss, solve
from dmtrl.relationship import Fixed, Learned
from dmtrl.relationship.parts import given_parts, learned_parts
from dmtrl.solver.new_task import extend
from support.checkpoints import halfway
from support.oracles import optimum
from support.problems import mean_losses, random_problem, rows_of
from support.solving import solve_data

LAM, M, D = 0.1, 5, 4
FINE = Settings(tol=1e-6, max_rounds=3000)
SIGMA = np.full((M, M), 0.5) + 0.5 * np.eye(M)


def best_by_cvxpy(data: TaskData, loss: str, common: float, own: float, learned: bool = True) -> tuple[float, Any]:
    R, C, w0 = cp.Variable((M, D)), cp.Variable((M, D)), cp.Variable((1, D))
    W = R + C + np.ones((M, 1)) @ w0
    sigma = SIGMA / np.trace(SIGMA)
    inner = cp.square(cp.normNuc(R)) if learned else cp.sum_squares(np.linalg.inv(np.linalg.cholesky(sigma)) @ R)
    penalty = inner / 2 + M / (2 * own) * cp.sum_squares(C)
    constraints = [] if common else [w0 == 0]
    if common:
        penalty = penalty + M / (2 * common) * cp.sum_squares(w0)
    total = 0.0
    for i in range(M):
        X, y = data.X[rows_of(data, i)], data.y[rows_of(data, i)]
        z = X @ W[i]
        terms = {
            "squared": lambda z=z, y=y: cp.sum_squares(z - y) / 2,
            "hinge": lambda z=z, y=y: cp.sum(cp.pos(1 - cp.multiply(y, z))),
            "logistic": lambda z=z, y=y: cp.sum(cp.logistic(-cp.multiply(y, z))),
        }[loss]()
        total = total + terms / len(y)
    best = optimum(cp.Minimize(total + LAM * penalty), constraints)
    return best, np.asarray(W.value)


@pytest.mark.parametrize(("common", "own"), [(0.0, 1.0), (2.0, 1.0), (2.0, 0.1), (0.0, 30.0)])
@pytest.mark.parametrize("loss", ["squared", "hinge", "logistic"])
def test_joint_optimum(loss: str, common: float, own: float) -> None:
    data = random_problem(loss, m=M, d=D)
    best, W = best_by_cvxpy(data, loss, common, own)
    outcome = solve(Problem.of(data, loss=loss, reg_lambda=LAM, common=common, own=own), Execution(settings=FINE))
    assert outcome.certificate.primal == pytest.approx(best, rel=3e-6)
    assert outcome.certificate.dual <= best * (1 + 2e-6)
    np.testing.assert_allclose(outcome.W, W, atol=0.02)
    by_hand = Learned(common / M, own / M).penalty(outcome.W, outcome.common)
    assert mean_losses(data, outcome.W, loss) + LAM * by_hand == pytest.approx(outcome.certificate.primal, rel=1e-9)
    assert outcome.covariance.trace() == pytest.approx(1.0)


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("common", [0.0, 2.0])
def test_every_method_finds_it(common: float, learned: bool) -> None:
    data = random_problem("hinge", m=M, d=D)
    best, _ = best_by_cvxpy(data, "hinge", common, 1.0, learned)
    how: dict[str, Any] = {"loss": "hinge", "reg_lambda": LAM, "common": common, "own": 1.0}
    how["relationship"] = "learned" if learned else SIGMA
    more: list[dict[str, Any]] = [
        {"settings": Settings(tol=1e-5, max_rounds=3000)},
        {"settings": Settings(tol=1e-3, method="dual", max_rounds=3000, w_rounds=20)},
        {"settings": Settings(tol=1e-5, max_rounds=3000), "workers": 2, "max_staleness": 2},
        {"settings": Settings(tol=1e-4, max_rounds=3000), "workers": 3, "shards": 2},
    ]
    for one in more:
        found = solve_data(data, **how, **one)
        assert found.converged
        assert found.certificate.dual <= best * (1 + 2e-6)
        assert best * (1 - 2e-6) <= found.certificate.primal <= best * (1 + 2 * one["settings"].tol)
        assert all(record.gap >= -1e-9 for record in found.history)


def test_a_strong_own_part_is_each_task_alone_and_a_weak_one_is_none() -> None:
    data = random_problem("squared", m=M, d=D)
    how: dict[str, Any] = {"loss": "squared", "settings": Settings(tol=1e-8, max_rounds=3000)}
    alone = solve_data(data, reg_lambda=LAM, relationship="independent", **how)
    strong = solve_data(data, reg_lambda=1e6 * LAM, own=1e6, **how)  # the same penalty on the own parts
    np.testing.assert_allclose(strong.W, alone.W, atol=1e-3)
    plain, weak = (solve_data(data, reg_lambda=LAM, own=own, **how) for own in (0.0, 1e-7))
    np.testing.assert_allclose(weak.W, plain.W, atol=1e-3)


def test_bits_do_not_depend_on_the_workers() -> None:
    data = random_problem("logistic", m=7, d=4)
    how: dict[str, Any] = {"loss": "logistic", "reg_lambda": LAM, "common": 1.0, "own": 1.0, "intercept_ridge": 1e-6}
    one = solve_data(data, **how)
    for more in ({"n_jobs": 2}, {"n_jobs": 4}, {"workers": 3}):
        other = solve_data(data, **how, **more)
        assert other.W.tobytes() == one.W.tobytes()
        assert other.certificate == one.certificate


def test_a_checkpoint_of_another_strength_is_refused(tmp_path: Path) -> None:
    data = random_problem(m=M, d=D)
    how = halfway(data, tmp_path, stop=3, own=1.0, settings=Settings(tol=0.0, max_rounds=8))
    with pytest.raises(ValueError, match="the relationship is"):
        solve_data(data, resume=tmp_path, **how | {"own": 2.0})
    whole = solve_data(data, **how)
    assert solve_data(data, resume=tmp_path, **how).W.tobytes() == whole.W.tobytes()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kappa", [0.0, 0.05, 2.0])
def test_parts_add_up_and_have_the_stated_penalty(kappa: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    W, common, tau = rng.normal(size=(M, D)), rng.normal(size=D), 0.3
    found = learned_parts(W, common, kappa)
    np.testing.assert_allclose(found.common + found.related + found.own, W, atol=1e-12)
    nuclear = np.linalg.svd(found.related, compute_uv=False).sum()
    penalty = nuclear**2 / 2 + common @ common / (2 * tau)
    penalty += (found.own**2).sum() / (2 * kappa) if kappa else 0.0
    assert penalty == pytest.approx(Learned(tau, kappa).penalty(W, common))
    sigma = TaskCovariance.from_dense(SIGMA)
    given = given_parts(sigma, W, tau, kappa)
    np.testing.assert_allclose(given.common + given.related + given.own, W, atol=1e-12)
    penalty = sigma.inverse_quadratic(given.related) / 2 + given.common @ given.common / (2 * tau)
    penalty += (given.own**2).sum() / (2 * kappa) if kappa else 0.0
    assert penalty == pytest.approx(Fixed(sigma, tau, kappa=kappa).penalty(W, common))
    for parts in (found, given):
        np.testing.assert_allclose(parts.shares().sum(axis=1), 1.0)
        assert (parts.shares() >= 0).all()


@pytest.mark.parametrize("common", [0.0, 1.0])
def test_a_task_added_later_has_a_valid_bound(common: float) -> None:
    everything = random_problem("squared", m=6, d=D, rows=30)
    first = everything.starts[5]
    old = TaskData(everything.X[:first], everything.y[:first], None, everything.starts[:6], everything.names[:5])
    rows = rows_of(everything, 5)
    new = TaskData.from_list([(everything.X[rows], everything.y[rows])])
    model = solve(Problem.of(old, loss="squared", reg_lambda=LAM, common=common, own=1.0), Execution(settings=FINE))
    problem, settings = (
        Problem(6, get_loss("squared"), Strengths(LAM, 1.2 * common, 1.2)),
        Settings(tol=1e-5, max_rounds=5000),
    )
    added = extend(model.W, model.dual, mean_losses(old, model.W, "squared"), new, problem, settings)
    refit = solve(
        Problem.of(everything, loss="squared", reg_lambda=LAM, common=1.2 * common, own=1.2), Execution(settings=FINE)
    )
    assert added.certificate.primal >= refit.certificate.dual
    assert added.certificate.dual <= refit.certificate.primal
    assert added.certificate.relative_gap < 0.3


def test_wrong_strengths() -> None:
    data = random_problem(m=M, d=D)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"own .* must be at least 0 and finite, got"):
            solve(Problem.of(data, loss="squared", reg_lambda=LAM, own=wrong))
    with pytest.raises(ValueError, match=r"own=0\.2 contradicts the relationship, which has kappa=0\.1"):
        solve(Problem.of(data, loss="squared", reg_lambda=LAM, own=1.0, relationship=Learned(kappa=0.1)))
