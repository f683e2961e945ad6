"""Timeouts and retries: workers that do not answer, cannot be reached, or cannot read their rows for a while.

No cluster is needed: the workers are in this process, as in test_recovery.py. Time is simulated.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dmtrl import Execution, LocalOptions, Problem, Settings, TaskData, TasksLeftOutWarning, solve
from dmtrl.data.blocks import Blocks, Source
from dmtrl.engines import recovery
from dmtrl.engines.base import Engine
from dmtrl.engines.recovery import RecoveringEngine
from dmtrl.exceptions import WorkerLostError
from dmtrl.protocol.codec import encode
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Describe, Restore, Save
from dmtrl.solver.outcome import Outcome
from dmtrl.worker.worker import Worker
from support import fragile
from support.engine_options import Losses, Pieces, StartedBy
from support.fragile import Fragile
from support.problems import random_problem
from support.solving import solve_data
from support.virtual_time import ManualClock

STANDARD = Settings(tol=1e-5)
DATA = random_problem("squared", m=4)
TIMEOUT = 0.05
DESCRIBE = encode(Describe())


clock = ManualClock()


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", 0.0)
    monkeypatch.setattr(recovery, "time", clock)
    monkeypatch.setattr(fragile, "time", clock)
    monkeypatch.setattr(recovery, "_RETRY_DELAY", 0.0)


def run(engine: Engine, data: TaskData = DATA, **more: Any) -> Outcome:
    return solve_data(data, loss="squared", reg_lambda=0.1, engine=engine, settings=STANDARD, **more)


@pytest.fixture(scope="module")
def undisturbed() -> Outcome:
    return solve(
        Problem.of(DATA, loss="squared", reg_lambda=0.1), Execution(LocalOptions(workers=2), settings=STANDARD)
    )


@pytest.mark.parametrize(
    "faults",
    [
        {1: "silent"},  # as it reads its rows for the first time
        {5: "silent", 6: "silent"},  # as it is prepared
        {12: "silent"},
        {12: "before", 13: "silent"},
        {12: "before", 14: "silent", 15: "silent"},
        {12: "silent", 14: "unreachable after"},
    ],
)
def test_a_worker_that_does_not_answer_in_time_is_replaced(faults: dict[int, str], undisturbed: Outcome) -> None:
    with RecoveringEngine(Fragile(DATA, "squared", 2, faults), answer_timeout=TIMEOUT) as engine:
        assert run(engine).W.tobytes() == undisturbed.W.tobytes()
        assert engine.losses == sum("unreachable" not in fault for fault in faults.values())


def test_a_worker_that_never_answers_ends_the_run() -> None:
    faults = dict.fromkeys(range(12, 99), "silent")
    engine = RecoveringEngine(Fragile(DATA, "squared", 2, faults), answer_timeout=0.01)
    words = r"worker . \(tasks .*\) was lost 11 times in a row: it did not answer for 0.01 seconds"
    with engine, pytest.raises(WorkerLostError, match=words):
        run(engine)


def test_without_answer_timeout_an_answer_may_take_any_time() -> None:
    with RecoveringEngine(Fragile(DATA, "squared", 2, {3: "silent"})) as engine:
        engine.send(0, DESCRIBE)
        with pytest.raises(TimeoutError):
            engine.receive(timeout=2 * TIMEOUT)
        assert engine.losses == 0


class Slow(Fragile):
    """Takes `pace` seconds for each message, also while the engine does not fetch."""

    pace = 0.0

    def post(self, k: int, number: int, messages: Sequence[Message]) -> None:
        super().post(k, number, messages)
        self._when = clock.monotonic() + self.pace * len(messages)

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        left = max(self._when - clock.monotonic(), 0.0)
        if timeout is not None and timeout < left:
            clock.sleep(timeout)
            raise TimeoutError
        clock.sleep(left)
        return super().fetch(timeout)


def test_the_timeout_of_a_replay_grows_with_its_messages() -> None:
    """The limit is for one answer; a batch of the replay has many."""
    data = random_problem("squared", m=2)
    plain = solve(
        Problem.of(data, loss="squared", reg_lambda=0.1), Execution(LocalOptions(workers=1), settings=STANDARD)
    )
    carrier = Slow(data, "squared", 1, {8: "before"})
    carrier.pace = TIMEOUT / 2
    with RecoveringEngine(carrier, answer_timeout=TIMEOUT) as engine:
        assert run(engine, data).W.tobytes() == plain.W.tobytes()
        assert carrier.replayed > 2
        assert engine.losses == 1


def test_an_answer_that_has_arrived_is_never_too_late() -> None:
    """Even if the coordinator itself was busy for longer than the timeout."""
    with RecoveringEngine(Fragile(DATA, "squared", 2, {}), answer_timeout=TIMEOUT) as engine:
        engine.send(0, DESCRIBE)
        engine.send(1, DESCRIBE)
        clock.sleep(2 * TIMEOUT)
        assert {engine.receive()[0], engine.receive()[0]} == {0, 1}
        assert engine.losses == 0


def test_a_worker_that_cannot_be_reached_does_not_delay_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    delay = 0.5
    monkeypatch.setattr(recovery, "_RETRY_DELAY", delay)
    with RecoveringEngine(Fragile(DATA, "squared", 2, {3: "unreachable before"})) as engine:
        engine.send(0, DESCRIBE)
        with pytest.raises(TimeoutError):
            engine.receive(timeout=0)
        engine.send(1, DESCRIBE)
        assert engine.receive()[0] == 1
        assert clock.now == 0.0
        assert engine.receive()[0] == 0
        assert clock.now == delay
        assert engine.losses == 0


class Reading(Fragile):
    """Reads its rows when an actor does: at its first message."""

    starts = 0

    def renew(self, k: int) -> None:
        self._workers[k], self._last[k] = None, (0, Message("nothing"))
        self.starts += 1

    def _answer(self, k: int, number: int, messages: Sequence[Message]) -> Message:
        if self._workers[k] is None:
            self._workers[k] = Worker(self.sources[k], self._loss)
        return super()._answer(k, number, messages)


class Unreliable:
    """Rows that cannot always be read: `errors` has an error or None for each attempt."""

    def __init__(self, source: Source, errors: Sequence[Exception | None]):
        self._source, self._errors = source, iter(errors)

    def load(self) -> Blocks:
        error = next(self._errors, None)
        if error is not None:
            raise error
        return self._source.load()


def reading(errors: Sequence[Exception | None], faults: dict[int, str]) -> Reading:
    """The source of the second of two workers is unreliable."""
    first, second = DATA.sources(2)
    return Reading([first, Unreliable(second, errors)], "squared", 2, faults)


GONE = FileNotFoundError("no such file here: rows.csv")


def test_a_replacement_that_cannot_read_its_rows_is_tried_again(
    undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_RETRY_DELAY", 0.05)
    carrier = reading([None, GONE, ConnectionError("slow down"), TimeoutError("the store")], {12: "before"})
    with RecoveringEngine(carrier) as engine:
        assert run(engine).W.tobytes() == undisturbed.W.tobytes()
        assert engine.losses == 4
    assert carrier.starts == 2 + 4
    assert clock.now >= 0.05 + 0.1 + 0.2, "the delay grows"


@pytest.mark.parametrize(
    ("delay", "words"),
    [(0.05, "no replacement could read its data within 0.3 s"), (0.0, "was lost 11 times in a row")],
)
def test_a_replacement_that_can_never_read_its_rows_ends_the_run(
    delay: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_RETRY_DELAY", delay)
    carrier = reading([None, *[GONE] * 99], {12: "before"})
    names = ["north", "south", "east", "west"]
    with RecoveringEngine(carrier, 0.3, names) as engine, pytest.raises(WorkerLostError, match=words) as caught:
        run(engine)
    assert "worker 1 (tasks 'east', 'west')" in str(caught.value)
    assert "no such file here: rows.csv" in str(caught.value)
    assert (caught.value.tasks, caught.value.alive) == ([2, 3], 1)
    assert carrier.starts <= 13, "too many attempts"


def test_a_wrong_path_is_reported_at_once() -> None:
    carrier = reading([GONE], {})
    with pytest.raises(FileNotFoundError, match=r"no such file here: rows.csv"):
        RecoveringEngine(carrier)
    assert carrier.starts == 2
    assert carrier.closed


def test_rows_that_have_become_invalid_are_not_tried_again() -> None:
    carrier = reading([None, ValueError("row 3 has no label")], {12: "before"})
    with RecoveringEngine(carrier) as engine, pytest.raises(ValueError, match="row 3 has no label"):
        run(engine)
    assert carrier.starts == 3


def test_a_checkpoint_that_cannot_be_read_for_a_while(tmp_path: Path, undisturbed: Outcome) -> None:
    """As if the file system were mounted late on the machine of the replacement."""
    here, away = tmp_path / "checkpoint", tmp_path / "away"

    class Mounting(Reading):
        def renew(self, k: int) -> None:
            super().renew(k)
            if self.starts == 3:
                here.rename(away)
            elif self.starts == 5:
                away.rename(here)

    carrier = Mounting(DATA, "squared", 2, {14: "before"})
    with RecoveringEngine(carrier) as engine:

        def save(record: object) -> None:
            if carrier.posts == 10:
                engine.broadcast(Save(to=str(here), last=str(here)))

        outcome = run(engine, callbacks=[save])
        assert outcome.W.tobytes() == undisturbed.W.tobytes()
        assert engine.losses == 3


def test_a_loss_at_the_start_does_not_cause_retries_of_a_wrong_path_later(tmp_path: Path) -> None:
    with RecoveringEngine(Reading(DATA, "squared", 2, {1: "before"})) as engine:
        with pytest.raises(FileNotFoundError, match="nowhere"):
            dict(engine.exchange({0: Restore(source=str(tmp_path / "nowhere"))}))
        assert engine.losses == 1


def test_a_worker_that_raised_is_no_longer_pending() -> None:
    with RecoveringEngine(Fragile(DATA, "squared", 2, {4: "silent"}), answer_timeout=TIMEOUT) as engine:
        engine.send(0, Message("dance"))
        with pytest.raises(ValueError, match="unknown message 'dance'"):
            engine.receive()
        assert engine.pending == set()
        clock.sleep(TIMEOUT)
        assert set(dict(engine.exchange({1: Describe()}))) == {1}
        assert engine.losses == 1, "of worker 1"


class Slots:
    """An engine whose cluster shrinks: `room` is the number of workers that fit, for each start. The workers
    `dead` of the first engine are lost for good in the first round."""

    def __init__(self, room: Sequence[int], dead: Sequence[int]):
        self._room, self._dead, self.started = iter(room), dead, list[int]()

    def begin(self, pieces: Pieces, losses: Losses, names: Sequence[str] | None) -> Engine:
        sources, room = pieces(3), next(self._room)
        n, dead = len(sources), self._dead if not self.started else ()
        self.started.append(n)
        faults = {3 * n + k + 1: "before" for k in dead}  # after introducing, describing and preparing all
        return RecoveringEngine(Fragile(sources, "squared", n, faults, dead, range(room, n)), 0.02, names)


@pytest.mark.parametrize("workers", [None, 3])
@pytest.mark.parametrize(
    ("room", "dead", "started", "left_out"),
    [
        ((3, 2), [1], [3, 2], [2, 3]),
        ((3, 1), [1, 2], [3, 1], [2, 3]),  # the tasks of worker 2 move to the worker that is left
        ((3, 1, 1), [1], [3, 2, 1], [2, 3]),  # one more fails to start, which loses no tasks
    ],
)
def test_a_run_continues_where_there_is_less_room(
    room: Sequence[int], dead: Sequence[int], started: list[int], left_out: list[int], workers: int | None
) -> None:
    data, slots = random_problem("squared", m=6), Slots(room, dead)
    with pytest.warns(TasksLeftOutWarning, match=rf"without task '2', '3', with workers={started[1]}") as caught:
        rest = solve(
            Problem.of(data, loss="squared", reg_lambda=0.1),
            Execution(StartedBy(slots.begin, workers, on_lost="go_on")),
        )
    assert [warning.message.tasks for warning in caught] == [left_out]  # type: ignore[union-attr]
    assert slots.started == started
    assert rest.tasks is not None
    assert rest.tasks.tolist() == [0, 1, 4, 5]
    alone = solve(
        Problem.of(data.only(rest.tasks), loss="squared", reg_lambda=0.1), Execution(LocalOptions(workers=started[-1]))
    )
    assert rest.W.tobytes() == alone.W.tobytes()


@pytest.mark.parametrize(
    ("room", "words"), [((2,), "worker 2 could not be started"), ((3, 0), "worker 0 could not be")]
)
@pytest.mark.filterwarnings("ignore::dmtrl.TasksLeftOutWarning")
def test_no_room_ends_the_run(room: Sequence[int], words: str) -> None:
    """Also if there was not enough room at the beginning: no worker was lost then."""
    slots = Slots(room, [1])
    with pytest.raises(WorkerLostError, match=words):
        solve(
            Problem.of(random_problem("squared", m=6), loss="squared", reg_lambda=0.1),
            Execution(StartedBy(slots.begin, on_lost="go_on")),
        )
    assert len(slots.started) == len(room)
