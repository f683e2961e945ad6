"""Wait for a fact: a file, a line, the state of a process. Never for a number of seconds.

The ceiling ends a wait that would never end; it is far beyond what a loaded machine needs, so that no test passes or
fails by the speed of the machine.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

CEILING = 300.0  # seconds
T = TypeVar("T")


def wait_for(fact: Callable[[], T], what: str, ceiling: float = CEILING, every: float = 0.02) -> T:
    """Return what `fact` returns once that is true.

    Parameters
    ----------
    fact : called again and again; may raise AssertionError to say that it can no longer become true
    what : what is waited for, for the error
    ceiling : seconds after which the wait fails
    every : seconds between two calls
    """
    end = time.monotonic() + ceiling
    while not (found := fact()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {ceiling:g} s for {what}")
        time.sleep(every)
    return found


def wait_for_event(event: threading.Event, what: str, ceiling: float = CEILING) -> None:
    """Wait until another thread has set the event."""
    if not event.wait(ceiling):
        raise AssertionError(f"waited {ceiling:g} s for {what}")


def alive(process: Any) -> bool:
    """True while a process runs; fails if it has ended. For facts that only a running process can bring about:
    `wait_for(lambda: alive(process) and path.exists(), "the file")`."""
    code = process.poll()
    assert code is None, f"the process ended with {code} before that"
    return True


def be_slow(seconds: float) -> None:
    """Simulate latency. No outcome may depend on how long it is."""
    time.sleep(seconds)
