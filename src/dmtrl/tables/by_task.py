"""Rows of some tasks out of files that hold many: the columns that count, as (X, y) of each task.

Room: tables. Both readers can be sent to another machine, where they open the files for themselves. Names of tasks are
texts, whatever the column's type.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dmtrl.tables import columns as read
from dmtrl.tables.cells import CellError
from dmtrl.tables.classes import Seen, signs
from dmtrl.tables.source import Source, nearest, require_pyarrow

_ROW_NUMBERS = re.compile(r"__index_level_\d+__$|unnamed_\d+$")  # as pandas writes them


@dataclass(frozen=True)
class Columns:
    """What each column is for."""

    task: str
    target: str
    features: tuple[str, ...]
    weights: str | None = None
    positive: Any = None  # the target's value that becomes +1, all others -1
    constant: float | None = None  # what stands in a last column that is appended
    meant: frozenset[str] = frozenset()  # how `positive` is written, once the target has been surveyed

    @classmethod
    def among(
        cls,
        known: Sequence[str],
        target: str,
        task: str,
        features: Sequence[str] | None,
        weights: str | None,
        positive: Any,
        constant: float | None,
    ) -> "Columns":
        """features None: all that are left, without the row numbers of pandas. Refuses a column that is not there."""
        others = [task, target, *([weights] if weights is not None else [])]
        for name in (*others, *(features or ())):
            if name not in known:
                meant = nearest(name, known)
                hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(known[:20])}"
                raise ValueError(f"there is no column {name!r}; {hint}")
        left = (name for name in known if name not in others and not _ROW_NUMBERS.match(name))
        chosen = tuple(left if features is None else features)
        if not chosen:
            raise ValueError("there is no column left for the features")
        return cls(task, target, chosen, weights, positive, constant)

    @property
    def surveyed(self) -> list[str]:
        return [self.task] if self.positive is None else [self.task, self.target]

    def after(self, seen: Seen) -> "Columns":
        """With what a survey has found out about the target."""
        return self if self.positive is None else replace(self, meant=seen.written_as(self.positive, self.target))

    @property
    def all(self) -> list[str]:
        return [self.task, self.target, *self.features, *([self.weights] if self.weights is not None else [])]

    def names(self, table: Any) -> np.ndarray:
        names = read.texts(table.column(self.task))
        for row, name in enumerate(names):
            if name is None:
                raise ValueError(f"a row has no task: column {self.task!r} is empty in row {row + 1} of a batch")
        return names

    def split(self, table: Any) -> dict[str, tuple[np.ndarray, ...]]:
        """(X, y) or (X, y, weight) of each task in a table, in the order of its rows."""
        names = self.names(table)
        try:
            arrays = self._arrays(table)
        except CellError as error:  # its row is one of those that were asked for, which nobody can find in a file
            raise error.at(f"in task {names[error.row]!r}") from None
        kinds, codes, counts = np.unique(names.astype(str), return_inverse=True, return_counts=True)
        order, ends = np.argsort(codes, kind="stable"), np.cumsum(counts)
        parts = (np.split(array[order], ends)[:-1] for array in arrays)  # behind the last end there is nothing
        return dict(zip(kinds.tolist(), zip(*parts, strict=True), strict=True))

    def _arrays(self, table: Any) -> list[np.ndarray]:
        parts = [read.numbers(table.column(name), name) for name in self.features]
        if self.constant is not None:
            parts.append(np.full(table.num_rows, self.constant))
        if self.positive is None:
            y = read.numbers(table.column(self.target), self.target)
        else:
            y = signs(read.texts(table.column(self.target)), self.meant, self.target)
        weights = [] if self.weights is None else [read.numbers(table.column(self.weights), self.weights)]
        return [np.column_stack(parts), y, *weights]


def _count(batches: Iterator[Any], columns: Columns, seen: Seen) -> dict[str, int]:
    rows: dict[str, int] = {}
    for batch in batches:
        tasks = columns.names(batch)
        if columns.positive is not None:
            seen.add(read.texts(batch.column(columns.target)), tasks)
        names, counts = np.unique(tasks.astype(str), return_counts=True)
        for name, count in zip(names.tolist(), counts.tolist(), strict=True):
            rows[name] = rows.get(name, 0) + count
    return rows


@dataclass(frozen=True)
class Files:
    """Files of any format; a worker opens those that hold a row of its tasks."""

    table: Source
    columns: Columns
    where: Mapping[str, frozenset[int]] | None = None  # numbers of the files that hold each task

    def survey(self) -> tuple[dict[str, int], "Files"]:
        """The tasks, how many rows each has, and a reader that knows which files hold which; of all columns only that
        of the task is read, and where one class is positive that of the target."""
        rows: dict[str, int] = {}
        seen = Seen()
        where: dict[str, set[int]] = {}
        for number, part in enumerate(self.table.parts):
            batches = (batch.columns for batch in Source((part,)).batches(self.columns.surveyed))
            for name, count in _count(batches, self.columns, seen).items():
                rows[name] = rows.get(name, 0) + count
                where.setdefault(name, set()).add(number)
        with self.table.located():
            columns = self.columns.after(seen)
        files = {name: frozenset(numbers) for name, numbers in where.items()}
        return rows, replace(self, columns=columns, where=files)

    def only(self, names: Sequence[str]) -> "Files":
        if self.where is None:
            return self
        wanted: set[int] = set().union(*(self.where[name] for name in names))
        parts = tuple(part for number, part in enumerate(self.table.parts) if number in wanted)
        return replace(self, table=Source(parts), where=None)

    def read(self, names: Sequence[str]) -> dict[str, tuple[np.ndarray, ...]]:
        import pyarrow as pa

        found: dict[str, list[tuple[np.ndarray, ...]]] = {}
        mine = set(names)
        for batch in self.table.batches(self.columns.all):
            keep = pa.array([name in mine for name in self.columns.names(batch.columns)], pa.bool_())
            for name, part in self.columns.split(batch.columns.filter(keep)).items():
                found.setdefault(name, []).append(part)
        return {name: tuple(map(np.concatenate, zip(*parts, strict=True))) for name, parts in found.items()}


@dataclass(frozen=True)
class Dataset:
    """A Parquet data set; what can be told from its statistics and partitions is not read."""

    url: str
    columns: Columns | None = None

    def opened(self) -> Any:
        require_pyarrow()
        from pyarrow import dataset

        try:
            return dataset.dataset(self.url, format="parquet", partitioning="hive")
        except (OSError, ValueError) as error:
            raise type(error)(f"{self.url} cannot be read as a Parquet data set: {error}") from error

    def survey(self) -> tuple[dict[str, int], "Dataset"]:
        import pyarrow as pa

        assert self.columns is not None
        seen = Seen()
        batches = self.opened().to_batches(columns=self.columns.surveyed)
        rows = _count((_plain(pa.Table.from_batches([batch])) for batch in batches), self.columns, seen)
        return rows, replace(self, columns=self.columns.after(seen))

    def only(self, names: Sequence[str]) -> "Dataset":
        return self

    def read(self, names: Sequence[str]) -> dict[str, tuple[np.ndarray, ...]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        assert self.columns is not None
        opened = self.opened()
        kind = opened.schema.field(self.columns.task).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        mine = pc.field(self.columns.task).isin(pc.cast(pa.array(list(names), pa.string()), kind))
        return self.columns.split(_plain(opened.to_table(columns=self.columns.all, filter=mine)))


def _plain(table: Any) -> Any:
    """Without dictionaries, which keys of a path become."""
    import pyarrow as pa
    import pyarrow.compute as pc

    made = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        coded = pa.types.is_dictionary(column.type)
        made[name] = pc.cast(column, column.type.value_type) if coded else column
    return pa.table(made)
