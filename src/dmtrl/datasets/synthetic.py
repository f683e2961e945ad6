"""Synthetic 1 and 2 of the paper: tasks that copy one of three parents, or its opposite.

The paper gives the construction, the sizes and the rho of the learned problem (6.24 and 12.95), but no scales. With the
constants and the order of draws below, hinge loss and lambda 1e-4 give 6.22 and 12.91 on average over seeds 0 to 9.
tests/datasets/test_datasets.py checks this.
"""

from dataclasses import dataclass

import numpy as np

from dmtrl.data.task_data import TaskData

PARENTS = (0, 5, 10)  # the paper's w_1, w_6, w_11; the tasks up to the next parent copy it
TASKS = 16  # as in the paper; more tasks copy the parents in the same order
MARGIN = 5.0  # standard deviation of w.x for a parent: the label noise gives an error rate of about 11 %
NOISE = 0.2  # norm of the noise on a copy, relative to the norm of the parent
SHARED = {1: 0.0, 2: 0.95}  # share of the variance that is common to all parents
ROWS_PER_TASK = 2705
TRAIN_SHARE = 1894 / 2705
_SPREAD = (0.5, 1.5)  # task sizes relative to their mean, before rounding


@dataclass(frozen=True)
class SyntheticTasks:
    """Synthetic tasks with their true weights."""

    train: TaskData
    test: TaskData
    W: np.ndarray  # (m, d): the true weights
    correlation: np.ndarray  # (m, m): cosines between the rows of W

    def recovery(self, learned: np.ndarray) -> float:
        """Return the Pearson correlation between learned and true correlations over all pairs of tasks."""
        pairs = np.triu_indices(len(self.correlation), 1)
        return float(np.corrcoef(learned[pairs], self.correlation[pairs])[0, 1])


def make_synthetic(
    kind: int = 1, seed: int = 0, *, rows_per_task: int = ROWS_PER_TASK, m: int = TASKS, d: int = 100
) -> SyntheticTasks:
    """Tasks of unequal size with labels from the logistic model; rows have a norm of about one.

    Parameters
    ----------
    kind : 1 or 2
        1: unrelated parents. 2: the same inputs and sizes, but related parents, so that all tasks are correlated.
    seed : int
    rows_per_task : int
        The mean over tasks of training and test rows together.
    m, d : int
        The number of tasks and of features.
    """
    if kind not in SHARED:
        raise ValueError(f"kind must be 1 or 2 (the paper's Synthetic 1 and Synthetic 2), got {kind!r}")
    if m < 1 or d < 1 or rows_per_task < 10:
        raise ValueError(
            f"m and d must be at least 1 and rows_per_task at least 10, got m={m}, d={d}, rows_per_task={rows_per_task}"
        )
    # separate streams, so that the inputs do not depend on how the weights are drawn
    sizes_rng, weights_rng, inputs_rng, labels_rng = (
        np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(4)
    )
    sizes = _apportion(m * rows_per_task, sizes_rng.uniform(*_SPREAD, size=m))
    train_sizes = _apportion(round(m * rows_per_task * TRAIN_SHARE), sizes)
    W = MARGIN * np.sqrt(d) * _directions(weights_rng, m, d, SHARED[kind])
    train, test = [], []
    for w, n, n_train in zip(W, sizes, train_sizes, strict=True):
        X = inputs_rng.normal(scale=d**-0.5, size=(n, d))
        y = np.where(labels_rng.random(n) < 1.0 / (1.0 + np.exp(-X @ w)), 1.0, -1.0)
        train.append((X[:n_train], y[:n_train]))
        test.append((X[n_train:], y[n_train:]))
    return SyntheticTasks(TaskData.from_list(train), TaskData.from_list(test), W, cosines(W))


def cosines(W: np.ndarray) -> np.ndarray:
    """Cosines between the rows of W."""
    unit = W / np.linalg.norm(W, axis=1, keepdims=True)
    return np.clip(unit @ unit.T, -1.0, 1.0)


def _directions(rng: np.random.Generator, m: int, d: int, shared: float) -> np.ndarray:
    """(m, d): parents of norm one, and copies of them with a random sign and noise."""
    own, common = rng.normal(size=(len(PARENTS), d)), rng.normal(size=d)
    parents = np.sqrt(shared) * common + np.sqrt(1.0 - shared) * own
    parents /= np.linalg.norm(parents, axis=1, keepdims=True)
    family = np.searchsorted(PARENTS, np.arange(m) % TASKS, side="right") - 1
    sign = rng.choice([-1.0, 1.0], size=m)
    noise = NOISE * rng.normal(scale=d**-0.5, size=(m, d))
    W = sign[:, None] * parents[family] + noise
    first = [i for i in PARENTS if i < m]
    W[first] = parents[: len(first)]
    return W


def _apportion(total: int, shares: np.ndarray) -> np.ndarray:
    """Integers in proportion to `shares` that sum to `total` (largest remainders)."""
    exact = total * shares / shares.sum()
    whole = np.floor(exact).astype(int)
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: total - whole.sum()]] += 1
    return whole
