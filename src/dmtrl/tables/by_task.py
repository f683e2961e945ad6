"""The rows of single tasks from files that hold many tasks: (X, y) of each.

A reader can be sent to another machine and opens the files there. `FileReader` finds the rows of tasks in files of any
format, and a `RowParser` turns them into arrays: `ColumnRoles` those of columns of numbers. `DatasetReader` lets
Parquet's statistics find the rows. Task names are texts, whatever the column's type. If one class of the target is
positive, a scan of the whole column decides which texts mean it, because a worker sees only some rows.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

import numpy as np

from dmtrl.data.blocks import stack_rows
from dmtrl.exceptions import CellError
from dmtrl.tables import cells
from dmtrl.tables import columns as read
from dmtrl.tables.arrow import dataset, pa, pc
from dmtrl.tables.names import nearest, quoted, require_columns
from dmtrl.tables.readers import MISSING, decode_dictionaries
from dmtrl.tables.table_files import TableFiles

_ROW_NUMBERS = re.compile(r"__index_level_\d+__$|unnamed_\d+$")  # index columns that pandas writes


class ClassScan:
    """The distinct values of a target, each with the row and the task where it occurs first."""

    def __init__(self) -> None:
        self._first: dict[str | None, tuple[int, str]] = {}
        self._rows = 0

    def add(self, values: Sequence[str | None] | np.ndarray, tasks: Sequence[str] | np.ndarray) -> None:
        for row, value in enumerate(values):
            if value not in self._first:
                self._first[value] = (self._rows + row, tasks[row])
        self._rows += len(values)

    def texts_of(self, positive: Any, target: str) -> frozenset[str]:
        """The texts that mean `positive`: its own text and, if all values are numbers, other texts of that number.

        Raises CellError if a cell has no class, and ValueError if the class never occurs.
        """
        text = str(positive).strip()
        summary = cells.summarize_cells(pa.array(list(self._first), pa.string()))
        are_numbers = summary.kind == cells.NUMBER
        missing = {None, *MISSING, *(summary.missing_words if are_numbers else ())} - {text}
        for value, (row, task) in self._first.items():  # in the order of the rows
            if value in missing:
                raise _no_class(f"task {task!r}: the target {target!r}", value, row)
        known = [value for value in self._first if value is not None]
        number = _number(text, summary.decimal_comma) if are_numbers else None
        found = {
            value
            for value in known
            if value == text or (number is not None and _number(value, summary.decimal_comma) == number)
        }
        if known and not found:
            close = nearest(text, known)
            hint = f"did you mean {close!r}? " if close is not None else ""
            values = quoted(sorted(known), 20)
            raise ValueError(f"the target {target!r} is never {text!r}; {hint}its values are {values}")
        return frozenset(found)


def signs(values: np.ndarray, positive: Collection[str], target: str) -> np.ndarray:
    """+1 for the texts of the positive class, -1 for all others."""
    missing = {None, *MISSING} - set(positive)
    row = next((row for row, value in enumerate(values) if value in missing), None)
    if row is not None:
        raise _no_class(f"the target {target!r}", values[row], row)
    return np.array([1.0 if value in positive else -1.0 for value in values])


def _no_class(subject: str, value: str | None, row: int) -> CellError:
    return CellError(f"{subject} holds", value or "", row, ", which is not a class; enter a class or remove the row")


def _number(text: str, comma: bool) -> Decimal | None:
    """The exact number: classes may be integers that a float cannot represent."""
    written = {"true": "1", "false": "0"}.get(text.lower(), text.replace(",", ".") if comma else text)
    try:
        number = Decimal(written)
    except InvalidOperation:
        return None
    return None if number.is_nan() else number


class RowParser(Protocol):
    """Turns the rows of a table into arrays. It must be picklable, because it is sent to the workers."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns that it needs."""
        ...

    @property
    def width(self) -> int | None:
        """The number of features of a libsvm file, else None."""
        ...

    def task_names(self, table: Any) -> np.ndarray:
        """The task of each row; None if it has none."""
        ...

    def split(self, table: Any, block: Any = None) -> dict[str, tuple[Any, ...]]:
        """(X, y), (X, y, weight) or (X, y, weight, offset) of each task in a table, in the order of its rows.

        block: the features of a libsvm file.
        """
        ...


def group_by_task(names: np.ndarray, arrays: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """The rows of each task in arrays whose rows belong to the named tasks."""
    tasks, codes, counts = np.unique(names.astype(str), return_inverse=True, return_counts=True)
    order, ends = np.argsort(codes, kind="stable"), np.cumsum(counts)
    rows = np.split(order, ends)[:-1]
    return {task: tuple(array[mine] for array in arrays) for task, mine in zip(tasks.tolist(), rows, strict=True)}


@dataclass(frozen=True)
class ColumnRoles:
    """What each column is used for, where all features are columns of numbers. A RowParser."""

    task: str
    target: str
    features: tuple[str, ...]
    weights: str | None = None
    positive: Any = None  # the value of the target that becomes +1; all others become -1
    constant: float | None = None  # the value of an additional last feature
    positive_texts: frozenset[str] = frozenset()  # how the files write `positive`; known after a scan
    offset: str | tuple[str, ...] | None = None  # added to the scores; with k classes k columns

    @classmethod
    def choose(
        cls,
        names: Sequence[str],
        target: str,
        task: str,
        features: Sequence[str] | None,
        weights: str | None,
        positive: Any,
        constant: float | None,
        offset: str | Sequence[str] | None = None,
    ) -> "ColumnRoles":
        """features None: all other columns, except the index columns of pandas."""
        added = offset if offset is None or isinstance(offset, str) else tuple(offset)
        others = [task, target, *([weights] if weights is not None else []), *_columns(added)]
        require_columns([*others, *(features or ())], names)
        rest = (name for name in names if name not in others and not _ROW_NUMBERS.match(name))
        chosen = tuple(rest if features is None else features)
        if not chosen:
            raise ValueError("no column is left for the features")
        return cls(task, target, chosen, weights, positive, constant, offset=added)

    @property
    def scanned(self) -> list[str]:
        """The columns that a scan reads."""
        return [self.task] if self.positive is None else [self.task, self.target]

    @property
    def columns(self) -> list[str]:
        weights = [self.weights] if self.weights is not None else []
        return list(dict.fromkeys([self.task, self.target, *self.features, *weights, *_columns(self.offset)]))

    @property
    def width(self) -> None:
        return None

    def scan(self, table: Any, classes: ClassScan) -> np.ndarray:
        """The task of each row; adds the values of a target of classes to `classes`."""
        tasks = self.task_names(table)
        if self.positive is not None:
            classes.add(read.texts(table.column(self.target)), tasks)
        return tasks

    def after_scan(self, classes: ClassScan) -> "ColumnRoles":
        if self.positive is None:
            return self
        return replace(self, positive_texts=classes.texts_of(self.positive, self.target))

    def task_names(self, table: Any) -> np.ndarray:
        names = read.texts(table.column(self.task))
        for row, name in enumerate(names):
            if name is None:
                raise ValueError(f"a row has no task: column {self.task!r} is empty in row {row + 1} of a batch")
        return names

    def split(self, table: Any, block: Any = None) -> dict[str, tuple[Any, ...]]:
        return group_by_task(self.task_names(table), self._arrays(table))

    def _arrays(self, table: Any) -> list[np.ndarray]:
        parts = [read.numbers(table.column(name), name) for name in self.features]
        if self.constant is not None:
            parts.append(np.full(table.num_rows, self.constant))
        if self.positive is None:
            y = read.numbers(table.column(self.target), self.target)
        else:
            y = signs(read.texts(table.column(self.target)), self.positive_texts, self.target)
        weights = [] if self.weights is None else [read.numbers(table.column(self.weights), self.weights)]
        if self.offset is None:
            return [np.column_stack(parts), y, *weights]
        added = [read.numbers(table.column(name), name) for name in _columns(self.offset)]
        offset = added[0] if isinstance(self.offset, str) else np.column_stack(added)
        return [np.column_stack(parts), y, *(weights or [np.ones(table.num_rows)]), offset]


def _columns(offset: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if offset is None else (offset,) if isinstance(offset, str) else offset


@dataclass(frozen=True)
class FileReader:
    """Reads files of any format; a worker opens only the files that hold rows of its tasks.

    files_of: for each task, the numbers of the files with its rows.
    """

    table: TableFiles
    parser: RowParser
    files_of: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def scan(self, columns: Sequence[str], tasks_of: Callable[[Any], np.ndarray]) -> tuple[Counter[str], "FileReader"]:
        """The number of rows of each task, and a reader that knows which files hold them.

        columns: those to read. tasks_of: called with each batch of them; returns the task names of the rows to count.
        """
        counts, files_of, start = Counter[str](), dict[str, set[int]](), 0
        for number, file in enumerate(self.table.files):
            for batch in TableFiles((file,)).batches(columns, self.parser.width):
                with self.table.located(_numbers(start + np.arange(batch.columns.num_rows))):
                    names, found = np.unique(tasks_of(batch.columns).astype(str), return_counts=True)
                counts.update(dict(zip(names.tolist(), found.tolist(), strict=True)))
                for name in names.tolist():
                    files_of.setdefault(name, set()).add(number)
                start += batch.columns.num_rows
        return counts, replace(self, files_of={name: frozenset(files) for name, files in files_of.items()})

    def only(self, names: Sequence[str]) -> "FileReader":
        wanted: set[int] = set().union(*(self.files_of[name] for name in names))
        files = tuple(file for number, file in enumerate(self.table.files) if number in wanted)
        return replace(self, table=TableFiles(files), files_of={})

    def read(self, names: Sequence[str]) -> dict[str, tuple[Any, ...]]:
        found, wanted, start = dict[str, list[tuple[Any, ...]]](), set(names), 0
        for batch in self.table.batches(self.parser.columns, self.parser.width):
            mine = [name in wanted for name in self.parser.task_names(batch.columns)]
            rows = np.flatnonzero(mine)
            if len(rows):
                block = None if batch.block is None else batch.block[rows]
                with self.table.located(_numbers(start + rows)):
                    parts = self.parser.split(batch.columns.take(rows), block)
                for name, part in parts.items():
                    found.setdefault(name, []).append(part)
            start += batch.columns.num_rows
        return {name: tuple(map(stack_rows, zip(*parts, strict=True))) for name, parts in found.items()}


def _numbers(rows: np.ndarray) -> Callable[[int], int]:
    """From a row of a batch to its number in the table."""
    return lambda row: int(rows[row])


def scan_files(table: TableFiles, roles: ColumnRoles) -> tuple[Counter[str], FileReader]:
    """The number of rows of each task, and a reader of them.

    Reads only the task column and, if one class is positive, the target.
    """
    classes = ClassScan()
    counts, reader = FileReader(table, roles).scan(roles.scanned, lambda frame: roles.scan(frame, classes))
    with table.located():
        return counts, replace(reader, parser=roles.after_scan(classes))


@dataclass(frozen=True)
class DatasetReader:
    """Reads a Parquet data set; its statistics and partitions show which row groups need not be read."""

    url: str
    roles: ColumnRoles
    values_of: Mapping[str, Collection[Any]] = field(default_factory=dict)  # task -> values of its column, such as "a "

    def scan(self) -> tuple[Counter[str], "DatasetReader"]:
        """The number of rows of each task, and a reader that knows how the data set writes the tasks."""
        classes, counts, values_of = ClassScan(), Counter[str](), dict[str, set[Any]]()
        for batch in open_dataset(self.url).to_batches(columns=self.roles.scanned):
            table = decode_dictionaries(pa.Table.from_batches([batch]))
            values = table.column(self.roles.task).unique()
            for name, value in zip(read.texts(values), values.to_pylist(), strict=True):
                values_of.setdefault(name, set()).add(value)
            counts.update(self.roles.scan(table, classes).tolist())
        return counts, replace(self, roles=self.roles.after_scan(classes), values_of=values_of)

    def only(self, names: Sequence[str]) -> "DatasetReader":
        return replace(self, values_of={name: self.values_of[name] for name in names})

    def read(self, names: Sequence[str]) -> dict[str, tuple[np.ndarray, ...]]:
        opened = open_dataset(self.url)
        kind = opened.schema.field(self.roles.task).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        values = [value for name in names for value in self.values_of[name]]
        if pa.types.is_floating(kind):  # Arrow tells the two zeros apart, and Python does not
            values += [-value for value in values if value == 0]
        wanted = pc.field(self.roles.task).isin(pa.array(values, kind))
        table = decode_dictionaries(opened.to_table(columns=self.roles.columns, filter=wanted))
        try:
            return self.roles.split(table)
        except CellError as error:  # the rows are filtered, so their numbers are not those of the data set
            error.where = f"in task {self.roles.task_names(table)[error.row]!r}"
            raise


def open_dataset(url: str) -> Any:
    try:
        return dataset.dataset(url, format="parquet", partitioning="hive")
    except (OSError, ValueError) as error:
        raise type(error)(f"{url} cannot be read as a Parquet data set: {error}") from error
