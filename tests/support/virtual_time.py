"""An engine with a clock of its own: who answers when follows from the work a message was, not from the machine."""

import heapq
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dmtrl import Settings, TaskData
from dmtrl.data.blocks import Source
from dmtrl.engines.base import Engine
from dmtrl.losses import AnyLoss, get_loss
from dmtrl.protocol.message import Message
from dmtrl.relationship import Relationship, get_relationship
from dmtrl.solver.coordinator import Coordinator, Outcome, RoundRecord
from dmtrl.solver.pace import Trace
from dmtrl.worker.worker import Worker

WORK = ("round", "catch_up", "look")  # messages that take time


class VirtualEngine(Engine):
    """Worker k needs slowness[k] times the work of a message. Its unit is the time to read a row: a coordinate step
    takes one and a half, on a row seen in few directions half of one, and to see a row in another direction a quarter.
    Timed on rows of 100 features, a catch-up within 3 to 12 directions is 1.4 to 2.1 times a first answer; so 2.5 to 4
    times. Messages and preparing cost nothing."""

    def __init__(self, sources: Sequence[Source], loss: AnyLoss, slowness: Sequence[float]):
        self.workers = [Worker(source, loss) for source in sources]
        self.slowness, self.clock = slowness, 0.0
        self.rows = [len(source.load().y) for source in sources]
        self.busy = np.zeros(len(self.workers))
        self.sent: list[tuple[int, Message]] = []
        self.answers: list[tuple[int, Message]] = []
        self._coming: list[tuple[float, int, int, Message]] = []
        self.asked: set[int] = set()

    @property
    def n_workers(self) -> int:
        return len(self.workers)

    def send(self, k: int, message: Message) -> None:
        # what a worker answers depends on what it was told, not on when: it can be found at once
        answer = self.workers[k].answer(message)
        self.asked.add(k)
        seconds = self.slowness[k] * self._work(k, message, answer)
        if message.name in WORK:
            self.sent.append((k, message))
            self.busy[k] += seconds
        heapq.heappush(self._coming, (self.clock + seconds, len(self.sent) + k, k, answer))

    def _work(self, k: int, message: Message, answer: Message) -> float:
        if message.name == "look":
            return float(self.rows[k])
        if (
            message.name == "catch_up"
        ):  # the first pass sees rows along the directions; without a floor the second reads none
            seen, steps = message.arrays["directions"].shape[1] / 4, answer.arrays["steps"].sum()
            if message.scalars["floor"]:
                return float(seen * self.rows[k] + 1.5 * steps)
            return float((2.0 + seen) * self.rows[k] + 0.5 * steps)
        if message.name != "round":
            return 0.0
        ascent = answer.arrays["solver"] == 0
        look = 0.5 if ascent.all() else 1.0  # half of it is had on the way of coordinate ascent
        passes = 1.0 + look * message.scalars.get("look", True) + message.scalars.get("at_u", False)
        passes += ("probe" in message.arrays) + (not ascent.all())
        passes -= bool(message.scalars.get("from_zero", False) and ascent.all())  # b is read off
        return float(passes * self.rows[k] + 1.5 * answer.arrays["steps"][ascent].sum())

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        if timeout is not None and self._coming[0][0] > self.clock + timeout:
            raise TimeoutError
        when, _, k, answer = heapq.heappop(self._coming)
        self.clock = max(self.clock, when)
        self.answers.append((k, answer))
        self.asked.discard(k)
        return k, answer

    def close(self) -> None:
        pass


class SpyingEngine(Engine):
    def __init__(self, engine: VirtualEngine):
        self._engine, self.ahead, self.asked = engine, 0, engine.asked
        self.each: list[int] = []  # message after message, how far ahead it puts its worker
        self._at_work: dict[int, tuple[int, dict[int, int]]] = {}

    @property
    def n_workers(self) -> int:
        return self._engine.n_workers

    def send(self, k: int, message: Message) -> None:
        if message.name in WORK:
            version = int(message.scalars["round"])
            for since, newer in self._at_work.values():
                newer[k] = newer.get(k, 0) + (version > since)
            self.each.append(max((newer[k] for _, newer in self._at_work.values()), default=0))
            self.ahead = max(self.each)
            self._at_work[k] = (version, {})
        self._engine.send(k, message)

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        k, answer = self._engine.receive(timeout)
        self._at_work.pop(k, None)
        return k, answer

    def close(self) -> None:
        pass


class VirtualClock:
    """Stands in for the time module of whoever measures seconds on such an engine."""

    def __init__(self, engine: Any):
        self._engine = engine
        self.monotonic = time.monotonic

    def perf_counter(self) -> float:
        return self._engine.clock


LAM = 0.05
ONE_SLOW = (1.0, 1.0, 10.0, 1.0)


def sources_of(data: TaskData, workers: int, shards: int = 1) -> list[Source]:
    return data.partition(workers, shards)


def virtual(data: TaskData, loss: str, slowness: Sequence[float] = ONE_SLOW, shards: int = 1) -> VirtualEngine:
    return VirtualEngine(sources_of(data, len(slowness), shards), get_loss(loss), slowness)


def run(
    engine: Engine,
    data: TaskData,
    relationship: str | Relationship = "learned",
    watch: Callable[[RoundRecord], object] = lambda record: None,
    replay: Trace | None = None,
    common: float = 0.0,
    lam: float = LAM,
    **knobs: Any,
) -> Outcome:
    settings = Settings(**{"max_staleness": 8, "tol": 1e-3, "max_rounds": 300, **knobs})
    relation = get_relationship(relationship, data.m, common)
    return Coordinator(engine, data.m, relation, lam, settings).run([watch], replay=replay)


def answers_by_worker(engine: VirtualEngine) -> np.ndarray:
    return np.bincount(
        [k for k, answer in engine.answers if answer.name in ("improved", "caught_up")], minlength=engine.n_workers
    )


def prepared(
    data: TaskData, loss: str | Sequence[AnyLoss], fold: int = -1, **arrays: np.ndarray
) -> tuple[Worker, Message]:
    """A worker with all rows, of which fold `fold` of three is set aside, and what it answered last."""
    worker = Worker(data.partition(1, 1)[0], get_loss(loss) if isinstance(loss, str) else loss)
    described = worker.answer(Message("hold_out", {"fold": fold, "folds": 3, "seed": 0}))
    scalars: dict[str, Any] = {"seed": 0, "local_solver": "auto", "sampling": "shuffled", "max_passes": 5}
    filled = described.scalars["chunks_used"] / max(described.scalars["chunks"], 1) or 1.0
    steps, total = np.zeros(data.m, dtype=np.int64), described.arrays["weight"]
    arrays |= {"total_weight": total, "steps": steps}
    return worker, worker.answer(Message("prepare", scalars | {"keep": False, "look": True, "filled": filled}, arrays))
