"""The local engine: workers in this process, on a thread pool (the kernels release the GIL).

With one thread or one worker there is no pool: the work is done when its answer is received.
"""

import queue
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from dmtrl.data.blocks import Source
from dmtrl.engines.base import Engine, begin_request, require_pending
from dmtrl.losses import AnyLoss
from dmtrl.protocol.message import Message
from dmtrl.worker.worker import Worker


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
    ):
        if threads < 1:
            raise ValueError(f"the local engine needs at least one thread, got {threads}")
        self.threads = threads
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
        return LocalEngine((), (), threads, [worker.sibling(number) for worker in self._workers])

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
