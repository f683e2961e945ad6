"""A network simulator: replays the message sizes and compute times of a real run over a given network.

`record` runs the workers one after the other on this machine and records the bytes of each message and the seconds of
each answer. `replay` computes how long the same messages take over a network with parallel workers. The network is a
star: the coordinator's link carries one message at a time in each direction, and every message waits for the latency.
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
from dmtrl.exceptions import NotConvergedWarning
from dmtrl.losses.builtin import get_loss
from dmtrl.protocol.message import Message
from dmtrl.solver.api import solve
from dmtrl.solver.coordinator import Outcome
from dmtrl.solver.settings import Settings
from dmtrl.worker.worker import Worker


@dataclass(frozen=True)
class Network:
    """A star network around the coordinator.

    Attributes
    ----------
    name : str
    latency : float
        Seconds, one way.
    bandwidth : float
        Bytes per second on the coordinator's link, in each direction.
    per_message : float
        Further seconds per message, on the coordinator.
    """

    name: str
    latency: float
    bandwidth: float
    per_message: float = 0.0

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0 and self.per_message >= 0):
            raise ValueError(
                f"latency must be non-negative and bandwidth positive, got {self.latency:g} s and "
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
    """One message to every worker and their answers. `server` is the coordinator's time before it, in seconds."""

    name: str
    server: float
    legs: dict[int, Leg] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(leg.down + leg.up for leg in self.legs.values())


class RecordingEngine(Engine):
    """Workers in this process, one after the other, so that each is timed without interference."""

    def __init__(self, workers: Sequence[Worker]):
        self._workers = workers
        self._sent: deque[tuple[int, Message]] = deque()
        self._idle_since = time.thread_time()
        self.exchanges: list[Exchange] = []

    @property
    def n_workers(self) -> int:
        return len(self._workers)

    def send(self, k: int, message: Message) -> None:
        if not self._sent:
            self.exchanges.append(Exchange(message.name, time.thread_time() - self._idle_since))
        self._sent.append((k, message))

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        k, message = self._sent.popleft()
        began = time.thread_time()
        answer = self._workers[k].answer(message)
        leg = Leg(message.nbytes, time.thread_time() - began, answer.nbytes)
        self.exchanges[-1].legs[k] = leg
        self._idle_since = time.thread_time()
        return k, answer

    def close(self) -> None: ...


def workers_of(data: TaskData, loss: str, workers: int) -> list[Worker]:
    return [Worker(blocks, get_loss(loss)) for blocks in data.partition(workers)]


def run(engine: Engine, data: TaskData, loss: str, reg_lambda: float, settings: Settings) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)  # a run that stops early is enough for counting
        return solve(data, loss=loss, reg_lambda=reg_lambda, settings=settings, engine=engine)


def record(
    data: TaskData, loss: str, workers: int, reg_lambda: float, settings: Settings
) -> tuple[list[Exchange], Outcome]:
    """Return every exchange of a fit, and its outcome. A first run of one round compiles everything."""
    run(RecordingEngine(workers_of(data, loss, workers)), data, loss, reg_lambda, Settings(max_rounds=1))
    engine = RecordingEngine(workers_of(data, loss, workers))
    outcome = run(engine, data, loss, reg_lambda, settings)
    return engine.exchanges, outcome


def replay(exchanges: Sequence[Exchange], network: Network) -> float:
    """Return the seconds from the first message to the last answer."""
    return sum(exchange.server + duration(exchange.legs, network) for exchange in exchanges)


def duration(legs: Mapping[int, Leg], network: Network) -> float:
    """Return the seconds of one exchange. Answers are received one at a time, as they arrive."""
    down = np.array([leg.down for leg in legs.values()], dtype=float)
    up = np.array([leg.up for leg in legs.values()], dtype=float)
    compute = np.array([leg.compute for leg in legs.values()])
    there = np.cumsum(network.per_message + down / network.bandwidth) + network.latency
    back = there + compute + network.latency
    order = np.argsort(back, kind="stable")
    free = 0.0
    for arrival, receiving in zip(back[order], (network.per_message + up / network.bandwidth)[order], strict=True):
        free = max(free, arrival) + receiving
    return float(free)


class DelayedEngine(Engine):
    """Workers in threads behind an emulated network of pauses. `replay` is checked against it."""

    def __init__(self, workers: Sequence[Worker], network: Network):
        self._workers, self._network = workers, network
        self._pool = ThreadPoolExecutor(len(workers))
        self._sent: dict[Future[Message], int] = {}

    @property
    def n_workers(self) -> int:
        return len(self._workers)

    def send(self, k: int, message: Message) -> None:
        time.sleep(self._network.per_message + message.nbytes / self._network.bandwidth)
        self._sent[self._pool.submit(self._answer, k, message)] = k

    def _answer(self, k: int, message: Message) -> Message:
        time.sleep(self._network.latency)
        answer = self._workers[k].answer(message)
        time.sleep(self._network.latency)
        return answer

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        done, _ = wait(self._sent, timeout, FIRST_COMPLETED)
        if not done:
            raise TimeoutError(f"no worker answered within {timeout} seconds")
        future = done.pop()
        k = self._sent.pop(future)
        answer = future.result()
        time.sleep(self._network.per_message + answer.nbytes / self._network.bandwidth)
        return k, answer

    def close(self) -> None:
        self._pool.shutdown()
