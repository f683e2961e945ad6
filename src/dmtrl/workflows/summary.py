"""The outcome of a fit as plain values, for JSON and for the summary that `dmtrl fit` prints."""

from typing import Any

import numpy as np

from dmtrl.data.labels import plain
from dmtrl.estimators.comparison import PARTS, Comparison
from dmtrl.estimators.inputs import lookup
from dmtrl.losses import get_loss
from dmtrl.relationship.similarity import WEAK, Pair, strongest_pairs, unit_vectors
from dmtrl.report.model_page.held_out import cv_measure, held_out_error, metric_errors, metrics_of
from dmtrl.solver.cv_results import CvResults
from dmtrl.workflows.prepare import Prepared

MAX_COMPARED = 2000  # tasks; with more, the strongest pairs are not searched
SHOWN_PAIRS = 3  # of each sign


def fit_summary(model: Any, prepared: Prepared, comparison: Comparison | None) -> dict[str, Any]:
    """The outcome of a fit as plain values."""
    preparation, elsewhere = prepared.preparation, prepared.elsewhere
    columns = ("column", "kind", "done", "features")
    if elsewhere is None:
        figures = model_figures(model, comparison, prepared.X, prepared.y, prepared.tasks, prepared.weight)
    else:  # errors and baselines of all rows are not known here
        figures = model_figures(model)
        for row, count in zip(figures["per_task"], elsewhere.rows.tolist(), strict=True):
            row["rows"] = count
    return {
        "rows": len(prepared.y) if elsewhere is None else int(elsewhere.rows.sum()),
        "rows_read": prepared.rows_read,
        "features": len(preparation.feature_names),
        "task": preparation.task,
        "target": preparation.target,
        "columns": [dict(zip(columns, line, strict=True)) for line in preparation.table()],
        **figures,
        "notes": list(prepared.notes),
        "notes_before_fit": prepared.notes_before_fit,
    }


def model_figures(
    model: Any,
    comparison: Comparison | None = None,
    X: Any = None,
    y: Any = None,
    tasks: Any = None,
    weight: Any = None,
) -> dict[str, Any]:
    """What a fitted model says about itself, as plain values. X, y, tasks, weight: the rows of the fit, if known."""
    certificate, results, loss = model.certificate_, getattr(model, "cv_results_", None), get_loss(model.loss)
    per_task = _tasks(model)
    for name, values in _task_errors(model, comparison).items():
        for row, value in zip(per_task, values, strict=True):
            row[name] = _number(value)
    metrics = metrics_of(model, comparison)
    if metrics is not None:
        for i, row in enumerate(per_task):
            row["metrics"] = {name: _number(values[i]) for name, values in metrics.per_task.items()}
            row["baseline"] = {name: _number(values[i]) for name, values in metrics.baseline_per_task.items()}
    return {
        "tasks": len(model.tasks_),
        "kind": loss.kind,
        "loss": loss.name,
        "classes": [plain(value) for value in getattr(model, "classes_", [])] or None,
        "lambda": model.reg_lambda_,
        "common": model.common_strength_,
        "own": model.own_strength_,
        "task_weight": model.task_weight,
        "shares": dict(zip(PARTS, model.weight_shares_.mean(axis=0).tolist(), strict=True)),
        "chosen": None if results is None else _choice(results, cv_measure(model)),
        **_held_out(model, X, y, tasks, weight),
        "metrics": metrics
        and {
            name: {"model": _number(value), "baseline": _number(metrics.baseline[name])}
            for name, value in metrics.overall.items()
        },
        "certificate": {
            "primal": certificate.primal,
            "dual": certificate.dual,
            "relative_gap": certificate.relative_gap,
            "tol": model.tol,
            "converged": bool(certificate.relative_gap <= model.tol),
        },
        "rounds": model.n_rounds_,
        "relations": _relations(model),
        "compared": None if comparison is None else str(comparison),
        "per_task": per_task,
    }


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _tasks(model: Any) -> list[dict[str, Any]]:
    """The rows of each task, and how much of its coefficients is common, related and its own."""
    rows, few = model.task_rows_, model.tiny_tasks()
    return [
        {
            "task": plain(name),
            "rows": None if rows is None else int(rows[i]),
            "few_rows": bool(few[i]),
            "shares": dict(zip(PARTS, model.weight_shares_[i].tolist(), strict=True)),
        }
        for i, name in enumerate(model.tasks_)
    ]


def _choice(results: CvResults, measure: str) -> dict[str, Any]:
    tried = results.rounds > 0
    return {"candidates": tried[..., 0].size, "fits": int(tried.sum()), "folds": tried.shape[-1], "by": measure}


def _held_out(model: Any, X: Any, y: Any, tasks: Any, weight: Any) -> dict[str, Any]:
    """Mean errors over all held-out rows at the chosen strengths, and the error of the baseline."""
    found = held_out_error(model, None, X, y, tasks, weight)
    if found is None:
        return {"held_out": None, "baseline": None}
    results = model.cv_results_
    loss = results.mean("loss")[results.index_of(model.strengths_)]
    return {"held_out": {"loss": float(loss), cv_measure(model): found.error}, "baseline": found.baseline}


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


def _relations(model: Any) -> dict[str, list[list[Any]]]:
    """The most alike and the most opposed pairs of tasks; none if there are too many tasks to compare all pairs."""
    covariance, names = model.covariance_, model.tasks_
    if not 2 <= covariance.m <= MAX_COMPARED:
        return {"alike": [], "opposed": []}

    def listed(pairs: list[Pair]) -> list[list[Any]]:
        return [
            [plain(names[pair.first]), plain(names[pair.second]), pair.value]
            for pair in pairs
            if abs(pair.value) >= WEAK
        ]

    vectors = unit_vectors(covariance)
    vectors[model.tiny_tasks()] = 0.0  # what is learned about a task with very few rows is mostly chance
    alike, opposed = strongest_pairs(vectors, SHOWN_PAIRS)
    return {"alike": listed(alike), "opposed": listed(opposed)}
