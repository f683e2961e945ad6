"""`dmtrl report` as a library function: write a page about a saved model.

Columns are read as in the fit. Rows without a target, or of a task that the model does not have, are left out.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.data.blocks import stack_rows
from dmtrl.data.labels import plain
from dmtrl.estimators.model_file import load
from dmtrl.progress import NoProgress, Progress
from dmtrl.relationship import is_learned
from dmtrl.report.model_page import write_model_page
from dmtrl.report.model_page.relations import MAX_CELLS
from dmtrl.report.page import require_packages
from dmtrl.tables import columns as read
from dmtrl.tables import require_columns
from dmtrl.tables.preparation import Preparation, Replacements, without_missing
from dmtrl.workflows.data_files import name_indices, open_as_fitted
from dmtrl.workflows.fit import folds_for, rows_per_task
from dmtrl.workflows.summary import model_figures


def report(
    model: str | Path,
    data: Sequence[str | Path],
    out: str | Path,
    progress: Progress | None = None,
    encoding: str | None = None,
) -> dict[str, Any]:
    """Write the page. Returns its path, the figures of each task, and notes about rows that were left out.

    encoding: of CSV files.
    """
    progress = progress or NoProgress()
    require_packages()
    fitted, notes = load(model), list[str]()
    if not data:
        return model_figures(fitted) | {"report": str(write_model_page(fitted, out)), "notes": notes}
    progress.stage("reading")
    X, y, tasks = read_rows(fitted, data, notes, progress, encoding)
    comparison = intervals = None
    if len(fitted.tasks_) > 1:
        absent = np.setdiff1d(fitted.tasks_, tasks)
        if len(absent):
            raise ValueError(
                f"the data has no row of task {plain(absent[0])!r}; use data of all {len(fitted.tasks_)} tasks of the "
                "model, or leave the data out"
            )
        folds = folds_for(rows_per_task(tasks), "for a comparison; leave the data out")
        progress.stage("comparing with each task alone and all tasks pooled")
        comparison = fitted.compare(X, y, tasks, cv=folds)
        if is_learned(fitted.relationship) and len(fitted.tasks_) <= MAX_CELLS:
            progress.stage("refitting to see which relations are clear")
            intervals = fitted.correlation_intervals(X, y, tasks)
    progress.stage("writing the page")
    page = write_model_page(fitted, out, X, y, tasks, comparison, intervals=intervals)
    return model_figures(fitted, comparison, X, y, tasks) | {"report": str(page), "notes": notes}


def read_rows(
    model: Any,
    data: Sequence[str | Path],
    notes: list[str],
    progress: Progress,
    encoding: str | None,
) -> tuple[Any, np.ndarray, np.ndarray]:
    """X, y and tasks, prepared as in the fit. encoding: of CSV files."""
    source = open_as_fitted(model, data, notes, encoding)
    preparation: Preparation = model.preparation_
    require_columns([*preparation.used, preparation.target], source.names)
    classes = getattr(model, "classes_", None)
    tally = Replacements()
    parts: list[Any] = []
    targets: list[np.ndarray] = []
    codes: list[np.ndarray] = []
    left_out: Counter[str] = Counter()
    for batch in source.batches([*preparation.used, preparation.task, preparation.target], preparation.width):
        columns = without_missing(batch.columns, preparation.missing)
        X = preparation.transform(columns, batch.block, tally)
        task = name_indices(read.texts(columns.column(preparation.task)), model.tasks_)
        target = columns.column(preparation.target)
        if classes is None:
            y = read.numbers(target, preparation.target)
            known = ~np.isnan(y)
        else:
            y = name_indices(read.texts(target), classes)
            known = y >= 0
        keep = known & (task >= 0)
        parts.append(X[keep])
        targets.append(y[keep])
        codes.append(task[keep])
        left_out["no target value that the model knows"] += int((~known).sum())
        left_out["a task that the model does not have"] += int((known & (task < 0)).sum())
        progress.update(batch.done)
    notes += [f"left out: {count:,} rows with {what}" for what, count in left_out.items() if count]
    notes += tally.notes()
    if not any(len(some) for some in targets):
        raise ValueError(
            f"{source.files[0].path} has no row with a task of the model and a valid {preparation.target!r}"
        )
    y = np.concatenate(targets)
    return stack_rows(parts), y if classes is None else classes[y], model.tasks_[np.concatenate(codes)]
