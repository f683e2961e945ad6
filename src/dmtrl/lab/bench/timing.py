"""Fair timing: a warm-up of each competitor, which compiles, then interleaved repeats.

Ratios are of medians; their range is the smallest and the largest ratio of one repeat.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmtrl.lab.experiments.early_stop import StopRun


@dataclass(frozen=True)
class Timed:
    seconds: dict[str, list[float]]
    results: dict[str, Any]  # of the last repeat


def interleaved(
    competitors: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    warm_up: bool = True,
    clock: Callable[[], float] = time.perf_counter,
    limit: float = float("inf"),
) -> Timed:
    """Time all competitors in turn, `repeats` times, after an untimed warm-up of each.

    clock: with one thread, time.process_time is less sensitive to other programs.
    limit: no new repeat starts after so many seconds, except for the second one.
    """
    if warm_up:
        for run in competitors.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    results = {}
    started = time.perf_counter()
    for repeat in range(repeats):
        if repeat >= 2 and time.perf_counter() - started > limit:
            break
        for name, run in competitors.items():
            began = clock()
            results[name] = run()
            seconds[name].append(clock() - began)
    return Timed(seconds, results)


def ratio(theirs: list[float], ours: list[float]) -> tuple[float, float, float]:
    """Return how many times longer theirs took: the ratio of medians, and the range of ratios of one repeat."""
    each = np.array(theirs) / np.array(ours)
    return float(np.median(theirs) / np.median(ours)), float(each.min()), float(each.max())


def read_bandwidth(megabytes: int = 512, repeats: int = 5) -> float:
    """Return the bytes per second at which one thread reads an array larger than the caches."""
    numbers = np.ones(megabytes * 2**17)
    best = 0.0
    for _ in range(repeats):
        for read in (numbers.sum, lambda: numbers @ numbers):
            began = time.process_time()
            read()
            best = max(best, numbers.nbytes / (time.process_time() - began))
    return best


class Clock:
    """A `watch` function that ends a run at a joint gap or after `limit` seconds."""

    def __init__(self, gap: float, limit: float):
        self._gap, self._limit, self._began = gap, limit, time.perf_counter()
        self.rounds, self.reached, self.bytes = 0, float("inf"), 0

    def __call__(self, record: Any, W: Any = None) -> None:
        self.rounds, self.reached = record.round + 1, record.gap
        self.bytes += record.bytes_sent + record.bytes_received
        if record.gap <= self._gap or time.perf_counter() - self._began > self._limit:
            raise StopRun
