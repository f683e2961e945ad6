"""Rows of all tasks, and their partition into blocks for workers.

Rows are sorted by task once (stable sort). A partition is a list of contiguous pieces of that order, so dense pieces
are views and nothing is copied again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import Blocks, as_rows, stack_rows
from dmtrl.data.labels import check_offset, check_one_per_row, read_task_list, task_labels


@dataclass(frozen=True)
class TaskData:
    """Rows of all tasks, sorted by task: task i owns rows starts[i]:starts[i + 1].

    Parameters
    ----------
    X : ndarray or CSR matrix of shape (n, d)
        Rows in float32 or float64.
    y : ndarray of shape (n,)
        Numeric labels.
    sample_weight : ndarray of shape (n,) or None
        Weights of the rows.
    starts : ndarray of shape (m + 1,)
        The first row of each task, and the number of rows.
    names : ndarray of shape (m,)
        Task names.
    splits : ndarray of shape (splits, n), default=None
        What each row does in each split of a cross-validation: 0 trains, 1 is tested, 2 is not used. None means that
        the workers draw folds.
    offset : ndarray of shape (n,) or (n, k), default=None
        Numbers that are added to the scores of the rows and not learned, such as the logarithm of an exposure; with k
        classes one for each class.
    """

    X: Any
    y: np.ndarray
    sample_weight: np.ndarray | None
    starts: np.ndarray
    names: np.ndarray
    splits: np.ndarray | None = None
    offset: np.ndarray | None = None

    @property
    def m(self) -> int:
        return len(self.names)

    @classmethod
    def from_long(cls, X: Any, y: Any, tasks: Any = None, sample_weight: Any = None, offset: Any = None) -> "TaskData":
        """Sort rows by their task labels, with tasks in sorted order. Rows that are already sorted are not copied.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            The rows of all tasks.
        y : array-like of shape (n,)
            Numeric labels; -1 and 1 for classification.
        tasks : array-like of shape (n,), default=None
            The task label of each row. None means a single task.
        sample_weight : array-like of shape (n,), default=None
            Weights of the rows. Only proportions within a task matter.
        offset : array-like of shape (n,) or (n, k), default=None
            Numbers that are added to the scores and not learned.
        """
        X, y = as_rows(X), _numbers(y, "y")
        if X.ndim != 2:
            raise ValueError(f"X must have two dimensions, got {X.ndim}")
        if X.shape[1] == 0:
            raise ValueError("X has no columns")
        n = X.shape[0]
        check_one_per_row("y", y, n)
        weight = None if sample_weight is None else np.asarray(sample_weight, dtype=float)
        if weight is not None:
            check_one_per_row("sample_weight", weight, n)
        shift = None if offset is None else check_offset(offset, n)
        if n == 0:
            raise ValueError("there are no rows in X")
        labels = np.zeros(n, dtype=int) if tasks is None else task_labels(tasks, n)
        names, codes = np.unique(labels, return_inverse=True)
        starts = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(names)))])
        if (np.diff(codes) < 0).any():
            order = np.argsort(codes, kind="stable")
            X, y = X[order], y[order]
            weight = None if weight is None else weight[order]
            shift = None if shift is None else shift[order]
        return cls(X, y, weight, starts, names, offset=shift)

    @classmethod
    def from_list(
        cls, tasks: Mapping[Any, Any] | Sequence[Any], names: Sequence[Any] | np.ndarray | None = None
    ) -> "TaskData":
        """Stack the rows of separate tasks, in the given order.

        Parameters
        ----------
        tasks : list or dict of (X_i, y_i), (X_i, y_i, sample_weight_i) or (X_i, y_i, sample_weight_i, offset_i)
            The data of each task; the keys of a dict are the task names. Before an offset, the sample weights may be
            None.
        names : sequence of length m, default=None
            Task names for a list. None means 0 to m - 1.
        """
        found = read_task_list(tasks, names)
        X = as_rows(stack_rows([as_rows(part) for part in found.X]))
        labels = [_numbers(y, f"task {name!r}: y") for name, y in zip(found.names, found.y, strict=True)]
        return cls(
            X, np.concatenate(labels), found.sample_weight, found.starts, np.array(found.names), None, found.offset
        )

    def only(self, tasks: np.ndarray) -> "TaskData":
        """Select tasks by number, in the given order.

        Parameters
        ----------
        tasks : ndarray of int
            Task numbers.
        """
        rows = np.concatenate([np.arange(self.starts[i], self.starts[i + 1]) for i in tasks])
        starts = np.append(0, np.cumsum(np.diff(self.starts)[tasks]))
        weight = None if self.sample_weight is None else self.sample_weight[rows]
        splits = None if self.splits is None else self.splits[:, rows]
        offset = None if self.offset is None else self.offset[rows]
        return TaskData(self.X[rows], self.y[rows], weight, starts, self.names[tasks], splits, offset)

    def sources(self, workers: int, shards: int | Sequence[int] = 1) -> list[Blocks]:
        """Split the rows into contiguous pieces with about the same amount of work.

        Work is the number of rows and, if X is sparse, of its entries.

        Parameters
        ----------
        workers : int
            Number of pieces.
        shards : int or sequence of int, default=1
            Number of shards into which each task may be cut, so that one task can use several workers. Shards on
            the same worker are joined.
        """
        per_task = shards_per_task(self.m, workers, shards)
        task = np.repeat(np.arange(self.m), per_task)
        first_unit = np.cumsum(per_task) - per_task
        rows, shard = np.diff(self.starts)[task], np.arange(len(task)) - first_unit[task]
        edges = np.append(self.starts[task] + rows * shard // per_task[task], self.starts[-1])  # as in shard_edges
        work = edges + (self.X.indptr[edges] if sparse.issparse(self.X) else 0)
        pieces = []
        for tasks, first, last in split_units(work, per_task, workers):
            starts = np.append(edges[first_unit[tasks] + first], edges[first_unit[tasks[-1]] + last[-1]])
            piece = slice(starts[0], starts[-1])
            weight = None if self.sample_weight is None else self.sample_weight[piece]
            splits = None if self.splits is None else self.splits[:, piece]
            names = [str(name) for name in self.names[tasks]]
            X, y = _part(self.X, piece), self.y[piece]
            offset = None if self.offset is None else self.offset[piece]
            pieces.append(Blocks(X, y, weight, starts - starts[0], tasks, first, names, splits, offset))
        return pieces


def tiny_tasks(rows: np.ndarray) -> np.ndarray:
    """Which tasks have so few rows that what is learned about them is mostly chance: fewer than 3, or than a tenth of
    the median."""
    return np.asarray((rows < 3) | (rows < 0.1 * np.median(rows)))


def shards_per_task(m: int, workers: int, shards: int | Sequence[int]) -> np.ndarray:
    """The number of shards of each of m tasks."""
    if np.ndim(shards) > 0 and np.shape(shards) != (m,):
        raise ValueError(f"shards must be one number or one per task: got {np.size(shards)} for {m} tasks")
    per_task = np.broadcast_to(np.asarray(shards, dtype=int), m)
    if workers < 1 or (per_task < 1).any():
        raise ValueError("workers and shards must be at least 1")
    return per_task


def shard_edges(n: int, count: int) -> np.ndarray:
    """The boundaries of `count` shards of n rows."""
    return n * np.arange(count + 1) // count


def split_units(
    work: np.ndarray, per_task: np.ndarray, workers: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The units of each worker: their tasks, and the first and last (exclusive) shard of each.

    work: cumulated over all shards of all tasks. Neighbouring shards stay together; those of one task are one unit.
    """
    n = len(work) - 1
    owner = np.arange(n)
    if workers < n:
        middle = (work[:-1] + work[1:]) / 2
        owner = np.minimum((middle * workers / (work[-1] or 1)).astype(int), workers - 1)
    task = np.repeat(np.arange(len(per_task)), per_task)
    first_unit = np.cumsum(per_task) - per_task
    begins = np.unique(owner, return_index=True)[1]
    for mine in np.split(np.arange(n), begins[1:]):
        tasks, begin, count = np.unique(task[mine], return_index=True, return_counts=True)
        first = mine[begin] - first_unit[tasks]
        yield tasks, first, first + count


def _part(X: Any, rows: slice) -> Any:
    """Contiguous rows without a copy; slicing a CSR matrix would copy its entries."""
    if not sparse.issparse(X):
        return X[rows]
    indptr = X.indptr[rows.start : rows.stop + 1]
    part = type(X)((rows.stop - rows.start, X.shape[1]), dtype=X.dtype)
    part.data, part.indices = X.data[indptr[0] : indptr[-1]], X.indices[indptr[0] : indptr[-1]]
    part.indptr = indptr - indptr[0]
    return part


def _numbers(y: Any, what: str) -> np.ndarray:
    y = np.asarray(y)
    if y.dtype.kind not in "biuf":
        raise ValueError(f"{what} must hold real numbers, got {y.dtype}")
    return y
