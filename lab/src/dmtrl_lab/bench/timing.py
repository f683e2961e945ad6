"""Fair timing: a warm-up of each competitor, which compiles, then interleaved repeats.

Ratios are of medians; their range is the smallest and the largest ratio of one repeat.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True)
class Timed:
    seconds: dict[str, list[float]]
    processor: dict[str, list[float]]  # processor seconds, which other work on the machine hardly changes
    results: dict[str, Any]  # of the last repeat
    first: dict[str, float]  # seconds of the warm-up


def interleaved(
    competitors: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    warm_up: bool = True,
    limit: float = float("inf"),
) -> Timed:
    """Time all competitors in turn, `repeats` times, after an untimed warm-up of each.

    limit: no new repeat starts after so many seconds, except for the second one.
    """
    first = {}
    for name, run in competitors.items() if warm_up else ():
        began = time.perf_counter()
        run()
        first[name] = time.perf_counter() - began
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    processor: dict[str, list[float]] = {name: [] for name in competitors}
    results = {}
    started = time.perf_counter()
    for repeat in range(repeats):
        if repeat >= 2 and time.perf_counter() - started > limit:
            break
        for name, run in competitors.items():
            began, began_processor = time.perf_counter(), time.process_time()
            results[name] = run()
            seconds[name].append(time.perf_counter() - began)
            processor[name].append(time.process_time() - began_processor)
    return Timed(seconds, processor, results, first)


class Ratio(NamedTuple):
    """A ratio of medians, and the range of the ratios of single repeats. Its format applies to each number."""

    median: float
    low: float
    high: float

    def __format__(self, how: str) -> str:
        return f"{self.median:{how}} ({self.low:{how}} to {self.high:{how}})"


def ratio(theirs: list[float], ours: list[float]) -> Ratio:
    """Return how many times longer theirs took."""
    each = np.array(theirs) / np.array(ours)
    return Ratio(float(np.median(theirs) / np.median(ours)), float(each.min()), float(each.max()))
