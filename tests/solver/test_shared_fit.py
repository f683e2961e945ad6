"""The shared part and the levels of the tasks, fitted from sums: against cvxpy, closed forms and dense REML."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize

from dmtrl import TaskData
from dmtrl.engines.base import Engine
from dmtrl.engines.local import LocalEngine
from dmtrl.losses import AnyLoss, OneVsRest, Softmax, get_loss, hinge, huber, logistic, poisson, squared, squared_hinge
from dmtrl.protocol.rounds import HoldOut
from dmtrl.solver.shared_fit import MOST_WEIGHTS, can_fit_shared, fit_shared
from support.oracles import optimum

KAPPA, RIDGE = 1.7, 2.3


def grouped(
    loss: str = "squared",
    m: int = 12,
    d: int = 3,
    rows: tuple[int, ...] = (1, 2, 9, 30),
    seed: int = 0,
    spread: float = 1.0,
) -> dict[str, Any]:
    """Rows of tasks with levels of standard deviation `spread`; sizes are those in `rows`, in turn."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(m), [rows[i % len(rows)] for i in range(m)])
    X = (
        rng.normal(size=(len(task), d)) * (1.0, 10.0, 0.1)[:d] + (0.0, 20.0, 1.0)[:d]
        if d <= 3
        else rng.normal(size=(len(task), d))
    )
    weights = np.array([1.0, 0.05, 4.0])[:d] if d <= 3 else rng.normal(size=d) / np.sqrt(d)
    z = 0.5 + (X - X.mean(axis=0)) @ weights + spread * rng.normal(size=m)[task]
    y = {
        "squared": lambda: z + rng.normal(size=len(z)),
        "huber": lambda: z + rng.standard_t(2, size=len(z)),
        "poisson": lambda: rng.poisson(np.exp(np.clip(0.5 * z + 1, -3, 3))).astype(float),
    }.get(loss, lambda: np.where(z + rng.logistic(size=len(z)) > 0, 1.0, -1.0))()
    return {"X": X, "y": y, "tasks": task, "sample_weight": rng.uniform(0.3, 2.0, size=len(z))}


@contextmanager
def engine_on(data: TaskData, loss: AnyLoss, workers: int = 2, shards: int = 1) -> Iterator[Engine]:
    with LocalEngine(data.sources(workers, shards), loss) as engine:
        yield engine


def fitted(rows: dict[str, Any], loss: AnyLoss, workers: int = 2, shards: int = 1, **options: Any) -> Any:
    data = TaskData.from_long(**rows)
    with engine_on(data, loss, workers, shards) as engine:
        return fit_shared(engine, data.m, loss, **options)


TERMS = {
    "squared": lambda z, y: cp.square(z - y) / 2,
    "logistic": lambda z, y: cp.logistic(-cp.multiply(y, z)),
    "poisson": lambda z, y: cp.exp(z) - cp.multiply(y, z) + np.where(y > 0, y * np.log(np.maximum(y, 1)), 0) - y,
    "squared_hinge": lambda z, y: cp.square(cp.pos(1 - cp.multiply(y, z))) / 2,
    "huber": lambda z, y: cp.huber(z - y, 1.35) / 2,
}


@pytest.mark.parametrize("loss", TERMS)
def test_the_minimum_is_that_of_cvxpy(loss: str) -> None:
    rows = grouped(loss)
    fit = fitted(rows, get_loss(loss), level=KAPPA, ridge=RIDGE)
    w, b0, b = cp.Variable(3), cp.Variable(), cp.Variable(12)
    z = rows["X"] @ w + b0 + b[rows["tasks"]]
    penalty = KAPPA / 2 * cp.sum_squares(b) + RIDGE / 2 * cp.sum(cp.multiply(fit.scale[0], cp.square(w)))
    best = optimum(cp.Minimize(rows["sample_weight"] @ TERMS[loss](z, rows["y"]) + penalty))
    assert fit.converged
    assert fit.objective == pytest.approx(best, rel=1e-6)
    assert np.allclose(fit.coef[0], w.value, rtol=1e-3, atol=1e-3)
    assert np.allclose(fit.levels[:, 0], b.value, atol=2e-3)
    assert fit.intercept[0] == pytest.approx(float(b0.value), abs=5e-3)


@pytest.mark.parametrize("kind", ["softmax", "one-vs-rest"])
def test_several_classes(kind: str) -> None:
    rows, k = grouped(d=2), 3
    rng = np.random.default_rng(3)
    rows["y"] = np.argmax(rng.gumbel(size=(len(rows["y"]), k)) + np.outer(rows["y"], [0.6, 0.0, -0.6]), axis=1)
    loss: AnyLoss = Softmax(k) if kind == "softmax" else OneVsRest(k, binary=logistic())
    fit = fitted(rows, loss, level=KAPPA, ridge=RIDGE)
    W, b0, b = cp.Variable((k, 2)), cp.Variable((1, k)), cp.Variable((12, k))
    z = rows["X"] @ W.T + np.ones((len(rows["y"]), 1)) @ b0 + b[rows["tasks"]]
    own = np.eye(k)[rows["y"]]
    if kind == "softmax":
        values = cp.log_sum_exp(z, axis=1) - cp.sum(cp.multiply(own, z), axis=1)
    else:
        values = cp.sum(cp.logistic(-cp.multiply(2 * own - 1, z)), axis=1)
    penalty = KAPPA / 2 * cp.sum_squares(b) + RIDGE / 2 * cp.sum(cp.multiply(fit.scale, cp.square(W)))
    best = optimum(cp.Minimize(rows["sample_weight"] @ values + penalty))
    assert fit.objective == pytest.approx(best, rel=1e-6)
    assert np.allclose(fit.coef, W.value, atol=2e-3)
    assert np.allclose(fit.levels, b.value, atol=2e-3)


def dense_reml(rows: dict[str, Any]) -> tuple[float, float, np.ndarray]:
    """Variance of the noise and of the levels, and weights, by REML with the n x n covariance of the rows; written from
    the textbook and sharing nothing with the library."""
    X, y, task = rows["X"], rows["y"], rows["tasks"]
    Z = np.eye(task.max() + 1)[task]
    A = np.column_stack([np.ones(len(y)), (X - X.mean(axis=0)) / X.std(axis=0)])

    def parts(logs: np.ndarray) -> tuple[float, np.ndarray]:
        noise, between = np.exp(logs)
        V = noise * np.eye(len(y)) + between * Z @ Z.T
        inverse = np.linalg.inv(V)
        F = A.T @ inverse @ A
        beta = np.linalg.solve(F, A.T @ inverse @ y)
        left = y - A @ beta
        value = np.linalg.slogdet(V)[1] + np.linalg.slogdet(F)[1] + left @ inverse @ left
        return float(value), beta

    found = minimize(
        lambda logs: parts(logs)[0],
        [0.0, 0.0],
        method="Nelder-Mead",
        options={"xatol": 1e-5, "fatol": 1e-8},
    )
    noise, between = np.exp(found.x)
    return float(noise), float(between), parts(found.x)[1][1:] / X.std(axis=0)


@pytest.mark.parametrize("sizes", [(6,), (1, 2, 4, 13)], ids=["balanced", "unbalanced"])
@pytest.mark.parametrize("seed", range(3))
def test_the_variances_are_those_of_reml(sizes: tuple[int, ...], seed: int) -> None:
    rows = grouped(rows=sizes, m=12, seed=seed) | {"sample_weight": None}
    noise, between, weights = dense_reml(rows)
    fit = fitted(rows, squared())
    assert fit.ridge == 0.0
    assert fit.rounds == 1
    assert fit.noise == pytest.approx(noise, rel=1e-3)
    assert fit.level_variance == pytest.approx(between, rel=5e-3)
    assert np.allclose(fit.coef[0], weights, rtol=1e-3, atol=1e-4)


def test_balanced_tasks_without_features_have_the_variances_of_anova() -> None:
    rng = np.random.default_rng(5)
    y = (rng.normal(size=(20, 1)) * 2 + rng.normal(size=(20, 7))).ravel()
    rows = {"X": np.zeros((140, 1)), "y": y, "tasks": np.repeat(np.arange(20), 7)}
    fit, table = fitted(rows, squared(), ridge=0.0), y.reshape(20, 7)
    within = table.var(axis=1, ddof=1).mean()
    between = table.mean(axis=1).var(ddof=1) - within / 7
    assert fit.noise == pytest.approx(within, rel=1e-3)
    assert fit.level_variance == pytest.approx(between, rel=1e-3)
    shrink = between / (between + within / 7)
    assert np.allclose(fit.levels[:, 0], shrink * (table.mean(axis=1) - y.mean()), atol=2e-3)


def test_levels_vanish_where_tasks_do_not_differ() -> None:
    rows = grouped(m=30, rows=(5,), spread=0.0, seed=2)
    rows["y"] -= np.bincount(rows["tasks"], rows["y"])[rows["tasks"]] / 5  # less than chance
    fit = fitted(rows | {"sample_weight": None}, squared())
    assert np.isinf(fit.level)
    assert fit.level_variance == 0.0
    assert not fit.levels.any()


def test_levels_that_vanish_during_the_rounds_leave_the_fit_without_levels() -> None:
    """Counts whose estimated level strength is finite first and infinite later (seeds 0 to 60 have such problems)."""
    vanished = 0
    for seed in range(1, 61, 3):
        rng = np.random.default_rng(seed)
        tasks = np.repeat(np.arange(20), 4)
        X = rng.normal(size=(80, 2))
        y = rng.poisson(np.exp(np.minimum(X @ rng.normal(size=2) - 1.0, 4.0))).astype(float)
        with engine_on(TaskData.from_long(X, y, tasks), poisson()) as engine:
            found = fit_shared(engine, 20, poisson())
            if np.isinf(found.level):
                vanished += 1
                alone = fit_shared(engine, 20, poisson(), level=np.inf, ridge=found.ridge)
                assert found.converged
                np.testing.assert_allclose(found.coef, alone.coef, rtol=1e-4, atol=1e-6)
    assert vanished


def test_a_task_with_few_rows_is_shrunk_more() -> None:
    X, task = np.zeros((42, 1)), np.repeat([0, 1, 2, 3], [1, 20, 1, 20])
    y = np.array([3.0, 3.0, -3.0, -3.0])[task]
    fit = fitted({"X": X, "y": y, "tasks": task}, squared(), level=2.0, ridge=1.0)
    assert np.allclose(fit.levels[:, 0], [1.0, 3 * 20 / 22, -1.0, -3 * 20 / 22])


@pytest.mark.parametrize(
    "loss", [squared(), logistic(), poisson(), huber(), squared_hinge()], ids=lambda loss: loss.name
)
def test_the_bits_do_not_depend_on_the_partition(loss: AnyLoss) -> None:
    rows = grouped(loss.name, m=15)
    fits = [fitted(rows, loss, workers=workers) for workers in (1, 2, 5, 15)]
    for fit in fits[1:]:
        assert np.array_equal(fit.coef, fits[0].coef)
        assert np.array_equal(fit.levels, fits[0].levels)
        assert np.array_equal(fit.new_coef, fits[0].new_coef)
        assert (fit.level, fit.ridge, fit.rounds) == (fits[0].level, fits[0].ridge, fits[0].rounds)


def test_a_task_over_several_workers_is_one_task() -> None:
    rows = grouped("logistic", rows=(4, 9, 30))
    whole, split = fitted(rows, logistic()), fitted(rows, logistic(), workers=3, shards=3)
    assert np.allclose(whole.coef, split.coef, rtol=1e-6)
    assert np.allclose(whole.levels, split.levels, rtol=1e-6, atol=1e-8)
    assert whole.level == pytest.approx(split.level, rel=1e-3)


@pytest.mark.parametrize("loss", [squared(), logistic()], ids=lambda loss: loss.name)
def test_sparse_rows_are_the_same_rows(loss: AnyLoss) -> None:
    rows = grouped(loss.name)
    rows["X"][np.random.default_rng(1).random(rows["X"].shape) < 0.6] = 0.0
    dense, thin = fitted(rows, loss), fitted(rows | {"X": sparse.csr_matrix(rows["X"])}, loss)
    assert np.allclose(dense.coef, thin.coef, rtol=1e-8)
    assert np.allclose(dense.levels, thin.levels, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("loss", [squared(), logistic(), poisson()], ids=lambda loss: loss.name)
def test_a_row_of_weight_two_is_two_rows(loss: AnyLoss) -> None:
    rows = grouped(loss.name, rows=(3, 9))
    rows["sample_weight"] = np.where(np.arange(len(rows["y"])) % 3 == 0, 2.0, 1.0)
    times = rows["sample_weight"].astype(int)
    repeated = {name: np.repeat(rows[name], times, axis=0) for name in ("X", "y", "tasks")}
    one, other = fitted(rows, loss), fitted(repeated, loss)
    assert np.allclose(one.coef, other.coef, rtol=1e-4)
    assert one.level == pytest.approx(other.level, rel=2e-3)


@pytest.mark.parametrize("loss", [squared(), logistic()], ids=lambda loss: loss.name)
def test_rows_that_are_held_out_do_not_count(loss: AnyLoss) -> None:
    rows = grouped(loss.name, rows=(6, 9)) | {"sample_weight": None}
    role = np.where(np.arange(len(rows["y"])) % 4 == 0, 1, 0).astype(np.int8)[None]
    data = TaskData.from_long(**rows)
    given = replace(data, splits=role)
    with engine_on(given, loss) as engine:
        engine.broadcast(HoldOut(fold=0, folds=1, seed=0))
        held = fit_shared(engine, data.m, loss)
    train = role[0] == 0
    alone = fitted({name: rows[name][train] for name in ("X", "y", "tasks")}, loss)
    assert np.allclose(held.coef, alone.coef, rtol=1e-9)
    assert np.allclose(held.levels, alone.levels, rtol=1e-9, atol=1e-12)


def test_columns_that_repeat_each_other_share_their_weight() -> None:
    rows = grouped()
    twice = fitted(rows | {"X": np.hstack([rows["X"], rows["X"]])}, squared(), ridge=0.0)
    once = fitted(rows, squared(), ridge=0.0)
    assert np.allclose(twice.coef[0, :3] + twice.coef[0, 3:], once.coef[0], rtol=1e-5)
    assert twice.level == pytest.approx(once.level, rel=1e-2)


def test_many_columns_get_a_ridge_that_helps() -> None:
    rows = grouped(m=20, d=60, rows=(5,), seed=7) | {"sample_weight": None}
    fit, free = fitted(rows, squared()), fitted(rows, squared(), ridge=1e-6)
    truth = _weights_of(7, 60, 20, 5)
    assert 0 < fit.ridge < 1e4
    assert np.sum((fit.coef[0] - truth) ** 2) < 0.7 * np.sum((free.coef[0] - truth) ** 2)


def _weights_of(seed: int, d: int, m: int, n: int) -> np.ndarray:
    """The weights from which `grouped` draws labels."""
    rng = np.random.default_rng(seed)
    rng.normal(size=(m * n, d))
    return rng.normal(size=d) / np.sqrt(d)


def between_and_within(effect: float, tasks: int = 60, seed: int = 0) -> dict[str, Any]:
    """Tasks whose level goes with the mean of their column: the slope between tasks is `effect`, within tasks one."""
    rng = np.random.default_rng(seed)
    means, task = rng.normal(size=tasks) * 2, np.repeat(np.arange(tasks), 8)
    x = means[task] + rng.normal(size=len(task))
    y = x + (effect - 1) * means[task] + 0.5 * rng.normal(size=tasks)[task] + 0.5 * rng.normal(size=len(task))
    return {"X": x[:, None], "y": y, "tasks": task}


@pytest.mark.parametrize("effect", [-1.0, 3.0])
def test_new_tasks_get_the_slope_between_tasks(effect: float) -> None:
    rows = between_and_within(effect)
    fit = fitted(rows, squared())
    pooled = np.polyfit(rows["X"][:, 0], rows["y"], 1)
    assert fit.coef[0, 0] == pytest.approx(1.0, abs=0.1)
    assert np.allclose([fit.new_coef[0, 0], fit.new_intercept[0]], pooled)


def test_new_tasks_get_the_shared_weights_where_tasks_agree() -> None:
    fit = fitted(between_and_within(1.0), squared())
    assert np.array_equal(fit.new_coef, fit.coef)
    assert np.array_equal(fit.new_intercept, fit.intercept)


def test_two_classes_that_a_line_separates_have_a_finite_fit() -> None:
    X = np.linspace(-1, 1, 40)[:, None]
    fit = fitted({"X": X, "y": np.where(X[:, 0] > 0, 1.0, -1.0), "tasks": np.arange(40) % 5}, logistic())
    assert fit.converged
    assert 0 < fit.coef[0, 0] < 1e3


def test_counts_far_from_one_converge() -> None:
    rows = grouped("poisson") | {"sample_weight": None}
    rows["y"] = rows["y"] * 5000
    fit = fitted(rows, poisson(), level=1.0, ridge=1.0)
    assert fit.converged
    assert fit.rounds < 25


@pytest.mark.parametrize(
    "loss", [hinge(), get_loss("absolute"), OneVsRest(3, binary=hinge())], ids=lambda loss: loss.name
)
def test_a_loss_with_kinks_is_refused(loss: AnyLoss) -> None:
    assert not can_fit_shared(loss, 3)
    rows = grouped("logistic")
    if loss.outputs == 3:
        rows["y"] = rows["tasks"] % 3
    with pytest.raises(ValueError, match="cannot be fitted from sums"):
        fitted(rows, loss)


def test_too_many_columns_are_refused() -> None:
    assert can_fit_shared(squared(), MOST_WEIGHTS - 1)
    assert not can_fit_shared(squared(), MOST_WEIGHTS)
    assert not can_fit_shared(Softmax(4), MOST_WEIGHTS // 2)


@pytest.mark.parametrize("loss", TERMS)
def test_offsets_are_added_to_the_scores(loss: str) -> None:
    """A fit around an offset that is linear in the features is the fit without, less that line."""
    rows, line = grouped(loss), np.array([0.3, 0.01, -0.5])
    plain = fitted(rows, get_loss(loss), level=KAPPA, ridge=0.0)
    moved = fitted(rows | {"offset": rows["X"] @ line + 0.7}, get_loss(loss), level=KAPPA, ridge=0.0)
    assert np.allclose(moved.coef[0] + line, plain.coef[0], rtol=1e-4, atol=1e-4)
    assert moved.intercept[0] + 0.7 == pytest.approx(plain.intercept[0], abs=1e-3)
    assert np.allclose(moved.levels, plain.levels, atol=1e-4)


def test_offsets_of_several_classes() -> None:
    rows, k = grouped(d=2), 3
    rows["y"] = np.random.default_rng(3).integers(0, k, size=len(rows["y"]))
    lines = np.array([[0.3, 0.0], [0.0, 0.02], [-0.2, 0.01]])
    plain = fitted(rows, OneVsRest(k, binary=logistic()), level=KAPPA, ridge=0.0)
    moved = fitted(rows | {"offset": rows["X"] @ lines.T}, OneVsRest(k, binary=logistic()), level=KAPPA, ridge=0.0)
    assert np.allclose(moved.coef + lines, plain.coef, atol=1e-4)
