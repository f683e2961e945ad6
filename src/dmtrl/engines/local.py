"""The local engine: workers in this process, a thread pool over them (the kernels release the GIL).

Room: engines. With one thread, or one worker, no pool is made: the work is done when its answer is asked for.
"""

import queue
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from dmtrl.data.blocks import Source
from dmtrl.engines.base import Engine
from dmtrl.engines.contract import check_may_receive, check_may_send
from dmtrl.losses import AnyLoss
from dmtrl.protocol.message import Message
from dmtrl.worker.worker import Worker


class LocalEngine(Engine):
    def __init__(self, sources: Sequence[Source], losses: AnyLoss | Sequence[AnyLoss], threads: int = 1):
        if threads < 1:
            raise ValueError(f"the local engine needs at least one thread, got {threads}")
        self.threads = threads  # the coordinator in the same process may use as many
        self.seconds: dict[int, float] = {}  # that each worker's last answer took, once a thread was free for it
        self._workers = [Worker(source, losses) for source in sources]
        self._pool = ThreadPoolExecutor(threads) if min(threads, len(self._workers)) > 1 else None
        self.asked: set[int] = set()
        self._waiting: deque[tuple[int, Message]] = deque()  # without a pool
        self._done: queue.SimpleQueue[tuple[int, Future[Message]]] = queue.SimpleQueue()

    @property
    def n_workers(self) -> int:
        return len(self._workers)

    def send(self, k: int, message: Message) -> None:
        check_may_send(k, self.asked)
        self.asked.add(k)
        if self._pool is None:
            self._waiting.append((k, message))
        else:
            future = self._pool.submit(self._answer, k, message)
            future.add_done_callback(lambda done: self._done.put((k, done)))

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        check_may_receive(self.asked)
        if self._pool is None:
            k, message = self._waiting.popleft()
            self.asked.discard(k)
            return k, self._answer(k, message)
        try:
            k, future = self._done.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no worker answered within {timeout} seconds") from None
        self.asked.discard(k)
        return k, future.result()

    def _answer(self, k: int, message: Message) -> Message:
        began = time.perf_counter()
        answer = self._workers[k].answer(message)
        self.seconds[k] = time.perf_counter() - began
        return answer

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
