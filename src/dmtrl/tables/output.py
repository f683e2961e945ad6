"""Tables written piece by piece: to a temporary name, which becomes the real one when all is there.

Room: tables. The ending says the format, as for reading; without a file name it is CSV on standard output.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dmtrl.storage import whole_file

_WRITABLE = (".csv", ".csv.gz", ".tsv", ".parquet", ".pq", ".arrow", ".feather")


def check_output(path: Path, force: bool, inputs: Sequence[str | Path] = ()) -> None:
    """Refuse a place that cannot be written, or that holds something, before any work is done."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} in; make it first")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"no permission to write in the folder {path.parent}")
    if path.exists():
        if any(Path(other).exists() and path.samefile(other) for other in inputs):
            raise FileExistsError(f"{path} is the data itself; write to another file")
        if not force:
            raise FileExistsError(f"{path} is there already; choose another name, or say --force to replace it")


def check_table_name(path: Path) -> None:
    if not path.name.lower().endswith(_WRITABLE):
        raise ValueError(f"{path} has no ending that says how to write it; dmtrl writes {', '.join(_WRITABLE)}")


@contextmanager
def table_writer(path: Path | None) -> Iterator[Any]:
    """Something with `write(table)`. The file gets its name only when everything has gone well."""
    if path is None:
        with contextlib.closing(_Writer(sys.stdout.buffer, ".csv")) as writer:
            yield writer
        return
    with whole_file(path) as file, contextlib.closing(_Writer(file, path.name.lower())) as writer:
        yield writer


class _Writer:
    """Opens its format with the first piece, whose columns all later pieces are given."""

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
        import pyarrow as pa
        from pyarrow import csv, parquet

        fields = [f.with_type(pa.string()) if pa.types.is_null(f.type) else f for f in table.schema]
        self._schema = pa.schema(fields)
        if self._name.endswith((".parquet", ".pq")):
            self._inner = parquet.ParquetWriter(self._file, self._schema)
        elif self._name.endswith((".arrow", ".feather")):
            self._inner = pa.ipc.new_file(self._file, self._schema)
        else:
            self._stream = pa.output_stream(self._file, compression="gzip" if self._name.endswith(".gz") else None)
            options = csv.WriteOptions(delimiter="\t" if ".tsv" in self._name else ",", quoting_style="needed")
            self._inner = csv.CSVWriter(self._stream, self._schema, write_options=options)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        if self._stream is not None and not self._stream.closed:
            self._stream.flush()
            if self._name.endswith(".gz"):
                self._stream.close()
