"""Rows in the formats that the kernels read, and factors of them that serve many rounds."""

from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import Blocks
from dmtrl.worker import exact, kernels, span
from dmtrl.worker import rows as row_access


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
