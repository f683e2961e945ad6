"""Runs that end before they converge: at a round limit, a gap or a time limit."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dmtrl.exceptions import NotConvergedWarning


class StopRun(Exception):
    """Raised by a `watch` function to end a run."""


@contextmanager
def may_stop_early() -> Iterator[None]:
    """Leave the block at StopRun, and ignore NotConvergedWarning inside."""
    with warnings.catch_warnings(), suppress(StopRun):
        warnings.simplefilter("ignore", NotConvergedWarning)
        yield
