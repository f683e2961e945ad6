"""Work by measured speed: workers of different speed end together."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dmtrl.engines.local
import dmtrl.solver.coordinator
from dmtrl import TaskData
from dmtrl.engines.local import LocalEngine
from dmtrl.losses import get_loss
from dmtrl.protocol.message import Message
from dmtrl.solver.balance import Balance
from dmtrl.solver.layout import Layout
from dmtrl.worker.worker import Worker
from support.problems import random_problem
from support.virtual_time import VirtualClock, run, sources_of, virtual


def balanced_run(monkeypatch: pytest.MonkeyPatch, data: TaskData, slowness: Sequence[float], **knobs: Any) -> Any:
    engine = virtual(data, "hinge", slowness)
    monkeypatch.setattr(dmtrl.solver.coordinator, "time", VirtualClock(engine))
    outcome = run(engine, data, max_staleness=0, local_solver="sdca", sampling="uniform", tol=1e-2, **knobs)
    return engine, outcome, 1.0 - engine.busy.sum() / (engine.clock * len(slowness))


def test_workers_of_different_speed_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle time before and after, for a given H (five passes), one worker four times slower and tasks of unequal
    size."""
    data = random_problem("hinge", m=12, d=8, rows=60, seed=2)
    slowness = (1.0, 4.0, 1.0, 2.0)
    before, plain, idle_before = balanced_run(monkeypatch, data, slowness, max_passes=5)
    after, balanced, idle_after = balanced_run(monkeypatch, data, slowness, max_passes=5, balance=True)
    assert plain.converged
    assert balanced.converged
    assert idle_before > 0.4
    assert idle_after < 0.6 * idle_before  # the first round, in which nothing is known yet, included
    assert after.clock < before.clock


def test_waiting_for_a_thread_is_not_slowness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four workers alike, on one thread: each is given as much work as the others, also the last to answer."""
    one = random_problem("hinge", m=1, d=8, rows=60)
    data = TaskData.from_list([(one.X, one.y)] * 4)
    now = SimpleNamespace(clock=0.0)

    class Ticking(Worker):
        def answer(self, message: Message) -> Message:
            now.clock += 1.0
            return super().answer(message)

    monkeypatch.setattr(dmtrl.engines.local, "Worker", Ticking)
    for module in (dmtrl.solver.coordinator, dmtrl.engines.local):
        monkeypatch.setattr(module, "time", VirtualClock(now))
    knobs: dict[str, Any] = {"max_staleness": 0, "local_solver": "sdca", "steps": 60, "max_rounds": 3, "tol": 0.0}
    limits = []
    kept = Balance.limits
    monkeypatch.setattr(Balance, "limits", lambda self: limits.append(kept(self)) or limits[-1])
    run(LocalEngine(sources_of(data, 4), get_loss("hinge")), data, balance=True, **knobs)
    assert [len({int(steps.sum()) for steps in each.values()}) for each in limits] == [0, 1, 1]


def layout_of(rows: Sequence[int]) -> Layout:
    n = len(rows)
    one = np.arange(n)
    return Layout([one[k : k + 1] for k in range(n)], one, one, np.array(rows), np.ones(n), n, 3)


@pytest.mark.parametrize("overhead", [0.5, 1.5, 4.0])
def test_limits_settle_where_all_take_the_same_time(overhead: float) -> None:
    """Workers whose real costs are not those the rule supposes; each does exactly what it is allowed."""
    rows, slowness = np.array([100, 400, 100, 200]), np.array([1.0, 1.0, 20.0, 2.0])
    balance = Balance(layout_of(rows))
    steps = 4 * rows
    longest = (slowness * (steps + overhead * rows)).max()
    for _ in range(40):
        limits = balance.limits()
        steps = np.array([limits[k].sum() for k in range(4)]) if limits else steps
        seconds = slowness * (steps + overhead * rows)
        balance.learn(dict(enumerate(seconds)), steps)
    assert seconds.max() <= 1.05 * seconds.min()
    assert seconds.max() <= longest  # a fast worker that did much because it had time does not raise what is wanted
    assert (steps >= rows).all()


def test_who_stops_early_says_how_much_is_enough() -> None:
    """One worker does all that it may; what the others did by themselves, one pass, is what is wanted."""
    rows = np.array([100, 100, 100])
    balance = Balance(layout_of(rows))
    balance.limits()
    balance.learn({0: 1.05, 1: 1.05, 2: 1.05}, 9 * rows)
    for _ in range(5):
        limits = balance.limits()
        steps = np.array([limits[0].sum(), 100, 100])
        balance.learn(dict(enumerate((steps + 150) / 1000)), steps)
    assert limits[0].sum() <= 150
