"""What a fit found, as plain values: for JSON, and for the summary that the shell prints.

Room: beside fitting. All comes from the model and its cross-validation; only what guessing would give is computed here.
"""

from typing import Any

import numpy as np

from dmtrl.relationship.similarity import WEAK, strongest_pairs, unit_vectors
from dmtrl.workflows.fit import FOLDS, Prepared

MOST_COMPARED = 2000  # tasks, of which all pairs are looked at


def document(model: Any, prepared: Prepared, comparison: Any = None) -> dict[str, Any]:
    """The outcome as plain values."""
    certificate, preparation = model.certificate_, prepared.preparation
    rows = dict(zip(*np.unique(prepared.tasks, return_counts=True), strict=True))
    per_task = [{"task": _plain(name), "rows": int(rows[name])} for name in model.tasks_]
    for name, values in _errors(model, comparison).items():
        for row, value in zip(per_task, values, strict=True):
            row[name] = float(value) if np.isfinite(value) else None
    path = getattr(model, "cv_path_", None)
    return {
        "rows": len(prepared.y),
        "rows_read": prepared.rows_read,
        "tasks": len(model.tasks_),
        "features": len(preparation.feature_names),
        "task": preparation.task,
        "target": preparation.target,
        "columns": [
            dict(zip(("column", "kind", "done", "features"), line, strict=True)) for line in preparation.table()
        ],
        "kind": prepared.loss.kind,
        "loss": prepared.loss.name,
        "classes": [_plain(value) for value in getattr(model, "classes_", [])] or None,
        "lambda": model.reg_lambda_,
        "common": model.common_strength_,
        "chosen": None if path is None else {"fits": int(path.rounds.size), "folds": FOLDS, "by": model.scoring_},
        "held_out": None if path is None else _held_out(model),
        "guessing": None if path is None else _guessing(prepared, model.scoring_),
        "certificate": {
            "primal": certificate.primal, "dual": certificate.dual, "relative_gap": certificate.relative_gap,
            "tol": model.tol, "converged": bool(certificate.relative_gap <= model.tol),
        },
        "rounds": model.n_rounds_,
        "relations": _relations(model),
        "compared": None if comparison is None else str(comparison),
        "per_task": per_task,
        "notes": list(prepared.notes),
        "notes_before_fit": prepared.said,
    }  # fmt: skip


def _held_out(model: Any) -> dict[str, float]:
    """Means over all held-out rows at the chosen strengths: the measure chosen by, and what guessing would cost."""
    path = model.cv_path_
    i = int(np.flatnonzero(path.commons == model.common_strength_)[0])
    j = int(np.flatnonzero(path.lambdas == model.reg_lambda_)[0])
    weight = path.weight[i, j].sum()
    return {name: float(getattr(path, name)[i, j].sum() / weight) for name in {model.scoring_, "loss"}}


def _errors(model: Any, comparison: Any) -> dict[str, np.ndarray]:
    """Per task: the held-out errors of the comparison, or that of choosing lambda."""
    if comparison is not None and len(comparison.tasks) == len(model.tasks_):
        return {name: getattr(comparison, name) for name in ("together", "alone", "pooled")}
    path = getattr(model, "cv_path_", None)
    if path is None or path.weight.shape[-1] != len(model.tasks_):
        return {}
    i = int(np.flatnonzero(path.commons == model.common_strength_)[0])
    j = int(np.flatnonzero(path.lambdas == model.reg_lambda_)[0])
    total, weight = getattr(path, model.scoring_)[i, j].sum(axis=0), path.weight[i, j].sum(axis=0)
    return {"held_out_error": np.divide(total, weight, out=np.full(len(total), np.nan), where=weight > 0)}


def _relations(model: Any, k: int = 3) -> dict[str, list[list[Any]]]:
    """The k most alike and the k most opposed pairs of tasks that are either at all; nothing where there are too many
    tasks to look at all pairs."""
    covariance, names = model.covariance_, model.unit_names_
    if not 2 <= covariance.m <= MOST_COMPARED:
        return {"alike": [], "opposed": []}
    pairs = strongest_pairs(unit_vectors(covariance), k)
    told = [
        [
            [_plain(names[pair.first]), _plain(names[pair.second]), pair.value]
            for pair in some
            if abs(pair.value) >= WEAK
        ]
        for some in pairs
    ]
    return {"alike": told[0], "opposed": told[1]}


def _guessing(prepared: Prepared, by: str) -> float | None:
    """The same measure for who knows only the task. Squared error: every row is guessed by the mean of the other rows
    of its task, which is as honest as holding out. Classes: by the most frequent one of its task."""
    weight = np.ones(len(prepared.y)) if prepared.weight is None else prepared.weight
    task = np.unique(prepared.tasks, return_inverse=True)[1]
    if by == "wrong":
        classes, label = np.unique(prepared.y, return_inverse=True)
        count = np.bincount(task * len(classes) + label, weights=weight, minlength=(task.max() + 1) * len(classes))
        return float(1 - count.reshape(-1, len(classes)).max(axis=1).sum() / weight.sum())
    if by != "squared_error":
        return None
    y, total = prepared.y, np.bincount(task, weights=weight)
    others = total[task] - weight
    rows = others > 1e-9 * total[task]  # a task's only row is never held out
    if not rows.any():
        return None
    rest = np.bincount(task, weights=weight * y)[task] - weight * y
    error = y[rows] - rest[rows] / others[rows]
    return float((weight[rows] * error**2).sum() / weight[rows].sum())


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
