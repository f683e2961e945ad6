"""Fair timing: every contender once to warm up (which compiles), then in turn, several times over.

Room: bench. Ratios are of medians; their spread is the least and the greatest ratio of one repeat.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


class TimeIsUp(Exception):
    """Raised in a round of a contender that had its time."""


@dataclass(frozen=True)
class Timed:
    seconds: dict[str, list[float]]
    answers: dict[str, Any]  # of the last repeat


def interleaved(contenders: Mapping[str, Callable[[], Any]], repeats: int) -> Timed:
    """All contenders in turn, `repeats` times, after a warm-up of each that is not timed."""
    for run in contenders.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    answers = {}
    for _ in range(repeats):
        for name, run in contenders.items():
            began = time.perf_counter()
            answers[name] = run()
            seconds[name].append(time.perf_counter() - began)
    return Timed(seconds, answers)


def ratio(theirs: list[float], ours: list[float]) -> tuple[float, float, float]:
    """How many times longer theirs took: of the medians, and the least and greatest of one repeat."""
    each = np.array(theirs) / np.array(ours)
    return float(np.median(theirs) / np.median(ours)), float(each.min()), float(each.max())


class Clock:
    """A watcher of rounds that ends a run at a joint gap, or when it had its time."""

    def __init__(self, gap: float, limit: float):
        self._gap, self._limit, self._began = gap, limit, time.perf_counter()
        self.rounds, self.reached, self.bytes = 0, float("inf"), 0

    def __call__(self, record: Any, W: Any = None) -> None:
        self.rounds, self.reached = record.round + 1, record.gap
        self.bytes += record.bytes_sent + record.bytes_received
        if record.gap <= self._gap or time.perf_counter() - self._began > self._limit:
            raise TimeIsUp
