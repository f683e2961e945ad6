"""Histories as curves and values as spreads: how runs are summed up in records and tables.

Room: experiments.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dmtrl.coordinator import RoundRecord

MOST_POINTS = 300


def history_curves(history: Sequence[RoundRecord], errors: Sequence[float] | None = None) -> dict[str, list[Any]]:
    """Rounds from 1, seconds since the start, and the gaps; thinned evenly to MOST_POINTS, the last one kept."""
    keep = np.unique(np.linspace(0, len(history) - 1, min(len(history), MOST_POINTS)).round().astype(int))
    seconds = np.cumsum([record.seconds for record in history])
    curves = {
        "round": [history[k].round + 1 for k in keep],
        "seconds": [float(seconds[k]) for k in keep],
        "passes": np.cumsum([record.passes for record in history])[keep].tolist(),
        "w_gap": [history[k].w_gap for k in keep],
        "gap": [history[k].gap for k in keep],
        "objective": [history[k].objective for k in keep],
    }
    if errors is not None:
        curves["error"] = [errors[k] for k in keep]
    return curves


def rounds_to(figures: Mapping[str, Any], gap: str, target: float) -> int | str:
    """The first round whose gap is at most the target; in words where it was not reached."""
    for number, value in zip(figures["round"], figures[gap], strict=True):
        if value <= target:
            return int(number)
    return f"> {figures['round'][-1]}"


class Spread:
    """A mean and, of several values, their deviation, written with the format of one number."""

    def __init__(self, values: Sequence[float]):
        self.count = len(values)
        self.mean, self.deviation = float(np.mean(values)), float(np.std(values, ddof=min(1, len(values) - 1)))

    def __format__(self, how: str) -> str:
        return f"{self.mean:{how}}" + (f" ± {self.deviation:{how}}" if self.count > 1 else "")
