"""What the folds have fitted at the choice of a search is kept: no fold is fitted twice, and one engine serves all."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl import Checkpoint, Execution, LocalOptions, MTRLRegressorCV, Problem, Settings, TaskData, solve
from dmtrl.data.folds import TRAIN, draw_splits
from dmtrl.solver import search as searching
from dmtrl.solver.grid import Criterion, Grid
from support.checkpoints import CVCallback, table
from support.problems import random_problem

SEARCH: dict[str, Any] = {"lambdas": (1.0, 0.1, 0.01), "commons": (0.0, 1.0), "owns": (0.0,), "cv": 3}
GRID = Grid((1.0, 0.1), (0.0, 1.0), folds=3, criterion=Criterion("squared_error"))


class Stopped(Exception):
    """Ends a search."""


def with_splits(m: int = 4) -> TaskData:
    data = random_problem("squared", m=m, rows=20)
    tasks = np.repeat(np.arange(m), np.diff(data.starts))
    return TaskData(data.X, data.y, None, data.starts, data.names, draw_splits(tasks, None, 3, 0))


def training_rows(data: TaskData, fold: int) -> TaskData:
    assert data.splits is not None
    train = data.splits[fold] == TRAIN
    return TaskData.from_long(data.X[train], data.y[train], np.repeat(np.arange(data.m), np.diff(data.starts))[train])


@pytest.mark.parametrize("limit", [searching.KEPT_BYTES, 0])
def test_they_are_the_fits_of_the_choice(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if there is no room for them, and the folds are fitted again."""
    monkeypatch.setattr(searching, "KEPT_BYTES", limit)
    data, settings = with_splits(), Settings(tol=1e-8, max_rounds=5000)
    found = searching.search(Problem.of(data, loss="squared", reg_lambda=1.0), GRID, Execution(settings=settings))
    assert len(found.points) == 3
    for fold, point in enumerate(found.points):
        problem = Problem.of(training_rows(data, fold), loss="squared", **vars(found.choice))
        np.testing.assert_allclose(point.W, solve(problem, Execution(settings=settings)).W, atol=1e-4)


def test_fits_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    data, runs, solve_on = with_splits(), list[str](), searching.solve_on

    def counted(*about: Any, **more: Any) -> Any:
        runs.append(more.get("name", "again"))
        return solve_on(*about, **more)

    monkeypatch.setattr(searching, "solve_on", counted)
    problem = Problem.of(data, loss="squared", reg_lambda=1.0)
    searching.search(problem, GRID)
    assert len(runs) == len(set(runs)) == 12
    monkeypatch.setattr(searching, "KEPT_BYTES", 0)
    searching.search(problem, GRID)
    assert runs[12:].count("again") == 3


def test_points_that_nobody_wants_are_not_kept() -> None:
    session = Execution().opened()
    grid = Grid((1.0, 0.1), folds=3, keep_points=False)
    found = searching.search(Problem.of(with_splits(), loss="squared", reg_lambda=1.0), grid, session)
    assert found.points == []
    assert session.session.fits.points == {}


def test_a_search_and_its_fit_start_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    started, start = [], LocalOptions.start

    def counted(options: LocalOptions, *about: Any) -> Any:
        started.append(options)
        return start(options, *about)

    monkeypatch.setattr(LocalOptions, "start", counted)
    X, y, tasks = table()
    MTRLRegressorCV(**SEARCH).fit(X, y, tasks=tasks)
    assert len(started) == 1


@pytest.mark.parametrize("stop", [2, 7, 14])
def test_a_resumed_search_has_the_same_ones(stop: int, tmp_path: Path) -> None:
    """Metrics and fold models of a search that was stopped have the bits of one that was not."""
    X, y, tasks = table()
    whole = MTRLRegressorCV(**SEARCH, exhaustive=True).fit(X, y, tasks=tasks)

    def end(done: int, total: int) -> None:
        if done == stop:
            raise Stopped

    stopping = MTRLRegressorCV(**SEARCH, exhaustive=True, callbacks=[CVCallback(on_fit=end)])
    with pytest.raises(Stopped):
        stopping.fit(X, y, tasks=tasks, checkpoint=Checkpoint(tmp_path, every_rounds=1))
    rest = MTRLRegressorCV(**SEARCH, exhaustive=True).fit(X, y, tasks=tasks, resume=tmp_path)
    assert rest.coef_.tobytes() == whole.coef_.tobytes()
    assert rest.metrics_.overall == whole.metrics_.overall
    for field in fields(whole.fold_models_):
        one, other = (getattr(model.fold_models_, field.name) for model in (rest, whole))
        assert one.tobytes() == other.tobytes(), field.name
