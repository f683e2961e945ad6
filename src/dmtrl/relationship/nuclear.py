"""The proximal map of half the squared nuclear norm, with and without a common component."""

import numpy as np

from dmtrl.numerics.rowwise import centred_gram, over_rows
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.relationship.spectrum import ENOUGH, from_gram, short_side

_CLOSE_ENOUGH = 0.1  # of the first move, where the start is a solution for nearly the same V


def nuclear_prox(
    V: np.ndarray, t: float, centre: np.ndarray | None = None, out: np.ndarray | None = None
) -> tuple[np.ndarray, TaskCovariance, float]:
    """Return W = argmin |W - V|^2 / 2 + t |W - centre|_*^2 / 2 (18), Sigma, and the nuclear norm of W - centre.

    W is written into `out` if given, which may be V.
    """
    if centre is not None and V.shape[0] <= V.shape[1]:
        away = np.subtract(V, centre, out=out)
        W, covariance, size = nuclear_prox(away, t, out=away)
        W += centre
        return W, covariance, size
    W = np.empty(V.shape) if out is None else out
    s, vectors = short_side(V) if centre is None else from_gram(centred_gram(V, centre))
    shrunk = _shrink(s, t)
    rank = len(shrunk)
    if rank == 0:
        W[:] = 0.0 if centre is None else centre
        return W, TaskCovariance.identity(len(V)), 0.0
    # The Gram matrix does not resolve singular values this small.
    if min(s[rank - 1], t * shrunk.sum()) < ENOUGH * s[0]:
        s, vectors = short_side(V if centre is None else V - centre, exact=True)
        shrunk = _shrink(s, t)
        rank = len(shrunk)
    s, vectors, size = s[:rank], vectors[:, :rank], float(shrunk.sum())
    if V.shape[0] <= V.shape[1]:
        left, outward = vectors, vectors * (shrunk / s)

        def shrink_columns(columns: slice) -> None:
            np.matmul(outward, vectors.T @ V[:, columns], out=W[:, columns])

        over_rows(shrink_columns, *V.T.shape)
    else:
        left, inward, outward = np.empty((len(V), rank)), vectors / s, (vectors * shrunk).T

        def shrink_rows(rows: slice) -> None:  # in blocks: avoids a centred copy of V
            np.matmul(V[rows] if centre is None else V[rows] - centre, inward, out=left[rows])
            np.matmul(left[rows], outward, out=W[rows])
            if centre is not None:
                W[rows] += centre

        over_rows(shrink_rows, *V.shape)
    return W, TaskCovariance(left, shrunk / size, 0.0), size


def common_component(V: np.ndarray, t: float, weight: float, w0: np.ndarray) -> np.ndarray:
    """Return the fixed point w_0 of (24), by safeguarded Anderson acceleration from the given start.

    The rows of V - mean sum to zero, so (V - w_0)^T (V - w_0) is their Gram matrix plus m (mean - w_0)(mean - w_0)^T:
    V is read once, and an iteration costs one eigendecomposition of a d x d matrix. A plain iteration minimises over W
    and w_0 in turn and never increases the objective; an extrapolation that does is dropped.

    A start other than zero comes from the round before. Then the error falls with the distance between the rounds, and
    a tenth of it is enough: more iterations do not save rounds.
    """
    m, mean, share = len(V), V.mean(axis=0), _CLOSE_ENOUGH if w0.any() else 0.0
    spread = centred_gram(V, mean)
    points: list[np.ndarray] = []
    moves: list[np.ndarray] = []
    last, lowest, after_lowest = np.inf, np.inf, w0
    for left in range(20, -1, -1):  # the next round starts from this w_0, so nearly exact is enough
        away = mean - w0
        s, vectors = from_gram(spread + m * np.outer(away, away))
        shrunk = _shrink(s, t)
        kept, removed = vectors[:, : len(shrunk)], s.copy()
        removed[: len(shrunk)] -= shrunk
        value = 0.5 * (float(removed @ removed) + t * float(shrunk.sum()) ** 2 + (weight - m) * float(w0 @ w0))
        image = m * (mean - kept @ ((away @ kept) * shrunk / s[: len(shrunk)])) / weight
        if value > lowest * (1.0 + 1e-9):
            points, moves, last, w0 = [], [], np.inf, after_lowest
            continue
        lowest, after_lowest = value, image
        move = image - w0
        length = float(np.linalg.norm(move))
        if not moves:
            first = length
        if left == 0 or length <= max(1e-6 * (float(np.linalg.norm(image)) + 1e-300), share * first):
            return image
        if length > 2 * last:  # the extrapolation overshot: restart it
            points, moves = [], []
        last = length
        points, moves = [*points[-5:], w0], [*moves[-5:], move]
        w0 = image
        if len(moves) > 1:
            differences = np.diff(np.array(moves), axis=0).T
            mix = np.linalg.lstsq(differences, move, rcond=1e-10)[0]
            w0 = image - (np.diff(np.array(points), axis=0).T + differences) @ mix
    return after_lowest


def _shrink(s: np.ndarray, t: float) -> np.ndarray:
    """Return the positive singular values of the proximal point."""
    sizes = np.cumsum(s) / (1.0 + t * np.arange(1, len(s) + 1))
    active = np.flatnonzero(s > t * sizes)
    if len(active) == 0:
        return s[:0]
    rank = active[-1] + 1
    kept: np.ndarray = s[:rank] - t * sizes[rank - 1]
    return kept
