"""Checks of task labels and of lists of tasks, shared by the estimators and TaskData."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class TaskList(NamedTuple):
    """A checked list of tasks: see `read_task_list`."""

    names: Sequence[Any] | np.ndarray
    X: list[Any]
    y: list[np.ndarray]
    sample_weight: np.ndarray | None  # of the stacked rows
    starts: np.ndarray  # task i owns rows starts[i]:starts[i + 1] of the stacked rows
    offset: np.ndarray | None = None  # of the stacked rows


def read_task_list(
    tasks: Mapping[Any, Any] | Sequence[Any], names: Sequence[Any] | np.ndarray | None = None
) -> TaskList:
    """Check a list or a dict (by task name) of (X_i, y_i), (X_i, y_i, sample_weight_i) or (X_i, y_i, sample_weight_i,
    offset_i), where sample_weight_i may be None."""
    if isinstance(tasks, Mapping):
        names, tasks = list(tasks), list(tasks.values())
    names = list(range(len(tasks))) if names is None else names
    if len(tasks) == 0:
        raise ValueError("there are no tasks: the list or dict of (X_i, y_i) is empty")
    if len(names) != len(tasks):
        raise ValueError(f"got {len(tasks)} tasks and {len(names)} names; pass one name per task")
    tables = [task[0] if hasattr(task[0], "shape") else np.asarray(task[0]) for task in tasks]
    labels = [np.asarray(task[1]) for task in tasks]
    weights, offsets = _of_all(tasks, 2, "sample weights"), _of_all(tasks, 3, "offsets")
    for i, (name, X, y) in enumerate(zip(names, tables, labels, strict=True)):
        shapes = f"X has shape {X.shape}, y has shape {y.shape}"
        fits = len(X.shape) == 2 and y.shape == (X.shape[0],)
        if weights is not None:
            shapes += f", sample_weight has shape {weights[i].shape}"
            fits = fits and weights[i].shape == y.shape
        if offsets is not None:
            shapes += f", offset has shape {offsets[i].shape}"
            fits = fits and offsets[i].shape == (*y.shape, *offsets[0].shape[1:])
        if not fits:
            raise ValueError(f"task {name!r}: {shapes}; they must have the same number of rows")
        if X.shape[1] != tables[0].shape[1]:
            raise ValueError(f"task {name!r} has {X.shape[1]} features, but task {names[0]!r} has {tables[0].shape[1]}")
        if X.shape[0] == 0:
            raise ValueError(f"task {name!r} has no rows; leave it out")
    starts = np.concatenate([[0], np.cumsum([len(y) for y in labels])])
    weight, offset = (None if parts is None else np.concatenate(parts) for parts in (weights, offsets))
    return TaskList(names, tables, labels, weight, starts, offset)


def _of_all(tasks: Sequence[Any], place: int, what: str) -> list[np.ndarray] | None:
    """The numbers of each task at this place of its tuple; None if no task has any."""
    parts = [task[place] if len(task) > place else None for task in tasks]
    if any(part is None for part in parts):
        if any(part is not None for part in parts):
            raise ValueError(f"either all tasks or no task must have {what}")
        return None
    return [np.asarray(part, dtype=float) for part in parts]


def check_offset(offset: Any, n: int) -> np.ndarray:
    """One number per row of X, or one per row and class; ValueError otherwise."""
    offset = np.ascontiguousarray(offset, dtype=float)
    if offset.ndim not in (1, 2) or len(offset) != n:
        raise ValueError(
            f"offset must hold one number per row of X, or one per row and class: X has {n} rows, "
            f"offset has shape {offset.shape}"
        )
    return offset


def check_one_per_row(name: str, values: np.ndarray, n: int) -> None:
    """Raise ValueError unless `values` is one-dimensional with one value per row of X."""
    if values.shape != (n,):
        raise ValueError(
            f"{name} must hold one value per row of X (inconsistent numbers of samples): "
            f"X has {n} rows, {name} has shape {values.shape}"
        )


def task_labels(tasks: Any, n: int) -> np.ndarray:
    """Check one task label per row. Text stays text, whole numbers become integers; the result can be sorted."""
    example = next(iter(tasks), None) if isinstance(tasks, list | tuple) or _holds_objects(tasks) else None
    if isinstance(example, tuple):
        raise ValueError(
            f"a task label must be a text or a number, got the tuple {example!r}; join its parts, as in "
            f"{'-'.join(map(str, example))!r}"
        )
    labels = np.asarray(tasks)
    if labels.ndim == 0:
        label = plain(labels.item())
        raise ValueError(
            f"tasks must hold one label per row of X, got the single value {label!r}; "
            f"for a column of X use task_column={label!r}, for one task [{label!r}] * {n}"
        )
    if labels.shape == (n, 1):
        labels = labels[:, 0]
    check_one_per_row("tasks", labels, n)
    missing = is_missing(labels)
    if missing.any():
        raise ValueError(f"row {int(np.argmax(missing))}: the task label is missing; fill it in or drop the row")
    if labels.dtype.kind == "O":
        kinds = {str if issubclass(kind, str) else kind for kind in set(map(type, labels))}
        if kinds == {str}:
            return labels.astype(str)
        if len(kinds) > 1 and not all(issubclass(kind, int | float | np.number) for kind in kinds):
            mixed = " and ".join(sorted(kind.__name__ for kind in kinds))
            raise ValueError(f"the task labels mix {mixed}; convert them to one type")
        labels = np.array(labels.tolist())
    if labels.dtype.kind == "f" and (labels == np.floor(labels)).all() and (np.abs(labels) < 2**63).all():
        labels = labels.astype(np.int64)
    return labels


def _holds_objects(tasks: Any) -> bool:
    return getattr(getattr(tasks, "dtype", None), "kind", "") == "O" and getattr(tasks, "ndim", 0) == 1


def is_missing(values: np.ndarray) -> np.ndarray:
    """Mask of NaN, NaT, None and pandas.NA."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind == "M":
        return np.isnat(values)
    if values.dtype.kind == "O":
        return np.asarray(np.frompyfunc(_is_missing_value, 1, 1)(values), dtype=bool)
    return np.zeros(values.shape, dtype=bool)


def _is_missing_value(value: Any) -> bool:
    nothing = value is None or type(value).__name__ in ("NAType", "NaTType")
    return nothing or (isinstance(value, float) and value != value)


def plain(value: Any) -> Any:
    """Convert a numpy scalar to the Python value."""
    return value.item() if hasattr(value, "item") else value
