"""Which rows a split of a cross-validation trains on and which it tests."""

import numpy as np

TRAIN, TEST, UNUSED = 0, 1, 2  # what a row does in a split


def shuffled(rows: np.ndarray, labels: np.ndarray | None, seed: int, task: int) -> np.ndarray:
    """The rows of a task in random order and, if labels are classes, class after class.

    Fold k of K holds out the rows k, k + K, k + 2K, ... of this order. The only row of a task always trains.
    """
    if len(rows) < 2:
        return rows[:0]
    order = np.random.default_rng([seed, task]).permutation(rows)
    return order if labels is None else order[np.argsort(labels[order], kind="stable")]


def draw_splits(tasks: np.ndarray, labels: np.ndarray | None, folds: int, seed: int) -> np.ndarray:
    """Draw folds within each task and class: (folds, n) of TRAIN and TEST. `labels` are classes or None."""
    splits = np.full((folds, len(tasks)), TRAIN, dtype=np.int8)
    order = np.argsort(tasks, kind="stable")
    first = np.searchsorted(tasks[order], np.arange(int(tasks.max()) + 2))
    for task in range(len(first) - 1):
        drawn = shuffled(order[first[task] : first[task + 1]], labels, seed, task)
        splits[np.arange(len(drawn)) % folds, drawn] = TEST
    return splits
