"""Write tables one batch at a time.

The file extension sets the format; without a file the output is CSV on standard output. A file appears under its final
name only after it is complete.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from dmtrl.exceptions import OutputExistsError
from dmtrl.storage import whole_file
from dmtrl.tables.arrow import arrow_csv, pa, parquet

_WRITABLE = (".csv", ".csv.gz", ".tsv", ".parquet", ".pq", ".arrow", ".feather")


def check_output(path: Path, force: bool, inputs: Sequence[str | Path] = ()) -> None:
    """Raise OSError, before any work is done, if an output file cannot be written or must not be replaced."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; pass the name of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}; create it first")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"no permission to write in the folder {path.parent}")
    if path.exists():
        if any(Path(other).exists() and path.samefile(other) for other in inputs):
            raise FileExistsError(f"{path} is an input file; choose another name")
        if not force:
            raise OutputExistsError(path)


def check_table_name(path: Path) -> None:
    """Raise ValueError if the extension is not one that can be written."""
    if not path.name.lower().endswith(_WRITABLE):
        raise ValueError(f"{path} has an unsupported extension; supported: {', '.join(_WRITABLE)}")


@contextmanager
def table_writer(path: Path | None) -> Iterator[Any]:
    """An object with a method `write(table)`; path None: standard output."""
    name = ".csv" if path is None else path.name.lower()
    with (
        nullcontext(sys.stdout.buffer) if path is None else whole_file(path) as file,
        closing(_Writer(file, name)) as writer,
    ):
        yield writer


class _Writer:
    """Writes one format. The first table sets the column types of all tables."""

    def __init__(self, file: Any, name: str):
        self._file, self._name = file, name
        self._inner: Any = None
        self._schema: Any = None
        self._stream: Any = None

    def write(self, table: Any) -> None:
        if self._inner is None:
            self._open(table)
        self._inner.write_table(table.cast(self._schema))

    def _open(self, table: Any) -> None:
        fields = [f.with_type(pa.string()) if pa.types.is_null(f.type) else f for f in table.schema]
        self._schema = pa.schema(fields)
        if self._name.endswith((".parquet", ".pq")):
            self._inner = parquet.ParquetWriter(self._file, self._schema)
        elif self._name.endswith((".arrow", ".feather")):
            self._inner = pa.ipc.new_file(self._file, self._schema)
        else:
            self._stream = pa.output_stream(self._file, compression="gzip" if self._name.endswith(".gz") else None)
            options = arrow_csv.WriteOptions(delimiter="\t" if ".tsv" in self._name else ",", quoting_style="needed")
            self._inner = arrow_csv.CSVWriter(self._stream, self._schema, write_options=options)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        if self._stream is not None and not self._stream.closed:
            self._stream.flush()
            if self._name.endswith(".gz"):
                self._stream.close()
