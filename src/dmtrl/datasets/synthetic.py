"""Synthetic 1 and 2 of the paper: tasks that copy one of three parents, or its opposite.

Room: datasets. The paper gives the construction, the sizes and the rho of the learned problem (6.24 and 12.95), but no
scales. The constants below, and the order of the draws, were set so that the problem learned with hinge loss and lambda
1e-4 has about these rho: 6.22 and 12.91 on average over the seeds 0 to 9. tests/test_datasets.py holds them to it.
"""

from dataclasses import dataclass

import numpy as np

from dmtrl.data.task_data import TaskData

PARENTS = (0, 5, 10)  # the paper's w_1, w_6, w_11; the tasks up to the next parent are its copies
TASKS = 16  # of the paper; further ones copy the parents in the same order again
MARGIN = 5.0  # standard deviation of w.x for a parent: the labels' own noise leaves an error of about 11 %
NOISE = 0.2  # length of the noise on a copy, over the parent's length
SHARED = {1: 0.0, 2: 0.95}  # share of a parent's variance that all parents have in common
ROWS_PER_TASK = 2705
TRAIN_SHARE = 1894 / 2705
_SPREAD = (0.5, 1.5)  # sizes of tasks over their mean, before they are made to add up


@dataclass(frozen=True)
class SyntheticTasks:
    train: TaskData
    test: TaskData
    W: np.ndarray  # (m, d): the weights the labels were drawn with
    correlation: np.ndarray  # (m, m): cosines between the rows of W


def make_synthetic(
    kind: int = 1, seed: int = 0, *, rows_per_task: int = ROWS_PER_TASK, m: int = TASKS, d: int = 100
) -> SyntheticTasks:
    """Tasks of unequal size with labels from the logistic model; rows have a length of about one.

    kind 1: unrelated parents. kind 2: for the same seed the same inputs and sizes, but related parents, so that all
    tasks are correlated. rows_per_task is the mean over tasks, training and test rows together.
    """
    if kind not in SHARED:
        raise ValueError(f"kind must be 1 or 2 (the paper's Synthetic 1 and Synthetic 2), got {kind!r}")
    if m < 1 or d < 1 or rows_per_task < 10:
        raise ValueError(
            "a synthetic problem needs m >= 1, d >= 1 and rows_per_task >= 10, "
            f"got m={m}, d={d}, rows_per_task={rows_per_task}"
        )
    # one stream for each part: the inputs must not depend on how the weights are drawn
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
    """(m, d): parents of length one, and copies of them with a random sign and noise."""
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
    """Whole numbers in proportion to `shares` that add up to `total` exactly (largest remainders)."""
    exact = total * shares / shares.sum()
    whole = np.floor(exact).astype(int)
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: total - whole.sum()]] += 1
    return whole
