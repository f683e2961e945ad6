"""The rows and losses of a worker, in the formats that the kernels read, and factors of them that serve many rounds."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import Any, Self

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import Blocks
from dmtrl.losses import AnyLoss, CustomLoss, scalar
from dmtrl.worker import exact, kernels, span
from dmtrl.worker import rows as row_access

_DENSE_FROM = 0.5  # share of chunks that are not all zero, from which on dense rows stay dense
_CHUNK_SAMPLE = 64  # rows of a unit in which chunks are counted
_PRODUCTS_AT_ONCE = 1 << 17  # of rows, in memory
_OF_RESIDUALS = (scalar.SQUARED, scalar.ABSOLUTE, scalar.EPSILON_INSENSITIVE, scalar.HUBER, scalar.QUANTILE)


class LocalRows:
    """The rows and losses of a worker, with what every run needs of them: squared norms and compiled kernels.

    `y` and `offset` are those of the kernels: a loss of y - z takes the offset from the labels, once and for all.
    """

    def __init__(self, blocks: Blocks, losses: Sequence[AnyLoss]):
        self.y, self.offset = _without_offset(blocks, losses)
        self.losses, self.kernels, self._one_copy = losses, _kernels_for(losses), Lock()
        X, self.q = blocks.X, np.empty(len(blocks.y))
        self.blocks, self.chunks_used, self.chunks = blocks, 0, 0
        self._products: span.RowProducts | None = None
        self._origin = self  # holds what does not depend on offsets, for all copies with other ones
        if sparse.issparse(X):
            kernels.squared_norms(csr_arrays(X), self.q)
            return
        kernels.squared_norms(X, self.q)
        if X.shape[1] >= 4 * row_access.CHUNK:
            self.chunks_used, self.chunks = row_access.chunks_in_use(X, blocks.starts, _CHUNK_SAMPLE)

    def with_offset(self, offset: np.ndarray | None) -> Self:
        """The same rows with another offset. Nothing but labels is copied."""
        other = copy(self)
        other._set_offset(offset)
        return other

    def _set_offset(self, offset: np.ndarray | None) -> None:
        self.blocks = replace(self.blocks, offset=offset)
        self.y, self.offset = _without_offset(self.blocks, self.losses)

    def arrays(self, density: float) -> Any:
        """X in the format of the kernels. Dense rows that are mostly zero, as in images, are stored as the chunks that
        are not; `density`, taken over all workers, decides, so that the partition does not."""
        X = self.blocks.X
        if sparse.issparse(X):
            return csr_arrays(X)
        if density > _DENSE_FROM:
            return X
        with self._one_copy:  # workers that share these rows may ask at the same time
            return self._origin._chunked

    def products(self, which: np.ndarray, stored: np.ndarray) -> Iterator[tuple[span.RowProducts, np.ndarray]]:
        """The products of the rows of the units `which`, some units at a time. Those of the units `stored` (a mask) are
        computed once."""
        kept, others = which[stored[which]], which[~stored[which]]
        if len(kept):
            origin = self._origin
            if origin._products is None:
                origin._products = row_products(self.blocks, np.flatnonzero(stored))
            yield origin._products, kept
        sizes = np.cumsum(np.diff(self.blocks.starts)[others] ** 2)
        for part in np.split(others, np.flatnonzero(np.diff(sizes // _PRODUCTS_AT_ONCE)) + 1):
            if len(part):
                yield row_products(self.blocks, part), part

    @cached_property
    def _chunked(self) -> Any:
        return in_chunks(self.blocks.X)

    def numbers_in_row(self, density: float) -> float:
        """How many numbers a pass reads per row, on average."""
        X = self.blocks.X
        if sparse.issparse(X):
            return float(X.nnz / max(X.shape[0], 1))
        return float(X.shape[1] if density > _DENSE_FROM else X.shape[1] * density)

    def numbers_by_unit(self, density: float) -> np.ndarray:
        """How many numbers a row of each unit has, on average, and at least one."""
        X, starts = self.blocks.X, self.blocks.starts
        if not sparse.issparse(X):
            return np.full(self.blocks.n_units, max(self.numbers_in_row(density), 1.0))
        return np.maximum(np.diff(X.indptr[starts]) / np.maximum(np.diff(starts), 1), 1.0)


def _without_offset(blocks: Blocks, losses: Sequence[AnyLoss]) -> tuple[np.ndarray, np.ndarray | None]:
    """Labels, and what is still to be added to scores, if anything is (docs/math.md section 17)."""
    if blocks.offset is None or blocks.offset.ndim > 1:
        return blocks.y, None
    inside = np.repeat(np.isin([loss.id for loss in losses], _OF_RESIDUALS), np.diff(blocks.starts))
    y = blocks.y - np.where(inside, blocks.offset, 0.0)
    return y, None if inside.all() else np.where(inside, 0.0, blocks.offset)


def sum_by_unit(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Each unit's own sum, which does not depend on its neighbours; a unit may be empty."""
    sums = np.empty(len(starts) - 1)
    kernels.sums_by_unit(values, starts, sums)
    return sums


def _kernels_for(losses: Sequence[AnyLoss]) -> Any:
    custom = {loss for loss in losses if isinstance(loss, CustomLoss)}
    if not custom:
        return kernels
    if len(custom) > 1:
        names = ", ".join(sorted(loss.name for loss in custom))
        raise ValueError(f"a problem may use one custom loss beside the built-in ones, got {names}")
    loss = custom.pop()
    return kernels.compiled_for(loss.value, loss.conjugate, loss.step)


def csr_arrays(X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unsigned indices, because signed ones may be negative and compiled code would check."""
    return X.data, X.indices.view(f"u{X.indices.itemsize}"), X.indptr.view(f"u{X.indptr.itemsize}")


def in_chunks(X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n, d = X.shape
    most = n * -(-d // row_access.CHUNK)  # memory that is never written to is never taken
    chunks, columns = np.empty((most, row_access.CHUNK), dtype=X.dtype), np.empty(most, dtype=np.uint32)
    indptr = np.empty(n + 1, dtype=np.int64)
    found = row_access.pack_chunks(X, X.view(f"u{X.itemsize}"), chunks, columns, indptr)
    return chunks[:found], columns[:found], indptr


# Both below give BLAS copies of a unit's arrays: the address of a view depends on the unit's neighbours, and on some
# CPUs the last bits of a product depend on it.


def gram_factors(blocks: Blocks, units: kernels.UnitRows, intercept_step: np.ndarray) -> exact.GramFactors:
    d, n_units = blocks.X.shape[1], blocks.n_units
    values, target, mean = np.zeros((3, n_units, d))
    vectors, (share, label) = np.zeros((n_units, d, d)), np.zeros((2, n_units))
    for i in range(n_units):
        rows = slice(blocks.starts[i], blocks.starts[i + 1])
        X = blocks.X[rows].astype(float)
        p, y = units.p[rows].copy(), units.y[rows].copy()
        weighted = X.multiply(p[:, None]).tocsr() if sparse.issparse(X) else X * p[:, None]
        product, labels = X.T @ weighted, weighted.T @ y
        if sparse.issparse(product):
            product = product.toarray()
        if units.intercept:
            h, label[i], share[i] = X.T @ p, p @ y, 1.0 / (p.sum() + 1.0 / intercept_step[i])
            product -= share[i] * np.outer(h, h)
            labels -= share[i] * label[i] * h
        values[i], basis = np.linalg.eigh(product)
        vectors[i], target[i] = basis, labels @ basis
        if units.intercept:
            mean[i] = h @ basis
    steps = intercept_step.copy() if units.intercept else np.empty(0)
    return exact.GramFactors(np.maximum(values, 0.0), vectors, target, mean, share, label, steps)


def row_products(blocks: Blocks, which: np.ndarray) -> span.RowProducts:
    """x_j . x_k for all rows of each unit in `which`."""
    sizes, start = np.diff(blocks.starts)[which].astype(np.int64) ** 2, np.full(blocks.n_units, -1)
    start[which] = np.cumsum(sizes) - sizes
    K = np.empty(int(sizes.sum()))
    for i, size in zip(which, sizes, strict=True):
        X = blocks.X[blocks.starts[i] : blocks.starts[i + 1]].astype(float)
        product = X @ X.T
        K[start[i] : start[i] + size] = (product.toarray() if sparse.issparse(product) else product).ravel()
    return span.RowProducts(K, start)
