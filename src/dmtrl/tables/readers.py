"""CSV, Parquet and Arrow files, a batch at a time.

Room: tables. A reader says which columns a file has and yields (table, None, share of the file that is read). CSV
columns come as text: what they are is decided by whoever knows the whole column, or the model that was fitted.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

from dmtrl.tables.discovery import Part

# Words that stand for nothing. Not where they are in quotes: then somebody wrote them as text.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None")
BLOCK = 1 << 20  # bytes of CSV read at a time; pyarrow reads some thirty ahead
ROWS = 1 << 16  # rows of Parquet read at a time
_HEAD = 1 << 20  # within so many bytes the first line of a CSV file ends
_AGAIN = "copy or write the file again"
Rows = Iterator[tuple[Any, None, float]]


@contextmanager
def told(part: Part) -> Iterator[None]:
    """What a parser says about a file, in a sentence that names it."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowInvalid as error:
        text = str(error).split("\n")[0]
        if "UTF8" in text:
            text = "its text is not UTF-8; save it as UTF-8"
        elif "straddling" in text:
            text = f"a row is longer than {BLOCK >> 20} MB, or a quotation mark is not closed"
        raise ValueError(f"{part.path} cannot be read as {part.format}: {text}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{part.path} cannot be read: its text is not UTF-8; save it as UTF-8") from error
    except EOFError as error:
        raise ValueError(f"{part.path} is cut short or damaged: {error}; {_AGAIN}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise ValueError(f"{part.path} is cut short or damaged: {error}; {_AGAIN}") from error


class Csv:
    @staticmethod
    def column_names(part: Part) -> list[str]:
        return _header(part).names

    @staticmethod
    def delimiter(part: Part) -> str:
        return _header(part).delimiter

    @staticmethod
    def batches(part: Part, names: list[str], features: int | None = None) -> Rows:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        header = _header(part)
        if header.alone:  # pyarrow takes a first line without an end for a broken one
            return
        convert = arrow_csv.ConvertOptions(
            column_types={name: pa.string() for name in names},
            include_columns=names or header.names[:1],  # without columns it would take all
            null_values=list(MISSING),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        read = arrow_csv.ReadOptions(
            block_size=BLOCK, column_names=header.names, skip_rows=header.blank, skip_rows_after_names=1
        )
        parse = arrow_csv.ParseOptions(delimiter=header.delimiter, newlines_in_values=True)
        with told(part), pa.OSFile(str(part.path)) as raw:
            size = raw.size()
            zipped = part.path.name.lower().endswith(".gz")
            stream = pa.CompressedInputStream(raw, "gzip") if zipped else raw
            for batch in arrow_csv.open_csv(stream, read, parse, convert):
                yield pa.Table.from_batches([batch]), None, min(raw.tell() / size, 1.0)

    @staticmethod
    def line_of(part: Part, row: int) -> int | None:
        """The line of the file on which a row begins, both counted as people see them; None if it is not found."""
        import pyarrow as pa

        header = _header(part)
        try:
            with told(part), pa.input_stream(str(part.path), compression="detect") as stream:
                text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
                for _ in range(header.blank):
                    text.readline()
                lines, last = csv.reader(text, delimiter=header.delimiter), 0
                for fields in lines:
                    begin, last = last, lines.line_num
                    if fields:  # blank lines are no rows
                        row -= 1
                    if row < -1:  # the names were the first
                        return header.blank + begin + 1
        except (csv.Error, ValueError):
            pass
        return None


class _Header(NamedTuple):
    """The names in the first line that is not blank, the character between them, how many blank lines come before, and
    whether nothing comes after."""

    names: list[str]
    delimiter: str
    blank: int
    alone: bool


def _header(part: Part) -> _Header:
    import pyarrow as pa

    with told(part), pa.input_stream(str(part.path), compression="detect") as stream:
        head = stream.read(_HEAD)
        cut = len(head) == _HEAD and head.rfind(b"\n") + 1  # not in the middle of a character
        text = (head[:cut] if cut else head).decode("utf-8-sig")
    if not text.strip():
        raise ValueError(f"{part.path} is empty")
    blank, first = next((i, line) for i, line in enumerate(text.splitlines()) if line.strip())
    tabs = ".tsv" in part.path.name.lower()
    delimiter = "\t" if tabs else max(",;\t|", key=first.count)
    lines = csv.reader(io.StringIO(text[text.index(first) :], newline=""), delimiter=delimiter)
    try:
        names = [name.strip() for name in next(lines)]
    except csv.Error as error:
        raise ValueError(f"{part.path} cannot be read as csv: its first line: {error}") from error
    fresh = (f"unnamed_{i}" for i in count())
    names = [name or next(fresh) for name in names]  # pandas writes its index so
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise ValueError(f"{part.path} has two columns named {twice[0]!r}; rename one")
    alone = not text.split(first, 1)[1].strip()
    return _Header(names, delimiter, blank, alone)


class Parquet:
    @staticmethod
    def column_names(part: Part) -> list[str]:
        from pyarrow import parquet

        with told(part), parquet.ParquetFile(part.path) as file:
            return list(file.schema_arrow.names)

    @staticmethod
    def batches(part: Part, names: list[str], features: int | None = None) -> Rows:
        import pyarrow as pa
        from pyarrow import parquet

        with told(part), parquet.ParquetFile(part.path, pre_buffer=False) as file:
            total, done = max(file.metadata.num_rows, 1), 0
            for batch in file.iter_batches(ROWS, columns=names):
                done += batch.num_rows
                yield _flat(pa.Table.from_batches([batch])), None, done / total


class Arrow:
    @staticmethod
    def column_names(part: Part) -> list[str]:
        import pyarrow as pa

        with told(part), pa.memory_map(str(part.path)) as file:
            return list(pa.ipc.open_file(file).schema.names)

    @staticmethod
    def batches(part: Part, names: list[str], features: int | None = None) -> Rows:
        import pyarrow as pa

        with told(part), pa.memory_map(str(part.path)) as file:
            reader = pa.ipc.open_file(file)
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i).select(names)
                for start in range(0, batch.num_rows, ROWS):
                    piece = pa.Table.from_batches([batch.slice(start, ROWS)])
                    share = (i + (start + piece.num_rows) / batch.num_rows) / reader.num_record_batches
                    yield _flat(piece), None, share


def _flat(table: Any) -> Any:
    """Dictionary columns as the values they stand for: batches of one file may have dictionaries of their own."""
    import pyarrow as pa

    for i, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(i, field.name, table.column(i).cast(field.type.value_type))
    return table
