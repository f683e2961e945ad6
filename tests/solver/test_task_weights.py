"""Task weights: the objective against cvxpy and closed forms, equal problems, engines, checkpoints, extreme sizes."""

from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from dmtrl import Execution, Problem, Settings, TaskData, get_loss, solve
from dmtrl.engines.local import LocalEngine
from dmtrl.solver.task_weights import task_weights
from support.checkpoints import halfway
from support.oracles import optimum
from support.problems import rows_of
from support.solving import solve_data

EXACT = Settings(tol=1e-8, max_rounds=3000)
LAM = 0.05


def uneven(kind: str = "regression", sizes: tuple[int, ...] = (3, 8, 40, 90), d: int = 4, seed: int = 0) -> TaskData:
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(len(sizes)), sizes)
    X, truth = rng.normal(size=(len(task), d)), rng.normal(size=(len(sizes), d)) + 1.0
    y = (X * truth[task]).sum(axis=1) + 0.5 * rng.normal(size=len(task))
    return TaskData.from_long(X, np.sign(y) if kind == "classification" else y, task)


def by_rule(gamma: float, sizes: np.ndarray) -> np.ndarray:
    """(36), written another way."""
    return np.array([n**gamma * len(sizes) / sum(other**gamma for other in sizes) for n in sizes])


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("loss", ["squared", "hinge", "logistic", "absolute"])
def test_the_optimum_of_the_weighted_objective(loss: str, gamma: float) -> None:
    data = uneven("classification" if loss in ("hinge", "logistic") else "regression")
    m, d = data.m, data.X.shape[1]
    W, total = cp.Variable((m, d)), 0.0
    for i, weight in enumerate(by_rule(gamma, np.diff(data.starts).astype(float))):
        X, y = data.X[rows_of(data, i)], data.y[rows_of(data, i)]
        z = X @ W[i]
        terms = {
            "squared": lambda z=z, y=y: cp.sum_squares(z - y) / 2,
            "hinge": lambda z=z, y=y: cp.sum(cp.pos(1 - cp.multiply(y, z))),
            "logistic": lambda z=z, y=y: cp.sum(cp.logistic(-cp.multiply(y, z))),
            "absolute": lambda z=z, y=y: cp.norm1(z - y),
        }[loss]()
        total = total + weight / len(y) * terms
    best = optimum(cp.Minimize(total + LAM / 2 * cp.square(cp.normNuc(W))))
    settings = Settings(tol=1e-6, max_rounds=3000)
    outcome = solve(Problem.of(data, loss=loss, reg_lambda=LAM, task_weight=gamma), Execution(settings=settings))
    assert outcome.certificate.primal == pytest.approx(best, rel=3e-6)
    assert outcome.certificate.dual <= best * (1 + 2e-6)
    np.testing.assert_allclose(outcome.task_weight, by_rule(gamma, np.diff(data.starts).astype(float)))


def test_rows_alike_with_one_model_is_ridge_on_all_rows() -> None:
    """Sigma = 1 1^T / m gives all tasks the same weights. With task_weight="rows" it does not matter which task a row
    belongs to."""
    data = uneven()
    m, n = data.m, len(data.y)
    outcome = solve(
        Problem.of(data, loss="squared", reg_lambda=LAM, relationship=np.ones((m, m)), task_weight="rows"),
        Execution(settings=EXACT),
    )
    ridge = Ridge(alpha=LAM * n, fit_intercept=False).fit(data.X, data.y)
    np.testing.assert_allclose(outcome.W, np.tile(ridge.coef_, (m, 1)), atol=1e-4)
    equal = solve(
        Problem.of(data, loss="squared", reg_lambda=LAM, relationship=np.ones((m, m))), Execution(settings=EXACT)
    )
    assert np.abs(equal.W - ridge.coef_).max() > 1e-2


@pytest.mark.parametrize("gamma", ["equal", 0.5, "rows"])
def test_weighting_rows_is_repeating_them(gamma: str | float) -> None:
    data = uneven()
    times = np.random.default_rng(1).integers(1, 4, size=len(data.y))
    weighted = TaskData(data.X, data.y, times.astype(float), data.starts, data.names)
    sizes = np.add.reduceat(times, data.starts[:-1])
    repeated = TaskData(
        np.repeat(data.X, times, axis=0), np.repeat(data.y, times), None, np.append(0, np.cumsum(sizes)), data.names
    )
    one, other = (
        solve(Problem.of(rows, loss="squared", reg_lambda=LAM, task_weight=gamma), Execution(settings=EXACT))
        for rows in (weighted, repeated)
    )
    np.testing.assert_allclose(one.task_weight, other.task_weight)
    np.testing.assert_allclose(one.W, other.W, atol=1e-4)
    assert one.certificate.primal == pytest.approx(other.certificate.primal, rel=1e-7)


def test_the_scale_of_sample_weights_does_not_matter() -> None:
    data = uneven()
    weight = np.random.default_rng(2).random(len(data.y)) + 0.1
    scaled = [TaskData(data.X, data.y, scale * weight, data.starts, data.names) for scale in (1.0, 1024.0)]
    first, second = (
        solve(Problem.of(one, loss="squared", reg_lambda=LAM, task_weight=0.7), Execution(settings=EXACT))
        for one in scaled
    )
    np.testing.assert_allclose(first.W, second.W, rtol=1e-9)


def test_tasks_of_one_size_have_the_weight_one_to_the_last_bit() -> None:
    data = uneven(sizes=(7, 7, 7))
    equal, rows, half = (
        solve(Problem.of(data, loss="squared", reg_lambda=LAM, task_weight=w)) for w in ("equal", "rows", 0.3)
    )
    assert equal.W.tobytes() == rows.W.tobytes() == half.W.tobytes()
    assert (rows.task_weight == 1.0).all()


@pytest.mark.parametrize("loss", ["squared", "hinge"])
def test_bits_do_not_depend_on_the_workers(loss: str) -> None:
    data = uneven("classification")
    how: dict[str, Any] = {"loss": loss, "reg_lambda": LAM, "task_weight": "rows", "common": 1.0}
    how["intercept_ridge"] = 1e-6
    one = solve_data(data, **how)
    for more in ({"n_jobs": 2}, {"n_jobs": 4}, {"workers": 3}):
        other = solve_data(data, **how, **more)
        assert other.W.tobytes() == one.W.tobytes()
        assert other.certificate == one.certificate


def test_asynchronous_rounds_split_tasks_and_the_paper_solve_the_same_problem() -> None:
    data = uneven("classification")
    how: dict[str, Any] = {"loss": "logistic", "reg_lambda": LAM, "task_weight": 0.5, "relationship": "shared"}
    best = solve_data(data, settings=EXACT, **how).certificate.primal
    more: list[dict[str, Any]] = [
        {"settings": Settings(tol=1e-5), "workers": 2, "max_staleness": 2},
        {"settings": Settings(tol=1e-5), "workers": 3, "shards": [1, 1, 2, 3]},
        {"settings": Settings(tol=1e-5, method="dual", max_rounds=5000)},
    ]
    for one in more:
        found = solve_data(data, **how, **one)
        assert found.converged
        assert found.certificate.dual - 1e-9 <= best <= found.certificate.primal + 1e-9


@pytest.mark.parametrize("loss", ["hinge", "logistic", "absolute", "squared", "poisson"])
@pytest.mark.parametrize("intercept", [None, 1e-6])
def test_sizes_that_differ_a_thousandfold(loss: str, intercept: float | None) -> None:
    """A task of three rows beside one of three thousand: weights of 0.003 and 3."""
    data = uneven("classification", sizes=(3, 30, 3000))
    if loss == "poisson":
        data = TaskData(data.X, np.maximum(data.y, 0.0), None, data.starts, data.names)
    how = Settings(tol=1e-3, max_rounds=300)
    outcome = solve(
        Problem.of(data, loss=loss, reg_lambda=0.01, task_weight="rows", intercept_ridge=intercept),
        Execution(settings=how),
    )
    assert outcome.converged
    assert outcome.certificate.gap >= -1e-12
    np.testing.assert_allclose(outcome.task_weight, by_rule(1.0, np.array([3.0, 30.0, 3000.0])))


def test_an_engine_may_be_used_again_with_other_weights() -> None:
    """Factors of the rows that a worker keeps belong to one weight of the task."""
    data = uneven(sizes=(20, 60, 200), d=3)
    with LocalEngine(data.sources(1), get_loss("squared")) as engine:
        found = [
            solve(
                Problem.of(data, loss="squared", reg_lambda=LAM, task_weight=w),
                Execution(engine, settings=Settings(tol=1e-6)),
            )
            for w in ("equal", "rows", "equal")
        ]
    apart = solve(
        Problem.of(data, loss="squared", reg_lambda=LAM, task_weight="rows"), Execution(settings=Settings(tol=1e-6))
    )
    assert found[1].W.tobytes() == apart.W.tobytes()
    assert found[2].W.tobytes() == found[0].W.tobytes()


def test_a_checkpoint_of_other_weights_is_refused(tmp_path: Path) -> None:
    data = uneven()
    how = halfway(data, tmp_path, stop=3, task_weight=0.5, settings=Settings(tol=0.0, max_rounds=8))
    with pytest.raises(ValueError, match="the weights of the tasks is"):
        solve_data(data, resume=tmp_path, **how | {"task_weight": "equal"})
    whole = solve_data(data, **how)
    assert solve_data(data, resume=tmp_path, **how).W.tobytes() == whole.W.tobytes()


@pytest.mark.parametrize("wrong", ["row", -0.1, 1.5, float("nan"), None, True])
def test_wrong_task_weights(wrong: Any) -> None:
    with pytest.raises(ValueError, match="task_weight must be 'equal', 'rows' or a number from 0 to 1, got"):
        solve(Problem.of(uneven(), loss="squared", reg_lambda=LAM, task_weight=wrong))


def test_the_mean_weight_is_one() -> None:
    rng = np.random.default_rng(0)
    for gamma in (0.0, 0.3, 1.0):
        sizes = np.exp(rng.normal(scale=3.0, size=50))
        assert task_weights(gamma, sizes).mean() == pytest.approx(1.0)
