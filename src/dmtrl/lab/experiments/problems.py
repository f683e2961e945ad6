"""The data sets as the paper's experiments use them, each with its loss and its measure of error.

Room: experiments. Everything that is scaled is scaled by training rows only. The quick versions are the same data with
fewer rows or tasks.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from dmtrl.data.task_data import TaskData
from dmtrl.datasets import TaskSplit, load_mds, load_mnist_tasks, load_school, make_synthetic

QUICK_SYNTHETIC = {"rows_per_task": 400, "d": 40}


@dataclass(frozen=True)
class Posed:
    train: TaskData
    test: TaskData
    loss: str
    measure: str  # what `error` is, in words

    def error(self, W: np.ndarray) -> float:
        """At weights (m, d): the mean over tasks of the share of wrong signs, or the RMSE of all test rows."""
        return error(self.test, predictions(self.test, W), self.loss)


def posed(name: str, *, quick: bool = False, seed: int = 0) -> Posed:
    """seed: which synthetic tasks, which of School's ten splits, which negatives of MNIST, which test folds of MDS."""
    return PROBLEMS[name](quick, seed)


def predictions(data: TaskData, W: np.ndarray) -> np.ndarray:
    rows = zip(data.starts[:-1], data.starts[1:], W, strict=True)
    return np.concatenate([data.X[a:b] @ w for a, b, w in rows])


def error(test: TaskData, z: np.ndarray, loss: str) -> float:
    if loss == "squared":
        return float(np.sqrt(np.mean((test.y - z) ** 2)))
    wrong = (test.y > 0) != (z > 0)
    return float(np.mean([wrong[a:b].mean() for a, b in zip(test.starts[:-1], test.starts[1:], strict=True)]))


def _synthetic(kind: int) -> Callable[[bool, int], Posed]:
    def make(quick: bool, seed: int) -> Posed:
        tasks = make_synthetic(kind, seed, **(QUICK_SYNTHETIC if quick else {}))
        return Posed(tasks.train, tasks.test, "hinge", "test error")

    return make


def _school(quick: bool, seed: int) -> Posed:
    school = load_school()
    train, test = school.splits[seed]
    if quick:
        train, test = (rows[school.task[rows] < 30] for rows in (train, test))
    X, y = school.X.astype(float), school.y.astype(float)
    scale = X[train].std(axis=0)
    # the last column is the constant 1 and stays so; a column that never changes says nothing
    X = (X - np.where(scale > 0, X[train].mean(axis=0), 0.0)) / np.where(scale > 0, scale, 1.0)
    y -= y[train].mean()
    fit, held = (TaskData.from_long(X[rows], y[rows], school.task[rows]) for rows in (train, test))
    return Posed(fit, held, "squared", "test RMSE")


def _mnist(quick: bool, seed: int) -> Posed:
    split = load_mnist_tasks(seed=seed, max_positives=150 if quick else None)
    return Posed(with_constant(split.train), with_constant(split.test), "hinge", "test error")


def _mds(quick: bool, seed: int) -> Posed:
    split = mds_split(seed, quick)
    return Posed(split.train, split.test, "hinge", "test error")


def mds_split(seed: int, quick: bool = False) -> TaskSplit:
    """Balanced rows; three of the ten folds are the test part; tf-idf with logarithmic counts, rows of length one."""
    from sklearn.feature_extraction.text import TfidfTransformer

    folds = [(2 * seed + k) % 10 for k in range(3)]  # five seeds test every fold, half of them twice
    split = load_mds(tfidf=False, test_folds=folds, domains=6 if quick else None)
    weights = TfidfTransformer(sublinear_tf=True).fit(split.train.X)

    def weigh(data: TaskData) -> TaskData:
        return replace(data, X=weights.transform(data.X).astype(np.float32))

    return TaskSplit(weigh(split.train), weigh(split.test))


def with_constant(data: TaskData) -> TaskData:
    """The same rows with a last column of ones."""
    n = len(data.y)
    if sparse.issparse(data.X):
        X = sparse.hstack([data.X, np.ones((n, 1), data.X.dtype)], format="csr")
    else:
        X = np.hstack([data.X, np.ones((n, 1), data.X.dtype)])
    return replace(data, X=X)


PROBLEMS: dict[str, Callable[[bool, int], Posed]] = {
    "synthetic 1": _synthetic(1),
    "synthetic 2": _synthetic(2),
    "school": _school,
    "mnist": _mnist,
    "mds": _mds,
}
TITLES = {
    "synthetic 1": "Synthetic 1",
    "synthetic 2": "Synthetic 2",
    "school": "School",
    "mnist": "MNIST",
    "mds": "MDS",
}
