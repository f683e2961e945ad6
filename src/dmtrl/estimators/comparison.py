"""What a comparison of learning together, alone and pooled found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import t as student

from dmtrl import notebook
from dmtrl.data.task_data import tiny_tasks
from dmtrl.estimators.held_out import Metrics, task_frame
from dmtrl.losses import CLASSIFICATION, get_loss
from dmtrl.solver.search import SearchResult

PARTS = ("common", "related", "own")  # of a task's coefficients


def format_shares(shares: np.ndarray) -> str:
    """The mean share of each part, in words."""
    return ", ".join(f"{share:.0%} {part}" for part, share in zip(PARTS, shares.mean(axis=0), strict=True))


@dataclass(frozen=True)
class Comparison:
    """Held-out error of each task when learned together, alone and pooled.

    `hurts` marks tasks whose error together is higher than alone, by a one-sided t-test over folds at the 1 % level.
    Expect one false mark per hundred tasks. `rows` is the number of rows of each task. Tasks with very few, fewer than
    3 or than a tenth of the median, are not counted where numbers of tasks are printed. `shares` (m, 3) says how much
    of each task's coefficients is common, related and its own, as in `weight_shares_`.
    """

    tasks: np.ndarray
    together: np.ndarray
    alone: np.ndarray
    pooled: np.ndarray
    hurts: np.ndarray
    measure: str
    rows: np.ndarray | None = None
    shares: np.ndarray | None = None
    metrics: Mapping[str, Metrics] = field(default_factory=dict)  # of "together", "alone" and "pooled"

    @property
    def tiny(self) -> np.ndarray:
        """Which tasks have very few rows."""
        return np.zeros(len(self.tasks), dtype=bool) if self.rows is None else tiny_tasks(self.rows)

    def table(self) -> Any:
        """A pandas data frame with one row per task."""
        columns = {"together": self.together, "alone": self.alone, "pooled": self.pooled, "hurts": self.hurts}
        known = {} if self.rows is None else {"rows": self.rows}
        parts = {} if self.shares is None else dict(zip(PARTS, self.shares.T, strict=True))
        return task_frame(columns | known | parts, self.tasks)

    def __str__(self) -> str:
        known = np.isfinite(self.together)
        means = ", ".join(f"{name} {getattr(self, name)[known].mean():.4g}" for name in ("together", "alone", "pooled"))
        counted = ~self.tiny
        few = f" (without {int(self.tiny.sum())} with very few rows)" if self.tiny.any() else ""
        hurt = f"sharing hurts {int(self.hurts[counted].sum())} of {int(counted.sum())}{few}"
        unknown = "" if known.all() else f"; {int((~known).sum())} tasks have no held-out row"
        parts = "" if self.shares is None else f"; of the coefficients {format_shares(self.shares)}"
        return f"mean held-out {measure_name(self.measure)} over tasks: {means}; {hurt}{unknown}{parts}"

    def _repr_html_(self) -> str:
        errors = zip(self.together, self.alone, self.pooled, strict=True)
        rows = [
            (task, *map(notebook.number, found), "sharing hurts" if hurts else "")
            for task, found, hurts in zip(self.tasks, errors, self.hurts, strict=True)
        ]
        header = ["task", "together", "alone", "pooled", ""]
        return notebook.section(notebook.text(str(self)), notebook.table(header, rows, "call table()"))


def default_measure(loss: Any) -> str:
    """The measure of held-out error for a loss."""
    loss = get_loss(loss)
    if loss.kind == CLASSIFICATION:
        return "wrong"
    return "squared_error" if loss.name == "squared" else "loss"


def measure_name(measure: str) -> str:
    """A measure of held-out error, as text shows it."""
    return "error rate" if measure == "wrong" else measure.replace("_", " ")


def held_out_errors(found: SearchResult, measure: str, axis: int | None) -> np.ndarray:
    """Mean error of each task at the choice: over all folds (axis 0), or per fold, NaN if it has no row."""
    i, j = found.results.index_of(found.choice)
    total, weight = getattr(found.results, measure)[i, j], found.results.weight[i, j]
    if axis is not None:
        total, weight = total.sum(axis=axis), weight.sum(axis=axis)
    return np.divide(total, weight, out=np.full(total.shape, np.nan), where=weight > 0)


def significantly_positive(difference: np.ndarray) -> np.ndarray:
    """One-sided t-test over folds of (folds, m) differences at the 1 % level; all False for a single task."""
    count = (~np.isnan(difference)).sum(axis=0)
    mean = np.nansum(difference, axis=0) / np.maximum(count, 1)
    error = np.sqrt(np.nansum((difference - mean) ** 2, axis=0) / np.maximum(count * (count - 1), 1))
    limit = student.ppf(0.99, np.maximum(count - 1, 1))
    return (count > 1) & (mean > limit * error) & (mean > 0) & (difference.shape[1] > 1)
