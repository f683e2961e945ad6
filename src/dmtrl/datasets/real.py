"""Real data sets: School, MNIST and Multi-Domain Sentiment from files, scikit-learn's digits from the package itself.

Room: datasets. Nothing is centred or scaled unless the docstring says so; that is the model's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from dmtrl.data import TaskData
from dmtrl.datasets.files import find_file, read_arrays

SCHOOL_SPLITS = 10


@dataclass(frozen=True)
class TaskSplit:
    """Training and test rows of the same tasks, in the same order."""

    train: TaskData
    test: TaskData


@dataclass(frozen=True)
class School:
    X: np.ndarray  # (15362, 28) float32; the last column is the constant 1
    y: np.ndarray  # exam score
    task: np.ndarray  # number of each row's school
    names: np.ndarray  # name of each school: names[task] is one label per row
    feature_names: np.ndarray
    splits: Sequence[tuple[np.ndarray, np.ndarray]]  # ten published pairs of (training rows, test rows)


def load_school(folder: str | Path | None = None) -> School:
    """Exam scores of 15,362 pupils in 139 London schools, with the ten published splits."""
    numbers = range(1, SCHOOL_SPLITS + 1)
    splits = [f"{part}_{k}" for k in numbers for part in ("train", "test")]
    arrays = read_arrays(find_file("school.npz", folder), ["X", "y", "task", "task_names", "feature_names", *splits])
    return School(
        arrays["X"],
        arrays["y"],
        arrays["task"],
        arrays["task_names"],
        arrays["feature_names"],
        [(arrays[f"train_{k}"], arrays[f"test_{k}"]) for k in numbers],
    )


def load_mnist_tasks(folder: str | Path | None = None, *, seed: int = 0, max_positives: int | None = None) -> TaskSplit:
    """Ten one-vs-rest tasks, each with as many negatives drawn at random from the other digits, as in the paper.

    The official division into training and test images; pixels scaled to 0..1 in float32 (380 MB for all training
    rows). `max_positives` caps the images of a digit in the training part, and in the test part at a fifth of it.
    """
    arrays = read_arrays(find_file("mnist.npz", folder), ["X", "y", "split", "task_names"])
    rng = np.random.default_rng(seed)
    parts = []
    for split, cap in ((0, max_positives), (1, None if max_positives is None else max(max_positives // 5, 1))):
        rows = np.flatnonzero(arrays["split"] == split)
        parts.append(_one_vs_rest(arrays["X"], arrays["y"], rows, 255.0, arrays["task_names"], rng, cap))
    return TaskSplit(*parts)


def load_digits_tasks(*, seed: int = 0, test_share: float = 0.3) -> TaskSplit:
    """scikit-learn's 1,797 digits of 8 x 8 pixels as ten balanced one-vs-rest tasks; needs no file and no network.

    The images are divided first, so that no test image of one task is a training image of another. Pixels are scaled
    to 0..1.
    """
    from sklearn.datasets import load_digits

    if not 0 < test_share < 1:
        raise ValueError(f"test_share must lie between 0 and 1, got {test_share!r}")
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    cut = round(len(y) * (1 - test_share))
    names = np.array([f"digit_{k}" for k in range(10)])
    train, test = (_one_vs_rest(X, y, np.sort(rows), 16.0, names, rng) for rows in (order[:cut], order[cut:]))
    return TaskSplit(train, test)


def load_mds(
    folder: str | Path | None = None,
    *,
    rows: str = "balanced",
    test_folds: Sequence[int] = (0, 1, 2),
    tfidf: bool = True,
) -> TaskSplit:
    """Sentiment of Amazon reviews in 22 product domains (a subset of the collection), as CSR rows of 10,000 terms.

    rows: "balanced" (as many positives as negatives in each domain), "natural" (each domain's own share) or "all".
    test_folds: which of the ten fixed folds are the test part; three of them are the paper's 70/30.
    tfidf: term weights learned from the training rows, each row scaled to length one; otherwise raw counts.
    """
    choices = ("balanced", "natural", "all")
    if rows not in choices:
        raise ValueError(f"rows must be one of {', '.join(choices)}, got {rows!r}")
    held = sorted(set(test_folds))
    if not held or len(held) > 9 or not set(held) <= set(range(10)):
        raise ValueError(f"test_folds must name one to nine of the folds 0 to 9, got {list(test_folds)!r}")
    csr = ["data", "indices", "indptr", "shape"]
    arrays = read_arrays(find_file("mds.npz", folder), [*csr, "y", "task", "task_names", "origin", "balanced", "fold"])
    counts = sparse.csr_matrix(
        (arrays["data"].astype(np.float32), arrays["indices"], arrays["indptr"]), shape=tuple(arrays["shape"])
    )
    use = {
        "balanced": arrays["balanced"],
        "natural": arrays["origin"] == 0,
        "all": np.ones(len(arrays["y"]), dtype=bool),
    }[rows]
    in_test = np.isin(arrays["fold"], held)
    train, test = np.flatnonzero(use & ~in_test), np.flatnonzero(use & in_test)
    X_train, X_test = counts[train], counts[test]
    if tfidf:
        from sklearn.feature_extraction.text import TfidfTransformer

        weights = TfidfTransformer().fit(X_train)
        X_train, X_test = weights.transform(X_train), weights.transform(X_test)
    y, label = arrays["y"].astype(float), arrays["task_names"][arrays["task"]]
    return TaskSplit(
        TaskData.from_long(X_train, y[train], label[train]), TaskData.from_long(X_test, y[test], label[test])
    )


def _one_vs_rest(
    X: np.ndarray,
    y: np.ndarray,
    rows: np.ndarray,
    scale: float,
    names: np.ndarray,
    rng: np.random.Generator,
    max_positives: int | None = None,
) -> TaskData:
    """Task k: the rows with y == k, and as many drawn without replacement from the others."""
    tasks = []
    for k in range(len(names)):
        positive = rows[y[rows] == k]
        if max_positives is not None and len(positive) > max_positives:
            positive = np.sort(rng.choice(positive, max_positives, replace=False))
        negative = np.sort(rng.choice(rows[y[rows] != k], len(positive), replace=False))
        label = np.repeat([1.0, -1.0], len(positive))
        tasks.append((np.divide(X[np.concatenate([positive, negative])], scale, dtype=np.float32), label))
    return TaskData.from_list(tasks, names=[str(name) for name in names])
