"""Lets a limited number of threads compute at a time."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


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
