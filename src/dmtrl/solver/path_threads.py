"""Runs the paths of a cross-validation in threads; only a limited number of them compute at a time."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

_SWITCH_SECONDS = 5e-4


class PathStopped(Exception):
    """Another path failed or was interrupted, so this one ends too."""


def in_threads(follow: Callable[[int], None], folds: Iterable[int], at_once: int, stop: Callable[[], None]) -> None:
    """All paths; if one fails, `stop` ends the others too and its error is raised."""

    def work(fold: int) -> BaseException | None:
        try:
            follow(fold)
        except PathStopped:
            return None
        except BaseException as error:
            stop()
            return error
        return None

    with _switching_soon(), ThreadPoolExecutor(at_once, thread_name_prefix="dmtrl-path") as pool:
        try:
            errors = list(pool.map(work, folds))
        except BaseException:  # Ctrl-C in this thread
            stop()
            raise
    for error in errors:
        if error is not None:
            raise error


@contextmanager
def _switching_soon() -> Iterator[None]:
    """Switch between threads more often. A thread that returns from compiled code waits for the interpreter, by default
    5 ms, which may be longer than a round."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Turns:
    """A semaphore that is granted in the order in which it was asked for, so that all threads progress evenly."""

    def __init__(self, count: int):
        self._lock, self._free = threading.Lock(), count
        self._queue: deque[threading.Event] = deque()

    def take(self) -> None:
        """Wait for a turn."""
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            granted = threading.Event()
            self._queue.append(granted)
        granted.wait()

    def give(self) -> None:
        """Hand the turn to the thread that has waited longest."""
        with self._lock:
            if self._queue:
                self._queue.popleft().set()
            else:
                self._free += 1

    @contextmanager
    def given_away(self) -> Iterator[None]:
        """Others compute inside the context; afterwards wait for a turn again."""
        self.give()
        try:
            yield
        finally:
            self.take()

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        self.give()
