"""The outcome of a fit as plain values, for JSON and for the summary that the shell prints."""

from typing import Any

import numpy as np

from dmtrl.data.labels import plain
from dmtrl.losses import get_loss
from dmtrl.relationship.similarity import WEAK, Pair, strongest_pairs, unit_vectors
from dmtrl.report.model_page.held_out import held_out_error
from dmtrl.workflows.fit import FOLDS, Prepared

MAX_COMPARED = 2000  # tasks; with more, the strongest pairs are not searched


def fit_summary(model: Any, prepared: Prepared, comparison: Any = None) -> dict[str, Any]:
    """The outcome of a fit as plain values."""
    preparation = prepared.preparation
    columns = ("column", "kind", "done", "features")
    return {
        "rows": len(prepared.y),
        "rows_read": prepared.rows_read,
        "features": len(preparation.feature_names),
        "task": preparation.task,
        "target": preparation.target,
        "columns": [dict(zip(columns, line, strict=True)) for line in preparation.table()],
        **model_figures(model, comparison, prepared.X, prepared.y, prepared.tasks, prepared.weight),
        "notes": list(prepared.notes),
        "notes_before_fit": prepared.notes_before_fit,
    }


def model_figures(
    model: Any, comparison: Any = None, X: Any = None, y: Any = None, tasks: Any = None, weight: Any = None
) -> dict[str, Any]:
    """What a fitted model says about itself, as plain values. X, y, tasks, weight: the rows of the fit, if known."""
    certificate, path, loss = model.certificate_, getattr(model, "cv_path_", None), get_loss(model.loss)
    rows = {} if tasks is None else dict(zip(*np.unique(tasks, return_counts=True), strict=True))
    per_task = [{"task": plain(name), "rows": int(rows[name]) if name in rows else None} for name in model.tasks_]
    for name, values in _task_errors(model, comparison).items():
        for row, value in zip(per_task, values, strict=True):
            row[name] = float(value) if np.isfinite(value) else None
    return {
        "tasks": len(model.tasks_),
        "kind": loss.kind,
        "loss": loss.name,
        "classes": [plain(value) for value in getattr(model, "classes_", [])] or None,
        "lambda": model.reg_lambda_,
        "common": model.common_strength_,
        "chosen": None if path is None else _choice(path, model.scoring_),
        **_held_out(model, X, y, tasks, weight),
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


def _choice(path: Any, measure: str) -> dict[str, Any]:
    tried = path.rounds > 0
    return {"candidates": tried[..., 0].size, "fits": int(tried.sum()), "folds": FOLDS, "by": measure}


def _held_out(model: Any, X: Any, y: Any, tasks: Any, weight: Any) -> dict[str, Any]:
    """Mean errors over all held-out rows at the chosen lambda and tau, and the error of the baseline."""
    found = held_out_error(model, None, X, y, tasks, weight)
    if found is None:
        return {"held_out": None, "baseline": None}
    path = model.cv_path_
    loss = path.mean("loss")[path.cell(model.reg_lambda_, model.common_strength_)]
    return {"held_out": {"loss": float(loss), model.scoring_: found.error}, "baseline": found.baseline}


def _task_errors(model: Any, comparison: Any) -> dict[str, np.ndarray]:
    """Held-out errors of each task: from the comparison, or from choosing lambda."""
    if comparison is not None:  # which has no task with a single class
        place = {plain(name): i for i, name in enumerate(comparison.tasks)}
        rows = np.array([place.get(plain(name), len(place)) for name in model.tasks_])
        errors = {name: np.append(getattr(comparison, name), np.nan) for name in ("together", "alone", "pooled")}
        return {name: values[rows] for name, values in errors.items()}
    path = getattr(model, "cv_path_", None)
    if path is None or path.weight.shape[-1] != len(model.tasks_):
        return {}
    cell = path.cell(model.reg_lambda_, model.common_strength_)
    total, weight = getattr(path, model.scoring_)[cell].sum(axis=0), path.weight[cell].sum(axis=0)
    return {"held_out_error": np.divide(total, weight, out=np.full(len(total), np.nan), where=weight > 0)}


def _relations(model: Any, k: int = 3) -> dict[str, list[list[Any]]]:
    """The k most alike and the k most opposed pairs of tasks; none if there are too many tasks to compare all pairs."""
    covariance, names = model.covariance_, model.unit_names_
    if not 2 <= covariance.m <= MAX_COMPARED:
        return {"alike": [], "opposed": []}

    def listed(pairs: list[Pair]) -> list[list[Any]]:
        return [
            [plain(names[pair.first]), plain(names[pair.second]), pair.value]
            for pair in pairs
            if abs(pair.value) >= WEAK
        ]

    alike, opposed = strongest_pairs(unit_vectors(covariance), k)
    return {"alike": listed(alike), "opposed": listed(opposed)}
