"""Progress displays: a live line on a terminal, plain lines in a pipe, nothing with --quiet.

Progress goes to stderr, so that stdout has only results.
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import click

from dmtrl.progress import NoProgress, Progress

LINE_EVERY = 10.0  # seconds between plain lines


class Display(Progress, Protocol):
    """A `dmtrl.progress.Progress` that can be hidden for a while."""

    def paused(self) -> AbstractContextManager[object]:
        """Nothing is shown within this context, so that results can be printed."""


class Silent(NoProgress):
    """Shows nothing."""

    def paused(self) -> AbstractContextManager[object]:
        return nullcontext()


class _Timed(ABC):
    """A display that estimates the time left."""

    def __init__(self) -> None:
        self._text, self._began, self._from, self._done = "", time.monotonic(), 0.0, 0.0

    def stage(self, text: str) -> None:
        self._text, self._began, self._from, self._done = text, time.monotonic(), -1.0, 0.0
        self._show(0.0, "", None, True)

    def update(self, done: float, detail: str = "") -> None:
        if self._from < 0:  # the work before a resume was not done at this rate
            self._from, self._began = done, time.monotonic()
        self._done = max(done, self._done)
        gained, spent = self._done - self._from, time.monotonic() - self._began
        left = spent * (1 - self._done) / gained if gained > 0 and spent > 0.5 else None
        self._show(self._done, detail, left, False)

    def paused(self) -> AbstractContextManager[object]:
        return nullcontext()

    @abstractmethod
    def _show(self, done: float, detail: str, left: float | None, fresh: bool) -> None: ...


class Lines(_Timed):
    """A line when a stage begins, and one every few seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._last = 0.0

    def _show(self, done: float, detail: str, left: float | None, fresh: bool) -> None:
        if fresh or time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            more = ", ".join(part for part in (f"{done:.0%}" if done else "", detail, _time_left(left)) if part)
            click.echo(f"{self._text}: {more}" if more else self._text, err=True)


class Live(_Timed):
    """One line with a bar, updated in place."""

    def __init__(self, progress: Any):
        super().__init__()
        self._progress, self._row = progress, progress.add_task("starting", total=1.0, detail="")

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()

    def _show(self, done: float, detail: str, left: float | None, fresh: bool) -> None:
        more = ", ".join(part for part in (detail, _time_left(left)) if part)
        self._progress.update(self._row, description=self._text, completed=done, detail=more)


def _time_left(left: float | None) -> str:
    if left is None:
        return ""
    if left < 90:
        return f"{left:.0f} s left"
    return f"{left / 60:.0f} min left" if left < 5400 else f"{left / 3600:.1f} h left"


@contextmanager
def display(quiet: bool = False) -> Iterator[Display]:
    """The display for the kind of stderr."""
    if quiet:
        yield Silent()
    elif not sys.stderr.isatty():
        yield Lines()
    else:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[detail]}")
        with Bar(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
            yield Live(bar)
