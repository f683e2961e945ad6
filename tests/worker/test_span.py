"""The exact solver in the span of the rows: its answers solve the local problem, whatever the step size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dmtrl.data.task_data import TaskData
from dmtrl.losses import BUILTIN, CLASSIFICATION, get_loss
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.rounds import Improved, Prepare, Round
from dmtrl.protocol.steps import Steps
from dmtrl.worker.worker import Worker
from support.problems import random_problem

LOSSES = sorted(BUILTIN)


def _data(loss: str, n: int, d: int, seed: int, m: int = 2) -> TaskData:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m * n, d)) * 10.0 ** rng.uniform(-1, 1, d)
    z = X @ (rng.standard_normal(d) / np.sqrt(d)) + rng.standard_normal(m * n)
    if get_loss(loss).kind == CLASSIFICATION:
        y = np.where(z > 0, 1.0, -1.0)
    else:
        y = rng.poisson(np.exp(np.clip(z, -2, 2))).astype(float) if loss == "poisson" else 3.0 * z
    return TaskData(X, y, None, np.arange(m + 1) * n, np.array([f"task {i}" for i in range(m)]))


def _solve(
    data: TaskData, loss: str, solver: str, W: np.ndarray, step: Steps, target: float = 1e-9
) -> tuple[Improved, np.ndarray]:
    """The answer to one round, and the local gap (7) of each unit."""
    worker = Worker(data.sources(1)[0], get_loss(loss))
    prepare = Prepare(
        seed=3,
        local_solver=solver,
        max_passes=20_000,
        intercept=step.intercept is not None,
        intercept_ridge=step.ridge,
        total_weight=np.diff(data.starts).astype(float),
        steps=np.zeros(data.m, dtype=np.int64),
    )
    worker.answer(encode(prepare))
    request = Round(round=0, target=target, evaluate_u=True, w=W, step=step.features, intercept_step=step.intercept)
    answer = decode(worker.answer(encode(request)))
    U = step.centre(W, W, np.zeros_like(W)) + step.times(answer.b)
    return answer, answer.loss_u + answer.conjugate + (U * answer.b).sum(axis=1)


def _steps(s: float, m: int, intercept: bool) -> Steps:
    return Steps(np.full(m, s), np.full(m, 100.0) if intercept else None, np.full(m, 1e-3) if intercept else None)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("n", "d"), [(7, 30), (40, 5)])
def test_the_answer_has_no_local_gap_whatever_the_step(loss: str, intercept: bool, n: int, d: int) -> None:
    data = _data(loss, n, d, seed=n)
    W = 0.1 * np.random.default_rng(1).standard_normal((2, d + intercept))
    for s in (1e-2, 1.0, 1e3, 1e6):
        answer, gap = _solve(data, loss, "span", W, _steps(s, 2, intercept), target=1e-5)
        assert (answer.solver == 3).all()
        assert (gap <= 3e-5).all(), (s, gap)
        assert (gap >= -1e-8 * (1.0 + answer.loss_w)).all(), (s, gap)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, lambda X: X.astype(np.float32)])
def test_it_agrees_with_coordinate_ascent(loss: str, kind) -> None:
    data = _data(loss, 20, 6, seed=4)
    data = TaskData(kind(data.X), data.y, None, data.starts, data.names)
    W, step = np.zeros((2, 7)), _steps(0.5, 2, intercept=True)
    found, gap = _solve(data, loss, "span", W, step, target=1e-8)
    expected, other_gap = _solve(data, loss, "sdca", W, step, target=1e-8)
    assert gap.max() <= 1e-6
    # b of the optimum is within sqrt(2 gap / s) of both (7.1)
    near = sum(np.sqrt(2 * max(some.max(), 1e-8) / 0.5) for some in (gap, other_gap))
    np.testing.assert_allclose(found.b, expected.b, atol=near)


@pytest.mark.parametrize("loss", ["hinge", "absolute", "quantile", "epsilon_insensitive"])
def test_kinked_losses_on_wide_rows_take_few_steps(loss: str) -> None:
    """All rows end on the kink of their loss. Smoothing alone takes hundreds of steps there."""
    data = _data(loss, 10, 80, seed=6, m=5)
    answer, gap = _solve(data, loss, "span", np.zeros((5, 81)), _steps(1e3, 5, intercept=True), target=1e-8)
    assert (np.abs(gap) <= 1e-7).all()
    assert answer.steps.max() <= 30


@settings(max_examples=40, deadline=None)
@given(
    loss=st.sampled_from(LOSSES),
    n=st.integers(1, 25),
    d=st.integers(1, 12),
    exponent=st.floats(-3, 6),
    intercept=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_any_unit_is_solved(loss: str, n: int, d: int, exponent: float, intercept: bool, seed: int) -> None:
    data = _data(loss, n, d, seed)
    W = np.random.default_rng(seed).standard_normal((2, d + intercept))
    answer, gap = _solve(data, loss, "span", W, _steps(10.0**exponent, 2, intercept), target=1e-4)
    assert (gap <= 3e-4 + 1e-7 * np.abs(answer.loss_w)).all()


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_other_exact_solvers_agree_on_the_intercept(loss: str) -> None:
    data = random_problem(loss, m=3, d=4)
    W = np.random.default_rng(5).standard_normal((3, 5))
    step = Steps(np.full(3, 2.0), np.array([1.0, 50.0, 1e4]), np.full(3, 1e-6))
    expected, _ = _solve(data, loss, "span", W, step)
    for solver in ("newton", "gram") if loss == "squared" else ("newton",):
        found, gap = _solve(data, loss, solver, W, step)
        np.testing.assert_allclose(found.b, expected.b, atol=1e-4)
        assert (np.abs(gap) <= 1e-9).all()
