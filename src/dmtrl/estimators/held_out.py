"""Metrics on held-out rows, per task and overall, each with its baseline.

The predictions are those of the models of a cross-validation's folds, for the rows that the fold holds out. The
baseline knows only the task of a row and the rows that the fold trains on: it predicts their mean in the task, or the
frequencies of its classes there, smoothed by one row with the frequencies of all tasks. Tasks with a single class are
not learned and do not count.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import xlogy
from scipy.stats import rankdata

from dmtrl.data.folds import TEST, TRAIN
from dmtrl.estimators.inputs import LabelledRows
from dmtrl.estimators.intervals import FoldModels

TITLES = {
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "r2": "R²",
    "deviance": "Poisson deviance",
    "error_rate": "error rate",
    "auc": "AUC",
    "log_loss": "log loss",
    "brier": "Brier score",
    "calibration": "calibration error",
}
LOWER_IS_BETTER = {name: name not in ("r2", "auc") for name in TITLES}
_ROWS_PER_BIN, _MOST_BINS = 20, 10  # of the calibration error


def task_frame(columns: Mapping[str, Any], tasks: Sequence[Any] | np.ndarray) -> Any:
    """A pandas data frame with a row for each task."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError('table() needs pandas: pip install "dmtrl[frames]"') from error
    return pd.DataFrame(columns, index=pd.Index(tasks, name="task"))


@dataclass(frozen=True)
class Metrics:
    """Metrics on held-out rows: "r2", "mae", "rmse" and for counts "deviance"; or "error_rate", "auc" and, with
    probabilities, "log_loss", "brier" and "calibration". A metric that is not defined is NaN, and so are all metrics of
    a task with a single class, whose rows do not count in the overall ones."""

    tasks: np.ndarray
    rows: np.ndarray  # held-out rows of each task
    overall: dict[str, float]
    per_task: dict[str, np.ndarray]
    baseline: dict[str, float]  # overall
    baseline_per_task: dict[str, np.ndarray]

    def table(self) -> Any:
        """A pandas data frame with a row for all rows together and one for each task."""
        columns = {}
        for name, values in self.per_task.items():
            columns[name] = [self.overall[name], *values]
            columns[f"{name} of baseline"] = [self.baseline[name], *self.baseline_per_task[name]]
        return task_frame(columns, ["all rows", *self.tasks])

    def __str__(self) -> str:
        parts = (
            f"{TITLES[name]} {value:.4g} (baseline {self.baseline[name]:.4g})" for name, value in self.overall.items()
        )
        return "held-out rows: " + ", ".join(parts)


@dataclass(frozen=True)
class Predicted:
    """Predictions of labels: numbers, or classes with probabilities and scores as far as the model has them."""

    value: np.ndarray
    probability: np.ndarray | None = None  # (n, k)
    score: np.ndarray | None = None  # (n,) or (n, k)
    fold: np.ndarray | None = None  # if given, scores compare rows of the same fold only

    def take(self, rows: np.ndarray) -> "Predicted":
        others = (None if part is None else part[rows] for part in (self.probability, self.score, self.fold))
        return Predicted(self.value[rows], *others)


class HeldOutRows:
    """Collects the predictions of the folds. `table`: checked rows with splits."""

    def __init__(self, table: LabelledRows):
        assert table.splits is not None, "held-out rows need splits"
        self._table, self._splits = table, table.splits
        self._found: dict[int, Predicted] = {}
        self._models: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def n_folds(self) -> int:
        return len(self._splits)

    @property
    def is_open(self) -> bool:
        return "_table" in vars(self)

    def close(self) -> None:
        """Free the rows and the predictions."""
        del self._table, self._found, self._models

    def labels(self, fold: int) -> np.ndarray:
        """The labels that a fold tests."""
        return np.flatnonzero(self._splits[fold] == TEST)

    def arguments(self, fold: int) -> tuple[Any, np.ndarray, np.ndarray | None, np.ndarray | None]:
        """X, y, tasks and weights of the labels that a fold tests."""
        table, labels = self._table, self.labels(fold)
        rows = table.rows[labels]
        tasks = None if table.layout == "alone" else table.names[table.codes[labels]]
        weight = None if table.sample_weight is None else table.sample_weight[rows]
        return table.X[rows], table.y[labels], tasks, weight

    def predict(self, fold: int, model: Any) -> None:
        """Keep the predictions of the model of a fold."""
        X, _, tasks, _ = self.arguments(fold)
        if not hasattr(model, "decision_function"):
            self._found[fold], self._models[fold] = Predicted(model.predict(X, tasks)), (model.coef_, model.intercept_)
            return
        probability = model.predict_proba(X, tasks) if hasattr(model, "predict_proba") else None
        self._found[fold] = Predicted(model.predict(X, tasks), probability, model.decision_function(X, tasks))

    def joined(self) -> tuple[np.ndarray, np.ndarray, Predicted]:
        """The fold and the label of each prediction, and the predictions, in the order of folds."""
        folds = range(self.n_folds)
        labels, found = [self.labels(fold) for fold in folds], [self._found[fold] for fold in folds]
        probability = [one.probability for one in found if one.probability is not None]
        score = [one.score for one in found if one.score is not None]
        joined = Predicted(
            np.concatenate([one.value for one in found]),
            np.concatenate(probability) if probability else None,
            np.concatenate(score) if score else None,
        )
        return np.repeat(folds, [len(part) for part in labels]), np.concatenate(labels), joined

    def fold_models(self) -> FoldModels:
        """What prediction intervals need; for regression."""
        fold, labels, predicted = self.joined()
        table, task = self._table, self._table.codes[labels]
        once = 1.0 / (self._splits == TEST).sum(axis=0)[labels]  # a row that several folds test counts once
        weight = once if table.sample_weight is None else once * table.sample_weight[table.rows[labels]]
        mean = np.bincount(task, weights=weight) / np.maximum(np.bincount(task, weights=once), 1e-300)
        residual = np.abs(np.asarray(table.y[labels], dtype=float) - predicted.value)
        coef, intercept = (np.array([self._models[k][part] for k in range(self.n_folds)]) for part in (0, 1))
        return FoldModels(coef, intercept, residual, fold, task, weight / mean[task])

    def metrics(self, classes: np.ndarray | None, counts: bool) -> Metrics:
        """`classes`: sorted class labels, None for regression. `counts`: whether labels are counts."""
        table, k = self._table, 0 if classes is None else len(classes)
        fold, labels, predicted = self.joined()
        weight = np.ones(len(table.y)) if table.sample_weight is None else table.sample_weight[table.rows]
        codes, m = table.codes, len(table.names)
        rows = np.bincount(codes[labels], minlength=m)
        if classes is None:
            y: np.ndarray = np.asarray(table.y, dtype=float)
            baseline = Predicted(self._from_training_rows(lambda train: _means(y, codes, weight * train, m)))
        else:
            y = np.searchsorted(classes, table.y)
            predicted = Predicted(np.searchsorted(classes, predicted.value), predicted.probability, predicted.score)
            share = self._from_training_rows(lambda train: _frequencies(y, codes, weight * train, m, k))
            probability = None if predicted.probability is None else share
            baseline = Predicted(share.argmax(axis=1), probability, share[:, 1] if k == 2 else share, fold)
            several = np.count_nonzero(np.bincount(codes * k + y, minlength=m * k).reshape(m, k), axis=1) > 1
            several |= not several.any()
            learned = np.flatnonzero(several[codes[labels]])
            labels, predicted, baseline = labels[learned], predicted.take(learned), baseline.take(learned)
        held_y, held_weight, held_codes = y[labels], weight[labels], codes[labels]
        order = np.argsort(held_codes, kind="stable")
        rows_of = np.split(order, np.searchsorted(held_codes[order], np.arange(1, m)))

        def evaluate(of: Predicted) -> tuple[dict[str, float], dict[str, np.ndarray]]:
            """The metrics of all rows together, and of each task."""

            def metrics_of(chosen: np.ndarray) -> dict[str, float]:
                share = held_weight[chosen] / held_weight[chosen].sum()
                if classes is None:
                    return _regression(held_y[chosen], of.value[chosen], share, counts)
                return _classification(held_y[chosen], of.take(chosen), share, k)

            overall = metrics_of(np.arange(len(held_y)))
            each = [metrics_of(chosen) if len(chosen) else {} for chosen in rows_of]
            return overall, {name: np.array([one.get(name, np.nan) for one in each]) for name in overall}

        return Metrics(np.asarray(table.names), rows, *evaluate(predicted), *evaluate(baseline))

    def _from_training_rows(self, of_tasks: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The baseline of each held-out label, in the order of `joined`. `of_tasks` returns the baseline of each task,
        given which labels train."""
        folds = range(self.n_folds)
        return np.concatenate([of_tasks(self._splits[k] == TRAIN)[self._table.codes[self.labels(k)]] for k in folds])


def _means(y: np.ndarray, codes: np.ndarray, weight: np.ndarray, m: int) -> np.ndarray:
    """The mean of each task; that of all rows for a task without any."""
    total, overall = np.bincount(codes, weights=weight, minlength=m), float(weight @ y / weight.sum())
    sums = np.bincount(codes, weights=weight * y, minlength=m)
    return np.divide(sums, total, out=np.full(m, overall), where=total > 0)


def _frequencies(y: np.ndarray, codes: np.ndarray, weight: np.ndarray, m: int, k: int) -> np.ndarray:
    """The frequencies (m, k) of the classes in each task. One row with the frequencies of all tasks is added to a task,
    and one of all classes alike to all tasks, so that none is zero."""
    counts = np.bincount(codes * k + y, weights=weight, minlength=m * k).reshape(m, k)
    row = weight.sum() / np.count_nonzero(weight)
    overall = (counts.sum(axis=0) + row / k) / (counts.sum() + row)
    return np.asarray((counts + row * overall) / (counts.sum(axis=1, keepdims=True) + row))


def _regression(y: np.ndarray, predicted: np.ndarray, weight: np.ndarray, counts: bool) -> dict[str, float]:
    """`weight` sums to one."""
    error = y - predicted
    square, variance = float(weight @ error**2), float(weight @ (y - weight @ y) ** 2)
    found = {
        "r2": 1.0 - square / variance if len(y) > 1 and variance > 0 else np.nan,
        "mae": float(weight @ np.abs(error)),
        "rmse": float(np.sqrt(square)),
    }
    if counts:
        with np.errstate(divide="ignore", invalid="ignore"):  # a baseline of zero where y is not
            deviance = 2.0 * (xlogy(y, y) - xlogy(y, predicted) - y + predicted)
        found["deviance"] = float(weight @ np.where(np.isnan(deviance), np.inf, deviance))
    return found


def _classification(y: np.ndarray, predicted: Predicted, weight: np.ndarray, k: int) -> dict[str, float]:
    found = {"error_rate": float(weight @ (predicted.value != y)), "auc": np.nan}
    score = predicted.score if k == 2 or predicted.probability is None else predicted.probability
    if score is not None:  # of several classes: only probabilities compare rows
        scores = score if score.ndim == 2 else score[:, None]
        fold = np.zeros(len(y), dtype=int) if predicted.fold is None else predicted.fold
        against = [
            auc_within(scores[:, -1 if k == 2 else c], y == c, weight, fold) for c in ((1,) if k == 2 else range(k))
        ]
        known = [value for value in against if np.isfinite(value)]
        found["auc"] = float(np.mean(known)) if known else np.nan
    if predicted.probability is not None:
        p = predicted.probability
        own = p[np.arange(len(y)), y]
        found["log_loss"] = float(-(weight @ np.log(np.maximum(own, np.finfo(float).tiny))))
        square = ((p - np.eye(k)[y]) ** 2).sum(axis=1)
        found["brier"] = float(weight @ square) / (2.0 if k == 2 else 1.0)
        sure, right = (p[:, 1], y == 1) if k == 2 else (p.max(axis=1), p.argmax(axis=1) == y)
        found["calibration"] = calibration_error(sure, right, weight)
    return found


def auc(score: np.ndarray, positive: np.ndarray, weight: np.ndarray) -> float:
    """The probability that a positive row has a larger score than a negative one; half for ties. NaN with one class."""
    plus, minus = weight * positive, weight * ~positive
    if plus.sum() <= 0 or minus.sum() <= 0:
        return float("nan")
    rank = rankdata(score, method="dense") - 1
    at = np.bincount(rank, weights=minus)
    below = np.cumsum(at) - at / 2
    return float(plus @ below[rank] / (plus.sum() * minus.sum()))


def auc_within(score: np.ndarray, positive: np.ndarray, weight: np.ndarray, fold: np.ndarray) -> float:
    """Like `auc`, but only rows of the same fold are compared."""
    total = pairs = 0.0
    for k in np.unique(fold):
        here = fold == k
        number = float((weight * positive)[here].sum() * (weight * ~positive)[here].sum())
        if number > 0:
            total, pairs = total + number * auc(score[here], positive[here], weight[here]), pairs + number
    return total / pairs if pairs > 0 else float("nan")


def calibration_error(probability: np.ndarray, right: np.ndarray, weight: np.ndarray) -> float:
    """The mean distance between predicted probability and frequency, over at most ten bins with equally many rows."""
    bins = int(np.clip(len(right) // _ROWS_PER_BIN, 1, _MOST_BINS))
    order = np.argsort(probability, kind="stable")
    difference = weight * (probability - right)
    number = np.empty(len(right), dtype=int)
    number[order] = np.arange(len(right)) * bins // len(right)
    return float(np.abs(np.bincount(number, weights=difference, minlength=bins)).sum())
