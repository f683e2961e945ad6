"""Progress: one live line on a terminal, silence in a pipe.

Room: the ground. A callback gets a record with `round`, `gap`, `seconds`, `solver`; nothing else is assumed of it.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def live_line(verbose: int, tol: float) -> Iterator[list[Callable[[Any], None]]]:
    """Callbacks that show progress: none when verbose is 0, a live line on a terminal, with verbose >= 2 a plain line
    a round.
    """
    if verbose >= 2:
        yield [lambda record: print(describe(record, tol), file=sys.stderr, flush=True)]
    elif verbose == 1 and sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("starting") as status:
            yield [lambda record: status.update(describe(record, tol))]
    else:
        yield []


@contextmanager
def bar(verbose: int, what: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal when verbose; silence otherwise. Call what it yields after every finished step."""
    if not verbose or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        job = progress.add_task(what, total=total)
        yield lambda: progress.advance(job)


def describe(record: Any, tol: float) -> str:
    share = ""
    if 0 < tol < record.gap < 1:
        share = f" ({math.log(record.gap) / math.log(tol):.0%} of the way)"
    return f"round {record.round + 1}: within {record.gap:.2%} of the best possible{share}, {record.solver}"
