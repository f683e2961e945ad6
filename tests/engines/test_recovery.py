"""Workers that are lost, cannot be reached or send damaged answers: the run must end with the same bits.

No cluster is needed: real workers in this process, behind a carrier that loses them on purpose.
"""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dmtrl import (
    Checkpoint,
    Execution,
    LocalOptions,
    Problem,
    Settings,
    TaskCovariance,
    TaskData,
    TasksLeftOutWarning,
    solve,
)
from dmtrl.engines import LocalEngine, recovery
from dmtrl.engines.base import Engine
from dmtrl.engines.recovery import Lost, RecoveringEngine
from dmtrl.exceptions import CheckpointWarning, WorkerLostError
from dmtrl.losses import get_loss
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Describe, Save
from dmtrl.relationship import Learned, covariance
from dmtrl.solver.checkpoint.versions import newest
from dmtrl.solver.outcome import Outcome, StartPoint
from support import fragile, solving
from support.engine_options import Losses, Pieces, StartedBy
from support.fragile import Fragile
from support.problems import random_problem
from support.solving import solve_data
from support.virtual_time import ManualClock

FAULTS = ("before", "after", "unreachable before", "unreachable after", "nan", "shape", "name")
STANDARD = Settings(tol=1e-5)
PRECISE = Settings(tol=1e-10)


def _run(engine: Engine, data: TaskData, options: Settings = STANDARD, **more: Any) -> Outcome:
    """The workers of the engine hold the losses; `loss` is not used."""
    return solve_data(data, loss="squared", reg_lambda=0.1, engine=engine, settings=options, **more)


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(recovery, "time", clock)
    monkeypatch.setattr(fragile, "time", clock)
    monkeypatch.setattr(recovery, "_RETRY_DELAY", 0.0)


@given(
    faults=st.dictionaries(st.integers(4, 60), st.sampled_from(FAULTS[:4]), max_size=25),
    loss=st.sampled_from(["squared", "hinge", "logistic"]),
    preset=st.sampled_from(["default", "paper"]),
)
@settings(max_examples=40)
def test_whatever_is_lost_the_bits_are_the_same(faults: dict[int, str], loss: str, preset: str) -> None:
    data = random_problem(loss, m=5, rows=8)
    options = STANDARD if preset == "default" else Settings.paper(T=5, P=3)
    with LocalEngine(data.sources(3), get_loss(loss)) as engine:
        undisturbed = _run(engine, data, options)
    with RecoveringEngine(carrier := Fragile(data, loss, 3, faults)) as engine:
        outcome = _run(engine, data, options)
    assert outcome.W.tobytes() == undisturbed.W.tobytes()
    assert outcome.dual.B.tobytes() == undisturbed.dual.B.tobytes()
    assert outcome.certificate == undisturbed.certificate
    assert [record.gap for record in outcome.history] == [record.gap for record in undisturbed.history]
    assert carrier.closed


@pytest.mark.parametrize("fault", ["before", "after", "nan"])
def test_workers_lost_in_an_asynchronous_run(fault: str) -> None:
    """A loss changes the order of answers, so bits differ; the certificates hold."""
    data = random_problem("hinge", m=6)
    best = solve(Problem.of(data, loss="hinge", reg_lambda=0.1), Execution(settings=Settings(tol=1e-7))).certificate
    with RecoveringEngine(Fragile(data, "hinge", 3, {11: fault, 25: fault})) as engine:
        engine.max_staleness = 4
        outcome = _run(engine, data, Settings(tol=1e-4))
        assert engine.losses == 2
    assert outcome.converged
    assert all(record.primal >= best.dual and record.dual <= best.primal for record in outcome.history)


@pytest.mark.parametrize("fault", FAULTS[4:])
def test_a_damaged_answer_is_requested_again_once(fault: str) -> None:
    data = random_problem("squared", m=4)
    plain = solve(
        Problem.of(data, loss="squared", reg_lambda=0.1), Execution(LocalOptions(workers=2), settings=STANDARD)
    )
    with RecoveringEngine(Fragile(data, "squared", 2, {8: fault, 20: fault})) as engine:
        assert _run(engine, data).W.tobytes() == plain.W.tobytes()
        assert engine.losses == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [("nan", "NaN or infinity in 'b'"), ("shape", r"shape \(7, 7\)"), ("name", "'nonsense' instead of 'improved'")],
)
def test_two_damaged_answers_end_the_run(fault: str, words: str) -> None:
    data = random_problem("squared", m=4)
    every = {number: fault for number in range(9, 99)}
    names = ["north", "south", "east", "west"]
    carrier = Fragile(data, "squared", 2, every | {10: "", 11: ""})
    with RecoveringEngine(carrier, names=names) as engine, pytest.raises(WorkerLostError, match=words) as caught:
        _run(engine, data)
    assert "worker 0 (tasks 'north', 'south')" in str(caught.value)
    assert (caught.value.worker, caught.value.tasks) == (0, [0, 1])


def test_a_worker_that_never_comes_back_ends_the_run() -> None:
    data = random_problem("squared", m=4)
    carrier = Fragile(data, "squared", 2, {8: "before"}, dead=[1])
    words = r"worker 1 \(tasks 2, 3\) could not be replaced within 0.01 sec"
    with RecoveringEngine(carrier, recovery_timeout=0.01) as engine, pytest.raises(WorkerLostError, match=words):
        _run(engine, data)


@pytest.mark.parametrize("name", ["X", "y", "sample_weight"])
def test_a_source_that_gives_other_rows_the_second_time_ends_the_run(name: str) -> None:
    data = random_problem("squared", m=4, weighted=True)
    carrier = Fragile(data, "squared", 2, {12: "before", 13: "after"})
    words = r"the source of worker \d \(tasks .*\) gave other rows than before"
    with RecoveringEngine(carrier) as engine:
        values = getattr(data, name).copy()
        values.flat[0] *= 1 + 1e-9
        values.flat[-1] *= 1 + 1e-9
        carrier.sources = replace(data, **{name: values}).sources(2)
        with pytest.raises(ValueError, match=words):
            _run(engine, data)


def test_a_timeout_while_a_worker_is_being_replaced() -> None:
    data = random_problem("squared", m=2)
    with RecoveringEngine(Fragile(data, "squared", 2, {4: "before"}, dead=[1])) as engine:
        engine.send(0, encode(Describe()))
        engine.send(1, encode(Describe()))
        assert engine.receive()[0] == 0
        with pytest.raises(TimeoutError, match="no worker answered in time"):
            engine.receive(timeout=0.01)


def test_a_worker_that_dies_again_and_again_ends_the_run() -> None:
    data = random_problem("squared", m=2)
    carrier = Fragile(data, "squared", 1, {number: "before" for number in range(5, 99)})
    with RecoveringEngine(carrier) as engine, pytest.raises(WorkerLostError, match="lost 11 times in a row"):
        _run(engine, data)


def test_an_error_that_a_worker_raises_is_not_a_loss() -> None:
    data = random_problem("squared", m=2)
    with RecoveringEngine(Fragile(data, "squared", 1, {})) as engine:
        engine.send(0, Message("dance"))
        with pytest.raises(ValueError, match="unknown message 'dance'"):
            engine.receive()
        assert engine.losses == 0


def test_a_repeated_number_is_not_worked_on_twice() -> None:
    data = random_problem("squared", m=2)
    calm, shaken = Fragile(data, "squared", 1, {}), Fragile(data, "squared", 1, {5: "unreachable after"})
    for carrier in (calm, shaken):
        with RecoveringEngine(carrier) as engine:
            _run(engine, data)
    assert shaken.worked == calm.worked
    assert shaken.posts == calm.posts + 1


def test_a_worker_lost_after_a_save_is_restored_from_it(tmp_path: Path) -> None:
    data = random_problem("logistic", m=4)
    plain = solve(
        Problem.of(data, loss="logistic", reg_lambda=0.1), Execution(LocalOptions(workers=2), settings=STANDARD)
    )
    carrier = Fragile(data, "logistic", 2, {14: "before", 15: "after"})
    with RecoveringEngine(carrier) as engine:

        def save(record: object) -> None:
            if carrier.posts in (8, 10):
                answers = engine.broadcast(Save(to=str(tmp_path), last=str(tmp_path)))
                assert all(answer.error is None for answer in answers.values())

        outcome = _run(engine, data, callbacks=[save])
        assert outcome.W.tobytes() == plain.W.tobytes()
        assert engine.losses == 2
        assert carrier.replayed < 3  # a restore and at most a round, not all since the beginning


class SecondWorkerCannotSave(Fragile):
    """Worker 1 cannot write its first checkpoint file: a folder of that name is in the way."""

    saves = 0

    def _answer(self, k: int, number: int, messages: Sequence[Message]) -> Message:
        if messages[-1].name == "save" and k == 1:
            self.saves += 1
            if self.saves == 1:
                (Path(str(messages[-1].scalars["to"])) / "worker-2-0.npz").mkdir(parents=True)
        return super()._answer(k, number, messages)


def test_a_first_checkpoint_that_is_incomplete_restores_no_worker(tmp_path: Path) -> None:
    """Its folder is removed, so a worker that is lost then must be replayed from the beginning."""
    data = random_problem("hinge", m=4)
    plain = solve(Problem.of(data, loss="hinge", reg_lambda=0.1), Execution(LocalOptions(workers=2), settings=STANDARD))
    carrier = SecondWorkerCannotSave(data, "hinge", 2, {15: "before"})
    with RecoveringEngine(carrier, recovery_timeout=0.2) as engine:
        with pytest.warns(CheckpointWarning, match="could not be written"):
            outcome = _run(engine, data, checkpoint=Checkpoint(tmp_path, every_rounds=3))
        assert engine.losses == 1
    assert outcome.W.tobytes() == plain.W.tobytes()


class KeepsTwoSaves(Fragile):
    """As a site does, each worker removes its own files but those of a save and of the complete one before it. Then it
    is lost, once at every save, and its answer with it."""

    losing = False

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.lost: set[tuple[int, str]] = set()

    def _answer(self, k: int, number: int, messages: Sequence[Message]) -> Message:
        answer, request = super()._answer(k, number, messages), decode(messages[-1])
        if isinstance(request, Save):
            for file in Path(request.to).parent.glob(f"version-*/{answer.scalars['file']}"):
                if str(file.parent) not in (request.to, request.last):
                    file.unlink()
            if (k, request.to) not in self.lost:
                self.lost.add((k, request.to))
                self.losing = True
        return answer

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        worker, answer = super().fetch(timeout)
        if self.losing:
            self.losing = False
            raise Lost(worker, "after a save")
        return worker, answer


def test_a_worker_lost_at_a_save_needs_none_that_it_has_removed(tmp_path: Path) -> None:
    data = random_problem("hinge", m=4)
    plain = solve(Problem.of(data, loss="hinge", reg_lambda=0.1), Execution(LocalOptions(workers=2), settings=STANDARD))
    carrier = KeepsTwoSaves(data, "hinge", 2, {})
    with RecoveringEngine(carrier) as engine:
        outcome = _run(engine, data, checkpoint=Checkpoint(tmp_path, every_rounds=2))
        assert engine.losses == len(carrier.lost) >= 6
    assert outcome.W.tobytes() == plain.W.tobytes()


class Wreck:
    """An engine whose worker `dead` is lost for good in the first round, once for each of `data`."""

    def __init__(self, *data: TaskData, workers: int = 3, dead: int = 2):
        self._data, self._workers, self._dead = list(data), workers, dead

    def begin(self, pieces: Pieces, losses: Losses, names: Sequence[str] | None) -> Engine:
        if not self._data:
            return LocalEngine(pieces(2), losses)
        moment = 3 * self._workers + self._dead + 1  # after introducing, describing and preparing all
        carrier = Fragile(self._data.pop(0), "squared", self._workers, {moment: "before"}, dead=[self._dead])
        return RecoveringEngine(carrier, 0.01, names)


SIGMA = np.eye(6) / 6 + 0.1 * np.outer(np.arange(6), np.arange(6))
GRAPH = sparse.coo_matrix(np.diag(np.arange(1.0, 6.0), 1) + np.diag(np.arange(1.0, 6.0), -1))


@pytest.mark.parametrize(
    ("words", "remaining"),
    [
        ({}, {}),
        ({"relationship": SIGMA}, {"relationship": SIGMA[:4, :4]}),
        ({"relationship": SIGMA.tolist()}, {"relationship": SIGMA[:4, :4]}),
        ({"relationship": pd.DataFrame(SIGMA, list("abcdef"), list("abcdef"))}, {"relationship": SIGMA[:4, :4]}),
        ({"relationship": TaskCovariance.from_dense(SIGMA)}, {"relationship": SIGMA[:4, :4]}),
        ({"relationship": covariance(SIGMA, 0.5)}, {"relationship": SIGMA[:4, :4], "common": 4 * 0.5}),
        ({"relationship": GRAPH}, {"relationship": GRAPH.tocsr()[:4, :4]}),
        ({"relationship": Learned(0.5)}, {"common": 4 * 0.5}),
        ({"shards": np.int64(2)}, {"shards": 2}),
        ({"shards": np.array([1, 2, 1, 2, 1, 2])}, {"shards": [1, 2, 1, 2]}),
        ({"settings": replace(PRECISE, steps=(5, 6, 7, 8, 9, 10))}, {"settings": replace(PRECISE, steps=(5, 6, 7, 8))}),
        ({"loss": ["squared", "huber"] * 3}, {"loss": ["squared", "huber"] * 2}),
        ({"start": StartPoint(np.ones((6, 5)), np.zeros(5))}, {}),
    ],
)
def test_a_run_continues_without_the_tasks_of_a_lost_worker(words: dict[str, Any], remaining: dict[str, Any]) -> None:
    data = random_problem("squared", m=6, weighted=True)
    common: dict[str, Any] = {"loss": "squared", "reg_lambda": 0.1, "settings": PRECISE}
    with pytest.warns(TasksLeftOutWarning, match="starts again without task '4', '5'") as caught:
        rest = solve_data(data, engine=StartedBy(Wreck(data).begin, on_lost="go_on"), **common | words)
    assert [warning.message.tasks for warning in caught] == [[4, 5]]  # type: ignore[union-attr]
    assert caught[0].filename == solving.__file__  # the first line outside dmtrl
    alone = solve_data(data.only(np.arange(4)), workers=2, **common | remaining)
    np.testing.assert_allclose(rest.W, alone.W, rtol=1e-4, atol=1e-5)
    assert rest.tasks is not None
    assert rest.tasks.tolist() == [0, 1, 2, 3]
    assert alone.tasks is None


def test_tasks_keep_their_first_numbers_when_workers_are_lost_twice(tmp_path: Path) -> None:
    data = random_problem("squared", m=6)
    wreck = Wreck(data, data.only(np.arange(3, 6)), workers=2, dead=0)  # 0 to 2 first
    checkpoint = Checkpoint(tmp_path, every_rounds=1)
    with pytest.warns(TasksLeftOutWarning) as caught:
        rest = solve(
            Problem.of(data, loss="squared", reg_lambda=0.1),
            Execution(StartedBy(wreck.begin, on_lost="go_on"), checkpoint=checkpoint),
        )
    first, second = [warning.message.tasks for warning in caught]  # type: ignore[union-attr]
    assert rest.tasks is not None
    assert first + second + rest.tasks.tolist() == list(range(6))
    assert rest.tasks.tolist() == [int(name) for name in data.names[rest.tasks]]
    alone = solve(Problem.of(data.only(rest.tasks), loss="squared", reg_lambda=0.1), Execution(LocalOptions(workers=2)))
    assert rest.W.tobytes() == alone.W.tobytes()
    assert newest(str(tmp_path / "again-1" / "again-1")) is not None


def test_checkpoints_stay_when_a_run_starts_again(tmp_path: Path) -> None:
    data = random_problem("squared", m=6)
    how: dict[str, Any] = {"loss": "squared", "reg_lambda": 0.1, "workers": 3}
    solve_data(data, settings=Settings(tol=0.5), checkpoint=tmp_path, **how)
    old = newest(str(tmp_path))
    with pytest.warns(TasksLeftOutWarning, match="starts again without task"):
        solve_data(data, engine=StartedBy(Wreck(data).begin, on_lost="go_on"), checkpoint=tmp_path, resume=True, **how)
    assert newest(str(tmp_path)) == old
    rest = newest(str(tmp_path / "again-1"))
    assert rest is not None
    solve_data(data.only(np.arange(4)), resume=rest, **how | {"workers": 2})


class Indivisible(Learned):
    only = property()  # type: ignore[assignment]


def test_on_lost_is_checked_before_the_run() -> None:
    data = random_problem("squared", m=6)
    common: dict[str, Any] = {"loss": "squared", "reg_lambda": 0.1}
    with pytest.raises(WorkerLostError, match=r"worker 2 \(tasks '4', '5'\)"):
        solve_data(data, engine=StartedBy(Wreck(data).begin), **common)
    with pytest.raises(ValueError, match="but Indivisible cannot be restricted to some tasks"):
        solve_data(data, engine=StartedBy(Wreck().begin, on_lost="go_on"), relationship=Indivisible(), **common)
    with pytest.raises(ValueError, match="the task covariance of these tasks is zero"):
        TaskCovariance.from_dense(np.diag([1.0, 0.0, 0.0])).only(np.array([1, 2]))


@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_a_covariance_of_some_tasks(floor: float) -> None:
    F = np.random.default_rng(0).normal(size=(8, 3))
    F[5] = 0.0
    sigma, some = F @ F.T + floor * np.eye(8), np.array([6, 1, 5, 2])
    block = sigma[np.ix_(some, some)]
    cut = TaskCovariance.from_dense(sigma).only(some)
    np.testing.assert_allclose(cut.dense(), block / np.trace(block), atol=1e-12)
    np.testing.assert_allclose(cut.basis.T @ cut.basis, np.eye(cut.basis.shape[1]), atol=1e-12)


def test_a_lost_worker_can_be_pickled() -> None:
    error = WorkerLostError("worker 1 is gone", 1, [3, 4], alive=2)
    error.checkpoint = "there"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.worker, again.tasks, again.alive) == (str(error), 1, [3, 4], 2)
    assert "resume='there'" in str(again)
