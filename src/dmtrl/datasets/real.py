"""Real data sets: School, MNIST, Multi-Domain Sentiment, WISDM, and scikit-learn's digits.

Features are not centred or scaled unless the docstring says so. A file is searched in `folder`, in the environment
variable DMTRL_DATA and in the cache folder; otherwise it is downloaded into the cache.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from dmtrl.data.task_data import TaskData
from dmtrl.datasets.download import locate
from dmtrl.datasets.files import find_file, read_arrays
from dmtrl.datasets.registry import SCHOOL_SPLITS


@dataclass(frozen=True)
class TaskSplit:
    """Training and test rows of the same tasks, in the same order."""

    train: TaskData
    test: TaskData


@dataclass(frozen=True)
class School:
    """Rows of all schools, with the published splits."""

    X: np.ndarray  # (15362, 28) float32; the last column is the constant 1
    y: np.ndarray  # exam score
    task: np.ndarray  # number of each row's school
    names: np.ndarray  # name of each school: names[task] is one label per row
    feature_names: np.ndarray
    splits: Sequence[tuple[np.ndarray, np.ndarray]]  # ten published pairs of (training rows, test rows)


def load_school(folder: str | Path | None = None) -> School:
    """Exam scores of 15,362 pupils in 139 London schools, with the ten published splits."""
    names = ["X", "y", "task", "task_names", "feature_names"]
    splits = [(f"train_{k}", f"test_{k}") for k in range(1, SCHOOL_SPLITS + 1)]
    arrays = read_arrays(locate("school.npz", folder), [*names, *(name for split in splits for name in split)])
    X, y, task, task_names, feature_names = (arrays[name] for name in names)
    pairs = [(arrays[train], arrays[test]) for train, test in splits]
    return School(X, y, task, task_names, feature_names, pairs)


def load_mnist_tasks(
    folder: str | Path | None = None,
    *,
    digits: Iterable[int] | None = None,
    seed: int = 0,
    max_positives: int | None = None,
) -> TaskSplit:
    """MNIST as balanced one-vs-rest tasks: the negatives of a digit are drawn from the other nine, as in the paper.

    Uses the official training and test images, with about 12,000 training rows per task. Pixels are scaled to 0..1 in
    float32 (380 MB for all training rows).

    Parameters
    ----------
    folder : path, optional
        A folder that holds mnist.npz.
    digits : iterable of int, optional
        The digits that get a task, in this order; default: all ten. The rows of a digit do not depend on the others.
    seed : int
        Seed of the draws.
    max_positives : int, optional
        The maximum number of training images of a digit; for test images a fifth of it.
    """
    chosen = _choose_digits(digits)
    if max_positives is not None and max_positives < 1:
        raise ValueError(f"max_positives must be at least 1, got {max_positives!r}")
    arrays = read_arrays(locate("mnist.npz", folder), ["X", "y", "split"])
    rng = np.random.default_rng(seed)
    parts = []
    for split, cap in ((0, max_positives), (1, None if max_positives is None else max(max_positives // 5, 1))):
        rows = np.flatnonzero(arrays["split"] == split)
        parts.append(_one_vs_rest(arrays["X"], arrays["y"], rows, 255.0, chosen, rng, cap))
    return TaskSplit(*parts)


def load_digits_tasks(*, digits: Iterable[int] | None = None, seed: int = 0, test_share: float = 0.3) -> TaskSplit:
    """scikit-learn's 1,797 digits of 8 x 8 pixels as balanced one-vs-rest tasks; needs no file and no network.

    The images are split first, so that no test image of one task is a training image of another. Pixels are scaled to
    0..1. test_share: the share of test images. Other parameters as in `load_mnist_tasks`.
    """
    from sklearn.datasets import load_digits

    chosen = _choose_digits(digits)
    if not 0 < test_share < 1:
        raise ValueError(f"test_share must be between 0 and 1, got {test_share!r}")
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    cut = round(len(y) * (1 - test_share))
    train, test = (_one_vs_rest(X, y, np.sort(rows), 16.0, chosen, rng) for rows in (order[:cut], order[cut:]))
    return TaskSplit(train, test)


def load_mds(
    folder: str | Path | None = None,
    *,
    domains: int | str | Iterable[str] | None = None,
    rows: str = "balanced",
    test_folds: Sequence[int] = (0, 1, 2),
    tfidf: bool = True,
) -> TaskSplit:
    """Sentiment of Amazon reviews in 22 product domains (a subset of the collection), as CSR rows of 10,000 terms.

    Parameters
    ----------
    folder : path, optional
        A folder that holds mds.npz.
    domains : int, str or iterable of str, optional
        Names of domains, or the number of domains, those with the most rows first; default: all 22. Tasks are sorted
        by name.
    rows : "balanced", "natural" or "all"
        "balanced": as many positives as negatives in each domain. "natural": the original share of each domain.
    test_folds : sequence of int
        Which of the ten fixed folds are test rows; three of them give the paper's 70/30 split.
    tfidf : bool
        Weight terms by tf-idf, learned from the training rows, and scale each row to norm one; otherwise raw counts.

    Notes
    -----
    The download holds the tokenised part of the collection (Blitzer, Dredze and Pereira 2007) that Yu et al. published
    with "Diverse few-shot text classification with multiple metrics" (2018): one third of each domain (less of books,
    dvd, electronics, kitchen_housewares, music and video), labelled at four stars, and the one-star reviews of another
    third as further negatives. There is no known checksum of these texts; instead, the rows of every domain are
    counted. `fold` and `balanced` come from a digest of each text. An mds.npz made in another way has almost the same
    reviews in other folds and gives slightly different errors.
    """
    choices = ("balanced", "natural", "all")
    if rows not in choices:
        raise ValueError(f"rows must be one of {', '.join(choices)}, got {rows!r}")
    held = sorted(set(test_folds))
    if not held or len(held) > 9 or not set(held) <= set(range(10)):
        raise ValueError(f"test_folds must name one to nine of the folds 0 to 9, got {list(test_folds)!r}")
    csr = ["data", "indices", "indptr", "shape"]
    arrays = read_arrays(locate("mds.npz", folder), [*csr, "y", "task", "task_names", "origin", "balanced", "fold"])
    counts = sparse.csr_matrix(
        (arrays["data"].astype(np.float32), arrays["indices"], arrays["indptr"]), shape=tuple(arrays["shape"])
    )
    use = {
        "balanced": arrays["balanced"],
        "natural": arrays["origin"] == 0,
        "all": np.ones(len(arrays["y"]), dtype=bool),
    }[rows]
    use = use & np.isin(arrays["task"], _choose_domains(domains, arrays["task_names"], arrays["task"][use]))
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


@dataclass(frozen=True)
class Activities:
    """Rows of all users of WISDM, with its fixed folds."""

    X: np.ndarray  # (5418, 43); missing peaks are replaced by the median of their column
    y: np.ndarray  # the activity of each row
    task: np.ndarray  # the user of each row
    fold: np.ndarray  # 0 to 9, drawn within each user and activity


def load_wisdm(folder: str | Path | None = None) -> Activities:
    """Six activities of 36 users from their phones (WISDM 1.1, transformed features). It is not downloaded.

    Parameters
    ----------
    folder : path, optional
        A folder that holds wisdm.npz.
    """
    names = ["X", "y", "class_names", "task", "task_names", "fold"]
    X, y, classes, task, users, fold = read_arrays(find_file("wisdm.npz", folder), names).values()
    return Activities(X, classes[y], users[task], fold)


def _choose_digits(digits: object) -> list[int]:
    if digits is None:
        return list(range(10))
    chosen = list(digits) if isinstance(digits, Iterable) and not isinstance(digits, bytes) else []
    integers = all(isinstance(digit, int | np.integer) and not isinstance(digit, bool) for digit in chosen)
    if not chosen or not integers or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(10)):
        raise ValueError(f"digits must be distinct integers from 0 to 9, such as (3, 5, 8), got {digits!r}")
    return [int(digit) for digit in chosen]


def _choose_domains(domains: int | str | Iterable[str] | None, names: np.ndarray, task: np.ndarray) -> np.ndarray:
    """The numbers of the chosen domains. task: the domain of each row that can be used."""
    known = [str(name) for name in names]
    if domains is None:
        return np.arange(len(known))
    if isinstance(domains, int | np.integer):
        if isinstance(domains, bool) or not 1 <= domains <= len(known):
            raise ValueError(f"the number of domains must be from 1 to {len(known)}, got {domains!r}")
        sizes = np.bincount(task, minlength=len(known))
        return np.argsort(-sizes, kind="stable")[:domains]
    if not isinstance(domains, Iterable):
        raise ValueError(f"domains must be names of domains or their number, got {domains!r}")
    chosen = [domains] if isinstance(domains, str) else list(domains)
    for domain in chosen:
        if domain not in known:
            raise ValueError(f"there is no domain {domain!r}; the domains are {', '.join(known)}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"domains must hold at least one name and none twice, got {chosen!r}")
    return np.array([known.index(domain) for domain in chosen])


def _one_vs_rest(
    X: np.ndarray,
    y: np.ndarray,
    rows: np.ndarray,
    scale: float,
    digits: list[int],
    rng: np.random.Generator,
    max_positives: int | None = None,
) -> TaskData:
    """The task of each digit: its images, and as many that are drawn without replacement from the others."""
    drawn = {}
    for k in range(10):  # all ten, so that the draws for one digit do not depend on the chosen digits
        positive = rows[y[rows] == k]
        if max_positives is not None and len(positive) > max_positives:
            positive = np.sort(rng.choice(positive, max_positives, replace=False))
        negative = np.sort(rng.choice(rows[y[rows] != k], len(positive), replace=False))
        drawn[k] = np.concatenate([positive, negative])
    return TaskData.from_list(
        [(np.divide(X[drawn[k]], scale, dtype=np.float32), np.repeat([1.0, -1.0], len(drawn[k]) // 2)) for k in digits],
        names=[f"digit_{k}" for k in digits],
    )
