"""Singular values the quick way: from the Gram matrix of the shorter side, or where that loses digits from a QR.

Room: below relationship. Squaring a matrix loses what is below 1e-8 of its largest singular value, so the Gram route
serves where only larger ones are asked for; the triangular factor of a QR has all of them to full accuracy, and both
are several times faster than the SVD of a long matrix.
"""

import numpy as np

from dmtrl.numerics.rowwise import centred_gram, gram

ENOUGH = 1e-4  # of the largest singular value: down to here the Gram matrix is off by 1e-12 of the largest


def largest_singular_value(V: np.ndarray) -> float:
    if V.size == 0:
        return 0.0
    return float(np.sqrt(max(np.linalg.eigvalsh(_gram(V))[-1], 0.0)))


def singular_values(V: np.ndarray) -> np.ndarray:
    """All of them, falling, to full accuracy."""
    return np.linalg.svd(_triangle(V) if _is_long(V) else V, compute_uv=False)


def nuclear_norm(V: np.ndarray, centre: np.ndarray | None = None) -> float:
    """The sum of the singular values of V (- centre); a QR only where the Gram matrix cannot tell the small ones."""
    if V.size == 0:
        return 0.0
    if centre is not None and V.shape[0] <= V.shape[1]:
        return nuclear_norm(V - centre)
    squares = np.linalg.eigvalsh(_gram(V) if centre is None else centred_gram(V, centre))
    if squares[0] > ENOUGH**2 * squares[-1]:
        return float(np.sqrt(squares).sum())
    return float(singular_values(V if centre is None else V - centre).sum())


def short_side(V: np.ndarray, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Singular values, falling, and the singular vectors of the shorter side as columns: the left ones where V is
    wide, the right ones where it is tall. Without `exact`, only what is above ENOUGH times the largest is to be used.
    """
    if exact:
        left, s, right = np.linalg.svd(_triangle(V) if _is_long(V) else V, full_matrices=False)
        if not _is_long(V):
            return s, left if V.shape[0] <= V.shape[1] else right.T
        return s, right.T
    return from_gram(_gram(V))


def from_gram(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Singular values, falling, and singular vectors of a matrix with this Gram matrix."""
    values, vectors = np.linalg.eigh(G)
    return np.sqrt(np.maximum(values[::-1], 0.0)), vectors[:, ::-1]


def _is_long(V: np.ndarray) -> bool:
    return max(V.shape) > 1.5 * min(V.shape)


def _triangle(V: np.ndarray) -> np.ndarray:
    """A square matrix with the singular values of V and, on the right, the singular vectors of its shorter side."""
    return np.asarray(np.linalg.qr(V if V.shape[0] >= V.shape[1] else V.T, mode="r"))


def _gram(V: np.ndarray) -> np.ndarray:
    return gram(V.T if V.shape[0] <= V.shape[1] else V)
