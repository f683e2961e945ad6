"""The proximal map of half the squared nuclear norm."""

import numpy as np

from dmtrl.numerics.rowwise import over_rows
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.relationship.spectrum import ENOUGH, short_side, shrink


def nuclear_prox(V: np.ndarray, t: float, out: np.ndarray | None = None) -> tuple[np.ndarray, TaskCovariance, float]:
    """Return W = argmin |W - V|^2 / 2 + t |W|_*^2 / 2 (18), Sigma, and the nuclear norm of W.

    W is written into `out` if given, which may be V.
    """
    W = np.empty(V.shape) if out is None else out
    s, vectors = short_side(V)
    shrunk = shrink(s, t)
    rank = len(shrunk)
    if rank == 0:
        W[:] = 0.0
        return W, TaskCovariance.identity(len(V)), 0.0
    # The Gram matrix does not resolve singular values this small.
    if min(s[rank - 1], t * shrunk.sum()) < ENOUGH * s[0]:
        s, vectors = short_side(V, exact=True)
        shrunk = shrink(s, t)
        rank = len(shrunk)
    s, vectors, size = s[:rank], vectors[:, :rank], float(shrunk.sum())
    if V.shape[0] <= V.shape[1]:
        left, factor = vectors, (vectors * (shrunk / s)) @ vectors.T

        def shrink_columns(columns: slice) -> None:
            W[:, columns] = factor @ V[:, columns]

        over_rows(shrink_columns, *V.T.shape)
    else:
        left, inward, outward = np.empty((len(V), rank)), vectors / s, (vectors * shrunk).T

        def shrink_rows(rows: slice) -> None:
            np.matmul(V[rows], inward, out=left[rows])
            np.matmul(left[rows], outward, out=W[rows])

        over_rows(shrink_rows, *V.shape)
    return W, TaskCovariance(left, shrunk / size, 0.0), size
