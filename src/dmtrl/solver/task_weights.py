"""How much each task counts in the objective (docs/math.md section 13)."""

from typing import Any

import numpy as np

from dmtrl.numerics.checks import is_number

NAMED = {"equal": 0.0, "rows": 1.0}


def check_task_weight(task_weight: Any) -> float:
    """The exponent gamma of a `task_weight` argument; a task with n rows has a weight proportional to n^gamma."""
    if isinstance(task_weight, str) and task_weight in NAMED:
        return NAMED[task_weight]
    if is_number(task_weight) and 0 <= task_weight <= 1:
        return float(task_weight)
    raise ValueError(f"task_weight must be 'equal', 'rows' or a number from 0 to 1, got {task_weight!r}")


def task_weights(gamma: float, sizes: np.ndarray) -> np.ndarray:
    """The weight of each task, with mean one (36). sizes: the sum of the sample weights of each task.

    A task without rows has no loss. Its weight is one, and does not count in the mean.
    """
    weights, present = np.ones(len(sizes)), sizes > 0
    if gamma == 0:
        return weights
    grown = (sizes[present] / sizes.max()) ** gamma
    weights[present] = grown / grown.mean()
    return weights
