"""Cross-validation on the workers: the same held-out sums as fitting each fold by hand."""

from dataclasses import replace

import numpy as np
import pytest

from dmtrl import Execution, Problem, Settings, Strengths, TaskData, get_loss, solve
from dmtrl.engines import LocalEngine
from dmtrl.protocol.rounds import HoldOut
from dmtrl.solver.grid import Criterion, Grid
from dmtrl.solver.search import search
from support.checkpoints import CVCallback
from support.problems import random_problem


def _engine(data: TaskData, loss: str, workers: int = 1) -> LocalEngine:
    return LocalEngine(data.sources(workers), get_loss(loss))


def _problem(data: TaskData, loss: str) -> Problem:
    return Problem.of(data, loss=loss, reg_lambda=1.0)


def _held(engine: LocalEngine, fold: int, folds: int, seed: int = 0) -> np.ndarray:
    engine.broadcast(HoldOut(fold=fold, folds=folds, seed=seed))
    return np.concatenate([worker._held for worker in engine._workers])


def test_folds_cover_every_row_once_and_are_stratified() -> None:
    data = random_problem("hinge", m=3, rows=40)
    engine = _engine(data, "hinge")
    held = np.array([_held(engine, fold, 4) for fold in range(4)])
    assert (held.sum(axis=0) == 1).all()
    for i in range(3):
        rows = slice(data.starts[i], data.starts[i + 1])
        for label in (-1, 1):
            counts = held[:, rows][:, data.y[rows] == label].sum(axis=1)
            assert counts.max() - counts.min() <= 1
    assert not _held(engine, -1, 4).any()


@pytest.mark.parametrize("loss", ["squared", "hinge"])
def test_path_agrees_with_fitting_each_fold_by_hand(loss: str) -> None:
    data = random_problem(loss, m=3, d=4, rows=20, weighted=True)
    engine = _engine(data, loss, workers=2)
    settings = Settings(tol=1e-7, max_rounds=5000)
    grid = Grid([0.01, 0.3], [0.0, 0.5], [0.0, 2.0], folds=3)
    found = search(replace(_problem(data, loss), task_weight=0.5), grid, Execution(engine, settings))
    path = found.results
    assert len(path.commons) == len(path.owns) == 4
    tasks = np.repeat(np.arange(3), np.diff(data.starts))
    loss_object = get_loss(loss)
    for fold in range(3):
        held = _held(engine, fold, 3)
        train = TaskData.from_long(data.X[~held], data.y[~held], tasks[~held], data.sample_weight[~held])
        for i, (tau, own) in enumerate(zip(path.commons, path.owns, strict=True)):
            for j, lam in enumerate(path.lambdas):
                how = {"loss": loss, "reg_lambda": lam, "common": tau, "own": own, "task_weight": 0.5}
                W = solve(Problem.of(train, **how), Execution(settings=settings)).W
                z = (data.X[held] * W[tasks[held]]).sum(axis=1)
                y, weight = data.y[held], data.sample_weight[held]
                by_hand = np.bincount(tasks[held], weight * loss_object.value(z, y), minlength=3)
                assert np.allclose(path.loss[i, j, fold], by_hand, rtol=2e-3)
                assert np.allclose(
                    path.squared_error[i, j, fold], np.bincount(tasks[held], weight * (y - z) ** 2), rtol=5e-3
                )
                assert np.allclose(path.weight[i, j, fold], np.bincount(tasks[held], weight))
                if Strengths(lam, tau, own) == found.choice:
                    assert np.allclose(found.points[fold].W, W, atol=2e-3)
    assert path.lambdas[0] > path.lambdas[1]


def test_the_best_pair_is_the_one_with_the_least_mean() -> None:
    data = random_problem("squared", m=4, d=5, rows=25)
    grid = Grid(np.logspace(-3, 2, 6), [0.0, 1.0], folds=4, criterion=Criterion("squared_error"))
    found = search(_problem(data, "squared"), grid)
    mean = found.results.mean("squared_error")
    i, j = np.argwhere(mean == mean.min())[0]
    assert found.choice == Strengths(found.results.lambdas[j], found.results.commons[i])
    assert found.choice.reg_lambda < 100  # the strongest explains nothing


def test_a_single_row_always_trains() -> None:
    data = TaskData.from_long(np.eye(4), np.arange(4.0), [0, 0, 0, 1])
    path = search(_problem(data, "squared"), Grid([0.1], folds=3)).results
    assert path.weight.sum(axis=(0, 1, 2)).tolist() == [3.0, 0.0]
    assert np.isfinite(path.mean("squared_error", over="tasks")).all()


def test_progress_and_refusals() -> None:
    data = random_problem("squared")
    seen: list[tuple[int, int]] = []
    callback = CVCallback(on_fit=lambda *step: seen.append(step))
    search(_problem(data, "squared"), Grid([0.1, 1.0], folds=2), Execution(callbacks=[callback]))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    with pytest.raises(ValueError, match="at least two folds, got 1"):
        search(_problem(data, "squared"), Grid([0.1], folds=1))
    with pytest.raises(ValueError, match="at least one lambda"):
        Grid([], folds=2)
