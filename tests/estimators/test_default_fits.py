"""Fits with default parameters reach their certificate, on the kinds of data that people have."""

import numpy as np
import pytest
from scipy import sparse

from dmtrl import Execution, LocalOptions, MTRLClassifier, MTRLRegressor, MTRLRegressorCV, Problem, solve
from dmtrl.data.task_data import TaskData
from dmtrl.relationship import FreeIntercept, Learned
from dmtrl.solver.race import contenders


def _problem(m: int, n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X, tasks = rng.standard_normal((m * n, d)), np.repeat(np.arange(m), n)
    W = rng.standard_normal((m, 2)) @ rng.standard_normal((2, d)) + rng.standard_normal(d)
    z = (X * W[tasks]).sum(axis=1) / np.sqrt(d) + 3.0 * rng.standard_normal(m)[tasks]
    return X, z + rng.standard_normal(m * n), tasks


@pytest.mark.parametrize("loss", ["absolute", "epsilon_insensitive", "huber", "poisson", "quantile", "squared"])
@pytest.mark.parametrize("shape", [(6, 12, 60), (5, 40, 6)], ids=["wide", "long"])
def test_regression_on_scaled_features(loss: str, shape: tuple[int, int, int]) -> None:
    X, y, tasks = _problem(*shape)
    X = X * 10.0 ** np.random.default_rng(1).uniform(-2, 2, shape[2])
    y = np.random.default_rng(2).poisson(np.exp(np.clip(y, -3, 2))) if loss == "poisson" else 10.0 * y
    model = MTRLRegressor(loss, reg_lambda=1e-3, max_rounds=200).fit(X, y, tasks=tasks)
    assert model.certificate_.relative_gap <= model.tol


@pytest.mark.parametrize("loss", ["hinge", "logistic", "smoothed_hinge", "squared_hinge"])
@pytest.mark.parametrize("reg_lambda", [1e-4, 1e-1])
def test_classification_of_wide_data_with_offsets(loss: str, reg_lambda: float) -> None:
    X, y, tasks = _problem(12, 10, 80)
    labels = np.where(y > np.median(y), "yes", "no")
    model = MTRLClassifier(loss, reg_lambda=reg_lambda, max_rounds=300, on_single_class="constant")
    model.fit(X + 5.0, labels, tasks=tasks)
    assert model.certificate_.relative_gap <= model.tol


def test_sparse_rows_too_many_for_an_exact_solver() -> None:
    """Coordinate ascent has to solve these units, so their intercepts must not make them stiff."""
    X = sparse.random(4 * 600, 300, 0.1, random_state=0, format="csr")
    rng = np.random.default_rng(0)
    y, tasks = X @ rng.standard_normal(300) + rng.standard_normal(2400), np.repeat(np.arange(4), 600)
    model = MTRLRegressor(max_rounds=100).fit(X, y, tasks=tasks)
    assert model.certificate_.relative_gap <= model.tol


@pytest.mark.parametrize("loss", ["hinge", "squared"])
def test_tasks_in_shards_agree_on_their_intercepts(loss: str) -> None:
    X, y, tasks = _problem(5, 40, 8)
    model = MTRLRegressor("squared") if loss == "squared" else MTRLClassifier("hinge")
    model.set_params(engine=LocalOptions(workers=4, shards=2), max_rounds=200).fit(
        X, y if loss == "squared" else y > 0, tasks=tasks
    )
    assert model.certificate_.relative_gap <= model.tol


def test_an_engine_serves_runs_with_and_without_an_intercept() -> None:
    from dmtrl.engines.local import LocalEngine
    from dmtrl.losses import get_loss

    X, y, tasks = _problem(4, 30, 5)
    data = TaskData.from_long(X, y, tasks)
    with LocalEngine(data.sources(1), get_loss("squared"), 1) as engine:
        first = solve(Problem.of(data, loss="squared", reg_lambda=0.1, intercept_ridge=1e-6), Execution(engine))
        plain = solve(Problem.of(data, loss="squared", reg_lambda=0.1), Execution(engine))
        again = solve(Problem.of(data, loss="squared", reg_lambda=0.1, intercept_ridge=1e-6), Execution(engine))
    assert plain.W.shape == (4, 5)
    np.testing.assert_array_equal(again.W, first.W)


def test_constant_features_leave_a_grid_to_choose_from() -> None:
    _, y, tasks = _problem(4, 30, 3)
    assert MTRLRegressorCV(cv=2).fit(np.ones((120, 3)), y, tasks=tasks).reg_lambda_ > 0


def test_a_shared_intercept_is_one_number() -> None:
    shared = FreeIntercept(Learned(), 1.0, shared=True)
    W, common = np.zeros((3, 3)), np.zeros(3)
    W[:, -1] = 2.0
    assert shared.penalty(W, common) == pytest.approx(0.5 * 3 * 4)
    W[0, -1] = 1.0
    assert shared.penalty(W, common) == np.inf


def test_a_race_without_finite_errors_drops_nobody() -> None:
    weight = np.ones((3, 4))
    assert contenders(np.full((3, 4), np.inf), weight).all()
    total = np.vstack([np.full(4, np.nan), np.arange(4.0), np.arange(4.0) + 10.0])
    assert contenders(total, weight).tolist() == [False, True, False]
