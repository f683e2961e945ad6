"""Intake: what people have, as one long table of rows, labels and tasks.

Room: beside data. A long table with a task label per row, a column that names the task, a list or a dict of (X_i, y_i), and a 2-D y whose
columns are tasks all become a `Table`; frames stay frames until the estimator has read their column names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

ALONE = np.array([0])  # the name of the only task when none was given
_SHOWN = 5  # known tasks to name in an error message


@dataclass(frozen=True)
class Table:
    """One row per label: row j belongs to task names[codes[j]]. With `wide`, y is still (n, m) and codes wait for `long()`."""

    X: Any
    y: Any
    names: np.ndarray
    codes: np.ndarray
    sample_weight: np.ndarray | None
    wide: bool = False
    first: np.ndarray | None = None  # row numbers count from here within a task that came as its own (X_i, y_i)

    def where(self, row: int) -> str:
        """A row in words, numbered as in the user's own arrays."""
        if len(self.names) == 1 and self.first is None:
            return f"row {row}"
        name = self.names[self.codes[row]]
        return f"task {_plain(name)!r}, row {row if self.first is None else row - self.first[self.codes[row]]}"

    def long(self) -> "Table":
        """A 2-D y as one row per label that is there."""
        if not self.wide:
            return self
        missing = is_missing(self.y)
        empty = missing.all(axis=0)
        if empty.any():
            raise ValueError(f"task {_plain(self.names[np.argmax(empty)])!r} has no labels: its column of y is all missing; leave it out")
        codes, rows = np.nonzero(~missing.T)
        weight = None if self.sample_weight is None else self.sample_weight[rows]
        complete = len(self.names) == 1 and len(rows) == len(self.y)
        X = self.X if complete else self.X[rows]
        return replace(self, X=X, y=self.y[rows, codes], codes=codes, sample_weight=weight)

    def weighted(self) -> "Table":
        """Without the rows of weight zero, which count as not there; refuses a task that is left with none."""
        weight = self.sample_weight
        if weight is None:
            return self
        wrong = ~(np.isfinite(weight) & (weight >= 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"{self.where(row)}: a sample weight must be finite and not negative, got {weight[row]}")
        keep = weight > 0
        if keep.all():
            return self
        absent = np.setdiff1d(self.codes, self.codes[keep])
        if len(absent):
            raise ValueError(f"every row of task {_plain(self.names[absent[0]])!r} has a sample weight of zero; leave the task out")
        return replace(self, X=self.X[keep], y=self.y[keep], codes=self.codes[keep], sample_weight=weight[keep], first=None)

    def check_finite(self, columns: Sequence[Any] | None = None) -> None:
        """Refuse NaN and infinity in X or y, saying which task, row and column."""
        numbers = self.X.data if sparse.issparse(self.X) else self.X
        if not np.isfinite(numbers).all():
            if sparse.issparse(self.X):
                entries = self.X.tocoo()
                k = int(np.argmax(~np.isfinite(entries.data)))
                row, column = int(entries.row[k]), int(entries.col[k])
            else:
                row, column = (int(v) for v in np.argwhere(~np.isfinite(self.X))[0])
            value = "NaN" if np.isnan(self.X[row, column]) else "infinity (inf)"
            name = column if columns is None else _plain(columns[column])
            raise ValueError(f"{self.where(row)}, column {name!r}: X holds {value}; fill it in or drop the row")
        if self.y is None or self.wide:  # in a 2-D y a NaN is a label that is not there
            return
        bad = ~np.isfinite(self.y) if self.y.dtype.kind == "f" else is_missing(self.y)
        if bad.any():
            row = int(np.argmax(bad))
            value = "infinity (inf)" if isinstance(self.y[row], float) and np.isinf(self.y[row]) else "NaN or nothing"
            raise ValueError(f"{self.where(row)}: y holds {value}; drop the row")


def read(X: Any, y: Any = None, tasks: Any = None, sample_weight: Any = None, task_column: Any = None) -> Table:
    """Any of the shapes people have as a Table; X is not yet checked."""
    if y is None and is_list_of_tasks(X):
        if tasks is not None or task_column is not None or sample_weight is not None:
            raise ValueError("a list of (X_i, y_i) says itself which rows belong to which task; give no tasks, task_column or sample_weight")
        return _from_parts(X)
    X, labels = read_rows(X, tasks, task_column)
    n = _length(X)
    weight = None if sample_weight is None else np.asarray(sample_weight, dtype=float)
    if weight is not None and weight.shape != (n,):
        raise ValueError(f"sample_weight must hold one number per row of X: X has {n} rows, sample_weight has shape {weight.shape}")
    y_array = None if y is None else np.asarray(y)
    if y_array is not None and y_array.ndim == 2:
        if labels is not None:
            raise ValueError("the columns of a 2-D y are the tasks; give no tasks besides, or a y with one dimension")
        columns = getattr(y, "columns", getattr(y, "column_names", None)) if hasattr(y, "shape") else None
        names = np.arange(y_array.shape[1]) if columns is None else task_labels(getattr(y, "column_names", columns), y_array.shape[1])
        _check_length(y_array, n)
        return Table(X, y_array, names, np.zeros(n, dtype=int), weight, wide=True)
    if y_array is not None:
        _check_length(y_array, n)
    if labels is None:
        return Table(X, y_array, ALONE, np.zeros(n, dtype=int), weight)
    names, codes = np.unique(labels, return_inverse=True)
    return Table(X, y_array, names, codes, weight)


def read_rows(X: Any, tasks: Any = None, task_column: Any = None) -> tuple[Any, np.ndarray | None]:
    """Rows to predict: X without the task column, and a task label per row or None."""
    if task_column is not None:
        if tasks is not None:
            raise ValueError("the tasks were given twice, as tasks= and as task_column; leave one out")
        X, tasks = split_column(X, task_column)
    return X, None if tasks is None else task_labels(tasks, _length(X))


def task_labels(tasks: Any, n: int) -> np.ndarray:
    """One label per row as a sortable array: text stays text, whole numbers become integers; refuses missing and mixed labels."""
    labels = np.asarray(tasks)
    if labels.shape == (n, 1):
        labels = labels[:, 0]
    if labels.shape != (n,):
        raise ValueError(f"tasks must hold one label per row of X: X has {n} rows, tasks has shape {labels.shape}")
    missing = is_missing(labels)
    if missing.any():
        raise ValueError(f"row {int(np.argmax(missing))}: the task label is missing; fill it in or drop the row")
    if labels.dtype.kind == "O":
        kinds = {str if issubclass(kind, str) else kind for kind in set(map(type, labels))}
        if kinds == {str}:
            return labels.astype(str)
        if len(kinds) > 1 and not all(issubclass(kind, int | float | np.number) for kind in kinds):
            raise ValueError(f"the task labels mix {' and '.join(sorted(kind.__name__ for kind in kinds))}; write them all one way")
        labels = np.array(labels.tolist())
    if labels.dtype.kind == "f" and (labels == np.floor(labels)).all():
        labels = labels.astype(np.int64)
    return labels


def lookup(labels: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The number of each label among the names, -1 where it is not one of them."""
    number = {name: i for i, name in enumerate(names.tolist())}
    distinct, inverse = np.unique(labels, return_inverse=True)
    return np.array([number.get(label, -1) for label in distinct.tolist()], dtype=int)[inverse]


def known(names: np.ndarray) -> str:
    """The tasks in words, the first few of them."""
    few = ", ".join(repr(name) for name in names[:_SHOWN].tolist())
    return few if len(names) <= _SHOWN else f"{few} and {len(names) - _SHOWN} more"


def is_missing(values: np.ndarray) -> np.ndarray:
    """NaN, None and pandas' NA."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind == "M":
        return np.isnat(values)
    if values.dtype.kind == "O":
        return np.frompyfunc(_is_missing, 1, 1)(values).astype(bool)
    return np.zeros(values.shape, dtype=bool)


def _plain(value: Any) -> Any:
    """A numpy scalar as Python writes it."""
    return value.item() if hasattr(value, "item") else value


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def split_column(X: Any, column: Any) -> tuple[Any, Any]:
    """X without the task column, and that column."""
    names = column_names(X)
    if names is None:
        X = X if hasattr(X, "shape") else np.asarray(X, dtype=object)
        d = X.shape[1]
        if isinstance(column, str) or not -d <= column < d:
            raise ValueError(f"task_column={column!r}: X has no column names, only the numbers 0 to {d - 1}")
        rest = np.delete(np.arange(d), column)
        taken = X[:, [column]]
        labels = taken.toarray()[:, 0] if sparse.issparse(X) else taken[:, 0]
        return X[:, rest], labels
    if column not in names:
        if isinstance(column, str) or not -len(names) <= column < len(names):
            raise ValueError(f"task_column={column!r} is not a column of X; it has {known(np.array(names, dtype=object))}")
        column = names[column]
    if hasattr(X, "drop_columns"):  # pyarrow
        return X.drop_columns([column]), X.column(column)
    return (X.drop(columns=column) if hasattr(X, "iloc") else X.drop(column)), X[column]


def column_names(X: Any) -> list[Any] | None:
    """The column names of a pandas, polars or pyarrow frame; None for anything else."""
    if hasattr(X, "column_names"):
        return list(X.column_names)
    return list(X.columns) if hasattr(X, "columns") and hasattr(X, "shape") else None


def take_rows(X: Any, rows: np.ndarray) -> Any:
    """The rows with these numbers, of an array, a CSR matrix or a frame."""
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    return X.take(rows) if hasattr(X, "column_names") else X[rows]


def explain_text(X: Any) -> str | None:
    """Which cell of X is not a number, in a sentence; None if all are."""
    names = column_names(X)
    columns = range(len(names)) if names is not None else range(np.asarray(X).shape[1])
    for j in columns:
        values = np.asarray(X if names is None else split_column(X, names[j])[1])
        values = values[:, j] if names is None else values
        for row, value in enumerate(values):
            try:
                float(value)
            except (TypeError, ValueError):
                name = j if names is None else names[j]
                return (
                    f"row {row}, column {name!r}: X holds {value!r}, which is not a number; "
                    "encode the column as numbers, leave it out, or name it as task_column"
                )
    return None


def _length(X: Any) -> int:
    shape = getattr(X, "shape", None)
    if shape is None:
        shape = np.shape(X) if isinstance(X, list | tuple) else np.asarray(X).shape
    if len(shape) == 0:
        raise ValueError("X must be a table of rows and columns, got a single value. Reshape your data")
    return int(shape[0])


def _check_length(y: np.ndarray, n: int) -> None:
    if y.ndim not in (1, 2) or len(y) != n:
        raise ValueError(f"y must hold one label per row of X: X has {n} rows, y has shape {y.shape} (inconsistent numbers of samples)")


def is_list_of_tasks(X: Any) -> bool:
    if isinstance(X, Mapping):
        return True
    return isinstance(X, list | tuple) and len(X) > 0 and all(isinstance(part, tuple) and len(part) in (2, 3) and np.ndim(part[0]) != 0 for part in X)


def _from_parts(parts: Mapping[Any, Any] | Sequence[Any]) -> Table:
    names = list(parts) if isinstance(parts, Mapping) else list(range(len(parts)))
    parts = list(parts.values()) if isinstance(parts, Mapping) else list(parts)
    if not parts:
        raise ValueError("there are no tasks: the list of (X_i, y_i) is empty")
    weighted = [len(part) == 3 for part in parts]
    if any(weighted) != all(weighted):
        raise ValueError("either every task has a sample weight or none has")
    tables, labels = [part[0] for part in parts], [np.asarray(part[1]) for part in parts]
    tables = [X if hasattr(X, "shape") else np.asarray(X) for X in tables]
    for name, X, y in zip(names, tables, labels, strict=True):
        if len(X.shape) != 2 or y.shape != (X.shape[0],):
            raise ValueError(f"task {name!r}: X has shape {X.shape} and y has shape {y.shape}; they must have as many rows")
        if X.shape[1] != tables[0].shape[1]:
            raise ValueError(f"task {name!r} has {X.shape[1]} features, the first task has {tables[0].shape[1]}")
        if X.shape[0] == 0:
            raise ValueError(f"task {name!r} has no rows; leave it out")
    sizes = np.array([len(y) for y in labels])
    codes = np.repeat(np.arange(len(parts)), sizes)
    weight = np.concatenate([np.asarray(part[2], dtype=float) for part in parts]) if all(weighted) else None
    if weight is not None and len(weight) != len(codes):
        raise ValueError("the sample weights of the tasks must hold one number per row")
    return Table(
        _stack(tables), np.concatenate(labels), task_labels(names, len(names)), codes, weight, first=np.cumsum(sizes) - sizes
    )


def _stack(tables: list[Any]) -> Any:
    """The tasks' tables one below the other; frames of one kind stay a frame, so that their column names are kept."""
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
    if any(sparse.issparse(X) for X in tables):
        return sparse.vstack([sparse.csr_matrix(X) for X in tables], format="csr")
    return np.concatenate([np.asarray(X) for X in tables])
