"""`dmtrl report` as a library function: write a page about a saved model.

Columns are read as in the fit. Rows without a target, or of a task that the model does not have, are left out.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl import __version__
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
from dmtrl.workflows.fit import folds_for
from dmtrl.workflows.prepare import count_rows
from dmtrl.workflows.requests import ReportRequest
from dmtrl.workflows.summary import ModelFigures, model_figures


@dataclass(frozen=True)
class ReportResult:
    """The page that was written, the figures that it shows, and notes about rows that were left out."""

    request: ReportRequest
    page: Path
    figures: ModelFigures
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "dmtrl": __version__,
            "model": str(self.request.model),
            "data": list(map(str, self.request.data)),
            **self.figures.as_dict(),
            "report": str(self.page),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class KnownRows:
    """Rows of data files that a model can use, prepared as in its fit. notes: about rows that were left out."""

    X: Any
    y: np.ndarray
    tasks: np.ndarray
    notes: tuple[str, ...]


def report(request: ReportRequest, progress: Progress | None = None) -> ReportResult:
    """Write the page about a saved model."""
    progress = progress or NoProgress()
    request.check()
    require_packages()
    model = load(request.model)
    if not request.data:
        return ReportResult(request, write_model_page(model, request.out), model_figures(model))
    progress.stage("reading")
    rows = read_known_rows(model, request.data, progress, request.encoding)
    data = rows.X, rows.y, rows.tasks
    comparison = intervals = None
    if len(model.tasks_) > 1:
        absent = np.setdiff1d(model.tasks_, rows.tasks)
        if len(absent):
            raise ValueError(
                f"the data has no row of task {plain(absent[0])!r}; use data of all {len(model.tasks_)} tasks of the "
                "model, or leave the data out"
            )
        folds = folds_for(count_rows(rows.tasks), "for a comparison; leave the data out")
        progress.stage("comparing with each task alone and all tasks pooled")
        comparison = model.compare(*data, cv=folds)
        if is_learned(model.relationship) and len(model.tasks_) <= MAX_CELLS:
            progress.stage("refitting to see which relations are clear")
            intervals = model.correlation_intervals(*data)
    progress.stage("writing the page")
    page = write_model_page(model, request.out, *data, comparison, intervals=intervals)
    return ReportResult(request, page, model_figures(model, comparison, *data), rows.notes)


def read_known_rows(
    model: Any, data: Sequence[str | Path], progress: Progress | None = None, encoding: str | None = None
) -> KnownRows:
    """Read data files. encoding: of CSV files."""
    progress, notes = progress or NoProgress(), list[str]()
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
    tasks = model.tasks_[np.concatenate(codes)]
    return KnownRows(stack_rows(parts), y if classes is None else classes[y], tasks, tuple(notes))
