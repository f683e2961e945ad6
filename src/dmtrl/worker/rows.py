"""Row access for compiled code: one name per operation, whatever the row format.

`row_dot(X, j, u)` and its siblings are chosen by the type of X when a kernel is compiled. X is a C-ordered array or CSR's
(data, indices, indptr).
"""

import numpy as np
from numba import njit, types
from numba.extending import overload

# Sums may be reordered (SIMD); NaN and infinity keep their meaning, unlike under full fastmath.
FAST = {"reassoc", "contract", "nsz", "arcp"}


def row_dot(X, j, u):  # type: ignore[no-untyped-def]
    """x_j . u in the precision of u."""
    raise TypeError("row_dot runs in compiled code only")


def row_axpy(X, j, f, u):  # type: ignore[no-untyped-def]
    """u += f x_j."""
    raise TypeError("row_axpy runs in compiled code only")


def row_outer(X, j, f, H):  # type: ignore[no-untyped-def]
    """Lower triangle of H += f x_j x_j^T."""
    raise TypeError("row_outer runs in compiled code only")


@njit(cache=True, nogil=True)
def count_nonzeros(X, starts, most):  # type: ignore[no-untyped-def]
    """Of up to `most` rows of each unit, spread over it: how many numbers are not zero, and how many there are."""
    used = sampled = 0
    for i in range(starts.shape[0] - 1):
        n = starts[i + 1] - starts[i]
        for k in range(min(n, most)):
            row = X[starts[i] + np.int64(0.6180339887498949 * n * k) % n]
            for c in range(X.shape[1]):
                used += row[c] != 0
            sampled += X.shape[1]
    return used, sampled


@njit(cache=True, nogil=True)
def row_lengths(X, indptr):  # type: ignore[no-untyped-def]
    """The index pointer of dense rows in CSR."""
    indptr[0] = 0
    for j in range(X.shape[0]):
        found = 0
        for c in range(X.shape[1]):
            found += X[j, c] != 0
        indptr[j + 1] = indptr[j] + found


@njit(cache=True, nogil=True)
def pack_rows(X, indptr, data, indices):  # type: ignore[no-untyped-def]
    """Copy the numbers of dense rows that are not zero, and their columns."""
    for j in range(X.shape[0]):
        k = indptr[j]
        for c in range(X.shape[1]):
            if X[j, c] != 0:
                data[k] = X[j, c]
                indices[k] = c
                k += 1


@overload(row_dot, jit_options={"fastmath": FAST})
def _row_dot(X, j, u):  # type: ignore[no-untyped-def]
    if isinstance(X, types.Array):

        def dense(X, j, u):  # type: ignore[no-untyped-def]
            total = u.dtype.type(0)
            for k in range(u.shape[0]):
                total += X[j, k] * u[k]
            return total

        return dense

    def csr(X, j, u):  # type: ignore[no-untyped-def]
        data, indices, indptr = X
        total = u.dtype.type(0)
        for k in range(indptr[j], indptr[j + 1]):
            total += data[k] * u[indices[k]]
        return total

    return csr


@overload(row_axpy, jit_options={"fastmath": FAST})
def _row_axpy(X, j, f, u):  # type: ignore[no-untyped-def]
    if isinstance(X, types.Array):

        def dense(X, j, f, u):  # type: ignore[no-untyped-def]
            factor = u.dtype.type(f)
            for k in range(u.shape[0]):
                u[k] += factor * X[j, k]

        return dense

    def csr(X, j, f, u):  # type: ignore[no-untyped-def]
        data, indices, indptr = X
        factor = u.dtype.type(f)
        for k in range(indptr[j], indptr[j + 1]):
            u[indices[k]] += factor * data[k]

    return csr


@overload(row_outer, jit_options={"fastmath": FAST})
def _row_outer(X, j, f, H):  # type: ignore[no-untyped-def]
    if isinstance(X, types.Array):

        def dense(X, j, f, H):  # type: ignore[no-untyped-def]
            for k in range(H.shape[0]):
                g = f * X[j, k]
                if g != 0:
                    for r in range(k + 1):
                        H[k, r] += g * X[j, r]

        return dense

    def csr(X, j, f, H):  # type: ignore[no-untyped-def]
        data, indices, indptr = X
        for k in range(indptr[j], indptr[j + 1]):
            for r in range(indptr[j], indptr[j + 1]):
                if indices[r] <= indices[k]:
                    H[indices[k], indices[r]] += f * data[k] * data[r]

    return csr


def row_square(X, j, like):  # type: ignore[no-untyped-def]
    """x_j . x_j in the precision of `like`."""
    raise TypeError("row_square runs in compiled code only")


@overload(row_square, jit_options={"fastmath": FAST})
def _row_square(X, j, like):  # type: ignore[no-untyped-def]
    if isinstance(X, types.Array):

        def dense(X, j, like):  # type: ignore[no-untyped-def]
            total = like.dtype.type(0)
            for k in range(X.shape[1]):
                x = like.dtype.type(X[j, k])
                total += x * x
            return total

        return dense

    def csr(X, j, like):  # type: ignore[no-untyped-def]
        data, _, indptr = X
        total = like.dtype.type(0)
        for k in range(indptr[j], indptr[j + 1]):
            x = like.dtype.type(data[k])
            total += x * x
        return total

    return csr
