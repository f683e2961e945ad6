"""The local engine: workers in this process, a thread pool over them (the kernels release the GIL).

Room: engines. With one thread, or one worker, no pool is made.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from dmtrl.blocks import Source
from dmtrl.losses import AnyLoss
from dmtrl.message import Message
from dmtrl.worker import Worker


class LocalEngine:
    def __init__(self, sources: Sequence[Source], losses: AnyLoss | Sequence[AnyLoss], threads: int = 1):
        if threads < 1:
            raise ValueError(f"the local engine needs at least one thread, got {threads}")
        self._workers = [Worker(source, losses) for source in sources]
        self._pool = ThreadPoolExecutor(threads) if min(threads, len(self._workers)) > 1 else None

    @property
    def n_workers(self) -> int:
        return len(self._workers)

    def exchange(self, messages: Mapping[int, Message]) -> Iterator[tuple[int, Message]]:
        if self._pool is None:
            for k, message in messages.items():
                yield k, self._workers[k].answer(message)
            return
        pending = {self._pool.submit(self._workers[k].answer, message): k for k, message in messages.items()}
        for future in as_completed(pending):
            yield pending[future], future.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
