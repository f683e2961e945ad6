"""Readers of CSV, Parquet and Arrow files, one batch at a time.

A reader lists the columns of a file and yields (table, None, share of the file read so far). All CSV columns are text;
`columns` converts them.
"""

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, NamedTuple

from dmtrl.exceptions import InputError, Setting
from dmtrl.tables.arrow import arrow_csv, pa, parquet
from dmtrl.tables.discovery import UTF8, DataFile

# Texts that count as missing in a CSV file, unless they are in quotes.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None")
BLOCK = 1 << 20  # bytes of CSV read at a time; pyarrow reads about thirty blocks ahead
ROWS = 1 << 16  # rows of Parquet read at a time
_QUOTED_FIELD = re.compile(r'(^|[,;\t|]) *"(?:[^"]|"")*"')
_HEAD = 1 << 20  # the first line of a CSV file must end within these bytes
Rows = Iterator[tuple[Any, None, float]]


@contextmanager
def readable_errors(file: DataFile) -> Iterator[None]:
    """Turn the errors of a parser into a ValueError that names the file and the remedy."""
    try:
        yield
    except pa.ArrowInvalid as error:
        text = str(error).split("\n")[0]
        ragged = re.search(r"Expected (\d+) columns, got (\d+)", text)
        if "UTF8" in text:
            raise _wrong_encoding(file) from error
        if ragged:
            raise ValueError(_describe_ragged(file, int(ragged[1]), int(ragged[2]))) from error
        if "straddling" in text:
            text = f"a row is longer than {BLOCK >> 20} MB, or a quotation mark is not closed"
        raise ValueError(f"{file.path} cannot be read as {file.format}: {text}") from error
    except UnicodeError as error:
        raise _wrong_encoding(file) from error
    except (EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{file.path} is truncated or damaged: {error}; copy the file again or recreate it") from error


def _wrong_encoding(file: DataFile) -> InputError:
    if file.encoding == UTF8:
        advice = Setting("encoding", "cp1252"), " if it comes from Windows"
        return InputError(f"{file.path} cannot be read: its text is not UTF-8; save it as UTF-8, or pass ", *advice)
    problem = f"{file.path} cannot be read: its text is not {file.encoding}; save it as UTF-8, or pass another "
    return InputError(problem, Setting("encoding"))


def _describe_ragged(file: DataFile, expected: int, found: int) -> str:
    """Where a row has more or fewer cells than the first line."""
    where, number = "a row", found
    with suppress(csv.Error, ValueError), _cells(file) as rows:
        for line, fields in rows:
            if len(fields) != expected:
                where, number = f"line {line}", len(fields)
                break
    cells = "1 cell" if number == 1 else f"{number:,} cells"
    hint = "; put text that holds the delimiter in quotes" if number > expected else ""
    return f"{file.path} cannot be read as csv: {where} has {cells}, but the first line has {expected:,} columns{hint}"


@contextmanager
def _cells(file: DataFile) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """The rows of a file, header first, without blank lines: the line on which each begins, counted from 1, and its
    cells."""
    header = csv_header(file)
    with pa.input_stream(str(file.path), compression="detect") as stream:
        text = io.TextIOWrapper(stream, encoding=file.encoding, newline="")
        for _ in range(header.blank):
            text.readline()
        lines = csv.reader(text, delimiter=header.delimiter)

        def rows() -> Iterator[tuple[int, list[str]]]:
            last = 0
            for fields in lines:
                begin, last = last, lines.line_num
                if fields:
                    yield header.blank + begin + 1, fields

        yield rows()


class Csv:
    """Text with a delimiter, possibly compressed with gzip."""

    @staticmethod
    def column_names(file: DataFile) -> list[str]:
        return csv_header(file).names

    @staticmethod
    def batches(file: DataFile, names: list[str], features: int | None = None) -> Rows:
        header = csv_header(file)
        if header.only_line:  # pyarrow rejects a first line without a line break
            return
        convert = arrow_csv.ConvertOptions(
            column_types={name: pa.string() for name in names},
            include_columns=names or header.names[:1],  # an empty list would mean all columns
            null_values=list(MISSING),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        read = arrow_csv.ReadOptions(
            encoding="utf8" if file.encoding == UTF8 else file.encoding,
            block_size=BLOCK,
            column_names=header.names,
            skip_rows=header.blank,
            skip_rows_after_names=1,
        )
        parse = arrow_csv.ParseOptions(delimiter=header.delimiter, newlines_in_values=True)
        with readable_errors(file), pa.OSFile(str(file.path)) as raw:
            size = raw.size()
            zipped = file.path.name.lower().endswith(".gz")
            stream = pa.CompressedInputStream(raw, "gzip") if zipped else raw
            for batch in arrow_csv.open_csv(stream, read, parse, convert):
                yield pa.Table.from_batches([batch]), None, min(raw.tell() / size, 1.0)

    @staticmethod
    def line_of(file: DataFile, row: int) -> int | None:
        """The line of the file, counted from 1, on which a row begins; None if it cannot be found."""
        with suppress(csv.Error, ValueError), readable_errors(file), _cells(file) as rows:
            return next((line for number, (line, _) in enumerate(rows, -1) if number == row), None)
        return None


class _Header(NamedTuple):
    """The column names in the first line that is not blank, their delimiter, the number of blank lines before it, and
    whether the file has no other line."""

    names: list[str]
    delimiter: str
    blank: int
    only_line: bool


def csv_header(file: DataFile) -> _Header:
    with readable_errors(file), pa.input_stream(str(file.path), compression="detect") as stream:
        head = stream.read(_HEAD)
        decoder = codecs.getincrementaldecoder(file.encoding)()
        text = decoder.decode(head, final=len(head) < _HEAD)
    if len(head) == _HEAD and "\n" in text:
        text = text[: text.rindex("\n") + 1]  # whole lines
    if not text.strip():
        raise ValueError(f"{file.path} is empty")
    blank, first = next((i, line) for i, line in enumerate(text.splitlines()) if line.strip())
    tabs = ".tsv" in file.path.name.lower()
    delimiter = "\t" if tabs else max(",;\t|", key=_QUOTED_FIELD.sub(r"\1", first).count)
    lines = csv.reader(io.StringIO(text[text.index(first) :], newline=""), delimiter=delimiter)
    try:
        names = [name.strip() for name in next(lines)]
    except csv.Error as error:
        raise ValueError(f"{file.path} cannot be read as csv: error in the first line: {error}") from error
    fresh = (f"unnamed_{i}" for i in count())
    names = [name or next(fresh) for name in names]  # pandas writes its index without a name
    duplicates = [name for name, times in Counter(names).items() if times > 1]
    if duplicates:
        raise ValueError(f"{file.path} has two columns named {duplicates[0]!r}; rename one")
    only_line = not text.split(first, 1)[1].strip()
    return _Header(names, delimiter, blank, only_line)


class Parquet:
    """Parquet files."""

    @staticmethod
    def column_names(file: DataFile) -> list[str]:
        with readable_errors(file), parquet.ParquetFile(file.path) as opened:
            return list(opened.schema_arrow.names)

    @staticmethod
    def batches(file: DataFile, names: list[str], features: int | None = None) -> Rows:
        with readable_errors(file), parquet.ParquetFile(file.path, pre_buffer=False) as opened:
            total, done = max(opened.metadata.num_rows, 1), 0
            for batch in opened.iter_batches(ROWS, columns=names):
                done += batch.num_rows
                batch.validate(full=True)
                yield decode_dictionaries(pa.Table.from_batches([batch])), None, done / total


class Arrow:
    """Arrow IPC files, also known as Feather version 2."""

    @staticmethod
    def column_names(file: DataFile) -> list[str]:
        with readable_errors(file), pa.memory_map(str(file.path)) as opened:
            return list(pa.ipc.open_file(opened).schema.names)

    @staticmethod
    def batches(file: DataFile, names: list[str], features: int | None = None) -> Rows:
        with readable_errors(file), pa.memory_map(str(file.path)) as opened:
            reader = pa.ipc.open_file(opened)
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i).select(names)
                batch.validate(full=True)  # a damaged file could point outside of the memory
                for start in range(0, batch.num_rows, ROWS):
                    piece = pa.Table.from_batches([batch.slice(start, ROWS)])
                    share = (i + (start + piece.num_rows) / batch.num_rows) / reader.num_record_batches
                    yield decode_dictionaries(piece), None, share


def decode_dictionaries(table: Any) -> Any:
    """Replace dictionary columns by their values: each batch of a file may have its own dictionary."""
    for i, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(i, field.name, table.column(i).cast(field.type.value_type))
    return table
