"""Fast singular values: from the Gram matrix of the shorter side, or from a QR where full accuracy is needed.

The Gram matrix loses singular values below 1e-8 of the largest; the triangular factor of a QR keeps all of them. Both
are several times faster than the SVD of a long matrix.
"""

import numpy as np

from dmtrl.numerics.rowwise import centred_gram, gram

ENOUGH = 1e-4  # of the largest singular value; down to here the Gram matrix has an error of 1e-12 of the largest
_AT_ONCE = 1 << 21  # numbers of a matrix that is factored whole


def largest_singular_value(V: np.ndarray) -> float:
    if V.size == 0:
        return 0.0
    return float(np.sqrt(max(np.linalg.eigvalsh(_gram(V))[-1], 0.0)))


def nuclear_norm(V: np.ndarray, centre: np.ndarray | None = None, slack: float = 0.0) -> float:
    """Return the sum of the singular values of V - centre, or an upper bound that is at most `slack` (relative) above.

    Where the Gram matrix does not resolve the small ones, those of V on the span of their singular vectors are taken.
    """
    if V.size == 0:
        return 0.0
    if centre is not None and V.shape[0] <= V.shape[1]:
        return nuclear_norm(V - centre, slack=slack)
    G = _gram(V) if centre is None else centred_gram(V, centre)
    squares = np.linalg.eigvalsh(G)
    total, error = _sum_of_roots(squares)
    if error <= slack * total:
        return total + error
    if centre is not None:
        return total if squares[0] > ENOUGH**2 * squares[-1] else nuclear_norm(V - centre, slack=slack)
    s, vectors = from_gram(G)
    clear = s > ENOUGH * s[0]
    total = float(s[clear].sum())
    if clear.all() or s[0] == 0:
        return total
    side = V.T if V.shape[0] <= V.shape[1] else V
    rest = side @ vectors[:, ~clear]
    return total + (nuclear_norm(rest, slack=slack) if clear.any() and np.abs(rest).max() > 1e-12 * s[0] else 0.0)


def _sum_of_roots(squares: np.ndarray) -> tuple[float, float]:
    """Return the sum of the singular values from the eigenvalues of a Gram matrix, and a bound on its error."""
    off = len(squares) * np.finfo(float).eps * max(float(squares[-1]), 0.0)  # error of an eigenvalue
    roots, above = np.sqrt(np.maximum(squares, 0.0)), np.sqrt(np.maximum(squares, 0.0) + off)
    return float(roots.sum()), float((above - roots).sum())


def short_side(V: np.ndarray, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return singular values in descending order, and the singular vectors of the shorter side as columns.

    These are the left ones if V is wide, the right ones if it is tall. Without `exact`, only singular values above
    ENOUGH times the largest are reliable.
    """
    if not exact:
        return from_gram(_gram(V))
    long = max(V.shape) > 1.5 * min(V.shape)
    left, s, right = np.linalg.svd(_triangle(V) if long else V, full_matrices=False)
    return s, left if not long and V.shape[0] <= V.shape[1] else right.T


def from_gram(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return singular values in descending order, and singular vectors, from the Gram matrix."""
    values, vectors = np.linalg.eigh(G)
    return np.sqrt(np.maximum(values[::-1], 0.0)), vectors[:, ::-1]


def shrink(s: np.ndarray, t: float) -> np.ndarray:
    """Return the positive singular values of the proximal point of t times half the squared nuclear norm (18)."""
    sizes = np.cumsum(s) / (1.0 + t * np.arange(1, len(s) + 1))
    active = np.flatnonzero(s > t * sizes)
    if len(active) == 0:
        return s[:0]
    rank = active[-1] + 1
    kept: np.ndarray = s[:rank] - t * sizes[rank - 1]
    return kept


def _triangle(V: np.ndarray) -> np.ndarray:
    """Return a square matrix with the singular values of V and the singular vectors of its shorter side.

    Large matrices are taken some rows at a time, because LAPACK works on copies.
    """
    V = V if V.shape[0] >= V.shape[1] else V.T
    n, d = V.shape
    size = max(4 * d, _AT_ONCE // d)
    R = np.linalg.qr(V[:size], mode="r")
    for first in range(size, n, size):
        R = np.linalg.qr(np.concatenate([R, V[first : first + size]]), mode="r")
    return np.asarray(R)


def _gram(V: np.ndarray) -> np.ndarray:
    return gram(V.T if V.shape[0] <= V.shape[1] else V)
