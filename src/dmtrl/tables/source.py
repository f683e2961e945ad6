"""Several files as one table: its columns, read batch by batch or as a whole.

Room: tables. Everything that depends on a format is in `readers` and `arrays`; here files are joined: a column that
one of them lacks is missing there, and what a path says becomes a column.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dmtrl.tables.discovery import Part, find_parts


@dataclass(frozen=True)
class Batch:
    """Some rows: named columns (a pyarrow table), and for libsvm files the features as one CSR matrix."""

    columns: Any
    block: Any
    done: float  # share of the whole source that has been read


@dataclass(frozen=True)
class Source:
    parts: tuple[Part, ...]

    @cached_property
    def _headers(self) -> list[list[str]]:
        return [_reader(part).column_names(part) for part in self.parts]

    @cached_property
    def _known(self) -> list[frozenset[str]]:
        return [frozenset(header) for header in self._headers]

    @cached_property
    def names(self) -> list[str]:
        """Every column, in the order of its first appearance."""
        names: dict[str, None] = {}
        for header, part in zip(self._headers, self.parts, strict=True):
            names.update(dict.fromkeys([*header, *part.constants]))
        return list(names)

    @property
    def format(self) -> str:
        return self.parts[0].format

    def is_untyped(self, name: str) -> bool:
        """Whether a column comes as text because its file, or its path, cannot say what it is."""
        return self.format == "csv" or not any(name in known for known in self._known)

    def partly_missing(self) -> dict[str, str]:
        """Columns that are in some files and not in others, each with the first file that lacks it."""
        lacking: dict[str, str] = {}
        for known, part in zip(self._known, self.parts, strict=True):
            for name in self.names:
                if name not in known and name not in part.constants:
                    lacking.setdefault(name, str(part.path))
        return lacking

    def with_file_names(self, column: str) -> "Source":
        """Each file's name, without its ending, as a column."""
        return Source(tuple(replace(p, constants={**p.constants, column: p.stem}) for p in self.parts))

    def batches(self, names: Iterable[str] | None = None, features: int | None = None) -> Iterator[Batch]:
        """The rows in order, with these columns (None: all). `features`: how wide the matrix of a libsvm file is."""
        import pyarrow as pa

        wanted = self.names if names is None else list(dict.fromkeys(names))
        sizes = [max(part.path.stat().st_size, 1) for part in self.parts]
        before = 0
        for part, known, size in zip(self.parts, self._known, sizes, strict=True):
            here = [name for name in wanted if name in known]
            for table, block, share in _reader(part).batches(part, here, features):
                columns = {name: table.column(name) for name in here}
                for name in wanted:
                    if name not in columns:
                        value = part.constants.get(name)
                        columns[name] = pa.nulls(table.num_rows) if value is None else _repeat(value, table.num_rows)
                ordered = pa.table({name: columns[name] for name in wanted})
                yield Batch(ordered, block, (before + share * size) / sum(sizes))
            before += size

    @cached_property
    def has_semicolons(self) -> bool:
        """Whether semicolons separate the columns of its first file: where they do, commas are decimal signs."""
        from dmtrl.tables.readers import Csv

        return self.format == "csv" and Csv.delimiter(self.parts[0]) == ";"

    def where(self, row: int) -> str:
        """A row, counted from 0 over all files, as people find it: by file, if there are several, and line."""
        for part, header in zip(self.parts, self._headers, strict=True):
            rows = row + 1
            if len(self.parts) > 1:
                rows = sum(table.num_rows for table, _, _ in _reader(part).batches(part, header[:1]))
            if row < rows:
                break
            row -= rows
        line = _reader(part).line_of(part, row) if part.format == "csv" else None
        place = f"row {row + 1}" if line is None else f"line {line}"
        return place if len(self.parts) == 1 else f"{place} of {part.path}"

    @contextmanager
    def located(self, row_of: Callable[[int], int] = lambda row: row) -> Iterator[None]:
        """An error about a cell then says where it stands in the files; `row_of`: from a row of the column to ours."""
        from dmtrl.tables.cells import CellError

        try:
            yield
        except CellError as error:
            raise error.at(self.where(row_of(error.row))) from None

    def read(self, tell: Callable[[float], object] = lambda done: None) -> Batch:
        """All columns and rows at once; `tell` hears which share has been read."""
        import pyarrow as pa
        from scipy import sparse

        batches = []
        for batch in self.batches():
            batches.append(batch)
            tell(batch.done)
        tables = [batch.columns for batch in batches]
        if not tables:
            columns = pa.table({name: pa.nulls(0) for name in self.names})
            return Batch(columns, None, 1.0)
        block = None
        if batches[0].block is not None:
            width = max(batch.block.shape[1] for batch in batches)
            for batch in batches:
                batch.block.resize(batch.block.shape[0], width)
            block = sparse.vstack([batch.block for batch in batches], format="csr")
        return Batch(_concatenated(tables), block, 1.0)


def open_source(paths: Sequence[str | Path]) -> Source:
    """The table that these files and folders hold together."""
    require_pyarrow()
    source = Source(tuple(find_parts(paths)))
    for part, header in zip(source.parts, source._headers, strict=True):
        if not header:
            raise ValueError(f"{part.path} has no columns")
    return source


def nearest(word: str, words: Sequence[str]) -> str | None:
    """The word that was probably meant: equal up to upper and lower case, or a close one."""
    folded = {other.casefold(): other for other in words}
    found = difflib.get_close_matches(word.casefold(), list(folded), n=1, cutoff=0.7)
    return folded[found[0]] if found else None


def require_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError('reading data files needs pyarrow: pip install "dmtrl[frames]"') from error


def _reader(part: Part) -> Any:
    from dmtrl.tables import arrays, readers

    return {
        "csv": readers.Csv,
        "parquet": readers.Parquet,
        "arrow": readers.Arrow,
        "libsvm": arrays.Libsvm,
        "npz": arrays.Npz,
    }[part.format]


def _repeat(value: str, n: int) -> Any:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, pa.string()), n)


def _concatenated(tables: list[Any]) -> Any:
    """One table; where files disagree about a column's type, whole numbers become numbers and all else text."""
    import pyarrow as pa

    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        from dmtrl.tables.columns import as_strings

        names = tables[0].column_names
        kinds = {name: {str(table.schema.field(name).type) for table in tables} - {"null"} for name in names}
        texts = {name for name, types in kinds.items() if len(types) > 1}
        return pa.concat_tables(
            [pa.table({n: as_strings(t.column(n)) if n in texts else t.column(n) for n in names}) for t in tables],
            promote_options="permissive",
        )
