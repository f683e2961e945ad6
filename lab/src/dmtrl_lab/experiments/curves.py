"""Summaries of runs for records and tables: curves from histories, means with standard deviations."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dmtrl.solver.outcome import RoundRecord

MAX_POINTS = 1000


def history_curves(
    history: Sequence[RoundRecord], errors: Sequence[float] | None = None, before: bool = False
) -> dict[str, list[Any]]:
    """Return rounds, seconds and passes since the start with gaps and objectives, thinned to MAX_POINTS points.

    before: whether a record describes the weights at the start of its round (the dual method) or at its end (others).
    """
    keep = np.unique(np.linspace(0, len(history) - 1, min(len(history), MAX_POINTS)).round().astype(int))

    def since_start(values: list[float]) -> list[float]:
        total = np.cumsum(values)
        return (total - values if before else total)[keep].tolist()

    curves = {
        "round": [history[k].round + (0 if before else 1) for k in keep],
        "seconds": since_start([record.seconds for record in history]),
        "passes": since_start([record.passes for record in history]),
        "w_gap": [history[k].w_gap for k in keep],
        "gap": [history[k].gap for k in keep],
        "objective": [history[k].objective for k in keep],
    }
    if errors is not None:
        curves["error"] = [errors[k] for k in keep]
    return curves


def rounds_to(figures: Mapping[str, Any], gap: str, target: float) -> int | str:
    """Return the round from which the gap stays at or below the target, or "> last round"."""
    reached: int | str = f"> {figures['round'][-1]}"
    for number, value in zip(reversed(figures["round"]), reversed(figures[gap]), strict=True):
        if value > target:
            break
        reached = int(number)
    return reached


class Spread:
    """A mean and, for several values, their standard deviation. Formats like one number."""

    def __init__(self, values: Sequence[float]):
        self.count = len(values)
        self.mean, self.deviation = float(np.mean(values)), float(np.std(values, ddof=min(1, len(values) - 1)))

    def __format__(self, how: str) -> str:
        return f"{self.mean:{how}}" + (f" ± {self.deviation:{how}}" if self.count > 1 else "")
