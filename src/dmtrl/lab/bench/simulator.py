"""Rounds over a network that is not there: message sizes and compute times of a real run, replayed.

Room: bench. `record` takes a run with every worker alone on this machine and notes each message's bytes and each
answer's seconds. `replay` says how long the same messages would take over a given network, workers side by side. It is
a star: the server's link carries one message after the other, in each direction, and every message waits for the
latency.
"""

import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np

from dmtrl.data.task_data import TaskData
from dmtrl.engines.base import Engine
from dmtrl.losses.builtin import get_loss
from dmtrl.protocol.message import Message
from dmtrl.relationship.penalties import get_relationship
from dmtrl.solver.coordinator import Coordinator, Outcome
from dmtrl.solver.settings import Settings
from dmtrl.worker.worker import Worker


@dataclass(frozen=True)
class Network:
    """latency: seconds one way. bandwidth: bytes a second on the server's link, each way. per_message: what an engine
    needs for each message beside that, in seconds, on the server."""

    name: str
    latency: float
    bandwidth: float
    per_message: float = 0.0

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0 and self.per_message >= 0):
            raise ValueError(
                f"a network needs a latency of at least 0 and a bandwidth above 0, got {self.latency:g} s and "
                f"{self.bandwidth:g} bytes/s"
            )


@dataclass(frozen=True)
class Leg:
    """One message to a worker and its answer."""

    down: int  # bytes
    compute: float  # seconds
    up: int


@dataclass
class Exchange:
    """One message to every worker, with the server's own seconds before it."""

    name: str
    server: float
    legs: dict[int, Leg] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(leg.down + leg.up for leg in self.legs.values())


class Recorder(Engine):
    """Workers in this process, one after the other, so that each is timed as if it had a machine of its own."""

    def __init__(self, workers: Sequence[Worker]):
        self._workers = workers
        self._asked: deque[tuple[int, Message]] = deque()
        self._idle_since = time.thread_time()
        self.exchanges: list[Exchange] = []

    @property
    def n_workers(self) -> int:
        return len(self._workers)

    def send(self, k: int, message: Message) -> None:
        if not self._asked:
            self.exchanges.append(Exchange(message.name, time.thread_time() - self._idle_since))
        self._asked.append((k, message))

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        k, message = self._asked.popleft()
        began = time.thread_time()
        answer = self._workers[k].answer(message)
        leg = Leg(message.nbytes, time.thread_time() - began, answer.nbytes)
        self.exchanges[-1].legs[k] = leg
        self._idle_since = time.thread_time()
        return k, answer

    def close(self) -> None: ...


def workers_of(data: TaskData, loss: str, workers: int) -> list[Worker]:
    return [Worker(blocks, get_loss(loss)) for blocks in data.partition(workers)]


def run(engine: Engine, data: TaskData, reg_lambda: float, settings: Settings) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a run that was stopped early is as good for counting
        return Coordinator(engine, data.m, get_relationship("learned", data.m), reg_lambda, settings).run()


def record(
    data: TaskData, loss: str, workers: int, reg_lambda: float, settings: Settings
) -> tuple[list[Exchange], Outcome]:
    """Every exchange of a fit; run once before, so that nothing is compiled in it."""
    run(Recorder(workers_of(data, loss, workers)), data, reg_lambda, Settings(max_rounds=1))
    engine = Recorder(workers_of(data, loss, workers))
    outcome = run(engine, data, reg_lambda, settings)
    return engine.exchanges, outcome


def replay(exchanges: Sequence[Exchange], network: Network) -> float:
    """Seconds from the first message to the last answer."""
    return sum(exchange.server + duration(exchange.legs, network) for exchange in exchanges)


def duration(legs: Mapping[int, Leg], network: Network) -> float:
    """One exchange: messages leave one after the other, answers are taken one after the other as they come."""
    down = np.array([leg.down for leg in legs.values()], dtype=float)
    up = np.array([leg.up for leg in legs.values()], dtype=float)
    compute = np.array([leg.compute for leg in legs.values()])
    there = np.cumsum(network.per_message + down / network.bandwidth) + network.latency
    back = there + compute + network.latency
    order = np.argsort(back, kind="stable")
    free = 0.0
    for arrival, taking in zip(back[order], (network.per_message + up / network.bandwidth)[order], strict=True):
        free = max(free, arrival) + taking
    return float(free)


class Delayed(Engine):
    """Real workers in threads behind a network that is acted out with pauses: what `replay` is checked against."""

    def __init__(self, workers: Sequence[Worker], network: Network):
        self._workers, self._network = workers, network
        self._pool = ThreadPoolExecutor(len(workers))
        self._asked: dict[Future[Message], int] = {}

    @property
    def n_workers(self) -> int:
        return len(self._workers)

    def send(self, k: int, message: Message) -> None:
        time.sleep(self._network.per_message + message.nbytes / self._network.bandwidth)
        self._asked[self._pool.submit(self._answer, k, message)] = k

    def _answer(self, k: int, message: Message) -> Message:
        time.sleep(self._network.latency)
        answer = self._workers[k].answer(message)
        time.sleep(self._network.latency)
        return answer

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        done, _ = wait(self._asked, timeout, FIRST_COMPLETED)
        if not done:
            raise TimeoutError(f"no worker answered within {timeout} seconds")
        future = done.pop()
        k = self._asked.pop(future)
        answer = future.result()
        time.sleep(self._network.per_message + answer.nbytes / self._network.bandwidth)
        return k, answer

    def close(self) -> None:
        self._pool.shutdown()
