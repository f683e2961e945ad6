"""The states of a worker: the table of the documentation, and transitions that other tests do not cross."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from dmtrl import Execution, LocalOptions, Problem, Settings, TaskData, solve
from dmtrl.engines import recovery
from dmtrl.engines.base import Engine
from dmtrl.engines.recovery import Lost, RecoveringEngine, Refused
from dmtrl.engines.states import TRANSITIONS, Action, Event, State
from dmtrl.exceptions import WorkerLostError
from dmtrl.protocol.codec import encode
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Describe
from dmtrl.solver.outcome import Outcome
from support import fragile
from support.fragile import Fragile
from support.problems import random_problem
from support.virtual_time import ManualClock

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
DATA = random_problem("squared", m=4)
DESCRIBE = encode(Describe())
TIMEOUT = 10.0
clock = ManualClock()


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", 0.0)
    monkeypatch.setattr(recovery, "time", clock)
    monkeypatch.setattr(fragile, "time", clock)


def run(engine: Engine, data: TaskData = DATA) -> Outcome:
    return solve(Problem.of(data, loss="squared", reg_lambda=0.1), Execution(engine, settings=Settings(tol=1e-5)))


@pytest.fixture(scope="module")
def undisturbed() -> Outcome:
    return solve(
        Problem.of(DATA, loss="squared", reg_lambda=0.1),
        Execution(LocalOptions(workers=2), settings=Settings(tol=1e-5)),
    )


def documented() -> dict[tuple[State, Event], tuple[State, Action]]:
    section = PAGE.read_text(encoding="utf-8").split("### States of a worker\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert lines[0] == "| state | event | next state | action |"
    table: dict[tuple[State, Event], tuple[State, Action]] = {}
    for line in lines[2:]:
        states, event, following, action = (cell.strip() for cell in line.strip("|").split("|"))
        for name in states.split(", "):
            key = State(name), Event(event)
            assert key not in table, f"{name} and {event} are in two lines"
            table[key] = State(name if following == "same" else following), Action(action)
    return table


def test_the_documented_table_is_that_of_the_code() -> None:
    assert documented() == TRANSITIONS


def test_every_state_event_and_action_occurs() -> None:
    assert {state for state, _ in TRANSITIONS} == {state for state, _ in TRANSITIONS.values()} == set(State)
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert {action for _, action in TRANSITIONS.values()} == set(Action)
    with RecoveringEngine(Fragile(DATA, "squared", 2, {})) as engine:
        assert engine._actions.keys() == set(Action)


@pytest.mark.parametrize("advice", ["", "call the other side"])
def test_only_the_carrier_gives_advice(advice: str) -> None:
    """The engine does not know what its workers run on."""
    carrier = Fragile(DATA, "squared", 2, {}, absent=[1])
    if advice:
        carrier.advice = advice  # type: ignore[attr-defined]
    with pytest.raises(WorkerLostError) as caught:
        RecoveringEngine(carrier, TIMEOUT)
    assert str(caught.value) == "worker 1 could not be started within 10 seconds" + (f"; {advice}" if advice else "")


def test_a_worker_that_was_given_up_is_started_by_the_next_request(undisturbed: Outcome) -> None:
    carrier = Fragile(DATA, "squared", 2, {3: "before"}, dead=[1])
    with RecoveringEngine(carrier, TIMEOUT) as engine:
        engine.send(1, DESCRIBE)
        with pytest.raises(WorkerLostError, match="could not be replaced") as caught:
            engine.receive()
        assert caught.value.alive == 1
        assert engine.pending == set()
        carrier._silent.clear()
        engine.send(0, DESCRIBE)
        assert engine.receive()[0] == 0, "the late response of worker 1 is ignored"
        carrier._dead = ()
        assert run(engine).W.tobytes() == undisturbed.W.tobytes()


class RefusesOnce(Fragile):
    """A replacement of worker 1 raises an error when it is sent messages again."""

    refusals = 1

    def _answer(self, k: int, number: int, messages: Sequence[Message]) -> Message:
        if k == 1 and len(messages) > 1 and self.refusals:
            self.refusals -= 1
            raise ValueError("not now")
        return super()._answer(k, number, messages)


def test_a_replacement_that_raises_while_it_catches_up_does_not_work_on() -> None:
    """The next request must find the state of the run, not that of a worker that has just started."""
    carrier = RefusesOnce(DATA, "squared", 2, {12: "before"})
    with RecoveringEngine(carrier, TIMEOUT) as engine:
        with pytest.raises(ValueError, match="not now"):
            run(engine)
        worked = carrier.worked
        while engine.pending:
            engine.receive()
        engine.send(1, DESCRIBE)
        engine.send(0, DESCRIBE)
        assert {engine.receive()[0], engine.receive()[0]} == {0, 1}
        assert carrier.worked > worked + 3, "described and replayed"


class LostWhileIdle(Fragile):
    """Reports once that worker 0 is gone while only worker 1 works."""

    reports = 0

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        if self.posts > 10 and not self.reports and [worker for worker, *_ in self._posted] == [1]:
            self.reports += 1
            raise Lost(0, "its machine is gone")
        return super().fetch(timeout)


def test_a_worker_that_is_lost_while_it_is_idle_catches_up_at_once() -> None:
    carrier = LostWhileIdle(DATA, "squared", 2, {})
    with RecoveringEngine(carrier, TIMEOUT) as engine:
        outcome = run(engine)
        assert carrier.reports == engine.losses == 1
    plain = solve(
        Problem.of(DATA, loss="squared", reg_lambda=0.1),
        Execution(LocalOptions(workers=2), settings=Settings(tol=1e-5)),
    )
    assert outcome.W.tobytes() == plain.W.tobytes()


class Late(Fragile):
    """Reports the same loss and error twice."""

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        if self.late:
            raise self.late.pop()
        return super().fetch(timeout)

    late: list[Exception]


def test_reports_about_a_worker_that_was_given_up_are_ignored() -> None:
    carrier = Late(DATA, "squared", 2, {3: "before"}, dead=[1])
    carrier.late = []
    with RecoveringEngine(carrier, TIMEOUT) as engine:
        engine.send(1, DESCRIBE)
        with pytest.raises(WorkerLostError):
            engine.receive()
        carrier.late = [Lost(1, "gone"), Refused(1, OSError("late")), Lost(1, "away", maybe_alive=True)]
        engine.send(0, DESCRIBE)
        assert engine.receive()[0] == 0
        assert engine.losses == 1
