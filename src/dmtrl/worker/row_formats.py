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


def pack_csr(X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Dense rows as CSR arrays."""
    index = np.uint32 if X.size < 1 << 32 else np.uint64
    indptr = np.empty(X.shape[0] + 1, dtype=index)
    row_access.row_lengths(X, indptr)
    data, indices = np.empty(int(indptr[-1]), dtype=X.dtype), np.empty(int(indptr[-1]), dtype=index)
    row_access.pack_rows(X, indptr, data, indices)
    return data, indices, indptr


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
