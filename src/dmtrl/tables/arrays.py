"""Numpy archives and libsvm files: features without names of their own.

Room: tables. An archive holds X (n, d) and columns of length n, such as y and task; each array is read whole, and only
if it is asked for. A libsvm file has the columns `label` and, where it is written, `qid`; its features come as one CSR
matrix, piece by piece.
"""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from dmtrl.tables.discovery import Part

ROWS = 1 << 16
PIECE = 8 << 20  # bytes of libsvm text parsed at a time
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
LABEL, QUERY = "label", "qid"
_WIDEST = 2**31 - 2  # a piece cannot say how wide the whole file is


class Npz:
    @staticmethod
    def column_names(part: Part) -> list[str]:
        layout = _layout(part)
        return [*layout.features, *layout.others]

    @staticmethod
    def batches(part: Part, names: list[str], features: int | None = None) -> Iterator[tuple[Any, None, float]]:
        import pyarrow as pa

        n, columns = _columns(part, names)
        for start in range(0, n, ROWS):
            end = min(start + ROWS, n)
            rows = {"": pa.nulls(end - start)} | {name: pa.array(columns[name][start:end]) for name in names}
            yield pa.table(rows).select(names), None, end / n  # which has its rows even if no column is asked for


class _Layout(NamedTuple):
    """The columns of X under their names, or x0, x1, ..., then every other array of as many values as X has rows."""

    rows: int
    features: list[str]
    others: list[str]


def _layout(part: Part) -> _Layout:
    """From the headers of the arrays: who asks for names and counts alone may have no room for X."""
    with _opened(part) as archive:
        headers = {name.removesuffix(".npy"): _header(archive, name) for name in archive.namelist()}
        named = len(headers.get("feature_names", ((), ""))[0]) == 1
        given = [str(name) for name in _array(archive, "feature_names")] if named else []
    shape, kind = headers.pop("X", ((), ""))
    if len(shape) != 2 or kind not in "biuf":
        found = ", ".join(headers) or "nothing"
        raise ValueError(f"{part.path} needs a two-dimensional array of numbers named X; it holds {found}")
    n, d = shape
    if n == 0:
        raise ValueError(f"{part.path} has columns but no rows")
    names = given if len(given) == d else [f"x{i}" for i in range(d)]
    return _Layout(n, names, [name for name, (size, _) in headers.items() if size == (n,) and name not in names])


def _columns(part: Part, names: list[str]) -> tuple[int, dict[str, np.ndarray]]:
    """How many rows there are, and the columns; X is read if one of them is in it."""
    layout = _layout(part)
    number = {name: i for i, name in enumerate(layout.features)}
    with _opened(part) as archive:
        X = _array(archive, "X") if number.keys() & names else np.empty((0, 0))
        return layout.rows, {name: X[:, number[name]] if name in number else _array(archive, name) for name in names}


@contextmanager
def _opened(part: Part) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(part.path) as archive:
            yield archive
    except PermissionError:
        raise
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise ValueError(f"{part.path} cannot be read as npz: {error}") from error


def _header(archive: zipfile.ZipFile, member: str) -> tuple[tuple[int, ...], str]:
    """The shape of an array and the kind of its values; of no shape is what is no array, or none of plain values."""
    with archive.open(member) as file:
        if not member.endswith(".npy"):
            return (), ""
        version = npy.read_magic(file)
        if version not in _HEADERS:
            return (), ""
        shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError(f"its array {member.removesuffix('.npy')!r} holds objects, not numbers or text")
    return shape, dtype.kind


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as file:
        return np.asarray(npy.read_array(file, allow_pickle=False))


class Libsvm:
    @staticmethod
    def column_names(part: Part) -> list[str]:
        with open(part.path, encoding="utf-8", errors="replace") as file:
            words = next((line.split() for line in file if line.strip() and not line.startswith("#")), [])
        return [LABEL, QUERY] if any(word.startswith("qid:") for word in words) else [LABEL]

    @staticmethod
    def batches(part: Part, names: list[str], features: int | None = None) -> Iterator[tuple[Any, Any, float]]:
        """Features are numbered as in the file: a feature 0 is the first, and without one it is always zero."""
        import pyarrow as pa
        from sklearn.datasets import load_svmlight_file

        size = part.path.stat().st_size
        with open(part.path, "rb") as file:
            for offset in range(0, size, PIECE):
                file.seek(0)
                length = min(PIECE, size - offset)
                try:
                    X, label, *query = load_svmlight_file(
                        file, n_features=_WIDEST, zero_based=True, query_id=QUERY in names, offset=offset, length=length
                    )
                except ValueError as error:
                    raise ValueError(f"{part.path} cannot be read as libsvm: {error}") from error
                if X.shape[0]:
                    width = features or int(X.indices.max(initial=-1)) + 1
                    table = pa.table({LABEL: label, **({QUERY: query[0]} if query else {})})
                    yield table, X[:, :width], (offset + length) / size  # a feature that fit never saw has no weight
