"""Readers of numpy archives and libsvm files, whose features are one matrix.

An archive holds X of shape (n, d) and columns of length n, such as y and task; only the arrays that are needed are
read. A libsvm file has the column `label`, sometimes `qid`, and its features as CSR matrices, one batch at a time.
"""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from dmtrl.tables.arrow import pa
from dmtrl.tables.discovery import DataFile

ROWS = 1 << 16
PIECE = 8 << 20  # bytes of libsvm text parsed at a time
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
LABEL, QUERY = "label", "qid"
_LIMIT = 2**31 - 2  # one piece does not show how many features the whole file has


class Npz:
    """Numpy archives."""

    @staticmethod
    def column_names(file: DataFile) -> list[str]:
        layout = _layout(file)
        return [*layout.features, *layout.others]

    @staticmethod
    def batches(file: DataFile, names: list[str], features: int | None = None) -> Iterator[tuple[Any, None, float]]:
        layout = _layout(file)
        n, number = layout.rows, {name: i for i, name in enumerate(layout.features)}
        with _opened(file) as archive:
            X = _array(archive, "X") if number.keys() & names else np.empty((0, 0))
            columns = {name: X[:, number[name]] if name in number else _array(archive, name) for name in names}
        for start in range(0, n, ROWS):
            end = min(start + ROWS, n)
            rows = {"": pa.nulls(end - start)} | {name: pa.array(columns[name][start:end]) for name in names}
            yield pa.table(rows).select(names), None, end / n  # has rows even without columns


class _Layout(NamedTuple):
    """The columns of X by name (by default x0, x1, ...), and every other array with one value per row of X."""

    rows: int
    features: list[str]
    others: list[str]


def _layout(file: DataFile) -> _Layout:
    """Read from the headers of the arrays only, because X may not fit into memory."""
    with _opened(file) as archive:
        headers = {name.removesuffix(".npy"): _header(archive, name) for name in archive.namelist()}
        named = len(headers.get("feature_names", ((), ""))[0]) == 1
        given = [str(name) for name in _array(archive, "feature_names")] if named else []
    shape, kind = headers.pop("X", ((), ""))
    if len(shape) != 2 or kind not in "biuf":
        found = ", ".join(headers) or "no array"
        raise ValueError(f"{file.path} needs a two-dimensional array of numbers named X; it holds {found}")
    n, d = shape
    if n == 0:
        raise ValueError(f"{file.path} has columns but no rows")
    names = given if len(given) == d else [f"x{i}" for i in range(d)]
    return _Layout(n, names, [name for name, (size, _) in headers.items() if size == (n,) and name not in names])


@contextmanager
def _opened(file: DataFile) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(file.path) as archive:
            yield archive
    except PermissionError:
        raise
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise ValueError(f"{file.path} cannot be read as npz: {error}") from error


def _header(archive: zipfile.ZipFile, member: str) -> tuple[tuple[int, ...], str]:
    """The shape of an array and the kind of its dtype; an empty shape for what is not a readable array."""
    with archive.open(member) as file:
        if not member.endswith(".npy"):
            return (), ""
        version = npy.read_magic(file)
        if version not in _HEADERS:
            return (), ""
        shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError(f"its array {member.removesuffix('.npy')!r} holds Python objects, not numbers or text")
    return shape, dtype.kind


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as file:
        return np.asarray(npy.read_array(file, allow_pickle=False))


class Libsvm:
    """Sparse features as text."""

    @staticmethod
    def column_names(file: DataFile) -> list[str]:
        with open(file.path, encoding="utf-8", errors="replace") as opened:
            words = next((line.split() for line in opened if line.strip() and not line.startswith("#")), [])
        return [LABEL, QUERY] if any(word.startswith("qid:") for word in words) else [LABEL]

    @staticmethod
    def batches(file: DataFile, names: list[str], features: int | None = None) -> Iterator[tuple[Any, Any, float]]:
        """Feature numbers are those of the file, counted from 0; a file that counts from 1 has zeros in feature 0."""
        from sklearn.datasets import load_svmlight_file

        size = file.path.stat().st_size
        with open(file.path, "rb") as raw:
            for offset in range(0, size, PIECE):
                raw.seek(0)
                length = min(PIECE, size - offset)
                try:
                    X, label, *query = load_svmlight_file(
                        raw, n_features=_LIMIT, zero_based=True, query_id=QUERY in names, offset=offset, length=length
                    )
                except ValueError as error:
                    raise ValueError(f"{file.path} cannot be read as libsvm: {error}") from error
                if X.shape[0]:
                    width = features or int(X.indices.max(initial=-1)) + 1
                    table = pa.table({LABEL: label, **({QUERY: query[0]} if query else {})})
                    yield table, X[:, :width], (offset + length) / size  # features that fit did not see have no weight
