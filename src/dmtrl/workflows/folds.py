"""How many folds a cross-validation of the shell has."""

import numpy as np

from dmtrl.exceptions import InputError, Setting

FOLDS = 5


def rows_per_task(tasks: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """How many rows with a positive weight each task has."""
    return np.unique(tasks if weight is None else tasks[weight > 0], return_counts=True)[1]


def folds_for(rows: np.ndarray, *otherwise: str | Setting) -> int:
    """FOLDS, or the rows of the largest task if it has fewer.

    Raises InputError, which ends with `otherwise`, if no task has two rows.
    """
    largest = int(rows.max(initial=0))
    if largest < 2:
        raise InputError("every task has only one row, so nothing can be held out ", *otherwise)
    return min(largest, FOLDS)
