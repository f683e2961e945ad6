"""Prediction intervals by CV+: the models of the folds, and how far off they were on the rows they did not see.

Equation numbers are those of docs/math.md.
"""

from dataclasses import dataclass

import numpy as np

ENOUGH = 5.0  # rows a task needs for residuals of its own, times the share that may be missed
PRIOR_ROWS = 3.0  # rows that the scale of all tasks counts for in the scale of one
_BISECTIONS = 60


@dataclass(frozen=True)
class FoldModels:
    """The models of a cross-validation's folds at the chosen strengths, and the absolute residual of each held-out row.

    coef is (folds, m, d), intercept (folds, m). Entry j of the others is a held-out row: its fold, task and weight. The
    weights of a task sum to its number of held-out rows; a row that several folds test shares its weight among them.
    """

    coef: np.ndarray
    intercept: np.ndarray
    residual: np.ndarray
    fold: np.ndarray
    task: np.ndarray
    weight: np.ndarray

    def bounds(self, task: int, centre: np.ndarray, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """The lower and upper ends (46) for rows of a task; `centre` has the predictions of the folds, (folds, n).

        A task with few held-out rows uses those of all tasks, scaled by (47).
        """
        own = self.task == task
        if self.weight[own].sum() >= ENOUGH / (1.0 - coverage):
            residual, fold, weight = self.residual[own], self.fold[own], self.weight[own]
        else:
            scale = self.scales()
            residual, fold, weight = self.residual * (scale[task] / scale[self.task]), self.fold, self.weight
        upper = _upper_end(centre, residual, fold, weight, coverage)
        return -_upper_end(-centre, residual, fold, weight, coverage), upper

    def scales(self) -> np.ndarray:
        """The scale of the residuals of each task, shrunk towards that of all tasks (47)."""
        m = self.coef.shape[1]
        count = np.bincount(self.task, weights=self.weight, minlength=m)
        square = np.bincount(self.task, weights=self.weight * self.residual**2, minlength=m)
        overall = square.sum() / max(count.sum(), 1e-300)
        scale = np.sqrt((square + PRIOR_ROWS * overall) / (count + PRIOR_ROWS))
        return np.where(scale > 0, scale, 1.0)


def _upper_end(
    centre: np.ndarray, residual: np.ndarray, fold: np.ndarray, weight: np.ndarray, coverage: float
) -> np.ndarray:
    """The least v with a weight of at least coverage * (total + 1) of centre[fold] + residual <= v, by bisection."""
    total = float(weight.sum())
    wanted = coverage * (total + 1.0)
    if wanted > total * (1 + 1e-12):
        return np.full(centre.shape[1], np.inf)
    tables = []
    for k in np.unique(fold):
        here = np.flatnonzero(fold == k)
        here = here[np.argsort(residual[here], kind="stable")]
        tables.append((int(k), residual[here], np.append(0.0, np.cumsum(weight[here]))))
    used = centre[[k for k, _, _ in tables]]
    low, high = used.min(axis=0), used.max(axis=0) + residual.max()
    slack = wanted * (1 - 1e-12)
    for _ in range(_BISECTIONS):
        middle = low + (high - low) / 2
        below = sum(sums[np.searchsorted(values, middle - centre[k], side="right")] for k, values, sums in tables)
        enough = below >= slack
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(high)
