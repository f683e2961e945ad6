"""Which candidates of a cross-validation are worth all folds.

All candidates are tried on the first folds. Those that are significantly worse than the best are not tried on the
remaining folds.
"""

import numpy as np
from scipy import stats

FIRST_FOLDS = 2  # on which every candidate is tried
LEVEL = 1e-2  # of the test, one-sided


def contenders(total: np.ndarray, weight: np.ndarray, over: str = "rows") -> np.ndarray:
    """Which candidates remain: all but those that are worse than the best by a paired t-test over tasks.

    `total` and `weight` are held-out sums (candidates, m) over the first folds: of the error that the search minimises,
    and of the row weights. `over` says how errors are averaged: over "rows" or "tasks". With fewer than three tasks
    there is no test, and all remain.
    """
    seen = (weight > 0).all(axis=0)
    if seen.sum() < 3:
        return np.ones(len(total), dtype=bool)
    total, weight = total[:, seen], weight[:, seen]
    # each task's share of the mean that is compared
    shares = total / weight.sum(axis=1, keepdims=True) if over == "rows" else total / weight / seen.sum()
    means = shares.sum(axis=1)
    finite = np.isfinite(means)
    if not finite.any():
        return np.ones(len(total), dtype=bool)
    best = int(np.argmin(np.where(finite, means, np.inf)))
    difference = shares - shares[best]
    excess, count = difference.sum(axis=1), shares.shape[1]
    error = np.sqrt(count) * difference.std(axis=1, ddof=1)
    remain: np.ndarray = excess <= stats.t.isf(LEVEL, count - 1) * error
    remain[best] = True
    return remain
