"""The default estimators against other ways to treat related tasks, on every real data set.

The others: each task alone, one model for all rows, one model with a column per task, a linear model with shared and
own weights of every feature, and boosted trees with the task as a category. Everything is chosen by cross-validation on
training rows. Errors are root mean squared errors, or shares of wrong classes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.model_selection import GridSearchCV, KFold
from threadpoolctl import threadpool_limits

from dmtrl.datasets import load_mds, load_mnist_tasks, load_wisdm
from dmtrl.estimators.cv import MTRLClassifierCV, MTRLRegressorCV
from dmtrl.report.content import Item, Text
from dmtrl_lab.experiments.curves import Spread
from dmtrl_lab.experiments.experiment import Experiment, Figures, Records, Run, grid, select, table
from dmtrl_lab.experiments.heart import logistic, read_hospitals
from dmtrl_lab.experiments.problems import Rows, Split, append_columns, school_rows, standardised

OURS, MAPPED = "dmtrl", 'dmtrl, feature_map="auto"'
ALONE, POOLED, COLUMNS, SHARED, BOOSTED = "alone", "pooled", "a column per task", "shared and own", "boosted trees"
RIDGES = np.logspace(-1, 4, 11)
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # of logistic regression
SHARED_SCALES = (0.3, 1.0, 3.0)  # of the shared columns, relative to a task's own
TREES: dict[str, list[float]] = {"max_leaf_nodes": [7, 31], "learning_rate": [0.05, 0.15]}
FOLDS = 3  # of the other methods; with five they would take longer and choose alike


def _school(split: int, quick: bool) -> Split:
    return school_rows(split, 20 if quick else None)


def _mds(split: int, quick: bool) -> Split:
    data = load_mds(domains=2 if quick else None, test_folds=[(split + k) % 10 for k in range(3)])
    return Rows.of(data.train), Rows.of(data.test)


def _mnist(split: int, quick: bool) -> Split:
    most = 60 if quick else 100_000
    return _digits(split, quick, most, most)


def _mnist_small(split: int, quick: bool) -> Split:
    """100 + 100 training images of each digit, and all test images."""
    return _digits(split, quick, *((20, 60) if quick else (100, 1000)))


def _digits(split: int, quick: bool, train: int, test: int) -> Split:
    parts = [load_mnist_tasks(seed=split, digits=(3, 5) if quick else None, max_positives=n) for n in (train, test)]
    return Rows.of(parts[0].train), Rows.of(parts[1].test)


def _wisdm(split: int, quick: bool) -> Split:
    """Folds 5 to 9 train and 0 to 4 test, and the other way round."""
    data = load_wisdm()
    task = np.unique(data.task, return_inverse=True)[1]
    chosen = task < 3 if quick else np.ones(len(task), dtype=bool)
    train = (data.fold >= 5) == (split == 0)
    return standardised(*(Rows(data.X[rows], data.y[rows], task[rows]) for rows in (chosen & train, chosen & ~train)))


def _heart(split: int, quick: bool) -> Split:
    """FLamby's preprocessing. Split 0 is its own, the others are random."""
    hospitals = read_hospitals(43 if split == 0 else split).values()
    X, y = np.vstack([one.X for one in hospitals]), np.concatenate([one.y for one in hospitals])
    task = np.repeat(np.arange(len(hospitals)), [len(one.y) for one in hospitals])
    train = np.concatenate([one.train for one in hospitals])
    return Rows(X[train], y[train], task[train]), Rows(X[~train], y[~train], task[~train])


@dataclass(frozen=True)
class Case:
    """A data set: how to load a split, how many there are, and which methods can be run on it in reasonable time."""

    load: Callable[[int, bool], Split]
    splits: int
    seconds: float
    methods: tuple[str, ...] = (ALONE, POOLED, COLUMNS, SHARED, BOOSTED)
    regression: bool = False
    maps: bool = False  # whether to choose a feature map, too: about nine times as long
    ours: Mapping[str, Any] = field(default_factory=dict)  # parameters of our estimators; default: their own
    ridges: np.ndarray = field(default_factory=lambda: RIDGES)
    strengths: tuple[float, ...] = STRENGTHS
    shared_scales: tuple[float, ...] = SHARED_SCALES
    trees: dict[str, list[float]] = field(default_factory=lambda: TREES)
    scoring: str | None = None  # of the trees


# grids of at most three candidates
QUICK: dict[str, Any] = {
    "ours": {"lambdas": (1e-3, 1e-2), "commons": (1.0,), "cv": 2},
    "ridges": RIDGES[::5],
    "strengths": (1.0,),
    "shared_scales": (0.3, 1.0),
    "trees": {"max_leaf_nodes": [7], "max_iter": [5]},
}
TEXT = (ALONE, POOLED, COLUMNS, SHARED)  # boosted trees need dense rows: 10,000 columns are too many
CASES = {
    "School": Case(_school, 5, 60, regression=True),
    "MDS": Case(_mds, 3, 120, TEXT),
    "MNIST, 200 rows a task": Case(_mnist_small, 5, 90),
    "MNIST, 12,000 rows a task": Case(_mnist, 1, 600, (ALONE, POOLED)),
    "WISDM": Case(_wisdm, 2, 600, maps=True),
    "heart": Case(_heart, 10, 40, maps=True),
}


def runs(quick: bool) -> list[Run]:
    found = []
    for name, case in CASES.items():
        found += grid(quick, 5 if quick else case.seconds, data=[name], split=range(1 if quick else case.splits))
    return found


def measure(data: str, split: int, quick: bool) -> Figures:
    case = replace(CASES[data], **(QUICK if quick else {}))
    train, test = case.load(split, quick)
    figures: dict[str, Any] = {"tasks": int(train.task.max()) + 1, "rows": len(train.y), "test": len(test.y)}
    ours: np.ndarray | None = None
    for name in (OURS, *([MAPPED] if case.maps else []), *case.methods):
        began = time.perf_counter()
        if name in (OURS, MAPPED):
            predicted, figures[f"chosen by {name}"] = _fit_ours(case, train, test, "auto" if name == MAPPED else None)
        else:
            predicted = METHODS[name](case, train, test)
        loss = (predicted - test.y) ** 2 if case.regression else (predicted != test.y).astype(float)
        ours = loss if ours is None else ours
        difference = loss - ours
        figures[name] = {
            "error": float(np.sqrt(loss.mean()) if case.regression else loss.mean()),
            "seconds": time.perf_counter() - began,
            # of the mean loss, against dmtrl on the same test rows
            "more": float(difference.mean()),
            "standard_error": float(difference.std(ddof=1) / np.sqrt(len(difference))),
        }
    return figures


def _fit_ours(
    case: Case, train: Rows, test: Rows, feature_map: str | None
) -> tuple[np.ndarray, dict[str, float | str]]:
    """Predictions, and what was chosen."""
    kind: Any = MTRLRegressorCV if case.regression else partial(MTRLClassifierCV, on_single_class="constant")
    model = kind(n_jobs=-1, feature_map=feature_map, **case.ours)
    model.fit(train.X, train.y, tasks=train.task)
    strengths = {"lambda": model.reg_lambda_, "common": model.common_strength_, "own": model.own_strength_}
    chosen = strengths | {"map": str(model.feature_map_), "gap": model.certificate_.relative_gap}
    return np.asarray(model.predict(test.X, tasks=test.task)), chosen


def _linear(case: Case, X: Any, y: np.ndarray) -> Any:
    """Ridge or logistic regression whose strength is chosen on these rows, with as many folds as they allow."""
    if case.regression and sparse.issparse(X):  # for which RidgeCV decomposes the products of all pairs of rows
        folds = KFold(FOLDS, shuffle=True, random_state=0)
        return GridSearchCV(Ridge(), {"alpha": case.ridges}, cv=folds, scoring="neg_mean_squared_error").fit(X, y)
    if case.regression:
        return RidgeCV(case.ridges).fit(X, y)
    return logistic(X, y, case.strengths, FOLDS)


def _alone(case: Case, train: Rows, test: Rows) -> np.ndarray:
    predicted = np.empty(len(test.y), dtype=test.y.dtype if not case.regression else float)
    for k in np.unique(test.task):
        mine, theirs = train.task == k, test.task == k
        predicted[theirs] = _linear(case, train.X[mine], train.y[mine]).predict(test.X[theirs])
    return predicted


def _pooled(case: Case, train: Rows, test: Rows) -> np.ndarray:
    return np.asarray(_linear(case, train.X, train.y).predict(test.X))


def _columns(case: Case, train: Rows, test: Rows) -> np.ndarray:
    """One model for all rows, with an intercept per task."""
    one_hot = np.eye(int(train.task.max()) + 1)
    rows = [append_columns(part.X, one_hot[part.task]) for part in (train, test)]
    return np.asarray(_linear(case, rows[0], train.y).predict(rows[1]))


def _shared_and_own(case: Case, train: Rows, test: Rows) -> np.ndarray:
    """One model with shared columns and, for each task, its own copy of every column; their scale is chosen."""
    rows, order = np.arange(len(train.y)), np.random.default_rng(0).permutation(len(train.y))
    held = np.sort(order[: len(order) // 3])
    fitted = np.setdiff1d(rows, held)
    errors = []
    for scale in case.shared_scales:
        X = _own_copies(train, train, scale)
        guess = _linear(case, X[fitted], train.y[fitted]).predict(X[held])
        errors.append(np.mean((guess - train.y[held]) ** 2 if case.regression else guess != train.y[held]))
    best = case.shared_scales[int(np.argmin(errors))]
    model = _linear(case, _own_copies(train, train, best), train.y)
    return np.asarray(model.predict(_own_copies(test, train, best)))


def _own_copies(part: Rows, train: Rows, scale: float) -> Any:
    """CSR rows: the shared columns, then a copy of the columns and a constant for each task."""
    X, m = sparse.csr_matrix(part.X), int(train.task.max()) + 1
    own = sparse.hstack([X, np.ones((X.shape[0], 1))]).tocsr()
    moved = own.indices + np.repeat(part.task * own.shape[1], np.diff(own.indptr))
    copies = sparse.csr_matrix((own.data, moved, own.indptr), shape=(X.shape[0], m * own.shape[1]))
    return sparse.hstack([scale * X, copies]).tocsr()


def _boosted(case: Case, train: Rows, test: Rows) -> np.ndarray:
    rows = [np.column_stack([part.X, part.task]) for part in (train, test)]
    kind = HistGradientBoostingRegressor if case.regression else HistGradientBoostingClassifier
    trees = kind(categorical_features=[rows[0].shape[1] - 1], random_state=0)
    folds = KFold(FOLDS, shuffle=True, random_state=0)
    with threadpool_limits(1):  # their threads spin on a busy machine
        search = GridSearchCV(trees, case.trees, cv=folds, scoring=case.scoring).fit(rows[0], train.y)
        return np.asarray(search.predict(rows[1]))


METHODS = {ALONE: _alone, POOLED: _pooled, COLUMNS: _columns, SHARED: _shared_and_own, BOOSTED: _boosted}


def standard_errors(figures: Sequence[Figures], name: str) -> float:
    """How many standard errors the other method is worse than dmtrl.

    The standard error is that of one split over its test rows, averaged over splits: splits share rows.
    """
    more, error = (float(np.mean([one[name][key] for one in figures])) for key in ("more", "standard_error"))
    return more / error if error > 0 else 0.0


def items(records: Records) -> list[Item]:
    rows: list[dict[str, object]] = []
    for data, case in CASES.items():
        figures = [record.figures for record in select(records, data=data)]
        best = min(case.methods, key=lambda name: float(np.mean([one[name]["error"] for one in figures])))
        against_best = standard_errors(figures, best)
        words = "ahead of" if against_best > 2 else "behind" if against_best < -2 else "level with"
        how = ".2f" if case.regression else ".2%"
        everywhere = [name for name in (OURS, MAPPED, *METHODS) if all(name in one for one in figures)]
        errors = {name: Spread([one[name]["error"] for one in figures]) for name in everywhere}
        rows.append(
            {
                "data": data,
                **{name: f"{errors[name]:{how}}" if name in errors else "" for name in (OURS, MAPPED, *METHODS)},
                "verdict": f"{words} {best} ({against_best:+.1f})",
                "against alone": f"{standard_errors(figures, ALONE):+.1f}",
            }
        )
    return [
        Text(
            "The default cross-validated estimators of dmtrl against other ways to treat related tasks. Every method "
            "chooses on training rows alone. School: root mean squared error; the others: share of wrong classes, over "
            "all test rows. Heart is FLamby's split and nine random ones; WISDM trains on five folds and tests on the "
            "other five, both ways."
        ),
        table(
            "Error on test rows",
            rows,
            "Mean ± standard deviation over splits. Verdict: against the best other method, with the difference in "
            "standard errors of a paired comparison over test rows (positive: dmtrl is better); beyond two it is ahead "
            "or behind. Against alone: the same difference for each task alone. An empty cell: too slow, not "
            "possible on these rows or not tried. The second column chooses a feature map, too, and has no part in the "
            "verdict.",
        ),
    ]


TITLE = "Accuracy of the default estimators on real data"
SETTINGS = {"folds_of_others": FOLDS, "estimators": "default", "seed": 0}
ACCURACY = Experiment("accuracy", TITLE, runs, measure, items, SETTINGS)
