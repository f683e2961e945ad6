"""The outcome of a fit as typed values: for the summary that `dmtrl fit` prints, and as plain values for JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from dmtrl.data.labels import plain
from dmtrl.estimators.comparison import PARTS, Comparison
from dmtrl.estimators.held_out import Metrics
from dmtrl.estimators.inputs import lookup
from dmtrl.losses import get_loss
from dmtrl.relationship.similarity import WEAK, Pair, strongest_pairs, unit_vectors
from dmtrl.report.model_page.held_out import cv_measure, held_out_error, metric_errors, metrics_of
from dmtrl.solver.cv_results import CvResults
from dmtrl.workflows.prepare import TrainingTable

MAX_COMPARED = 2000  # tasks; with more, the strongest pairs are not searched
SHOWN_PAIRS = 3  # of each sign

Name = int | str  # of a task or a class


@dataclass(frozen=True)
class TaskFigures:
    """What is known about one task.

    few_rows: whether it has so few rows that its relations are mostly chance. shares: of its coefficients. errors:
    held-out errors by name. metrics, baseline: held-out metrics, None without cross-validation.
    """

    task: Name
    rows: int | None
    few_rows: bool
    shares: Mapping[str, float]
    errors: Mapping[str, float | None] = field(default_factory=dict)
    metrics: Mapping[str, float | None] | None = None
    baseline: Mapping[str, float | None] | None = None

    def as_dict(self) -> dict[str, Any]:
        found = {"task": self.task, "rows": self.rows, "few_rows": self.few_rows, "shares": dict(self.shares)}
        known = {"metrics": self.metrics, "baseline": self.baseline}
        return {**found, **self.errors, **{name: dict(values) for name, values in known.items() if values is not None}}


@dataclass(frozen=True)
class Choice:
    """How lambda was chosen. by: the measure of the held-out error."""

    candidates: int
    fits: int
    folds: int
    by: str


@dataclass(frozen=True)
class CertificateFigures:
    primal: float
    dual: float
    relative_gap: float
    tol: float
    converged: bool


@dataclass(frozen=True)
class Measured:
    """A metric of the model and of its baseline; None if it is undefined."""

    model: float | None
    baseline: float | None


@dataclass(frozen=True)
class RelatedPairs:
    """The most alike and the most opposed pairs of tasks, with their correlations."""

    alike: tuple[tuple[Name, Name, float], ...] = ()
    opposed: tuple[tuple[Name, Name, float], ...] = ()


@dataclass(frozen=True)
class ModelFigures:
    """What a fitted model says about itself.

    shares: mean over tasks of the parts of the coefficients. chosen: None if lambda was given. held_out: mean errors
    over all held-out rows. compared: one sentence about the comparison with each task alone.
    """

    tasks: int
    kind: str
    loss: str
    classes: tuple[Name, ...] | None
    reg_lambda: float
    common: float
    own: float
    task_weight: str | float
    shares: Mapping[str, float]
    chosen: Choice | None
    held_out: Mapping[str, float] | None
    baseline: float | None
    metrics: Mapping[str, Measured] | None
    certificate: CertificateFigures
    rounds: int
    relations: RelatedPairs
    compared: str | None
    per_task: tuple[TaskFigures, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = asdict(replace(self, per_task=()))
        reg_lambda = values.pop("reg_lambda")
        values["lambda"] = reg_lambda if math.isfinite(reg_lambda) else None  # JSON has no infinity
        return values | {"per_task": [task.as_dict() for task in self.per_task]}


@dataclass(frozen=True)
class FitSummary:
    """What was fitted to which rows. columns: name, kind, what was done and number of features of each."""

    rows: int
    rows_read: int
    features: int
    task: str
    target: str
    columns: tuple[tuple[str, str, str, int], ...]
    model: ModelFigures

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        keys = ("column", "kind", "done", "features")
        return {
            "rows": self.rows,
            "rows_read": self.rows_read,
            "features": self.features,
            "task": self.task,
            "target": self.target,
            "columns": [dict(zip(keys, column, strict=True)) for column in self.columns],
            **self.model.as_dict(),
        }


def fit_summary(model: Any, table: TrainingTable, comparison: Comparison | None) -> FitSummary:
    """The outcome of a fit of these rows."""
    preparation, in_files = table.preparation, table.in_files
    if in_files is None:
        rows = len(table.y)
        figures = model_figures(model, comparison, table.X, table.y, table.tasks, table.weight)
    else:  # errors and baselines of all rows are not known here
        rows, figures = int(in_files.rows_per_task.sum()), model_figures(model)
        counts = in_files.rows_per_task.tolist()
        counted = tuple(replace(task, rows=count) for task, count in zip(figures.per_task, counts, strict=True))
        figures = replace(figures, per_task=counted)
    return FitSummary(
        rows=rows,
        rows_read=table.rows_read,
        features=len(preparation.feature_names),
        task=preparation.task,
        target=preparation.target,
        columns=tuple(preparation.table()),
        model=figures,
    )


def model_figures(
    model: Any,
    comparison: Comparison | None = None,
    X: Any = None,
    y: Any = None,
    tasks: Any = None,
    weight: Any = None,
) -> ModelFigures:
    """What a fitted model says about itself. X, y, tasks, weight: the rows of the fit, if known."""
    certificate, results, loss = model.certificate_, getattr(model, "cv_results_", None), get_loss(model.loss)
    metrics = metrics_of(model, comparison)
    held_out, baseline = _held_out(model, X, y, tasks, weight)
    return ModelFigures(
        tasks=len(model.tasks_),
        kind=loss.kind,
        loss=loss.name,
        classes=tuple(plain(value) for value in getattr(model, "classes_", [])) or None,
        reg_lambda=model.reg_lambda_,
        common=model.common_strength_,
        own=model.own_strength_,
        task_weight=model.task_weight,
        shares=dict(zip(PARTS, model.weight_shares_.mean(axis=0).tolist(), strict=True)),
        chosen=None if results is None else _choice(results, cv_measure(model)),
        held_out=held_out,
        baseline=baseline,
        metrics=None if metrics is None else _measured(metrics),
        certificate=CertificateFigures(
            certificate.primal,
            certificate.dual,
            certificate.relative_gap,
            model.tol,
            bool(certificate.relative_gap <= model.tol),
        ),
        rounds=model.n_rounds_,
        relations=_relations(model),
        compared=None if comparison is None else str(comparison),
        per_task=_tasks(model, comparison, metrics),
    )


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _measured(metrics: Metrics) -> dict[str, Measured]:
    found = metrics.overall.items()
    return {name: Measured(_number(value), _number(metrics.baseline[name])) for name, value in found}


def _tasks(model: Any, comparison: Comparison | None, metrics: Metrics | None) -> tuple[TaskFigures, ...]:
    rows, few, errors = model.task_rows_, model.tiny_tasks(), _task_errors(model, comparison)

    def at(i: int, values: Mapping[str, np.ndarray]) -> dict[str, float | None]:
        return {name: _number(column[i]) for name, column in values.items()}

    return tuple(
        TaskFigures(
            task=plain(name),
            rows=None if rows is None else int(rows[i]),
            few_rows=bool(few[i]),
            shares=dict(zip(PARTS, model.weight_shares_[i].tolist(), strict=True)),
            errors=at(i, errors),
            metrics=None if metrics is None else at(i, metrics.per_task),
            baseline=None if metrics is None else at(i, metrics.baseline_per_task),
        )
        for i, name in enumerate(model.tasks_)
    )


def _choice(results: CvResults, measure: str) -> Choice:
    tried = results.rounds > 0
    return Choice(tried[..., 0].size, int(tried.sum()), tried.shape[-1], measure)


def _held_out(model: Any, X: Any, y: Any, tasks: Any, weight: Any) -> tuple[Mapping[str, float] | None, float | None]:
    """Mean errors over all held-out rows at the chosen strengths, and the error of the baseline."""
    found = held_out_error(model, None, X, y, tasks, weight)
    if found is None:
        return None, None
    results = model.cv_results_
    loss = results.mean("loss")[results.index_of(model.strengths_)]
    return {"loss": float(loss), cv_measure(model): found.error}, found.baseline


def _task_errors(model: Any, comparison: Comparison | None) -> dict[str, np.ndarray]:
    """Held-out errors of each task: from the comparison, or from choosing lambda."""
    if comparison is not None:  # which has no task with a single class
        rows = lookup(model.tasks_, comparison.tasks)  # -1 takes the NaN at the end
        errors = {name: np.append(getattr(comparison, name), np.nan) for name in ("together", "alone", "pooled")}
        return {name: values[rows] for name, values in errors.items()}
    results = getattr(model, "cv_results_", None)
    if results is None or results.weight.shape[-1] != len(model.tasks_):
        return {}
    metrics = metric_errors(model)
    if metrics is not None:
        return {"held_out_error": metrics.per_task}
    chosen = results.index_of(model.strengths_)
    total, weight = getattr(results, cv_measure(model))[chosen].sum(axis=0), results.weight[chosen].sum(axis=0)
    return {"held_out_error": np.divide(total, weight, out=np.full(len(total), np.nan), where=weight > 0)}


def _relations(model: Any) -> RelatedPairs:
    """The most alike and the most opposed pairs of tasks; none if there are too many tasks to compare all pairs."""
    covariance, names = model.covariance_, model.tasks_
    if not 2 <= covariance.m <= MAX_COMPARED:
        return RelatedPairs()

    def listed(pairs: list[Pair]) -> tuple[tuple[Name, Name, float], ...]:
        return tuple(
            (plain(names[pair.first]), plain(names[pair.second]), pair.value)
            for pair in pairs
            if abs(pair.value) >= WEAK
        )

    vectors = unit_vectors(covariance)
    vectors[model.tiny_tasks()] = 0.0  # what is learned about a task with very few rows is mostly chance
    alike, opposed = strongest_pairs(vectors, SHOWN_PAIRS)
    return RelatedPairs(listed(alike), listed(opposed))
