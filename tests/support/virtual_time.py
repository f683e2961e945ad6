"""An engine with a clock of its own: when a worker answers follows from the work of a message, not from the machine."""

import heapq
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dmtrl import Execution, NotConvergedWarning, Outcome, Problem, RoundRecord, Settings, TaskData, solve
from dmtrl.data.blocks import Source
from dmtrl.engines.base import Engine, begin_request
from dmtrl.losses import AnyLoss, get_loss
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import HoldOut, Improved, Prepare, Prepared, Round
from dmtrl.worker.worker import Worker


class VirtualEngine(Engine):
    """Worker k needs slowness[k] times the work of a message, measured in rows read; a coordinate step counts one and a
    half. Messages and preparing cost nothing."""

    def __init__(self, sources: Sequence[Source], loss: AnyLoss, slowness: Sequence[float]):
        self.workers = [Worker(source, loss) for source in sources]
        self.slowness, self.clock = slowness, 0.0
        self.rows = [len(source.load().y) for source in sources]
        self.busy = np.zeros(len(self.workers))
        self.sent: list[tuple[int, Round]] = []
        self.answers: list[tuple[int, Improved]] = []
        self._arriving: list[tuple[float, int, int, Message]] = []
        self.pending: set[int] = set()

    @property
    def n_workers(self) -> int:
        return len(self.workers)

    def send(self, worker: int, message: Message) -> None:
        # an answer depends on the messages before it, not on time: it can be computed at once
        begin_request(self.pending, worker)
        answer, seconds = self.workers[worker].answer(message), 0.0
        request = decode(message)
        if isinstance(request, Round):
            seconds = self.slowness[worker] * self._work(worker, request, decode(answer))
            self.sent.append((worker, request))
            self.busy[worker] += seconds
        heapq.heappush(self._arriving, (self.clock + seconds, len(self.sent) + worker, worker, answer))

    def _work(self, worker: int, request: Round, answer: Improved) -> float:
        ascent = answer.solver == 0
        evaluated = 0.5 if ascent.all() else 1.0  # half of it comes with the first pass of coordinate ascent
        passes = 1.0 + evaluated * request.evaluate_w + request.evaluate_u
        passes += (request.probe is not None) + (not ascent.all())
        return float(passes * self.rows[worker] + 1.5 * answer.steps[ascent].sum())

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        if timeout is not None and self._arriving[0][0] > self.clock + timeout:
            raise TimeoutError
        when, _, worker, answer = heapq.heappop(self._arriving)
        self.clock = max(self.clock, when)
        if answer.name == "improved":
            self.answers.append((worker, decode(answer)))
        self.pending.discard(worker)
        return worker, answer

    def close(self) -> None:
        pass


class SpyingEngine(Engine):
    """Counts, message by message, how far ahead of the others it puts its worker."""

    def __init__(self, engine: VirtualEngine):
        self._engine, self.ahead, self.pending = engine, 0, engine.pending
        self.each: list[int] = []
        self._at_work: dict[int, tuple[int, dict[int, int]]] = {}

    @property
    def n_workers(self) -> int:
        return self._engine.n_workers

    def send(self, worker: int, message: Message) -> None:
        if message.name == "round":
            version = int(message.scalars["round"])
            for since, newer in self._at_work.values():
                newer[worker] = newer.get(worker, 0) + (version > since)
            self.each.append(max((newer[worker] for _, newer in self._at_work.values()), default=0))
            self.ahead = max(self.each)
            self._at_work[worker] = (version, {})
        self._engine.send(worker, message)

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        worker, answer = self._engine.receive(timeout)
        self._at_work.pop(worker, None)
        return worker, answer

    def close(self) -> None:
        pass


class ManualClock:
    """Stands in for the time module: time passes only in `sleep`, so a busy machine changes nothing."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class VirtualClock:
    """Stands in for the time module of code that measures seconds on such an engine."""

    def __init__(self, engine: Any):
        self._engine = engine
        self.monotonic = time.monotonic

    def perf_counter(self) -> float:
        return self._engine.clock


LAM = 0.05
ONE_SLOW = (1.0, 1.0, 10.0, 1.0)


def sources_of(data: TaskData, workers: int, shards: int = 1) -> list[Source]:
    return data.sources(workers, shards)


def virtual(data: TaskData, loss: str, slowness: Sequence[float] = ONE_SLOW, shards: int = 1) -> VirtualEngine:
    return VirtualEngine(sources_of(data, len(slowness), shards), get_loss(loss), slowness)


def run(
    engine: Engine,
    data: TaskData,
    relationship: Any = "learned",
    watch: Callable[[RoundRecord], object] = lambda record: None,
    common: float = 0.0,
    lam: float = LAM,
    start: Outcome | None = None,
    max_staleness: int = 8,
    **options: Any,
) -> Outcome:
    settings, engine.max_staleness = Settings(**{"tol": 1e-3, "max_rounds": 300, **options}), max_staleness
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)  # many runs stop early on purpose
        return solve(
            Problem.of(data, loss="hinge", reg_lambda=lam, relationship=relationship, common=common, start=start),
            Execution(engine, settings=settings, callbacks=[watch]),
        )


def answers_by_worker(engine: VirtualEngine) -> np.ndarray:
    return np.bincount([k for k, _ in engine.answers], minlength=engine.n_workers)


def prepared(
    data: TaskData, loss: str | Sequence[AnyLoss], fold: int = -1, w: np.ndarray | None = None
) -> tuple[Worker, Prepared]:
    """A worker with all rows, of which fold `fold` of three is held out, and its last answer."""
    worker = Worker(data.sources(1)[0], get_loss(loss) if isinstance(loss, str) else loss)
    description = decode(worker.answer(encode(HoldOut(fold=fold, folds=3, seed=0))))
    request = Prepare(
        max_passes=5,
        density=description.chunks_used / max(description.chunks, 1) or 1.0,
        evaluate=True,
        total_weight=description.weight,
        steps=np.zeros(data.m, dtype=np.int64),
        w=w,
    )
    return worker, decode(worker.answer(encode(request)))
