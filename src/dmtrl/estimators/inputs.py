"""Read the accepted forms of X, y and tasks into one form, `LabelledRows`.

Accepted are a task label per row, a column of X with the task labels, a list or a dict of (X_i, y_i), and a 2-D y with
one column per task. Data frames stay data frames until the estimator has read their column names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import all_finite, stack_rows
from dmtrl.data.labels import check_one_per_row, is_missing, plain, read_task_list, task_labels
from dmtrl.losses import Loss
from dmtrl.numerics.checks import is_whole
from dmtrl.tables.names import quoted

SINGLE_TASK = np.array([0])  # task names if the caller passed none; compared by identity


@dataclass(frozen=True)
class LabelledRows:
    """Rows of X with weights, and labels. Label j belongs to row rows[j] and to task names[codes[j]].

    Rows and labels correspond one to one, except after `to_long` has split a 2-D y: then a row has a label for each
    task that is not missing there.
    """

    X: Any
    y: Any
    names: np.ndarray
    codes: np.ndarray
    sample_weight: np.ndarray | None
    rows: np.ndarray
    wide: bool = False  # y was 2-D, one column per task
    task_starts: np.ndarray | None = None  # first row of each task, if the tasks came as a list of (X_i, y_i)
    splits: np.ndarray | None = None  # (splits, labels): what each label does in a cross-validation; data/folds.py

    @property
    def layout(self) -> str:
        """How tasks were given: "wide" (columns of y), "long" (a label per row) or "alone" (no tasks)."""
        return "wide" if self.wide else "alone" if self.names is SINGLE_TASK else "long"

    def where(self, label: int) -> str:
        """Describe the position of a label, numbered as in the arrays that the caller passed."""
        row, task = int(self.rows[label]), int(self.codes[label])
        if self.task_starts is not None:
            return f"task {plain(self.names[task])!r}, row {row - int(self.task_starts[task])}"
        named = len(self.names) > 1 and not (self.wide and np.ndim(self.y) == 2)
        return f"task {plain(self.names[task])!r}, row {row}" if named else f"row {row}"

    def without_zero_weights(self) -> "LabelledRows":
        """Drop rows of weight zero. Raises ValueError for invalid weights and if a task loses all its rows."""
        weight = self.sample_weight
        if weight is None:
            return self
        wrong = ~(np.isfinite(weight) & (weight >= 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"{self.where(row)}: sample_weight must be finite and non-negative, got {weight[row]}")
        keep = weight > 0
        if keep.all():
            return self
        absent = np.setdiff1d(self.codes, self.codes[keep])
        if len(absent):
            name = plain(self.names[absent[0]])
            raise ValueError(f"all rows of task {name!r} have sample weight zero; leave the task out")
        X, y, codes, weight = self.X[keep], self.y[keep], self.codes[keep], weight[keep]
        kept = replace(self, X=X, y=y, codes=codes, sample_weight=weight, rows=np.arange(len(codes)), task_starts=None)
        return kept if self.splits is None else replace(kept, splits=self.splits[:, keep])

    def to_long(self) -> "LabelledRows":
        """Split a 2-D y into one label per row and task, task after task, without missing labels."""
        if not self.wide:
            return self
        missing = is_missing(self.y)
        empty = missing.all(axis=0)
        if empty.any():
            name = plain(self.names[np.argmax(empty)])
            raise ValueError(f"task {name!r} has no labels: all values in its column of y are missing; leave it out")
        codes, rows = np.nonzero(~missing.T)
        splits = None if self.splits is None else self.splits[:, rows]
        return replace(self, y=self.y[rows, codes], codes=codes, rows=rows, splits=splits)

    def take(self, labels: np.ndarray, y: np.ndarray, tasks: np.ndarray | None = None) -> "LabelledRows":
        """Some labels, with the numbers `y` for all of them, task after task. `tasks`: the tasks that are left."""
        codes, names, splits = self.codes[labels], self.names, self.splits
        if tasks is not None:
            codes, names = np.searchsorted(tasks, codes), names[tasks]
        splits = None if splits is None else splits[:, labels]
        return replace(self, y=y[labels], codes=codes, names=names, rows=self.rows[labels], splits=splits)

    @property
    def label_weight(self) -> np.ndarray | None:
        """The weight of each label."""
        return None if self.sample_weight is None else self.sample_weight[self.rows]

    def check_X(self, columns: Sequence[Any] | None) -> None:
        """Raise ValueError with task, row and column if X holds NaN, infinity or numbers that are too large."""
        values = self.X.data if sparse.issparse(self.X) else self.X
        finite = all_finite(values)
        if finite and not is_too_large(values):
            return
        wrong = ~np.isfinite(values) if not finite else np.abs(values) > largest(values.dtype)
        if sparse.issparse(self.X):
            entries = self.X.tocoo()
            k = int(np.argmax(wrong))
            row, column = int(entries.row[k]), int(entries.col[k])
        else:
            row, column = (int(v) for v in np.argwhere(wrong)[0])
        name, value = column if columns is None else plain(columns[column]), self.X[row, column]
        if finite:
            problem = f"X contains {value:.3g}, which is too large to compute with; scale the column"
        else:
            problem = f"X contains {'NaN' if np.isnan(value) else 'infinity (inf)'}; impute it or drop the row"
        raise ValueError(f"{self.where(row)}, column {name!r}: {problem}")

    def check_y(self) -> None:
        """Raise ValueError with task and row if a label is missing or infinite."""
        bad = ~np.isfinite(self.y) if self.y.dtype.kind == "f" else is_missing(self.y)
        if bad.any():
            label = int(np.argmax(bad))
            infinite = isinstance(self.y[label], float | np.floating) and np.isinf(self.y[label])
            value = "infinity (inf)" if infinite else "NaN or None"
            raise ValueError(f"{self.where(label)}: y contains {value}; drop the row")

    def numeric_y(self) -> np.ndarray:
        """The labels as floats. Raises ValueError with task and row for a label that is not a number."""
        try:
            y = np.asarray(self.y, dtype=float)
        except (TypeError, ValueError):
            label = next(j for j, value in enumerate(self.y) if not _is_number(value))
            raise ValueError(
                f"{self.where(label)}: y contains {plain(self.y[label])!r}, which is not a number"
            ) from None
        if is_too_large(y):
            label = int(np.argmax(np.abs(y) > largest(y.dtype)))
            raise ValueError(
                f"{self.where(label)}: y contains {y[label]:.3g}, which is too large to compute with; scale y"
            )
        return y

    def check_labels(self, y: np.ndarray, loss: Loss) -> None:
        """Raise ValueError with task and row if the loss is not defined for a label."""
        wrong, rule = loss.invalid_labels(y)
        if wrong.any():
            label = int(np.argmax(wrong))
            raise ValueError(f"{self.where(label)}: the {loss.name} loss needs {rule}, but y contains {y[label]:g}")


def largest(dtype: np.dtype) -> float:
    """Products of several larger numbers overflow."""
    return 1e15 if dtype == np.float32 else 1e100


def is_too_large(values: np.ndarray) -> bool:
    if values.dtype.kind != "f" or values.size == 0:
        return False
    return bool(max(-float(values.min()), float(values.max())) > largest(values.dtype))


def read(X: Any, y: Any = None, tasks: Any = None, sample_weight: Any = None, task_column: Any = None) -> LabelledRows:
    """Read any accepted form of input. The values of X are not checked yet."""
    for name, value in (("y", y), ("tasks", tasks), ("sample_weight", sample_weight)):
        reject_lazy(name, value)
    if y is None and is_list_of_tasks(X):
        if tasks is not None or task_column is not None or sample_weight is not None:
            raise ValueError(
                "a list or dict of (X_i, y_i) already assigns rows to tasks; do not pass tasks, task_column or "
                "sample_weight, and pass weights as (X_i, y_i, weight_i)"
            )
        return _from_task_list(X)
    X, labels = split_tasks(X, tasks, task_column)
    n = _length(X)
    weight = None if sample_weight is None else np.asarray(sample_weight, dtype=float)
    if weight is not None:
        check_one_per_row("sample_weight", weight, n)
    values = np.asarray(y)
    if values.ndim == 2 and len(values) == n:
        if labels is not None:
            raise ValueError("the columns of a 2-D y are the tasks; pass a 1-D y, or do not pass tasks")
        columns = column_names(y)
        names = np.arange(values.shape[1]) if columns is None else task_labels(columns, values.shape[1])
        return LabelledRows(X, values, names, np.zeros(n, dtype=int), weight, np.arange(n), wide=True)
    check_one_per_row("y", values, n)
    if labels is None:
        return LabelledRows(X, values, SINGLE_TASK, np.zeros(n, dtype=int), weight, np.arange(n))
    names, codes = np.unique(labels, return_inverse=True)
    return LabelledRows(X, values, names, codes, weight, np.arange(n))


def reject_lazy(name: str, value: Any) -> None:
    """Raise TypeError for a polars LazyFrame, which has no rows yet."""
    if hasattr(value, "collect") and hasattr(value, "collect_schema"):
        raise TypeError(f"{name} is a LazyFrame, which has not been computed; call collect() first")


def split_tasks(X: Any, tasks: Any, task_column: Any) -> tuple[Any, np.ndarray | None]:
    """Return X without the task column, and the task label of each row or None."""
    reject_lazy("X", X)
    if task_column is not None:
        if tasks is not None:
            raise ValueError("both tasks and task_column are set; pass only one of them")
        X, tasks = split_column(X, task_column)
    return X, None if tasks is None else task_labels(tasks, _length(X))


def lookup(labels: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The index of each label in `names`, or -1 if it is not there."""
    number = {name: i for i, name in enumerate(names.tolist())}
    distinct, inverse = np.unique(labels, return_inverse=True)
    return np.array([number.get(label, -1) for label in distinct.tolist()], dtype=int)[inverse]


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def split_column(X: Any, column: Any) -> tuple[Any, Any]:
    """Split one column, by name or index, from X. Returns the rest and the column."""
    names = column_names(X)
    if names is None:
        X = X if hasattr(X, "shape") else np.asarray(X, dtype=object)
        d = X.shape[1]
        if not (is_whole(column) and -d <= column < d):
            raise ValueError(f"task_column={column!r}: X has no column names; use an index from 0 to {d - 1}")
        taken = X[:, [column]]
        return X[:, np.delete(np.arange(d), column)], (taken.toarray() if sparse.issparse(X) else taken)[:, 0]
    if column not in names:
        if not (is_whole(column) and -len(names) <= column < len(names)):
            raise ValueError(f"task_column={column!r} is not a column of X, which has {quoted(names)}")
        column = names[column]
    if hasattr(X, "drop_columns"):  # pyarrow
        return X.drop_columns([column]), X.column(column)
    return (X.drop(columns=column) if hasattr(X, "iloc") else X.drop(column)), X[column]


def column_names(X: Any) -> list[Any] | None:
    """The column names of a pandas, polars or pyarrow table; None for anything else."""
    if hasattr(X, "column_names"):
        return list(X.column_names)
    return list(X.columns) if hasattr(X, "columns") and hasattr(X, "shape") else None


def take_rows(X: Any, rows: np.ndarray) -> Any:
    """Select rows of an array, a CSR matrix or a data frame by number."""
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    if hasattr(X, "column_names"):
        return X.take(rows)
    return (X if hasattr(X, "shape") else np.asarray(X))[rows]


def describe_non_number(X: Any) -> str | None:
    """An error message for the first cell of X that is not a number; None if there is no such cell."""
    names = column_names(X)
    X = np.asarray(X) if names is None else X
    for j in range(X.shape[1]):
        values = X[:, j] if names is None else np.asarray(split_column(X, names[j])[1])
        row = next((row for row, value in enumerate(values) if not _is_number(value)), None)
        if row is not None:
            name = j if names is None else names[j]
            return (
                f"row {row}, column {name!r}: X contains {plain(values[row])!r}, which is not a number; "
                "encode the column as numbers, drop it, or pass it as task_column"
            )
    return None


def _length(X: Any) -> int:
    shape = X.shape if hasattr(X, "shape") else np.asarray(X).shape
    if len(shape) == 0:
        raise ValueError("X must be 2-dimensional, got a scalar. Reshape your data")
    return int(shape[0])


def is_list_of_tasks(X: Any) -> bool:
    """Whether X is a dict, or a list of (X_i, y_i) or (X_i, y_i, sample_weight_i), and not a list of rows."""
    if isinstance(X, Mapping):
        return True
    pairs = isinstance(X, list | tuple) and all(isinstance(part, tuple) and len(part) in (2, 3) for part in X)
    return pairs and len(X) > 0 and all(np.ndim(part[0]) > 0 or sparse.issparse(part[0]) for part in X)


def _from_task_list(tasks: Mapping[Any, Any] | Sequence[Any]) -> LabelledRows:
    found = read_task_list(tasks)
    m, starts = len(found.names), found.starts
    codes = np.repeat(np.arange(m), np.diff(starts))
    X, y, weight, names = _stack(found.X), np.concatenate(found.y), found.sample_weight, task_labels(found.names, m)
    return LabelledRows(X, y, names, codes, weight, np.arange(len(codes)), task_starts=starts[:-1])


def _stack(tables: list[Any]) -> Any:
    """Concatenate the rows of the tasks. Data frames of one library stay data frames, to keep their column names."""
    kinds = {type(X).__module__.split(".")[0] for X in tables}
    if kinds == {"pandas"}:
        import pandas as pd

        return pd.concat(tables, ignore_index=True)
    if kinds == {"polars"}:
        import polars as pl

        return pl.concat(tables)
    if kinds == {"pyarrow"}:
        import pyarrow as pa

        return pa.concat_tables(tables)
    return stack_rows(tables)
