"""Numpy archives and libsvm files: features without names of their own.

Room: tables. An archive holds X (n, d) and columns of length n, such as y and task; it is read whole. A libsvm file has
the columns `label` and, where it is written, `qid`; its features come as one CSR matrix, piece by piece.
"""

import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from dmtrl.tables.discovery import Part

ROWS = 1 << 16
PIECE = 8 << 20  # bytes of libsvm text parsed at a time
LABEL, QUERY = "label", "qid"
_WIDEST = 2**31 - 2  # a piece cannot say how wide the whole file is


class Npz:
    @staticmethod
    def column_names(part: Part) -> list[str]:
        return list(_columns(part))

    @staticmethod
    def batches(part: Part, names: list[str], features: int | None = None) -> Iterator[tuple[Any, None, float]]:
        import pyarrow as pa

        columns = _columns(part)
        n = len(next(iter(columns.values())))
        for start in range(0, n, ROWS):
            rows = slice(start, start + ROWS)
            yield pa.table({name: pa.array(columns[name][rows]) for name in names}), None, min((start + ROWS) / n, 1.0)


def _columns(part: Part) -> dict[str, np.ndarray]:
    """The columns of X under their names, or x0, x1, ..., then every other array of as many values as X has rows."""
    try:
        with open(part.path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, zipfile.BadZipFile, EOFError, OSError) as error:
        if isinstance(error, PermissionError):
            raise
        raise ValueError(f"{part.path} cannot be read as npz: {error}") from error
    X = arrays.pop("X", None)
    if X is None or X.ndim != 2 or X.dtype.kind not in "biuf":
        found = ", ".join(arrays) or "nothing"
        raise ValueError(f"{part.path} needs a two-dimensional array of numbers named X; it holds {found}")
    if len(X) == 0:
        raise ValueError(f"{part.path} has columns but no rows")
    given = arrays.get("feature_names", np.empty(0, dtype=str))
    names = [str(name) for name in given] if len(given) == X.shape[1] else [f"x{i}" for i in range(X.shape[1])]
    others = {name: a for name, a in arrays.items() if a.shape == (len(X),) and name not in names}
    return {name: X[:, i] for i, name in enumerate(names)} | others


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
