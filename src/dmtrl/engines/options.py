"""Options of an engine: how many workers it has, how rows are divided between them, and what happens to a lost one."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dmtrl.data.blocks import Source
from dmtrl.engines.base import Engine
from dmtrl.losses import AnyLoss
from dmtrl.numerics.checks import is_whole, require

Shards = int | Sequence[int]  # one number, or one per task


class Sources(Protocol):
    """Divides the rows between workers, as `TaskData.sources` does."""

    def __call__(self, workers: int, shards: Shards = 1) -> Sequence[Source]: ...


@runtime_checkable
class EngineOptions(Protocol):
    """Starts engines. Implementations are frozen dataclasses, so that `dataclasses.replace` can change `workers`."""

    @property
    def workers(self) -> int | None:
        """Number of workers; None means as many as suit the machine."""

    @property
    def shards(self) -> Shards:
        """Number of pieces into which each task is cut."""

    @property
    def on_lost(self) -> str:
        """What to do when a worker cannot be replaced: "stop" or "go_on"."""

    def session(self) -> AbstractContextManager[object]:
        """Keeps open what several engines started one after the other can share."""
        ...

    def start(
        self, sources: Sources, losses: AnyLoss | Sequence[AnyLoss], names: Sequence[str] | None = None
    ) -> Engine:
        """Start an engine on the rows of `sources`. `names`: of the tasks, for error messages."""
        ...


def check_options(options: Any) -> None:
    """Raise ValueError for numbers of workers or shards, or a staleness, that no engine accepts."""
    workers, shards, staleness = options.workers, options.shards, options.max_staleness
    ok = workers is None or (is_whole(workers) and workers >= 1)
    require(ok, "workers", "None or a positive integer", workers)
    each = shards if isinstance(shards, Sequence | np.ndarray) and not isinstance(shards, str) else [shards]
    ok = len(each) > 0 and all(is_whole(one) and one >= 1 for one in each)
    require(ok, "shards", "a positive integer, or one per task", shards)
    ok = is_whole(staleness) and staleness >= 0
    require(ok, "max_staleness", "an integer of at least 0", staleness)


def thread_count(n_jobs: int | None) -> int:
    """The number of threads that `n_jobs` means."""
    if n_jobs is None:
        return 1
    require(isinstance(n_jobs, Integral), "n_jobs", "None or an integer", n_jobs)
    if n_jobs == 0:
        raise ValueError("n_jobs must not be 0; use -1 for all cores")
    return n_jobs if n_jobs > 0 else max((os.cpu_count() or 1) + 1 + n_jobs, 1)
