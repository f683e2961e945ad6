"""Several files as one table, read batch by batch or as a whole.

A column that a file lacks has missing values there; the keys of a path become columns. `readers` and `arrays` hold what
depends on the format.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.exceptions import CellError
from dmtrl.tables.arrays import Libsvm, Npz
from dmtrl.tables.arrow import pa
from dmtrl.tables.columns import as_strings
from dmtrl.tables.discovery import DataFile, find_files
from dmtrl.tables.readers import Arrow, Csv, Parquet, csv_header

_Reader = type[Csv | Parquet | Arrow | Libsvm | Npz]
_READERS: dict[str, _Reader] = {"csv": Csv, "parquet": Parquet, "arrow": Arrow, "libsvm": Libsvm, "npz": Npz}


@dataclass(frozen=True)
class Batch:
    """Some rows: named columns (a pyarrow table) and, for libsvm files, the features as a CSR matrix."""

    columns: Any
    block: Any
    done: float  # share of all files read so far


@dataclass(frozen=True)
class TableFiles:
    """The rows of one or more files of the same format, under one list of columns."""

    files: tuple[DataFile, ...]

    @cached_property
    def headers(self) -> list[list[str]]:
        """The columns in each file, without those of its path."""
        return [_READERS[file.format].column_names(file) for file in self.files]

    @cached_property
    def _known(self) -> list[frozenset[str]]:
        return [frozenset(header) for header in self.headers]

    @cached_property
    def names(self) -> list[str]:
        """Every column, in the order of its first appearance."""
        names: dict[str, None] = {}
        for header, file in zip(self.headers, self.files, strict=True):
            names.update(dict.fromkeys([*header, *file.constants]))
        return list(names)

    @property
    def format(self) -> str:
        return self.files[0].format

    def is_untyped(self, name: str) -> bool:
        """Whether a column is text only because its file format, or a path, has no types."""
        return self.format == "csv" or not any(name in known for known in self._known)

    def partly_missing(self) -> dict[str, str]:
        """The columns that some files lack, each with the first such file."""
        lacking: dict[str, str] = {}
        for known, file in zip(self._known, self.files, strict=True):
            if len(known) + len(file.constants) < len(self.names):
                for name in self.names:
                    if name not in known and name not in file.constants:
                        lacking.setdefault(name, str(file.path))
        return lacking

    def with_file_names(self, column: str) -> "TableFiles":
        """With an additional column that holds the name of each file, without its extension; files of the same name
        also have the names of their folders."""
        times = Counter(file.stem for file in self.files)
        names = [file.stem if times[file.stem] == 1 else str(file.path.with_name(file.stem)) for file in self.files]
        if len(set(names)) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise ValueError(f"the file {self.files[names.index(twice)].path} was passed twice")
        named = zip(self.files, names, strict=True)
        return TableFiles(tuple(replace(file, constants={**file.constants, column: name}) for file, name in named))

    def batches(self, names: Iterable[str] | None = None, features: int | None = None) -> Iterator[Batch]:
        """The rows in order, with these columns (None: all). features: the number of features of a libsvm file."""
        wanted = self.names if names is None else list(dict.fromkeys(names))
        sizes = [max(file.path.stat().st_size, 1) for file in self.files]
        before = 0
        for file, known, size in zip(self.files, self._known, sizes, strict=True):
            present = [name for name in wanted if name in known]
            for table, block, share in _READERS[file.format].batches(file, present, features):
                n = table.num_rows
                columns = {name: table.column(name) for name in present}
                for name in wanted:
                    if name not in columns:
                        value = file.constants.get(name)
                        columns[name] = pa.nulls(n) if value is None else pa.repeat(pa.scalar(value, pa.string()), n)
                ordered = pa.table({name: columns[name] for name in wanted})
                yield Batch(ordered, block, (before + share * size) / sum(sizes))
            before += size

    @cached_property
    def has_semicolons(self) -> bool:
        """Whether semicolons separate the columns of the first file; then commas are decimal signs."""
        return self.format == "csv" and csv_header(self.files[0]).delimiter == ";"

    def position(self, row: int) -> str:
        """The line (or row) of a row that is counted from 0 over all files; if there are several, also the file."""
        for file, header in zip(self.files, self.headers, strict=True):
            rows = row + 1
            if len(self.files) > 1:
                rows = sum(table.num_rows for table, _, _ in _READERS[file.format].batches(file, header[:1]))
            if row < rows:
                break
            row -= rows
        line = Csv.line_of(file, row) if file.format == "csv" else None
        position = f"row {row + 1}" if line is None else f"line {line}"
        return position if len(self.files) == 1 else f"{position} of {file.path}"

    @contextmanager
    def located(self, row_of: Callable[[int], int] = lambda row: row) -> Iterator[None]:
        """Add the position in the files to a CellError. row_of: from the row of the error to that of the table."""
        try:
            yield
        except CellError as error:
            error.where = self.position(row_of(error.row))
            raise

    def read(self, on_progress: Callable[[float], object] = lambda done: None) -> Batch:
        """All columns and rows at once. on_progress: called with the share that has been read."""
        batches = []
        for batch in self.batches():
            batches.append(batch)
            on_progress(batch.done)
        return self._joined(batches)

    def sample(
        self, n: int, seed: int, on_progress: Callable[[float], object] = lambda done: None
    ) -> tuple[Batch, np.ndarray, int]:
        """n random rows in their order, their numbers in the table, and how many rows the table has.

        Only a few times n rows are in memory at the same time.
        """
        rng = np.random.default_rng(seed)
        kept: list[tuple[Batch, np.ndarray, np.ndarray]] = []  # rows, their random keys, their numbers
        total, size, limit = 0, 0, np.inf

        def below(part: tuple[Batch, np.ndarray, np.ndarray], limit: float) -> tuple[Batch, np.ndarray, np.ndarray]:
            batch, keys, numbers = part
            keep = keys < limit
            if keep.all():
                return part
            block = None if batch.block is None else batch.block[keep]
            return Batch(batch.columns.filter(pa.array(keep)), block, batch.done), keys[keep], numbers[keep]

        for batch in self.batches():
            rows = batch.columns.num_rows
            kept.append(below((batch, rng.random(rows), np.arange(total, total + rows)), limit))
            total, size = total + rows, size + len(kept[-1][1])
            if size > 2 * n:
                limit = float(np.partition(np.concatenate([keys for _, keys, _ in kept]), n)[n])
                kept, size = [below(part, limit) for part in kept], n
            on_progress(batch.done)
        if size > n:
            limit = float(np.partition(np.concatenate([keys for _, keys, _ in kept]), n)[n])
            kept = [below(part, limit) for part in kept]
        numbers = np.concatenate([numbers for _, _, numbers in kept]) if kept else np.zeros(0, dtype=int)
        return self._joined([batch for batch, _, _ in kept]), numbers, total

    def _joined(self, batches: list[Batch]) -> Batch:
        from scipy import sparse

        tables = [batch.columns for batch in batches]
        if not tables:
            return Batch(pa.table({name: pa.nulls(0) for name in self.names}), None, 1.0)
        block = None
        if batches[0].block is not None:
            width = max(batch.block.shape[1] for batch in batches)
            for batch in batches:
                batch.block.resize(batch.block.shape[0], width)
            block = sparse.vstack([batch.block for batch in batches], format="csr")
        return Batch(_concatenated(tables), block, 1.0)


def open_files(paths: Sequence[str | Path], encoding: str | None = None) -> TableFiles:
    """One table from files and folders of files. encoding: of CSV files; None: UTF-8."""
    table = TableFiles(tuple(find_files(paths, encoding)))
    for file, header in zip(table.files, table.headers, strict=True):
        if not header:
            raise ValueError(f"{file.path} has no columns")
    return table


def _concatenated(tables: list[Any]) -> Any:
    """One table. A column whose type differs between files becomes floats if all are numbers, else text."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        names = tables[0].column_names
        kinds = {name: {str(table.schema.field(name).type) for table in tables} - {"null"} for name in names}
        texts = {name for name, types in kinds.items() if len(types) > 1}
        return pa.concat_tables(
            [pa.table({n: as_strings(t.column(n)) if n in texts else t.column(n) for n in names}) for t in tables],
            promote_options="permissive",
        )
