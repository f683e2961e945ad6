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


def interleaved(
    contenders: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    warm_up: bool = True,
    clock: Callable[[], float] = time.perf_counter,
    limit: float = float("inf"),
) -> Timed:
    """All contenders in turn, `repeats` times, after a warm-up of each that is not timed. After `limit` seconds no
    further repeat is begun, but there are two at least. With one thread `clock` may count the seconds of the process
    alone, which other work on the machine disturbs less."""
    if warm_up:
        for run in contenders.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    answers = {}
    started = time.perf_counter()
    for repeat in range(repeats):
        if repeat >= 2 and time.perf_counter() - started > limit:
            break
        for name, run in contenders.items():
            began = clock()
            answers[name] = run()
            seconds[name].append(clock() - began)
    return Timed(seconds, answers)


def ratio(theirs: list[float], ours: list[float]) -> tuple[float, float, float]:
    """How many times longer theirs took: of the medians, and the least and greatest of one repeat."""
    each = np.array(theirs) / np.array(ours)
    return float(np.median(theirs) / np.median(ours)), float(each.min()), float(each.max())


def read_bandwidth(megabytes: int = 512, repeats: int = 5) -> float:
    """Bytes per second at which one thread reads an array that no cache holds: the best of several sums."""
    numbers = np.ones(megabytes * 2**17)
    best = 0.0
    for _ in range(repeats):
        for read in (numbers.sum, lambda: numbers @ numbers):
            began = time.process_time()
            read()
            best = max(best, numbers.nbytes / (time.process_time() - began))
    return best


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
