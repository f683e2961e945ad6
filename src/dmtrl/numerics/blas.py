"""One thread for BLAS."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController


class _SingleThread:
    """The number of BLAS threads belongs to the process, so the fits that run at the same time in several threads
    share one limit: the first sets it, the last takes it back. Each with a limit of its own would give the threads
    back while another still computes, whose last bits would then change."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders = 0
        self._controller: ThreadpoolController | None = None
        self._limit: Any = None

    def enter(self) -> None:
        with self._lock:
            if self._holders == 0:
                self._controller = self._controller or ThreadpoolController()
                self._limit = self._controller.limit(limits=1)
            self._holders += 1

    def leave(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._limit.restore_original_limits()


_SINGLE_THREAD = _SingleThread()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """A context in which BLAS uses one thread: small decompositions are faster so, and `numerics.rowwise` threads large
    products in pieces."""
    _SINGLE_THREAD.enter()
    try:
        yield
    finally:
        _SINGLE_THREAD.leave()
