"""One thread for BLAS during a fit.

OpenBLAS has one number of threads for the whole process, so while a fit runs, BLAS calls of other threads of the
process use one thread too. This is needed twice: sums of several threads are added in another order, so the bits of a
fit would depend on the machine; and a fit makes many small calls, for which starting threads takes longer than the
work. The number from before the fit is restored when the last fit ends, also by an exception.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Event, Lock, Thread
from typing import Any

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def _limit() -> Any:
    return _controller().limit(limits=1, user_api="blas")


class _SharedLimit:
    """The number of BLAS threads belongs to the process, and the thread that sets it must reset it. So a separate
    thread holds the limit while any fit needs it. If each fit set its own, the limit would end with the fit that began
    first, and the last bits of the others would change."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """No fit holds the limit: at the start, and in the child of a fork, which has no keeper thread."""
        self._lock, self._holders, self._last_left = Lock(), 0, Event()
        self._keeper: Thread | None = None

    def enter(self) -> None:
        with self._lock:
            if self._keeper is None:
                self._last_left, limited = Event(), Event()
                self._keeper = Thread(target=self._keep, args=(limited, self._last_left), daemon=True)
                self._keeper.start()
                try:
                    limited.wait()
                except BaseException:  # an interrupt: no fit begins
                    self._release()
                    raise
            self._holders += 1

    def leave(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._release()

    def _release(self) -> None:
        if self._keeper is not None:
            self._last_left.set()
            self._keeper.join()
            self._keeper = None

    @staticmethod
    def _keep(limited: Event, last_left: Event) -> None:
        with _limit():
            limited.set()
            last_left.wait()


_SHARED = _SharedLimit()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SHARED.begin)


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """A context in which BLAS uses one thread: small decompositions are faster so, and `numerics.rowwise` threads large
    products in pieces."""
    _SHARED.enter()
    try:
        with _limit():  # where the number belongs to a thread, or the caller has set it
            yield
    finally:
        _SHARED.leave()
