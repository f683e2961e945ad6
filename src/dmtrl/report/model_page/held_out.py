"""How well a model predicts held-out rows, compared with a baseline that uses no features.

The error comes from cross-validation or from a comparison; nothing is fitted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import xlogy

from dmtrl.estimators.classes import class_losses
from dmtrl.estimators.comparison import Comparison, default_measure, measure_name
from dmtrl.estimators.held_out import LOWER_IS_BETTER, TITLES, Metrics
from dmtrl.losses import REGRESSION, AnyLoss, OneVsRest, Softmax, get_loss
from dmtrl.report.content import Item, Table
from dmtrl.report.theme import format_number
from dmtrl.solver.cv_results import SCORE

OTHERS = {"alone": "each task alone", "pooled": "one model for all"}
SQUARED_ERROR, ERROR_RATE = measure_name("squared_error"), measure_name("wrong")
BASELINES = {SQUARED_ERROR: "each task's mean", ERROR_RATE: "each task's most frequent class"}
_FAR = 40.0  # scores beyond this change no loss of a class or a count: exp(-40) is 4e-18
_STEPS = 100  # of a golden section search: the interval shrinks by 1e-21


@dataclass(frozen=True)
class HeldOut:
    """The mean error over held-out rows, or over tasks with equal weight.

    measure: "error rate", "squared error" or another. over: "rows" or "tasks". tuned: whether the strengths were
    chosen on the same rows. baseline: the same mean for the baseline, None if it is not known.
    """

    measure: str
    error: float
    over: str
    tuned: bool
    baseline: float | None = None

    @property
    def baseline_name(self) -> str:
        return BASELINES.get(self.measure, "each task's best constant")

    def format(self, error: float) -> str:
        return format_error(error, self.measure)


def format_error(value: float, measure: str) -> str:
    """Error rates in percent with two decimals, other errors with four digits."""
    if measure == ERROR_RATE:
        return f"{value:.2%}".replace("%", " %")
    return format_number(value, 4)


def held_out_error(
    model: Any,
    comparison: Comparison | None,
    X: Any = None,
    y: Any = None,
    tasks: Any = None,
    sample_weight: Any = None,
) -> HeldOut | None:
    """The error of cross-validation at the chosen strengths, else that of the comparison, else None.

    X, y, tasks, sample_weight: the data of the fit, for the baseline. Where the model has metrics, they have both: the
    scores of the search are those of less accurate fits.
    """
    results = getattr(model, "cv_results_", None)
    metrics = None if results is None else metric_errors(model)
    if metrics is not None:
        return HeldOut(measure_name(cv_measure(model)), metrics.overall, "rows", True, metrics.baseline)
    if results is not None:
        measure, over = measure_name(cv_measure(model)), "rows"
        error = results.mean(cv_measure(model))[results.index_of(model.strengths_)]
    elif comparison is not None:
        measure, over = measure_name(comparison.measure), "tasks"
        error = np.nanmean(comparison.together)
    else:
        return None
    baseline = None
    if X is not None:
        table = model.read_rows(X, y, tasks, sample_weight)
        weight = None if table.sample_weight is None else table.sample_weight[table.rows]
        if measure in BASELINES:
            baseline = baseline_error(table.y, table.codes, weight, measure, over)
        else:
            baseline = baseline_loss(_loss_of(model), table.y, table.codes, weight, over)
    return HeldOut(measure, float(error), over, results is not None, baseline)


class MetricErrors(NamedTuple):
    """The error rate or the mean squared error, from the metrics of a model."""

    overall: float
    baseline: float
    per_task: np.ndarray


def metric_errors(model: Any) -> MetricErrors | None:
    """None if the model has no metrics, or none of the measure that cross-validation minimised."""
    metrics, measure = vars(model).get("metrics_"), cv_measure(model)
    if metrics is None or measure not in ("wrong", "squared_error"):
        return None
    name, power = ("error_rate", 1) if measure == "wrong" else ("rmse", 2)
    found = metrics.overall[name], metrics.baseline[name], metrics.per_task[name]
    return MetricErrors(*(value**power for value in found))


def cv_measure(model: Any) -> str:
    """The error of cross-validation to show: the one that was minimised, or the usual one if a scorer chose."""
    return default_measure(model.loss) if model.scoring_ == SCORE else str(model.scoring_)


def baseline_error(
    y: Any, tasks: np.ndarray, sample_weight: np.ndarray | None, measure: str, over: str = "rows"
) -> float | None:
    """The mean error of a prediction that knows only the task, over rows or over tasks; None if there is no such row.

    Squared error: a row is predicted by the mean of the other rows of its task. The only row of a task has no such
    prediction and is left out, as in cross-validation. Error rate: a row is predicted by the most frequent class of
    its task. The row itself counts, because otherwise two equally frequent classes would always be predicted wrongly.
    """
    task = np.unique(tasks, return_inverse=True)[1]
    weight = np.ones(len(task)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
    total = np.bincount(task, weights=weight)
    if measure == ERROR_RATE:
        classes, label = np.unique(np.asarray(y), return_inverse=True)
        pairs = np.bincount(task * len(classes) + label, weights=weight, minlength=len(total) * len(classes))
        errors = total - pairs.reshape(-1, len(classes)).max(axis=1)
    else:
        y = np.asarray(y, dtype=float)
        others = total[task] - weight
        rows = others > 1e-9 * total[task]
        task, weight, others, total_y = task[rows], weight[rows], others[rows], np.bincount(task, weights=weight * y)
        residual = y[rows] - (total_y[task] - weight * y[rows]) / others
        errors = np.bincount(task, weights=weight * residual**2, minlength=len(total))
        total = np.bincount(task, weights=weight, minlength=len(total))
    return _mean(errors, total, over)


def baseline_loss(
    loss: AnyLoss, y: Any, tasks: np.ndarray, sample_weight: np.ndarray | None, over: str = "rows"
) -> float | None:
    """The mean loss of the constant that suits each task best, over rows or over tasks; None if no task has two rows.

    With more than two classes it is a number for each class.
    """
    task = np.unique(tasks, return_inverse=True)[1]
    weight = np.ones(len(task)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
    some = np.bincount(task)[task] > 1
    task, weight, y = np.unique(task[some], return_inverse=True)[1], weight[some], np.asarray(y)[some]
    if len(task) == 0:
        return None
    total = np.bincount(task, weights=weight)
    if isinstance(loss, Softmax):  # the best probabilities are the shares of the classes
        classes = np.unique(y)
        counts = np.stack([np.bincount(task, weights=weight * (y == name)) for name in classes], axis=1)
        errors = xlogy(counts, total[:, None] / np.maximum(counts, 1e-300)).sum(axis=1)
    elif loss.kind == REGRESSION:
        errors = _least_losses(loss, np.asarray(y, dtype=float), task, weight)
    else:
        one, names = (loss.binary, np.unique(y)) if isinstance(loss, OneVsRest) else (loss, np.unique(y)[-1:])
        targets = [np.where(y == name, 1.0, -1.0) for name in names]
        errors = np.sum([_least_losses(one, target, task, weight) for target in targets], axis=0)
    return _mean(errors, total, over)


def _mean(errors: np.ndarray, total: np.ndarray, over: str) -> float | None:
    """The mean over rows, or over tasks with rows; None if there is none. total: the weight of each task."""
    known = total > 0
    if not known.any():
        return None
    return float(errors.sum() / total.sum()) if over == "rows" else float((errors[known] / total[known]).mean())


def _loss_of(model: Any) -> AnyLoss:
    """The loss of a model; with more than two classes that of its rows of scores."""
    loss, k = get_loss(model.loss), len(getattr(model, "classes_", ()))
    if k <= 2:
        return loss
    found = class_losses(loss, model.multi_class, np.ones((1, k), dtype=bool))
    assert not isinstance(found, list)
    return found


def _least_losses(loss: AnyLoss, y: np.ndarray, task: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """For each task, the least sum of weighted losses that one score for all of its rows attains.

    The sum is convex in the score: a golden section search over all tasks at the same time finds it.
    """
    m = int(task.max()) + 1
    low, high = np.full(m, -_FAR), np.full(m, _FAR)
    if loss.kind == REGRESSION and loss.name != "poisson":  # the best score is among the labels
        low, high = np.full(m, np.inf), np.full(m, -np.inf)
        np.minimum.at(low, task, y)
        np.maximum.at(high, task, y)

    def total(score: np.ndarray) -> np.ndarray:
        return np.bincount(task, weights=weight * loss.value(score[task], y), minlength=m)

    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(_STEPS):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        first = total(left) <= total(right)
        low, high = np.where(first, low, left), np.where(first, right, high)
    return total((low + high) / 2)


def headline(found: HeldOut | None) -> str:
    """One sentence for the top of the page; empty if nothing was held out."""
    if found is None:
        return ""
    baseline = "" if found.baseline is None else f"; baseline, {found.baseline_name}: {found.format(found.baseline)}"
    return f"Held-out {found.measure}: {found.format(found.error)} (mean over {found.over}{baseline})."


def paragraph(found: HeldOut) -> str:
    """How well the model predicts, compared with the baseline."""
    over = "all rows" if found.over == "rows" else "tasks with equal weight"
    text = (
        f"**How well the model predicts.** On held-out rows, the {found.measure} is "
        f"**{found.format(found.error)}** (mean over {over}). "
    )
    if found.baseline is not None:
        text += f"The baseline, which predicts {found.baseline_name}, has {found.format(found.baseline)}. "
        if found.error >= found.baseline:
            text += "**The model is no better than the baseline.** "
        elif found.baseline > 0:
            text += f"The model's error is {1 - found.error / found.baseline:.0%} lower. ".replace("%", " %")
    if found.tuned:
        text += "The strengths were chosen on the same rows, so the error on new rows may be slightly larger."
    return text.strip()


def metrics_of(model: Any, comparison: Comparison | None) -> Metrics | None:
    """The metrics on held-out rows: from choosing lambda, else from the comparison."""
    found = vars(model).get("metrics_")
    return found if found is not None or comparison is None else comparison.metrics.get("together")


def metric_tables(metrics: Metrics, comparison: Comparison | None, names: Sequence[str]) -> list[Item]:
    """The metrics of all held-out rows beside their baselines, and those of each task."""
    compared = {} if comparison is None else comparison.metrics
    others = {name: compared[name] for name in OTHERS if name in compared}
    rows = [
        [
            TITLES[name],
            _shown(metrics.overall[name]),
            _shown(metrics.baseline[name]),
            *(_shown(other.overall[name]) for other in others.values()),
            "lower" if LOWER_IS_BETTER[name] else "higher",
        ]
        for name in metrics.overall
    ]
    what = "mean" if "r2" in metrics.overall else "class frequencies"
    caption = f"The baseline knows only the task of a row and predicts its {what} in the rows that the fold trains on."
    if "calibration" in metrics.overall:
        caption += " The calibration error is the mean distance between predicted probability and frequency, in bins."
    columns = ["metric", "model", "baseline", *(OTHERS[name] for name in others), "better"]
    tables: list[Item] = [Table("Metrics on held-out rows", columns, rows, caption)]
    if len(names) > 1:
        columns = ["task", "rows", *(TITLES[name] for name in metrics.per_task)]
        lines = [
            [name, int(metrics.rows[i]), *(_shown(values[i]) for values in metrics.per_task.values())]
            for i, name in enumerate(names)
        ]
        tables.append(Table("Metrics of each task", columns, lines, "Rows: held out once. Empty: not defined."))
    return tables


def _shown(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
