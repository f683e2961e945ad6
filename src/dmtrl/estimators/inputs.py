"""Intake: what people have, as one table of rows, labels and tasks.

Room: beside data. A long table with a task label per row, a column that names the task, a list or a dict of (X_i, y_i),
and a 2-D y whose columns are tasks all become a `Table`. Frames stay frames until the estimator has read their names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import all_finite

ALONE = np.array([0])  # the name of the only task when none was given
_SHOWN = 5  # known tasks to name in an error message


@dataclass(frozen=True)
class Table:
    """Rows of X with their weights, and labels: label j is for row rows[j] and belongs to task names[codes[j]].

    Rows and labels are the same until a 2-D y is taken apart by `long`, when a row may have several labels or none.
    """

    X: Any
    y: Any
    names: np.ndarray
    codes: np.ndarray
    sample_weight: np.ndarray | None
    rows: np.ndarray
    wide: bool = False
    first: np.ndarray | None = None  # where the tasks begin that came each as its own (X_i, y_i)

    def where(self, label: int) -> str:
        """The place of a label in words, numbered as in the arrays that were given."""
        row, task = int(self.rows[label]), int(self.codes[label])
        if self.first is not None:
            return f"task {plain(self.names[task])!r}, row {row - int(self.first[task])}"
        named = len(self.names) > 1 and not (self.wide and np.ndim(self.y) == 2)
        return f"task {plain(self.names[task])!r}, row {row}" if named else f"row {row}"

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
            name = plain(self.names[absent[0]])
            raise ValueError(f"every row of task {name!r} has a sample weight of zero; leave the task out")
        X, y, codes, weight = self.X[keep], self.y[keep], self.codes[keep], weight[keep]
        return replace(self, X=X, y=y, codes=codes, sample_weight=weight, rows=np.arange(len(codes)), first=None)

    def long(self) -> "Table":
        """A 2-D y as one label after the other, task after task, without those that are missing."""
        if not self.wide:
            return self
        missing = is_missing(self.y)
        empty = missing.all(axis=0)
        if empty.any():
            name = plain(self.names[np.argmax(empty)])
            raise ValueError(f"task {name!r} has no labels: its column of y is all missing; leave it out")
        codes, rows = np.nonzero(~missing.T)
        return replace(self, y=self.y[rows, codes], codes=codes, rows=rows)

    def check_X(self, columns: Sequence[Any] | None = None) -> None:
        """Refuse NaN and infinity in X, saying which task, row and column."""
        if all_finite(self.X.data if sparse.issparse(self.X) else self.X):
            return
        if sparse.issparse(self.X):
            entries = self.X.tocoo()
            k = int(np.argmax(~np.isfinite(entries.data)))
            row, column = int(entries.row[k]), int(entries.col[k])
        else:
            row, column = (int(v) for v in np.argwhere(~np.isfinite(self.X))[0])
        name = column if columns is None else plain(columns[column])
        value = "NaN" if np.isnan(self.X[row, column]) else "infinity (inf)"
        raise ValueError(f"{self.where(row)}, column {name!r}: X holds {value}; fill it in or drop the row")

    def check_y(self) -> None:
        """Refuse a label that is missing or infinite, saying where."""
        bad = ~np.isfinite(self.y) if self.y.dtype.kind == "f" else is_missing(self.y)
        if bad.any():
            label = int(np.argmax(bad))
            infinite = isinstance(self.y[label], float | np.floating) and np.isinf(self.y[label])
            value = "infinity (inf)" if infinite else "NaN or nothing"
            raise ValueError(f"{self.where(label)}: y holds {value}; drop the row")

    def numeric_y(self) -> np.ndarray:
        """The labels as numbers."""
        try:
            return np.asarray(self.y, dtype=float)
        except (TypeError, ValueError):
            label = next(j for j, value in enumerate(self.y) if not _is_number(value))
            raise ValueError(f"{self.where(label)}: y holds {plain(self.y[label])!r}, which is not a number") from None


def read(X: Any, y: Any = None, tasks: Any = None, sample_weight: Any = None, task_column: Any = None) -> Table:
    """Any of the shapes people have as a Table; X is not yet checked."""
    if y is None and is_list_of_tasks(X):
        if tasks is not None or task_column is not None or sample_weight is not None:
            raise ValueError(
                "a list of (X_i, y_i) says itself which rows belong to which task; "
                "give no tasks or task_column, and weights as (X_i, y_i, weight_i)"
            )
        return _from_parts(X)
    X, labels = read_rows(X, tasks, task_column)
    n = _length(X)
    weight = None if sample_weight is None else np.asarray(sample_weight, dtype=float)
    if weight is not None and weight.shape != (n,):
        raise ValueError(
            f"sample_weight must hold one number per row of X: X has {n} rows, sample_weight has shape {weight.shape}"
        )
    values = None if y is None else np.asarray(y)
    if values is not None and (values.ndim not in (1, 2) or len(values) != n):
        raise ValueError(
            f"y must hold one label per row of X (inconsistent numbers of samples): X has {n} rows, "
            f"y has shape {values.shape}"
        )
    if values is not None and values.ndim == 2:
        if labels is not None:
            raise ValueError("the columns of a 2-D y are the tasks; give no tasks besides, or a y with one dimension")
        columns = column_names(y)
        names = np.arange(values.shape[1]) if columns is None else task_labels(columns, values.shape[1])
        return Table(X, values, names, np.zeros(n, dtype=int), weight, np.arange(n), wide=True)
    if labels is None:
        return Table(X, values, ALONE, np.zeros(n, dtype=int), weight, np.arange(n))
    names, codes = np.unique(labels, return_inverse=True)
    return Table(X, values, names, codes, weight, np.arange(n))


def read_rows(X: Any, tasks: Any = None, task_column: Any = None) -> tuple[Any, np.ndarray | None]:
    """Rows to predict: X without the task column, and a task label per row or None."""
    if task_column is not None:
        if tasks is not None:
            raise ValueError("the tasks were given twice, as tasks= and as task_column; leave one out")
        X, tasks = split_column(X, task_column)
    return X, None if tasks is None else task_labels(tasks, _length(X))


def task_labels(tasks: Any, n: int) -> np.ndarray:
    """One label per row, sortable: text stays text, whole numbers become integers; none missing, not mixed."""
    labels = np.asarray(tasks)
    if labels.ndim == 0:
        word = plain(labels.item())
        raise ValueError(
            f"tasks must hold one label per row of X, got the single value {word!r}; "
            f"for a column of X use task_column={word!r}, for one task [{word!r}] * {n}"
        )
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
            mixed = " and ".join(sorted(kind.__name__ for kind in kinds))
            raise ValueError(f"the task labels mix {mixed}; write them all one way")
        labels = np.array(labels.tolist())
    if labels.dtype.kind == "f" and (labels == np.floor(labels)).all():
        labels = labels.astype(np.int64)
    return labels


def lookup(labels: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The number of each label among the names, -1 where it is not one of them."""
    number = {name: i for i, name in enumerate(names.tolist())}
    distinct, inverse = np.unique(labels, return_inverse=True)
    return np.array([number.get(label, -1) for label in distinct.tolist()], dtype=int)[inverse]


def known(names: Sequence[Any] | np.ndarray) -> str:
    """Names in words, the first few of them."""
    few = ", ".join(repr(plain(name)) for name in names[:_SHOWN])
    return few if len(names) <= _SHOWN else f"{few} and {len(names) - _SHOWN} more"


def plain(value: Any) -> Any:
    """A numpy scalar as Python writes it."""
    return value.item() if hasattr(value, "item") else value


def is_missing(values: np.ndarray) -> np.ndarray:
    """NaN, None and pandas' NA."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind == "M":
        return np.isnat(values)
    if values.dtype.kind == "O":
        return np.asarray(np.frompyfunc(_is_missing, 1, 1)(values), dtype=bool)
    return np.zeros(values.shape, dtype=bool)


def _is_missing(value: Any) -> bool:
    nothing = value is None or type(value).__name__ in ("NAType", "NaTType")
    return nothing or (isinstance(value, float) and value != value)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def split_column(X: Any, column: Any) -> tuple[Any, Any]:
    """X without one column, by name or number, and that column."""
    names = column_names(X)
    if names is None:
        X = X if hasattr(X, "shape") else np.asarray(X, dtype=object)
        d = X.shape[1]
        if isinstance(column, str) or not -d <= column < d:
            raise ValueError(f"task_column={column!r}: X has no column names, only the numbers 0 to {d - 1}")
        taken = X[:, [column]]
        return X[:, np.delete(np.arange(d), column)], (taken.toarray() if sparse.issparse(X) else taken)[:, 0]
    if column not in names:
        if isinstance(column, str) or not -len(names) <= column < len(names):
            raise ValueError(f"task_column={column!r} is not a column of X, which has {known(names)}")
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
    if hasattr(X, "column_names"):
        return X.take(rows)
    return (X if hasattr(X, "shape") else np.asarray(X))[rows]


def explain_text(X: Any) -> str | None:
    """Which cell of X is not a number, in a sentence; None if all are."""
    names = column_names(X)
    X = np.asarray(X) if names is None else X
    for j in range(X.shape[1]):
        values = X[:, j] if names is None else np.asarray(split_column(X, names[j])[1])
        row = next((row for row, value in enumerate(values) if not _is_number(value)), None)
        if row is not None:
            name = j if names is None else names[j]
            return (
                f"row {row}, column {name!r}: X holds {plain(values[row])!r}, which is not a number; "
                "encode the column as numbers, leave it out, or name it as task_column"
            )
    return None


def _length(X: Any) -> int:
    shape = X.shape if hasattr(X, "shape") else np.asarray(X).shape
    if len(shape) == 0:
        raise ValueError("X must be a table of rows and columns, got a single value. Reshape your data")
    return int(shape[0])


def is_list_of_tasks(X: Any) -> bool:
    """A dict, or a list of (X_i, y_i) or (X_i, y_i, sample_weight_i), and not a list of rows."""
    if isinstance(X, Mapping):
        return True
    pairs = isinstance(X, list | tuple) and all(isinstance(part, tuple) and len(part) in (2, 3) for part in X)
    return pairs and len(X) > 0 and all(np.ndim(part[0]) > 0 or sparse.issparse(part[0]) for part in X)


def _from_parts(parts: Mapping[Any, Any] | Sequence[Any]) -> Table:
    names = list(parts) if isinstance(parts, Mapping) else list(range(len(parts)))
    parts = list(parts.values()) if isinstance(parts, Mapping) else list(parts)
    if not parts:
        raise ValueError("there are no tasks: the dict of (X_i, y_i) is empty")
    weighted = [len(part) == 3 for part in parts]
    if any(weighted) != all(weighted):
        raise ValueError("either every task has a sample weight or none has")
    tables = [part[0] if hasattr(part[0], "shape") else np.asarray(part[0]) for part in parts]
    labels = [np.asarray(part[1]) for part in parts]
    weights = [np.asarray(part[2], dtype=float) if len(part) == 3 else None for part in parts]
    for name, X, y, weight in zip(names, tables, labels, weights, strict=True):
        if len(X.shape) != 2 or y.shape != (X.shape[0],) or (weight is not None and weight.shape != y.shape):
            shapes = f"X has shape {X.shape}, y {y.shape}" + ("" if weight is None else f", its weight {weight.shape}")
            raise ValueError(f"task {name!r}: {shapes}; they must have as many rows")
        if X.shape[1] != tables[0].shape[1]:
            raise ValueError(f"task {name!r} has {X.shape[1]} features, the first task has {tables[0].shape[1]}")
        if X.shape[0] == 0:
            raise ValueError(f"task {name!r} has no rows; leave it out")
    sizes = np.array([len(y) for y in labels])
    codes = np.repeat(np.arange(len(parts)), sizes)
    weight = np.concatenate([weight for weight in weights if weight is not None]) if all(weighted) else None
    first = np.cumsum(sizes) - sizes
    y = np.concatenate(labels)
    return Table(_stack(tables), y, task_labels(names, len(names)), codes, weight, np.arange(len(codes)), first=first)


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
