"""More than two classes: the losses of the tasks, and classes that a task does not have."""

from typing import Any

import numpy as np

from dmtrl.losses import AnyLoss, OneVsRest, Softmax

ABSENT_CLASS_SCORE = -1e6  # score of a class that a task does not have, if it is never predicted there


def resolve_multi_class(multi_class: str, loss: AnyLoss) -> str:
    """Return "softmax" or "ovr". "auto" means softmax for the logistic loss, which is its generalisation."""
    if multi_class == "softmax" and loss.name != "logistic":
        raise ValueError(f"multi_class='softmax' requires loss='logistic', got {loss.name!r}; use multi_class='ovr'")
    if multi_class == "auto":
        return "softmax" if loss.name == "logistic" else "ovr"
    return multi_class


def class_losses(loss: AnyLoss, multi_class: str, seen: np.ndarray) -> AnyLoss | list[AnyLoss]:
    """The loss of each task, or one for all. `seen` (m, k): whether a task has a class."""
    k = seen.shape[1]

    def of_task(possible: tuple[int, ...] | None) -> AnyLoss:
        if resolve_multi_class(multi_class, loss) == "softmax":
            return Softmax(k, possible)
        return OneVsRest(k, possible, binary=loss)

    if seen.all():
        return of_task(None)
    made: dict[bytes, AnyLoss] = {}
    for row in seen:
        if row.tobytes() not in made:
            made[row.tobytes()] = of_task(None if row.all() else tuple(np.flatnonzero(row).tolist()))
    return [made[row.tobytes()] for row in seen]


def fill_absent(values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Replace the values (m, k) of classes that a task does not have by those of a two-way fit, task plus class.

    Intercepts of a softmax matter only up to a number per task, which this respects.
    """
    if seen.all():
        return values
    of_task, of_class = np.zeros(len(values)), np.zeros(values.shape[1])
    per_task, per_class = np.maximum(seen.sum(axis=1), 1), np.maximum(seen.sum(axis=0), 1)
    for _ in range(50):
        of_class = np.where(seen, values - of_task[:, None], 0.0).sum(axis=0) / per_class
        of_task = np.where(seen, values - of_class, 0.0).sum(axis=1) / per_task
    return np.where(seen, values, of_task[:, None] + of_class)


def chances(scores: np.ndarray, multi_class: str) -> np.ndarray:
    """Probabilities of the classes, which are on the last axis: softmax, or one-vs-rest normalised to sum to one."""
    log = scores if multi_class == "softmax" else -np.logaddexp(0, -scores)
    share: Any = np.exp(log - log.max(axis=-1, keepdims=True))
    return np.asarray(share / share.sum(axis=-1, keepdims=True))
