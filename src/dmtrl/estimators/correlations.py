"""How certain the correlations of tasks are: intervals from refits on resampled rows.

Equation numbers are those of docs/math.md.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import t as student

from dmtrl import notebook
from dmtrl.data.task_data import TaskData

_LARGEST = 0.999  # a correlation of one is infinite on Fisher's scale


@dataclass(frozen=True)
class CorrelationIntervals:
    """Intervals of the correlation of each pair of tasks, from refits on rows drawn with replacement.

    `sign_share` is the share of resamples that agree on the sign. A task with a single row cannot be resampled: its
    intervals are -1 to 1, its `sign_share` is NaN.
    """

    lower: Any
    upper: Any
    sign_share: Any
    level: float

    @property
    def without_zero(self) -> np.ndarray:
        """Which intervals do not contain zero."""
        return np.asarray((np.asarray(self.lower) > 0) | (np.asarray(self.upper) < 0))

    def __str__(self) -> str:
        sure = self.without_zero
        pairs = np.triu_indices(len(sure), 1)
        return f"{int(sure[pairs].sum())} of {len(pairs[0])} correlations have a {self.level:.0%} interval without zero"

    def _repr_html_(self) -> str:
        low, high = np.asarray(self.lower), np.asarray(self.upper)
        if len(low) > notebook.MAX_CELLS:
            return notebook.section(notebook.text(str(self)))
        names = list(getattr(self.lower, "index", range(len(low))))
        labels = [[f"{a:.2f} to {b:.2f}" for a, b in zip(*rows, strict=True)] for rows in zip(low, high, strict=True)]
        # coloured by the end that is nearer to zero: an interval that contains zero has no colour
        nearer = np.where((low > 0) | (high < 0), np.where(low > 0, low, high), 0.0)
        return notebook.section(notebook.text(str(self)), notebook.heat_map(nearer, names, labels))


def fisher_intervals(
    estimate: np.ndarray, draws: np.ndarray, rows: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper ends (48), (49) of correlations (m, m), from the correlations (resamples, m, m) of refits."""
    centre, resamples = fisher(estimate), fisher(draws)
    fewer = np.maximum(np.minimum(rows[:, None], rows), 2)
    spread = resamples.std(axis=0, ddof=1) * np.sqrt(fewer / (fewer - 1))
    half = student.ppf((1 + level) / 2, len(draws) - 1) * spread
    unknown = unknown_pairs(rows)
    low, high = np.where(unknown, -1.0, np.tanh(centre - half)), np.where(unknown, 1.0, np.tanh(centre + half))
    np.fill_diagonal(low, 1.0)
    np.fill_diagonal(high, 1.0)
    return low, high


def unknown_pairs(rows: np.ndarray) -> np.ndarray:
    """(m, m): pairs of different tasks of which one has fewer than two rows, so that resamples do not vary."""
    few = rows < 2
    return (few[:, None] | few) & ~np.eye(len(rows), dtype=bool)


def fisher(correlation: np.ndarray) -> np.ndarray:
    """The inverse hyperbolic tangent, on which the spread of a correlation hardly depends on its size."""
    return np.arctanh(np.clip(correlation, -_LARGEST, _LARGEST))


def resampled(data: TaskData, rng: np.random.Generator) -> TaskData:
    """Draw rows with replacement, expressed as weights so that X is not copied."""
    draws = [rng.multinomial(n, np.full(n, 1.0 / n)) for n in np.diff(data.starts)]
    times = np.concatenate(draws).astype(float)
    weight = times if data.sample_weight is None else times * data.sample_weight
    empty = np.add.reduceat(weight, data.starts[:-1]) <= 0
    for i in np.flatnonzero(empty):  # all drawn rows have weight zero: do not resample this task
        rows = slice(data.starts[i], data.starts[i + 1])
        weight[rows] = 1.0 if data.sample_weight is None else data.sample_weight[rows]
    return replace(data, sample_weight=weight)
