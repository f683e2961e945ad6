"""Rows in the formats that the kernels read, and factors of them that serve many rounds."""

from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import Blocks
from dmtrl.worker import exact, kernels
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


def gram_factors(blocks: Blocks, units: kernels.UnitRows) -> exact.GramFactors:
    d, n_units = blocks.X.shape[1], blocks.n_units
    values, vectors, target = np.zeros((n_units, d)), np.zeros((n_units, d, d)), np.zeros((n_units, d))
    for i in range(n_units):
        rows = slice(blocks.starts[i], blocks.starts[i + 1])
        X = blocks.X[rows].astype(float)
        p, y = units.p[rows], units.y[rows]
        weighted = X.multiply(p[:, None]).tocsr() if sparse.issparse(X) else X * p[:, None]
        product = X.T @ weighted
        values[i], vectors[i] = np.linalg.eigh(product.toarray() if sparse.issparse(product) else product)
        target[i] = (weighted.T @ y) @ vectors[i]
    return exact.GramFactors(np.maximum(values, 0.0), vectors, target)
