"""The local engine: workers in this process, on a thread pool (the kernels release the GIL).

With one thread or one worker there is no pool: the work is done when its answer is received.
"""

import queue
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Protocol

from dmtrl.data.blocks import Source
from dmtrl.engines.base import Engine, begin_request, require_pending
from dmtrl.engines.options import Shards, Sources, check_options, thread_count
from dmtrl.losses import AnyLoss
from dmtrl.protocol.message import Message
from dmtrl.worker.worker import Worker


@dataclass(frozen=True)
class LocalOptions:
    """How to run the workers in this process; `engine="local"` is LocalOptions().

    Parameters
    ----------
    workers : int, default=None
        Number of workers over which the tasks are partitioned. None means one per thread.
    shards : int or sequence of int, default=1
        Number of pieces into which each task is cut first, so that a task can be spread over several workers: one
        number, or one per task.
    n_jobs : int, default=None
        Number of threads. None means `n_jobs` of the estimator, else 1; -1 means all cores.
    max_staleness : int, default=0
        With 0 all workers run in step, and each round waits for the slowest. With a larger value answers are used as
        they arrive, and a worker may receive new weights this many times while another is still busy with older ones.
        The result is certified in both cases; with a positive value it is not bitwise reproducible.
    """

    workers: int | None = None
    shards: Shards = 1
    n_jobs: int | None = None
    max_staleness: int = 0
    on_lost: ClassVar[str] = "stop"  # threads are not lost

    def __post_init__(self) -> None:
        check_options(self)
        thread_count(self.n_jobs)

    def session(self) -> AbstractContextManager[object]:
        """Return a context; engines of this process share nothing."""
        return nullcontext()

    def start(
        self, sources: Sources, losses: AnyLoss | Sequence[AnyLoss], names: Sequence[str] | None = None
    ) -> "LocalEngine":
        """Start an engine.

        Parameters
        ----------
        sources : callable
            sources(workers, shards) returns the sources of so many workers.
        losses : Loss, CustomLoss or sequence of them
            One loss for all tasks, or one per task.
        names : sequence of str, default=None
            Not used.
        """
        threads = thread_count(self.n_jobs)
        pieces = sources(threads if self.workers is None else self.workers, self.shards)
        return LocalEngine(pieces, losses, threads, max_staleness=self.max_staleness)


class Answering(Protocol):
    """What the engine needs of a worker."""

    def answer(self, message: Message) -> Message: ...

    def sibling(self, number: int) -> "Answering": ...


class LocalEngine(Engine):
    """`threads` may also be used by the coordinator, which runs in the same process. `workers`: instead of new ones."""

    def __init__(
        self,
        sources: Sequence[Source],
        losses: AnyLoss | Sequence[AnyLoss],
        threads: int = 1,
        workers: Sequence[Answering] | None = None,
        max_staleness: int = 0,
    ):
        if threads < 1:
            raise ValueError(f"the local engine needs at least one thread, got {threads}")
        self.threads, self.max_staleness = threads, max_staleness
        self.pending: set[int] = set()
        self._workers: list[Answering] = list(workers or (Worker(source, losses) for source in sources))
        self._pool = ThreadPoolExecutor(threads) if min(threads, len(self._workers)) > 1 else None
        self._queued: deque[tuple[int, Message]] = deque()  # without a pool
        self._done: queue.SimpleQueue[tuple[int, Future[Message]]] = queue.SimpleQueue()

    @property
    def n_workers(self) -> int:
        return len(self._workers)

    @property
    def paths(self) -> int:
        return self.threads

    def sibling(self, number: int, threads: int = 1) -> "LocalEngine":
        workers = [worker.sibling(number) for worker in self._workers]
        return LocalEngine((), (), threads, workers, self.max_staleness)

    def send(self, worker: int, message: Message) -> None:
        begin_request(self.pending, worker)
        if self._pool is None:
            self._queued.append((worker, message))
        else:
            future = self._pool.submit(self._answer, worker, message)
            future.add_done_callback(lambda done: self._done.put((worker, done)))

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        require_pending(self.pending)
        if self._pool is None:
            worker, message = self._queued.popleft()
            self.pending.discard(worker)
            return worker, self._answer(worker, message)
        try:
            worker, future = self._done.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no worker answered within {timeout} seconds") from None
        self.pending.discard(worker)
        return worker, future.result()

    def _answer(self, worker: int, message: Message) -> Message:
        return self._workers[worker].answer(message)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
