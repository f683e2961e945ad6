"""Paths of a cross-validation that run at the same time: the same bits, checkpoints of all of them, clean ends."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl import Checkpoint, Execution, MTRLClassifierCV, Problem, Settings, TaskData, get_loss
from dmtrl.engines import LocalEngine
from dmtrl.solver import search as searching
from dmtrl.solver.checkpoint.session import CheckpointSession, open_session
from dmtrl.solver.cv_results import CvResults
from dmtrl.solver.grid import Criterion, Grid
from dmtrl.solver.path_threads import Turns
from support.checkpoints import CVCallback, Stopped, table
from support.problems import random_problem

LAMBDAS, COMMONS = (1.0, 0.1, 0.01), (0.0, 0.5)


class OneAtATime(LocalEngine):
    """An engine that cannot share its rows, as those over a network."""

    paths = 1

    def sibling(self, number: int, threads: int = 1) -> None:  # type: ignore[override]
        return None


def search(
    data: TaskData,
    loss: str,
    threads: int = 1,
    workers: int = 1,
    kind: type[LocalEngine] = LocalEngine,
    session: CheckpointSession | None = None,
    race: bool = False,
    **callbacks: Any,
) -> CvResults:
    problem, grid = Problem.of(data, loss=loss, reg_lambda=1.0), Grid(LAMBDAS, COMMONS, criterion=Criterion(race=race))
    with kind(data.sources(workers), get_loss(loss), threads) as engine:
        how = Execution(engine, Settings(tol=1e-3), session, callbacks=[CVCallback(**callbacks)])
        return searching.search(problem, grid, how).results


def same(one: CvResults, other: CvResults) -> None:
    for name, values in vars(one).items():
        assert values.tobytes() == getattr(other, name).tobytes(), name


@pytest.mark.parametrize("loss", ["squared", "hinge", "logistic"])
@pytest.mark.parametrize("race", [False, True])
def test_bits_do_not_depend_on_threads_workers_or_engine(loss: str, race: bool) -> None:
    data = random_problem(loss, m=5, d=4, rows=15)
    whole = search(data, loss, race=race)
    same(search(data, loss, threads=2, race=race), whole)
    same(search(data, loss, threads=4, workers=2, race=race), whole)
    same(search(data, loss, threads=11, workers=3, race=race), whole)
    same(search(data, loss, workers=2, kind=OneAtATime, race=race), whole)


def test_siblings_share_rows_and_nothing_that_changes() -> None:
    data = random_problem("hinge", m=3, rows=10)
    with LocalEngine(data.sources(1), get_loss("hinge")) as engine:
        first, second = (engine.sibling(number)._workers[0] for number in (0, 1))
        own = engine._workers[0]
        assert first._blocks.X is second._blocks.X is own._blocks.X
        assert first._rows is second._rows is own._rows
        assert not np.shares_memory(first._held, second._held)
        assert not np.shares_memory(first._held, own._held)
        assert len({worker._file_name() for worker in (first, second, own)}) == 3


def stop_at(count: int, error: type[BaseException]) -> Callable[..., None]:
    """Raises at its call of this number."""
    seen = 0

    def stop(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            raise error

    return stop


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("where", ["on_round", "on_fit"])
@pytest.mark.parametrize("count", [1, 14])
def test_an_interrupt_saves_all_paths(tmp_path: Path, threads: int, where: str, count: int) -> None:
    """The checkpoint is written only because of the interrupt; every path continues where it was."""
    data = random_problem("hinge", m=4, rows=12)
    whole, rounds = search(data, "hinge"), []
    seldom = Checkpoint(tmp_path, every_rounds=10**6)
    stop = {where: stop_at(count, KeyboardInterrupt)}
    with pytest.raises(KeyboardInterrupt):
        search(data, "hinge", threads, session=open_session(seldom, None), **stop)
    again = open_session(seldom, tmp_path)
    assert len(again.fits.scores) >= (count if where == "on_fit" else 0)
    same(search(data, "hinge", 2, session=again, on_round=rounds.append), whole)
    if where == "on_round":
        assert len(rounds) <= whole.rounds.sum() - count, "rounds that were saved are not repeated"


@pytest.mark.parametrize(("every", "count"), [(1, 2), (3, 25)])
def test_checkpoints_of_several_paths(tmp_path: Path, every: int, count: int) -> None:
    """A failure writes nothing: the run resumes from the last version that was due."""
    data = random_problem("logistic", m=4, rows=12)
    whole, place = search(data, "logistic", race=True), Checkpoint(tmp_path, every_rounds=every)
    session = open_session(place, None)
    with pytest.raises(Stopped):
        search(data, "logistic", 3, session=session, race=True, on_round=stop_at(count, Stopped))
    again = search(data, "logistic", 2, session=open_session(place, True), race=True)
    same(again, whole)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_resumed_search_loses_no_path(tmp_path: Path, threads: int) -> None:
    """Paths that wait for their turn, or for a second interrupt, are not lost."""
    data = random_problem("hinge", m=4, rows=12)
    whole, often = search(data, "hinge"), Checkpoint(tmp_path, every_rounds=1)
    with pytest.raises(KeyboardInterrupt):
        search(data, "hinge", 3, session=open_session(often, None), on_round=stop_at(14, KeyboardInterrupt))
    for count in (1, 3) if threads == 3 else ():
        session, stop = open_session(often, tmp_path), stop_at(count, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            search(data, "hinge", threads, session=session, on_round=stop)
    same(search(data, "hinge", threads, session=open_session(often, tmp_path)), whole)


def test_an_error_of_one_path_ends_all() -> None:
    data = random_problem("hinge", m=4, rows=12)
    before = threading.active_count()
    with pytest.raises(Stopped):
        search(data, "hinge", 3, on_round=stop_at(5, Stopped))
    assert threading.active_count() == before


def test_callbacks_are_called_one_at_a_time_and_count_every_fit() -> None:
    inside, seen = threading.Lock(), []

    def on_fit(done: int, total: int) -> None:
        assert inside.acquire(blocking=False)
        seen.append((done, total))
        inside.release()

    def on_round(record: Any) -> None:
        assert inside.acquire(blocking=False)
        inside.release()

    data = random_problem("squared", m=4)
    search(data, "squared", 4, on_fit=on_fit, on_round=on_round)
    assert seen == [(k, 30) for k in range(1, 31)]


def test_estimators_choose_the_same_with_any_number_of_jobs(tmp_path: Path) -> None:
    X, y, tasks = table(2)
    how: dict[str, Any] = {"lambdas": (1.0, 0.1, 0.01), "commons": (0.0, 1.0), "cv": 4}
    models = [MTRLClassifierCV(**how, n_jobs=jobs).fit(X, y, tasks=tasks) for jobs in (1, 2, 4)]
    # a checkpoint of a search with two jobs continues with one
    stopping = MTRLClassifierCV(**how, n_jobs=2, callbacks=[CVCallback(on_fit=stop_at(5, Stopped))])
    with pytest.raises(Stopped):
        stopping.fit(X, y, tasks=tasks, checkpoint=Checkpoint(tmp_path, every_rounds=2))
    models.append(MTRLClassifierCV(**how, n_jobs=1).fit(X, y, tasks=tasks, resume=tmp_path))
    for model in models[1:]:
        assert model.coef_.tobytes() == models[0].coef_.tobytes()
        same(model.cv_results_, models[0].cv_results_)


def test_turns_are_limited_and_granted_in_order() -> None:
    turns, order = Turns(1), []
    turns.take()
    threads = []
    for name in range(4):

        def work(name: int = name) -> None:
            with turns:
                order.append(name)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        while len(turns._queue) < name + 1:  # asked for its turn
            pass
    assert order == []
    with turns.given_away():
        for thread in threads:
            thread.join()
    assert order == [0, 1, 2, 3]
