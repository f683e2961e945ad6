"""Runs the paths of a cross-validation in threads."""

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from dmtrl.solver.checkpoint.paths import PathGroup, PathStopped

_SWITCH_SECONDS = 5e-4


def in_threads(follow: Callable[[int], None], folds: Iterable[int], at_once: int, group: PathGroup) -> None:
    """All paths; if one fails, the others end too and its error is raised."""

    def work(fold: int) -> BaseException | None:
        try:
            follow(fold)
        except PathStopped:
            return None
        except BaseException as error:
            group.stop()
            return error
        return None

    with _switching_soon(), ThreadPoolExecutor(at_once, thread_name_prefix="dmtrl-path") as pool:
        try:
            errors = list(pool.map(work, folds))
        except BaseException:  # Ctrl-C in this thread
            group.stop()
            raise
    for error in errors:
        if error is not None:
            raise error


@contextmanager
def _switching_soon() -> Iterator[None]:
    """A thread that comes back from compiled code, where it spends most of its time, waits for the interpreter: not for
    5 ms as usual, which may be longer than a round."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
