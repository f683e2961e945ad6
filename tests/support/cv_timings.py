"""What the parts of a cross-validation bring: fits, rounds and processor seconds with and without them.

    DMTRL_DATA=... python tests/support/cv_timings.py school mnist mds

Processor seconds hardly depend on what else the machine does. The last line of a data set estimates the speed-up by two
threads from them: the seconds of one thread, divided by those of the busier of two together with the time that it was
blocked by the other (not the time that it waited for a processor). It covers the folds that every candidate is tried
on. Linux only.
"""

import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl import MTRLClassifierCV, MTRLRegressorCV
from dmtrl.datasets import load_mds, load_mnist_tasks, load_school
from dmtrl.solver.race import FIRST_FOLDS
from dmtrl.solver.search import _Paths

REPEATS = 2  # of the speed-up, of which the least seconds count
SEARCHES: dict[str, dict[str, Any]] = {
    "default": {"owns": (0.0,)},
    "exhaustive": {"exhaustive": True, "owns": (0.0,)},
    "exhaustive, one tau": {"exhaustive": True, "commons": (0.0,), "owns": (0.0,)},
}


def data_set(name: str) -> tuple[Callable[..., Any], tuple[Any, Any, Any]]:
    if name == "school":
        school = load_school()
        train = school.splits[0][0]
        return MTRLRegressorCV, (school.X[train], school.y[train], school.task[train])
    data = (load_mds() if name == "mds" else load_mnist_tasks(max_positives=300)).train
    return MTRLClassifierCV, (data.X, data.y, np.repeat(np.arange(data.m), np.diff(data.starts)))


class Clock:
    """Seconds that the thread of each path computed, and that it was blocked."""

    def __init__(self) -> None:
        self.paths: dict[int, tuple[float, float]] = {}
        self._follow = _Paths._follow

    def __enter__(self) -> "Clock":
        clock, follow = self, self._follow

        def timed(paths: Any, group: Any, fold: int, *more: Any) -> None:
            began = _times()
            follow(paths, group, fold, *more)
            wall, busy, queued = (end - start for end, start in zip(_times(), began, strict=True))
            clock.paths[fold] = busy, wall - busy - queued

        _Paths._follow = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        _Paths._follow = self._follow  # type: ignore[method-assign]


def _times() -> tuple[float, float, float]:
    """Seconds on the clock, of this thread on a processor, and of this thread waiting for one."""
    busy, queued, _ = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()
    return time.perf_counter(), int(busy) / 1e9, int(queued) / 1e9


def speed_up(make: Callable[..., Any], data: tuple[Any, Any, Any]) -> float:
    X, y, tasks = data
    seconds = {1: np.inf, 2: np.inf}
    for _ in range(REPEATS):
        for jobs in seconds:
            with Clock() as clock:
                make(n_jobs=jobs).fit(X, y, tasks=tasks)
            first = [sum(clock.paths[fold]) for fold in range(FIRST_FOLDS)]
            seconds[jobs] = min(seconds[jobs], sum(first) if jobs == 1 else max(first))
    return seconds[1] / seconds[2]


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    for name in names:
        make, (X, y, tasks) = data_set(name)
        make(lambdas=(1.0, 0.1), cv=2).fit(X, y, tasks=tasks)  # compiles
        for search, options in SEARCHES.items():
            began = time.process_time()
            model = make(**options).fit(X, y, tasks=tasks)
            seconds = time.process_time() - began
            rounds = model.cv_results_.rounds
            chosen = f"lambda {model.reg_lambda_:.2g}, tau {model.common_strength_:.2g}"
            work = f"{(rounds > 0).sum():4} fits {rounds.sum():5} rounds {seconds:6.2f} s"
            print(f"{name:7} {search:20} {work}  {chosen}", flush=True)
        print(f"{name:7} two threads: {speed_up(make, (X, y, tasks)):.2f} times", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
