"""The paper's data sets, each with its loss and its error measure.

Scaling uses the training rows only. The quick versions have fewer rows or tasks.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import StandardScaler

from dmtrl.data.task_data import TaskData
from dmtrl.datasets import TaskSplit, load_mds, load_mnist_tasks, load_school, make_synthetic

QUICK_SYNTHETIC = {"rows_per_task": 400, "d": 40}


@dataclass(frozen=True)
class PaperProblem(TaskSplit):
    """A data set of the paper with its loss."""

    loss: str

    def error(self, W: np.ndarray) -> float:
        """Return the test error of weights (m, d)."""
        z = np.concatenate([X @ w for (X, _), w in zip(tasks_of(self.test), W, strict=True)])
        return prediction_error(self.test, z, self.loss)


def load_problem(name: str, *, quick: bool) -> PaperProblem:
    """Load one of TITLES, with the first of its seeds or splits."""
    if name == "school":
        return _school(quick)
    if name.startswith("synthetic"):
        tasks = make_synthetic(int(name[-1]), **(QUICK_SYNTHETIC if quick else {}))
        return PaperProblem(tasks.train, tasks.test, "hinge")
    split = load_split(name, quick)
    train, test = (with_constant(part) if name == "mnist" else part for part in (split.train, split.test))
    return PaperProblem(train, test, "hinge")


def prediction_error(test: TaskData, z: np.ndarray, loss: str) -> float:
    """Return the RMSE for squared loss, else the share of rows with a wrong sign, averaged over tasks."""
    if loss == "squared":
        return float(np.sqrt(np.mean((test.y - z) ** 2)))
    wrong = (test.y > 0) != (z > 0)
    return float(np.mean([wrong[a:b].mean() for a, b in pairwise(test.starts)]))


def tasks_of(data: TaskData) -> list[tuple[Any, np.ndarray]]:
    """Return X and y of each task."""
    return [(data.X[a:b], data.y[a:b]) for a, b in pairwise(data.starts)]


def first_rows(data: TaskData, sizes: int | np.ndarray) -> TaskData:
    """Return the first rows of every task: as many as `sizes` says, or all."""
    sizes = np.minimum(sizes, np.diff(data.starts))
    rows = np.concatenate([start + np.arange(size) for start, size in zip(data.starts[:-1], sizes, strict=True)])
    return replace(data, X=data.X[rows], y=data.y[rows], starts=np.append(0, np.cumsum(sizes)))


def labels(data: TaskData) -> np.ndarray:
    """Return the task name of each row."""
    return np.repeat(data.names, np.diff(data.starts))


def error_text(problem: str, error: float) -> str:
    """Return an RMSE on School, and an error rate elsewhere."""
    return f"{error:.3f}" if problem == "school" else f"{error:.2%}"


@dataclass(frozen=True)
class Rows:
    """Training or test rows for an estimator. Tasks are numbers from 0."""

    X: Any
    y: np.ndarray
    task: np.ndarray

    @classmethod
    def of(cls, data: TaskData) -> "Rows":
        return cls(data.X, data.y, np.repeat(np.arange(data.m), np.diff(data.starts)))


Split = tuple[Rows, Rows]


def standardised(train: Rows, test: Rows) -> Split:
    scaler = StandardScaler().fit(train.X)
    return replace(train, X=scaler.transform(train.X)), replace(test, X=scaler.transform(test.X))


def school_rows(split: int, schools: int | None = None) -> Split:
    """A published split of School, without its constant column; `schools`: only the first of them."""
    school = load_school()
    X, y = school.X[:, :-1].astype(float), school.y.astype(float)
    parts = [rows[school.task[rows] < schools] if schools else rows for rows in school.splits[split]]
    return standardised(*(Rows(X[rows], y[rows], school.task[rows]) for rows in parts))


def _school(quick: bool) -> PaperProblem:
    school = load_school()
    train, test = school.splits[0]
    if quick:
        train, test = (rows[school.task[rows] < 15] for rows in (train, test))
    X, y = school.X.astype(float), school.y.astype(float)
    scale = X[train].std(axis=0)
    # keep the last column, the constant 1, and other constant columns
    X = (X - np.where(scale > 0, X[train].mean(axis=0), 0.0)) / np.where(scale > 0, scale, 1.0)
    y -= y[train].mean()
    fit, held = (TaskData.from_long(X[rows], y[rows], school.task[rows]) for rows in (train, test))
    return PaperProblem(fit, held, "squared")


def load_split(name: str, quick: bool, seed: int = 0) -> TaskSplit:
    """Load MNIST or MDS without a constant column.

    MDS: balanced rows, three of the ten folds for testing, tf-idf with sublinear term frequency, rows of length one.
    """
    if name == "mnist":
        return load_mnist_tasks(seed=seed, max_positives=60 if quick else None)
    folds = [(2 * seed + k) % 10 for k in range(3)]  # five seeds test every fold, some of them twice
    split = load_mds(tfidf=False, test_folds=folds, domains=4 if quick else None)
    weights = TfidfTransformer(sublinear_tf=True).fit(split.train.X)
    parts = [replace(part, X=weights.transform(part.X).astype(np.float32)) for part in (split.train, split.test)]
    return TaskSplit(*parts)


def with_constant(data: TaskData) -> TaskData:
    """Return the same rows with a column of ones appended."""
    ones = np.ones((len(data.y), 1), data.X.dtype)
    return replace(data, X=append_columns(data.X, ones))


def append_columns(X: Any, more: np.ndarray) -> Any:
    """Return the columns of both, in the format of X."""
    return sparse.hstack([X, more], format="csr") if sparse.issparse(X) else np.hstack([X, more])


TITLES = {
    "synthetic 1": "Synthetic 1",
    "synthetic 2": "Synthetic 2",
    "school": "School",
    "mnist": "MNIST",
    "mds": "MDS",
}
