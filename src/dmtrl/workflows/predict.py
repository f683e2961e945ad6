"""`dmtrl predict` as a library function: a saved model and data files give a table of predictions.

Rows are read, predicted and written in chunks, so a file may be larger than memory. Columns are read as in the fit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.estimators.model_file import load
from dmtrl.exceptions import InputError, Setting
from dmtrl.progress import NoProgress, Progress
from dmtrl.tables import Batch, TableFiles, require_columns
from dmtrl.tables import columns as read
from dmtrl.tables.arrow import pa
from dmtrl.tables.cells import without
from dmtrl.tables.names import column_hint, quoted
from dmtrl.tables.output import table_writer
from dmtrl.tables.preparation import Preparation, Replacements
from dmtrl.workflows.data_files import name_indices, open_as_fitted
from dmtrl.workflows.requests import PredictRequest

CHUNK = 4_000_000  # numbers in the feature matrix of one chunk
PREDICTION = "prediction"


@dataclass(frozen=True)
class PredictResult:
    """What `dmtrl predict` wrote. unknown_levels: for each column, how often each unknown value occurs."""

    out: Path | None
    rows: int
    columns: tuple[str, ...]
    unknown_tasks: tuple[str, ...]
    unknown_task_rows: int
    unknown_levels: Mapping[str, Mapping[str, int]]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return vars(self) | {"out": None if self.out is None else str(self.out), "notes": list(self.notes)}


def predict(request: PredictRequest, progress: Progress | None = None) -> PredictResult:
    """Write a prediction for every row, in order."""
    progress = progress or NoProgress()
    request.check()
    notes: list[str] = []
    model = load(request.model)
    source = open_as_fitted(model, request.data, notes, request.encoding)
    preparation: Preparation = model.preparation_
    _check_columns(source, preparation, request.fill, notes)
    if request.unknown == "shared":
        model.set_params(unknown_tasks="shared")
    keep = source.names if "*" in request.keep else dict.fromkeys(request.keep)
    kept = [name for name in keep if name != preparation.task]
    require_columns(kept, source.names)
    predictor = _Predictor(model, request.unknown)
    taken = set(predictor.columns) & {*kept, preparation.task}
    if taken:
        raise ValueError(f"the data has a column {sorted(taken)[0]!r}, which is also a column of the output; rename it")
    wanted = [*preparation.used, preparation.task, *kept]
    rows = max(1024, CHUNK // max(len(preparation.feature_names), 1))
    tally = Replacements()
    progress.stage("predicting")
    with table_writer(request.out) as writer:
        for batch in source.batches(wanted, preparation.width):
            for chunk in _chunks(batch, rows):
                names = read.texts(without(chunk.columns.column(preparation.task), preparation.missing))
                with source.located(lambda row: row + predictor.rows):
                    X = preparation.transform(chunk.columns, chunk.block, tally)
                columns = {preparation.task: chunk.columns.column(preparation.task)}
                columns |= {name: chunk.columns.column(name) for name in kept}
                writer.write(pa.table(columns | predictor.predict(X, names)))
            progress.update(batch.done, f"{predictor.rows:,} rows")
        if predictor.rows == 0:
            raise ValueError(f"{source.files[0].path} has columns but no rows")
    return PredictResult(
        out=request.out,
        rows=predictor.rows,
        columns=(preparation.task, *kept, *predictor.columns),
        unknown_tasks=tuple(sorted(predictor.unknown)),
        unknown_task_rows=predictor.unknown_rows,
        unknown_levels={name: dict(levels) for name, levels in tally.unknown.items()},
        notes=(*notes, *tally.notes(), *predictor.notes()),
    )


def _check_columns(source: TableFiles, preparation: Preparation, fill: bool, notes: list[str]) -> None:
    """Check that the data has the columns that the model needs, and note those that it does not use."""
    names = set(source.names)
    absent = [name for name in preparation.used if name not in names]
    if absent and not fill:
        problem = f"there is no column {absent[0]!r}, which the model needs; {column_hint(absent[0], source.names)}"
        raise InputError(f"{problem}; to treat it as missing, pass ", Setting("fill", True))
    if absent:
        columns = f"column {absent[0]!r} is" if len(absent) == 1 else f"columns {quoted(absent)} are"
        notes.append(f"{columns} not in the data; all values are missing")
    known = {*preparation.used, preparation.task, preparation.target, *(c.name for c in preparation.columns)}
    extra = [name for name in source.names if name not in known]
    if extra:
        notes.append(f"columns that the model does not use: {quoted(extra)}")


def _chunks(batch: Batch, rows: int) -> list[Batch]:
    n = batch.columns.num_rows
    if n <= rows:
        return [batch]
    return [
        Batch(batch.columns.slice(i, rows), None if batch.block is None else batch.block[i : i + rows], batch.done)
        for i in range(0, n, rows)
    ]


class _Predictor:
    """Predicts chunk by chunk, and counts the rows of unknown tasks."""

    def __init__(self, model: Any, unknown: str):
        self._model, self._unknown_option = model, unknown
        tasks = model.tasks_
        # the last name belongs to no task, so that the model applies its unknown_tasks parameter
        unused = np.array([tasks.max() + 1 if tasks.dtype.kind == "i" else ""])
        self._names = np.concatenate([tasks, unused])
        self._classes = getattr(model, "classes_", None)
        classes = [] if self._classes is None or not hasattr(model, "predict_proba") else self._classes.tolist()
        self.columns = [PREDICTION, *(f"probability_{name}" for name in classes)]
        self.rows = self.unknown_rows = 0
        self.unknown: set[str] = set()

    def predict(self, X: Any, names: np.ndarray) -> dict[str, Any]:
        codes = name_indices(names, self._model.tasks_)
        unknown = codes < 0
        if unknown.any():
            self._check_unknown(names[unknown], int(np.argmax(unknown)))
        self.rows += len(names)
        self.unknown_rows += int(unknown.sum())
        rows = ~unknown if self._unknown_option == "skip" else np.ones(len(names), dtype=bool)
        values = self._predictions(X if rows.all() else X[rows], self._names[codes[rows]])
        if rows.all():
            return values
        positions = pa.array(np.cumsum(rows) - 1, mask=~rows)
        return {name: column.take(positions) for name, column in values.items()}

    def _predictions(self, X: Any, tasks: np.ndarray) -> dict[str, Any]:
        kind = pa.float64() if self._classes is None else pa.int64() if self._classes.dtype.kind == "i" else pa.string()
        if len(tasks) == 0:
            return {name: pa.nulls(0, pa.float64() if i else kind) for i, name in enumerate(self.columns)}
        found = {PREDICTION: pa.array(self._model.predict(X, tasks=tasks).tolist(), kind)}
        if len(self.columns) > 1:
            probabilities = self._model.predict_proba(X, tasks=tasks).T
            found |= {name: pa.array(p) for name, p in zip(self.columns[1:], probabilities, strict=True)}
        return found

    def _check_unknown(self, names: np.ndarray, row: int) -> None:
        self.unknown |= {name for name in names if name is not None}
        shared = self._model.predicts_new_tasks
        if self._unknown_option == "skip" or (self._unknown_option == "shared" and shared):
            return
        task = names[0]
        problem = f"row {self.rows + row + 1} has " + ("no task" if task is None else f"the unknown task {task!r}")
        skip = (Setting("unknown", "skip"), " to leave such rows empty")
        if shared:
            predict_shared = (", or ", Setting("unknown", "shared"), " to predict them from what all tasks share")
            raise InputError(f"{problem}; pass ", *skip, *predict_shared)
        if self._unknown_option == "shared":
            problem += ", and the model has nothing that tasks share (which takes several tasks)"
        raise InputError(f"{problem}; pass ", *skip)

    def notes(self) -> list[str]:
        if not self.unknown_rows:
            return []
        done = "left empty" if self._unknown_option == "skip" else "predicted from what all tasks share"
        which = quoted(sorted(self.unknown), 3) or "without a task"
        return [f"{self.unknown_rows:,} rows of unknown tasks ({which}): {done}"]
