"""Operations on long matrices in blocks of rows: in cache, over threads, without temporary copies.

Block sizes and the order of sums do not depend on the number of threads, so results have the same bits on any number.
BLAS itself runs on one thread: its own threads spend more time waiting than computing on such matrices.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import numpy as np

_IN_CACHE = 1 << 16  # numbers in a block: larger temporaries leave the cache and cost page faults
_WORTH_THREADS = 1 << 21  # numbers in a matrix; below this, starting threads costs more than it saves
_threads: ContextVar[int] = ContextVar("threads", default=1)
_T = TypeVar("_T")


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use `count` threads for the operations of this module inside the context."""
    token = _threads.set(count)
    try:
        yield
    finally:
        _threads.reset(token)


def row_blocks(rows: int, columns: int, least: int = 1) -> list[slice]:
    """Return the blocks of a matrix of this shape, of at least so many rows."""
    size = max(least, _IN_CACHE // max(columns, 1))
    return [slice(first, min(first + size, rows)) for first in range(0, rows, size)]


def over_rows(work: Callable[[slice], _T], rows: int, columns: int) -> list[_T]:
    """Return the results of `work` for each block, in order."""
    return list(_results(work, rows, columns))


def _results(work: Callable[[slice], _T], rows: int, columns: int, least: int = 1) -> Iterator[_T]:
    """At most one result per thread waits to be taken."""
    blocks, count = row_blocks(rows, columns, least), _threads.get()
    if count == 1 or rows * columns < _WORTH_THREADS:
        yield from map(work, blocks)
        return
    with ThreadPoolExecutor(count) as pool:
        waiting: deque[Future[_T]] = deque()
        for block in blocks:
            waiting.append(pool.submit(work, block))
            if len(waiting) > count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _total(work: Callable[[slice], np.ndarray], rows: int, columns: int, shape: tuple[int, int]) -> np.ndarray:
    """Return the sum over the blocks. A result may be as large as the matrix: it is freed once added, and a block has
    as many rows as a result, so that adding costs little."""
    total = np.zeros(shape)
    for part in _results(work, rows, columns, least=shape[0]):
        total += part
    return total


def gram(A: np.ndarray, B: np.ndarray | None = None) -> np.ndarray:
    """Return A^T B, by default A^T A, in blocks of rows, or of columns of B if B is wide."""
    B = A if B is None else B
    shape = (A.shape[1], B.shape[1])
    if len(B) >= B.shape[1]:
        return _total(lambda rows: A[rows].T @ B[rows], len(A), max(shape), shape)
    product = np.empty(shape)
    over_rows(lambda columns: np.matmul(A.T, B[:, columns], out=product[:, columns]), *B.T.shape)
    return product


def centred_gram(A: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Return (A - centre)^T (A - centre)."""

    def product(rows: slice) -> np.ndarray:
        centred = A[rows] - centre
        return np.asarray(centred.T @ centred)

    return _total(product, len(A), A.shape[1], (A.shape[1], A.shape[1]))


def distance(A: np.ndarray, B: np.ndarray) -> float:
    """Return |A - B|."""
    return float(np.linalg.norm(over_rows(lambda rows: np.linalg.norm(A[rows] - B[rows]), *A.shape)))
