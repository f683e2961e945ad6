"""Plans for data that workers read themselves.

A `SourcePlan` knows which tasks there are and how much work each one is. Making it reads task names and row counts,
and, if one class is positive, the target. Each worker gets a source that reads its own rows, so every machine must be
able to open the paths and URLs.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dmtrl.data.blocks import Blocks, Source
from dmtrl.data.task_data import TaskData, shard_edges, shards_per_task, split_units
from dmtrl.tables import open_files
from dmtrl.tables.by_task import ColumnRoles, DatasetReader, open_dataset, scan_files


class Reader(Protocol):
    """Reads the rows of tasks. It must be picklable, because it is sent to the workers."""

    def only(self, names: Sequence[Any]) -> "Reader":
        """A reader that is sufficient for these tasks."""
        ...

    def read(self, names: Sequence[Any]) -> Mapping[Any, tuple[Any, ...]]:
        """(X, y), (X, y, sample_weight) or (X, y, sample_weight or None, offset) of each named task."""
        ...


@dataclass(frozen=True)
class TaskShards:
    """Shards `first` to `last` (exclusive) of a task that is cut into `of` shards."""

    task: int
    name: Any
    first: int
    last: int
    of: int


@dataclass(frozen=True)
class TaskSource:
    """A source that reads its units with a Reader."""

    reader: Reader
    units: tuple[TaskShards, ...]

    def load(self) -> Blocks:
        names = [unit.name for unit in self.units]
        found = self.reader.read(names)
        parts = []
        for unit in self.units:
            if unit.name not in found:
                raise ValueError(f"task {unit.name!r} has no rows any more; create the plan again")
            whole = found[unit.name]
            edges = shard_edges(_n_rows(whole, unit.name), unit.of)
            mine = slice(edges[unit.first], edges[unit.last])
            parts.append(tuple(None if part is None else part[mine] for part in whole))
        blocks = TaskData.from_list(parts, _as_objects(names)).sources(1)[0]
        tasks, shards = ([unit.task for unit in self.units], [unit.first for unit in self.units])
        return replace(blocks, tasks=np.array(tasks), shards=np.array(shards))


def _n_rows(parts: tuple[Any, ...], name: Any) -> int:
    """The number of rows of a task. Checked here because shards of unequal parts could have equal lengths."""
    what = ("X", "y", "sample_weight", "offset")
    shapes = {of: np.shape(part) for of, part in zip(what, parts, strict=False) if part is not None}
    if () in shapes.values() or len({shape[0] for shape in shapes.values()}) > 1:
        found = ", ".join(f"{of} {shape}" for of, shape in shapes.items())
        raise ValueError(f"task {name!r}: {', '.join(shapes)} must have the same number of rows; got {found}")
    return int(shapes["X"][0])


def _as_objects(names: Sequence[Any] | np.ndarray) -> np.ndarray:
    """One object per name: numpy would turn [1, "a"] into texts and tuples into a matrix."""
    return np.fromiter(names.tolist() if isinstance(names, np.ndarray) else names, dtype=object, count=len(names))


@dataclass(frozen=True)
class SourcePlan:
    """Tasks whose rows are read by the workers. `solve` accepts it instead of TaskData.

    Use `from_files`, `from_dataset` or `from_callable` to create one.

    Parameters
    ----------
    names : ndarray of shape (m,)
        Task names.
    work : ndarray of shape (m,)
        Relative amount of work of each task.
    reader : Reader
        Reads the rows of named tasks on a worker.
    """

    names: np.ndarray
    work: np.ndarray
    reader: Reader

    @property
    def m(self) -> int:
        return len(self.names)

    def only(self, tasks: np.ndarray) -> "SourcePlan":
        """Select tasks by number.

        Parameters
        ----------
        tasks : ndarray of int
            Task numbers.
        """
        return replace(self, names=self.names[tasks], work=self.work[tasks])

    def sources(self, workers: int, shards: int | Sequence[int] = 1) -> list[Source]:
        """Return one source for each worker, with about the same amount of work.

        Parameters
        ----------
        workers : int
            Number of sources.
        shards : int or sequence of int, default=1
            As in `TaskData.sources`.
        """
        per_task = shards_per_task(self.m, workers, shards)
        work = np.append(0, np.cumsum(np.repeat(self.work / per_task, per_task)))
        sources: list[Source] = []
        for tasks, first, last in split_units(work, per_task, workers):
            units = [
                TaskShards(int(i), self.names[i], int(start), int(end), int(per_task[i]))
                for i, start, end in zip(tasks, first, last, strict=True)
            ]
            sources.append(TaskSource(self.reader.only([unit.name for unit in units]), tuple(units)))
        return sources

    @classmethod
    def from_callable(
        cls, load: str | Callable[[Any], tuple[Any, ...]], tasks: Sequence[Any], work: Sequence[float] | None = None
    ) -> "SourcePlan":
        """Plan to read rows with a function.

        Parameters
        ----------
        load : callable or str
            load(task) returns (X, y), (X, y, sample_weight) or (X, y, sample_weight or None, offset). It runs on the
            worker. A str is "package.module:function".
        tasks : sequence
            Task names.
        work : sequence of float, default=None
            Relative amount of work of each task, such as its number of rows. None means equal amounts.
        """
        names = _as_objects(tasks)
        if len(names) == 0 or len(set(names)) < len(names):
            raise ValueError(f"tasks must hold at least one name and no name twice; got {len(tasks)} names")
        if isinstance(load, str) and load.count(":") != 1:
            raise ValueError(f"load must be a function or 'package.module:function', got {load!r}")
        amount = np.ones(len(tasks)) if work is None else np.asarray(work, dtype=float)
        valid = np.isfinite(amount) & (amount >= 0)
        if amount.shape != (len(tasks),) or not valid.all() or not amount.any():
            raise ValueError(
                f"work must hold one finite number for each of the {len(tasks)} tasks, none negative, not all zero"
            )
        return cls(names, amount, _CallableReader(load))

    @classmethod
    def from_files(
        cls,
        paths: str | Path | Sequence[str | Path],
        target: str,
        task: str | None = None,
        features: Sequence[str] | None = None,
        weights: str | None = None,
        positive: Any = None,
        constant: float | None = None,
        offset: str | Sequence[str] | None = None,
    ) -> "SourcePlan":
        """Plan to read files (CSV, Parquet, Arrow, npz) or folders of them.

        Parameters
        ----------
        paths : path or list of paths
            A folder may be partitioned: `school=12/a.parquet` defines a column `school`.
        target : str
            The column to predict.
        task : str, default=None
            The column with the task names. None means that each file is one task.
        features : list of str, default=None
            Columns of numbers. None means all other columns.
        weights : str, default=None
            The column with the sample weights.
        positive : object, default=None
            The value of the target that becomes +1; all others become -1. Numbers are compared as numbers. Every
            row needs a class.
        constant : float, default=None
            Append a feature with this value, for `intercept_ridge`.
        offset : str or list of str, default=None
            The column with the offsets, which are added to the scores; with k classes a list of k columns.
        """
        table = open_files([paths] if isinstance(paths, str | Path) else list(paths))
        if task is None:
            task = "file"
            table = table.with_file_names(task)
        if table.format == "libsvm":
            raise ValueError("libsvm files have no named columns; convert them to Parquet, or use from_callable")
        roles = ColumnRoles.choose(table.names, target, task, features, weights, positive, constant, offset)
        return cls._from_scan(*scan_files(table, roles), len(roles.features))

    @classmethod
    def from_dataset(
        cls,
        url: str,
        target: str,
        task: str,
        features: Sequence[str] | None = None,
        weights: str | None = None,
        positive: Any = None,
        constant: float | None = None,
        offset: str | Sequence[str] | None = None,
    ) -> "SourcePlan":
        """Plan to read a Parquet data set that pyarrow can open.

        A worker reads only the row groups that may hold its tasks.

        Parameters
        ----------
        url : str
            A folder or a URL (s3://, gs://, hdfs://).
        target : str
            The column to predict.
        task : str
            The column with the task names.
        features : list of str, default=None
            As in `from_files`, like the parameters below.
        weights : str, default=None
        positive : object, default=None
        constant : float, default=None
        offset : str or list of str, default=None
        """
        names = open_dataset(str(url)).schema.names
        roles = ColumnRoles.choose(names, target, task, features, weights, positive, constant, offset)
        return cls._from_scan(*DatasetReader(str(url), roles).scan(), len(roles.features))

    @classmethod
    def _from_scan(cls, rows: Mapping[str, int], reader: Reader, features: int) -> "SourcePlan":
        if not rows:
            raise ValueError("the data has no rows")
        are_numbers = all(map(str.isdecimal, rows))
        names = sorted(rows, key=lambda name: (len(name) if are_numbers else 0, name))
        work = np.array([rows[name] for name in names]) * (features + 1.0)
        return cls(_as_objects(names), work, reader)


@dataclass(frozen=True)
class _CallableReader:
    load: str | Callable[[Any], tuple[Any, ...]]

    def only(self, names: Sequence[Any]) -> "_CallableReader":
        return self

    def read(self, names: Sequence[Any]) -> Mapping[Any, tuple[Any, ...]]:
        load = self.load
        if isinstance(load, str):
            module, name = load.split(":")
            load = getattr(importlib.import_module(module), name)
        found = {}
        for name in names:
            part = load(name)
            if not (isinstance(part, tuple) and len(part) in (2, 3, 4)):
                raise ValueError(
                    f"task {name!r}: the function must return (X, y), (X, y, sample_weight) or "
                    "(X, y, sample_weight, offset)"
                )
            found[name] = part
        return found
