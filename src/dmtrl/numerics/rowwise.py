"""Long matrices, a few rows at a time: in the cache, over threads, and without a second matrix of that size.

Room: the ground. A matrix here is (tasks, features) or (rows, features). Sums over pieces are taken in the order of the
pieces, whose size does not depend on the number of threads: neither do the bits of a result. BLAS itself is left on one
thread for such matrices: on several it waits for itself longer than it computes.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import numpy as np

_IN_CACHE = 1 << 18  # numbers in a piece
_WORTH_THREADS = 1 << 21  # numbers in a matrix: below, starting threads takes longer than they save
_threads: ContextVar[int] = ContextVar("threads", default=1)
_T = TypeVar("_T")


@contextmanager
def threads(count: int) -> Iterator[None]:
    """While this lasts, work over long matrices is done by so many threads."""
    token = _threads.set(count)
    try:
        yield
    finally:
        _threads.reset(token)


def row_blocks(rows: int, columns: int) -> list[slice]:
    """The pieces of a matrix of this shape."""
    size = max(1, _IN_CACHE // max(columns, 1))
    return [slice(first, min(first + size, rows)) for first in range(0, rows, size)]


def over_rows(work: Callable[[slice], _T], rows: int, columns: int) -> list[_T]:
    """What `work` answers for each piece, in their order."""
    return list(_one_by_one(work, rows, columns))


def _one_by_one(work: Callable[[slice], _T], rows: int, columns: int) -> Iterator[_T]:
    pieces, count = row_blocks(rows, columns), _threads.get()
    if count == 1 or rows * columns < _WORTH_THREADS:
        yield from map(work, pieces)
        return
    with ThreadPoolExecutor(count) as pool:
        yield from pool.map(work, pieces)


def _total(work: Callable[[slice], np.ndarray], rows: int, columns: int, shape: tuple[int, int]) -> np.ndarray:
    """The sum over the pieces. Each is let go once added: a product of short sides may be as large as the matrix."""
    total = np.zeros(shape)
    for part in _one_by_one(work, rows, columns):
        total += part
    return total


def gram(A: np.ndarray, B: np.ndarray | None = None) -> np.ndarray:
    """A^T B, by default A^T A: over rows, or where B is wide over its columns."""
    B = A if B is None else B
    shape = (A.shape[1], B.shape[1])
    if len(B) >= B.shape[1]:
        return _total(lambda rows: A[rows].T @ B[rows], len(A), max(shape), shape)
    product = np.empty(shape)
    over_rows(lambda columns: np.matmul(A.T, B[:, columns], out=product[:, columns]), *B.T.shape)
    return product


def centred_gram(A: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """(A - centre)^T (A - centre)."""

    def product(rows: slice) -> np.ndarray:
        away = A[rows] - centre
        return np.asarray(away.T @ away)

    return _total(product, len(A), A.shape[1], (A.shape[1], A.shape[1]))


def distance(A: np.ndarray, B: np.ndarray) -> float:
    """|A - B|."""
    return float(np.linalg.norm(over_rows(lambda rows: np.linalg.norm(A[rows] - B[rows]), *A.shape)))
