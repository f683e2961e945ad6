"""Progress: displays on a terminal (nothing is shown in a pipe), and reports of what has several stages."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class RoundProgress(Protocol):
    """What a display needs of the record of a round."""

    @property
    def round(self) -> int: ...
    @property
    def gap(self) -> float: ...
    @property
    def solver(self) -> str: ...


@contextmanager
def live_line(verbose: int, tol: float) -> Iterator[list[Callable[[RoundProgress], None]]]:
    """Yield callbacks that show progress: verbose 0: none; 1: a live line on a terminal; 2: one line per round."""
    if verbose >= 2:
        yield [lambda record: print(describe(record, tol), file=sys.stderr, flush=True)]
    elif verbose == 1 and sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("starting") as status:
            yield [lambda record: status.update(describe(record, tol))]
    else:
        yield []


@contextmanager
def bar(verbose: int, what: str, total: int) -> Iterator[Callable[..., None]]:
    """Show a progress bar with the time left on a terminal if verbose. Yields a function to call after each step, with
    the new total if that has changed."""
    if not verbose or not sys.stderr.isatty():
        yield lambda total=None: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as progress:
        job = progress.add_task(what, total=total)
        yield lambda total=None: progress.update(job, advance=1, total=total)


class Progress(Protocol):
    """Receives progress reports."""

    def stage(self, text: str) -> None:
        """A new stage begins."""

    def update(self, done: float, detail: str = "") -> None:
        """A share `done` of the current stage, from 0 to 1, is finished."""


class NoProgress:
    """Ignores progress reports."""

    def stage(self, text: str) -> None:
        pass

    def update(self, done: float, detail: str = "") -> None:
        pass


class GapProgress:
    """Estimates how much of a fit is done from the logarithm of the gap, which falls about linearly."""

    def __init__(self, tol: float):
        self._tol, self._first = tol, 0.0

    def share(self, record: RoundProgress) -> float:
        """The share after a round, 0 to 1; the first call is for the first round."""
        self._first = self._first or min(record.gap, 1.0)
        if self._first <= self._tol:
            return 1.0
        left = min(max(record.gap, self._tol), self._first)
        return math.log(self._first / left) / math.log(self._first / self._tol)


def describe(record: RoundProgress, tol: float) -> str:
    """One line about a round."""
    share = ""
    if 0 < tol < record.gap < 1:
        share = f" ({math.log(record.gap) / math.log(tol):.0%} of the way)"
    return f"round {record.round + 1}: within {record.gap:.2%} of the best possible{share}, {record.solver}"
