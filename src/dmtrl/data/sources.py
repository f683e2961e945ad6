"""Data that stays where it is: a plan of which task lies where, and sources that each worker reads for itself.

Room: beside data, of which it is the counterpart for rows that never come here. Making a plan reads names of tasks and
counts of rows, and a target of which one class is positive; a source travels to its worker and reads there. Paths and
URLs must be seen by every machine.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dmtrl.data.blocks import Blocks, Source
from dmtrl.data.task_data import TaskData, cut, shards_of, share_out
from dmtrl.tables import open_source
from dmtrl.tables.by_task import Columns, Dataset, Files


class Reader(Protocol):
    """Travels to a worker and reads there."""

    def only(self, names: Sequence[Any]) -> "Reader":
        """What is needed to read these tasks."""
        ...

    def read(self, names: Sequence[Any]) -> Mapping[Any, tuple[Any, ...]]:
        """(X, y) or (X, y, sample_weight) of each named task."""
        ...


@dataclass(frozen=True)
class _Unit:
    """Shards first to last (exclusive) of the `of` into which a task is cut."""

    task: int
    name: Any
    first: int
    last: int
    of: int


@dataclass(frozen=True)
class TaskSource:
    reader: Reader
    units: tuple[_Unit, ...]

    def load(self) -> Blocks:
        found = self.reader.read([unit.name for unit in self.units])
        parts = []
        for unit in self.units:
            if unit.name not in found:
                raise ValueError(f"task {unit.name!r} has no rows where they should be; make the plan anew")
            whole = found[unit.name]
            edges = cut(_length(whole, unit.name), unit.of)
            parts.append(tuple(part[edges[unit.first] : edges[unit.last]] for part in whole))
        blocks = TaskData.from_list(parts, _as_given([unit.name for unit in self.units])).partition(1)[0]
        tasks, shards = ([unit.task for unit in self.units], [unit.first for unit in self.units])
        return replace(blocks, tasks=np.array(tasks), shards=np.array(shards))


def _length(parts: tuple[Any, ...], name: Any) -> int:
    """How many rows a task has; cut into shards, parts that do not fit together would not be found out any more."""
    found = [np.shape(part) for part in parts]
    if () in found or len({shape[0] for shape in found}) > 1:
        listed = ", ".join(f"{what} {shape}" for what, shape in zip(("X", "y", "sample_weight"), found, strict=False))
        raise ValueError(f"task {name!r}: all parts must have as many rows; their shapes are {listed}")
    return int(found[0][0])


def _as_given(names: Sequence[Any] | np.ndarray) -> np.ndarray:
    """One object each, whatever they are: numpy would write [1, "a"] as texts and see a matrix in tuples."""
    return np.fromiter(names.tolist() if isinstance(names, np.ndarray) else names, dtype=object, count=len(names))


@dataclass(frozen=True)
class SourcePlan:
    """Which tasks there are, how much work each is, and who reads them. `solve` takes it in place of task data."""

    names: np.ndarray
    work: np.ndarray
    reader: Reader

    @property
    def m(self) -> int:
        return len(self.names)

    def only(self, tasks: np.ndarray) -> "SourcePlan":
        """A plan of these tasks, by number."""
        return replace(self, names=self.names[tasks], work=self.work[tasks])

    def sources(self, workers: int, shards: int | Sequence[int] = 1) -> list[Source]:
        """One for each worker, of about equally much work; see TaskData.partition."""
        per_task = shards_of(self.m, workers, shards)
        task = np.repeat(np.arange(self.m), per_task)
        shard = np.concatenate([np.arange(count) for count in per_task])
        work = np.append(0, np.cumsum(np.repeat(self.work / per_task, per_task)))
        _, first = np.unique(share_out(work, workers), return_index=True)
        made: list[Source] = []
        for mine in np.split(np.arange(len(task)), first[1:]):
            tasks, begin, count = np.unique(task[mine], return_index=True, return_counts=True)
            starts = shard[mine[begin]]
            units = [
                _Unit(int(i), self.names[i], int(start), int(end), int(per_task[i]))
                for i, start, end in zip(tasks, starts, starts + count, strict=True)
            ]
            made.append(TaskSource(self.reader.only([unit.name for unit in units]), tuple(units)))
        return made

    @classmethod
    def from_callable(
        cls, load: str | Callable[[Any], tuple[Any, ...]], tasks: Sequence[Any], work: Sequence[float] | None = None
    ) -> "SourcePlan":
        """load(task) returns (X, y) or (X, y, sample_weight), and is called where the worker runs: a function, or
        "package.module:function". work: about how much each task is, such as its rows."""
        names = _as_given(tasks)
        if len(names) == 0 or len(set(names)) < len(names):
            raise ValueError(f"tasks must be at least one name, each once; got {len(tasks)} names")
        if isinstance(load, str) and load.count(":") != 1:
            raise ValueError(f"{load!r} does not name a function; write it as package.module:function")
        amount = np.ones(len(tasks)) if work is None else np.asarray(work, dtype=float)
        good = np.isfinite(amount) & (amount >= 0)
        if amount.shape != (len(tasks),) or not good.all() or not amount.any():
            raise ValueError(
                f"work must be one finite number for each of the {len(tasks)} tasks, none negative and not all zero"
            )
        return cls(names, amount, _Called(load))

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
    ) -> "SourcePlan":
        """Files (CSV, Parquet, Arrow, npz) or folders of them. A folder may be laid out by task: `school=12/a.parquet`
        makes a column `school`. Without `task` each file is one task.

        features: columns of numbers; None: all that are left. positive: the target's value that becomes +1, all others
        -1; numbers are compared as such, and every row must say its class. constant: append a column of this number,
        for `intercept_ridge`.
        """
        table = open_source([paths] if isinstance(paths, str | Path) else list(paths))
        if task is None:
            task = "file"
            table = table.with_file_names(task)
        if table.format == "libsvm":
            raise ValueError("a libsvm file does not name its columns; convert it to Parquet, or use from_callable")
        columns = Columns.among(table.names, target, task, features, weights, positive, constant)
        return cls._from_tables(Files(table, columns), columns)

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
    ) -> "SourcePlan":
        """A Parquet data set that pyarrow can open: a folder or a URL (s3://, gs://, hdfs://), partitioned or not. A
        worker reads only row groups that may hold its tasks. Parameters as in `from_files`."""
        dataset = Dataset(str(url))
        columns = Columns.among(dataset.opened().schema.names, target, task, features, weights, positive, constant)
        return cls._from_tables(replace(dataset, columns=columns), columns)

    @classmethod
    def _from_tables(cls, reader: Any, columns: Columns) -> "SourcePlan":
        rows, reader = reader.survey()
        if not rows:
            raise ValueError("there are no rows")
        numbers = all(map(str.isdecimal, rows))
        names = sorted(rows, key=lambda name: (len(name) if numbers else 0, name))
        work = np.array([rows[name] for name in names]) * (len(columns.features) + 1.0)
        return cls(_as_given(names), work, reader)


@dataclass(frozen=True)
class _Called:
    load: str | Callable[[Any], tuple[Any, ...]]

    def only(self, names: Sequence[Any]) -> "_Called":
        return self

    def read(self, names: Sequence[Any]) -> Mapping[Any, tuple[Any, ...]]:
        load = self.load
        if isinstance(load, str):
            module, name = load.split(":")
            load = getattr(importlib.import_module(module), name)
        found = {}
        for name in names:
            part = load(name)
            if not (isinstance(part, tuple) and len(part) in (2, 3)):
                raise ValueError(f"task {name!r}: the function must return (X, y) or (X, y, sample_weight)")
            found[name] = part
        return found
