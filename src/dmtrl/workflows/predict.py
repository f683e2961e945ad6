"""`dmtrl predict` as a library function: a saved model and data files in, a table of predictions out, in pieces.

Room: beside fitting. Rows are read, prepared, predicted and written a piece at a time, so a file may be larger than
memory. The columns are read as the model's preparation says, not as this file looks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.estimators.model_file import load
from dmtrl.tables import Batch, TableFiles, require_column
from dmtrl.tables import columns as read
from dmtrl.tables.cells import without
from dmtrl.tables.output import table_writer
from dmtrl.tables.preparation import Preparation
from dmtrl.workflows.fit import Silence, Watcher, open_as_fitted

PIECE = 4_000_000  # numbers in the feature matrix of one piece
PREDICTION = "prediction"


@dataclass(frozen=True)
class PredictRequest:
    """unknown: what to do with a task that fit never saw: "raise", "common" (from what all tasks share) or "skip"
    (leave the prediction empty). keep: columns to copy beside the prediction, "*" for all. fill: a column that is not
    there counts as missing in every row."""

    model: str | Path
    data: Sequence[str | Path]
    out: Path | None = None
    unknown: str = "raise"
    keep: Sequence[str] = ()
    fill: bool = False


def load_model(path: str | Path) -> Any:
    """A model that knows its columns."""
    try:
        model = load(path)
    except ValueError as error:
        if "is not a dmtrl model" in str(error):
            raise ValueError(f"{path} is not a dmtrl model; predict takes the model first, then the data") from None
        raise
    if not isinstance(getattr(model, "preparation_", None), Preparation):
        raise ValueError(
            f"{path} was fitted in Python and does not know how to prepare columns: use dmtrl.load there, "
            "or fit with dmtrl fit"
        )
    return model


def predict(request: PredictRequest, watcher: Watcher | None = None) -> dict[str, Any]:
    """Write a prediction for every row, in order; the outcome as plain values."""
    watcher = watcher or Silence()
    notes: list[str] = []
    model = load_model(request.model)
    preparation: Preparation = model.preparation_
    source = _open(request, preparation, notes)
    if request.unknown == "common":
        model.set_params(unknown_tasks="common")
    kept = [name for name in (source.names if "*" in request.keep else request.keep) if name != preparation.task]
    for name in kept:
        require_column(name, source.names)
    answers = _Answers(model, request.unknown)
    taken = set(answers.columns) & {*kept, preparation.task}
    if taken:
        raise ValueError(f"a column of the data is called {sorted(taken)[0]!r}, as one of the output; rename it")
    wanted = [*preparation.used, preparation.task, *kept]
    rows = max(1024, PIECE // max(len(preparation.feature_names), 1))
    tally: Counter[tuple[str, str]] = Counter()
    watcher.stage("predicting")
    with table_writer(request.out) as writer:
        for batch in source.batches(wanted, preparation.width):
            for piece in _pieces(batch, rows):
                words = read.texts(without(piece.columns.column(preparation.task), preparation.missing))
                with source.located(lambda row: row + answers.rows):
                    X = preparation.transform(piece.columns, piece.block, tally)
                columns = {preparation.task: piece.columns.column(preparation.task)}
                columns |= {name: piece.columns.column(name) for name in kept}
                writer.write(_table(columns | answers.of(X, words)))
            watcher.share(batch.done, f"{answers.rows:,} rows")
        if answers.rows == 0:
            raise ValueError(f"{source.files[0].path} has columns but no rows")
    notes += [f"column {name!r}: {count:,} {what}" for (name, what), count in tally.items()]
    notes += answers.notes()
    return {
        "rows": answers.rows, "unknown_task_rows": answers.unknown_rows, "unknown_tasks": sorted(answers.unknown)[:100],
        "columns": [preparation.task, *kept, *answers.columns], "notes": notes,
    }  # fmt: skip


def _open(request: PredictRequest, preparation: Preparation, notes: list[str]) -> TableFiles:
    """The data, with a task column, and with all columns that the model needs."""
    source = open_as_fitted(request.data, preparation, notes)
    absent = [name for name in preparation.used if name not in source.names]
    if absent and not request.fill:
        try:
            require_column(absent[0], source.names)
        except ValueError as error:
            raise ValueError(
                f"the model needs the column {absent[0]!r}: {error}; or say --fill to take it as missing"
            ) from None
    notes += [f"column {name!r} is not in the data and counts as missing" for name in absent]
    known = {*preparation.used, preparation.task, preparation.target, *(c.name for c in preparation.columns)}
    extra = [name for name in source.names if name not in known]
    if extra:
        few = ", ".join(map(repr, extra[:5])) + (f" and {len(extra) - 5} more" if len(extra) > 5 else "")
        notes.append(f"not known to the model and not used: {few}")
    return source


def _pieces(batch: Batch, rows: int) -> list[Batch]:
    n = batch.columns.num_rows
    if n <= rows:
        return [batch]
    return [
        Batch(batch.columns.slice(i, rows), None if batch.block is None else batch.block[i : i + rows], batch.done)
        for i in range(0, n, rows)
    ]


def _table(columns: dict[str, Any]) -> Any:
    import pyarrow as pa

    return pa.table(columns)


class _Answers:
    """Predictions of pieces, and what became of tasks that fit never saw."""

    def __init__(self, model: Any, unknown: str):
        self._model, self._how = model, unknown
        tasks = model.tasks_
        self._number = {str(name): i for i, name in enumerate(tasks.tolist())}
        # a name that no task has: the model itself then says or does what its unknown_tasks asks for
        stranger = np.array([tasks.max() + 1 if tasks.dtype.kind == "i" else ""])
        self._names = np.concatenate([tasks, stranger])
        self._classes = getattr(model, "classes_", None)
        classes = [] if self._classes is None or not hasattr(model, "predict_proba") else self._classes.tolist()
        self.columns = [PREDICTION, *(f"probability_{name}" for name in classes)]
        self.rows = self.unknown_rows = 0
        self.unknown: set[str] = set()

    def of(self, X: Any, words: np.ndarray) -> dict[str, Any]:
        import pyarrow as pa

        codes = np.fromiter((self._number.get(word, -1) for word in words), dtype=int, count=len(words))
        strange = codes < 0
        if strange.any():
            self._meet(words[strange], int(np.argmax(strange)))
        self.rows += len(words)
        self.unknown_rows += int(strange.sum())
        rows = ~strange if self._how == "skip" else np.ones(len(words), dtype=bool)
        values = self._predictions(X if rows.all() else X[rows], self._names[codes[rows]])
        if rows.all():
            return values
        place = pa.array(np.cumsum(rows) - 1, mask=~rows)
        return {name: column.take(place) for name, column in values.items()}

    def _predictions(self, X: Any, tasks: np.ndarray) -> dict[str, Any]:
        import pyarrow as pa

        kind = pa.float64() if self._classes is None else pa.int64() if self._classes.dtype.kind == "i" else pa.string()
        if len(tasks) == 0:
            return {name: pa.nulls(0, pa.float64() if i else kind) for i, name in enumerate(self.columns)}
        found = {PREDICTION: pa.array(self._model.predict(X, tasks=tasks).tolist(), kind)}
        if len(self.columns) > 1:
            probabilities = self._model.predict_proba(X, tasks=tasks).T
            found |= {name: pa.array(p) for name, p in zip(self.columns[1:], probabilities, strict=True)}
        return found

    def _meet(self, words: np.ndarray, row: int) -> None:
        self.unknown |= {word for word in words if word is not None}
        shared = self._model.common_strength_ > 0 and self._model.coef_.ndim == 2
        if self._how == "skip" or (self._how == "common" and shared):
            return
        first = words[0]
        what = "has no task" if first is None else f"is of task {first!r}, which was not there in fit"
        ways = "--unknown skip leaves such rows empty"
        if shared:
            ways += ", --unknown common predicts them from what all tasks share"
        elif self._how == "common":
            what += (
                ", and the model has no part that all tasks share (fit with --common; not for more than two classes)"
            )
        raise ValueError(f"row {self.rows + row + 1} {what}; {ways}")

    def notes(self) -> list[str]:
        if not self.unknown_rows:
            return []
        done = "left empty" if self._how == "skip" else "predicted from what all tasks share"
        few = ", ".join(map(repr, sorted(self.unknown)[:3])) or "no task"
        return [f"{self.unknown_rows:,} rows of tasks that fit never saw, as {few}: {done}"]
