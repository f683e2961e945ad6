"""The local problem of a loss with kinks, in the span of the rows: a quadratic program in a box.

With a_j = p_j alpha_j and A = s K + s0 1 1^T the dual of (6) is to minimise a^T A a / 2 + r . a + sum p l*(-alpha), and
for these losses l*(-alpha) is linear on intervals. An iteration is a pass of coordinate steps (5), which finds the rows
at an end of their interval, and a Newton step on the others.
"""

from typing import NamedTuple

import numpy as np

from dmtrl.losses import scalar
from dmtrl.losses.scalar import EPSILON_INSENSITIVE, HINGE, QUANTILE, loss_bracket, loss_step
from dmtrl.numerics.compile_cache import INNER, INNER_FAST, discard_stale, njit
from dmtrl.worker import exact
from dmtrl.worker.exact import solve_lower

discard_stale(__file__, scalar.__file__, exact.__file__)

_ITERATIONS = 10  # few suffice unless more rows than features lie on the kink of their loss
_DAMPING = 1e-11  # of the diagonal: A may be singular, and then a step along its kernel ends at the box


class SpanWork(NamedTuple):
    """Memory for one unit at a time, for this file and span.py, which imports it."""

    M: np.ndarray
    rows: np.ndarray  # that enter the linear system
    a: np.ndarray
    z: np.ndarray
    g: np.ndarray
    low: np.ndarray
    high: np.ndarray
    direction: np.ndarray
    move: np.ndarray
    along: np.ndarray
    root: np.ndarray
    inner: np.ndarray


def span_work(longest: int) -> SpanWork:
    """For units of at most `longest` rows."""
    return SpanWork(np.empty((longest, longest)), np.empty(longest, dtype=np.int64), *np.empty((10, longest)))


@njit(**INNER)
def _interval(loss, param, alpha, y, g):  # type: ignore[no-untyped-def]
    """The interval around alpha on which l*(-alpha) + alpha y is linear, and its slope there; g = z - y."""
    if loss == HINGE:
        return (0.0, 1.0, 0.0) if y > 0 else (-1.0, 0.0, 0.0)
    if loss == QUANTILE:
        return param - 1.0, param, 0.0
    if loss != EPSILON_INSENSITIVE:
        return -1.0, 1.0, 0.0
    if alpha > 0 or (alpha == 0 and g < -param):
        return 0.0, 1.0, param
    if alpha < 0 or (alpha == 0 and g > param):
        return -1.0, 0.0, -param
    return 0.0, 0.0, 0.0


@njit(**INNER_FAST)
def _scores(labels, i, K, n, r, s, s0, alpha, a, z):  # type: ignore[no-untyped-def]
    """z = r + A a for a = p alpha."""
    first, total = labels.starts[i], 0.0
    for j in range(n):
        a[j] = labels.p[first + j] * alpha[j]
    for j in range(n):
        total += a[j]
    for j in range(n):
        product = 0.0
        for k in range(n):
            product += K[j, k] * a[k]
        z[j] = r[j] + s * product + s0 * total


@njit(**INNER_FAST)
def _pass(labels, i, K, n, s, s0, alpha, z):  # type: ignore[no-untyped-def]
    """A pass of coordinate steps; z follows alpha."""
    first, loss, param = labels.starts[i], labels.loss[i], labels.param[i]
    for j in range(n):
        p = labels.p[first + j]
        if p > 0:
            new = loss_step(loss, param, alpha[j], z[j], labels.y[first + j], p * (s * K[j, j] + s0))
            move = p * (new - alpha[j])
            if move != 0:
                alpha[j] = new
                for k in range(n):
                    z[k] += move * (s * K[j, k] + s0)


@njit(**INNER_FAST)
def _along(K, n, s, s0, free, size, move, along):  # type: ignore[no-untyped-def]
    """along = A move, for a move of the rows `free`."""
    total = 0.0
    for k in range(size):
        total += move[k]
    for j in range(n):
        along[j] = s0 * total
    for k in range(size):
        row, f = K[free[k]], s * move[k]
        for j in range(n):
            along[j] += f * row[j]


@njit(**INNER)
def _newton_step(labels, i, K, n, s, s0, alpha, work):  # type: ignore[no-untyped-def]
    """A projected Newton step on the rows inside their intervals. Returns whether it lowered the objective."""
    first, loss, param = labels.starts[i], labels.loss[i], labels.param[i]
    M, z, g, free, low, high = work.M, work.z, work.g, work.rows, work.low, work.high
    direction, move, along = work.direction, work.move, work.along
    size, largest = 0, 0.0
    for j in range(n):
        p, y = labels.p[first + j], labels.y[first + j]
        if p <= 0:
            continue
        below, above, slope = _interval(loss, param, alpha[j], y, z[j] - y)
        slope += z[j] - y
        if below < alpha[j] < above or (below < above and (slope < 0 if alpha[j] == below else slope > 0)):
            free[size], g[size] = j, slope
            low[size], high[size] = below, above
            direction[size] = -slope
            largest = max(largest, s * K[j, j] + s0)
            size += 1
    if size == 0:
        return False
    for k in range(size):
        for m in range(k + 1):
            M[k, m] = s * K[free[k], free[m]] + s0
        M[k, k] += _DAMPING * largest
    solve_lower(M, direction, size)
    t = 1.0
    for _ in range(12):
        descent = 0.0
        for k in range(size):
            p, now = labels.p[first + free[k]], alpha[free[k]]
            move[k] = min(max(t * direction[k], p * (low[k] - now)), p * (high[k] - now))
            descent += g[k] * move[k]
        if descent < 0:
            _along(K, n, s, s0, free, size, move, along)
            curvature = 0.0
            for k in range(size):
                curvature += move[k] * along[free[k]]
            if descent + 0.5 * curvature <= 1e-4 * descent:
                for k in range(size):
                    p, now = labels.p[first + free[k]], alpha[free[k]]
                    if move[k] <= p * (low[k] - now):  # exactly at the end, which now + move / p may miss
                        alpha[free[k]] = low[k]
                    elif move[k] >= p * (high[k] - now):
                        alpha[free[k]] = high[k]
                    else:
                        alpha[free[k]] = now + move[k] / p
                return True
        t *= 0.4
    return False


@njit(**INNER)
def box_unit(labels, i, enough, K, n, r, s, s0, alpha, work):  # type: ignore[no-untyped-def]
    """Improve alpha until the local gap (7) is at most `enough`. Returns the number of iterations, and whether
    they sufficed."""
    first, loss, param = labels.starts[i], labels.loss[i], labels.param[i]
    for taken in range(_ITERATIONS):
        _scores(labels, i, K, n, r, s, s0, alpha, work.a, work.z)
        gap = 0.0
        for j in range(n):
            p = labels.p[first + j]
            if p > 0:
                gap += p * loss_bracket(loss, param, alpha[j], work.z[j], labels.y[first + j])
        if gap <= enough:
            return taken, True
        _pass(labels, i, K, n, s, s0, alpha, work.z)
        _newton_step(labels, i, K, n, s, s0, alpha, work)
    return _ITERATIONS, False
