"""Compiled local solvers that solve the local problem (6) exactly: Newton, and one linear solve for squared loss."""

from typing import NamedTuple

import numpy as np
from numba import njit

from dmtrl.losses import scalar
from dmtrl.losses.scalar import TINY, loss_curvature, loss_slope, loss_value
from dmtrl.numerics.compile_cache import discard_stale
from dmtrl.worker import rows
from dmtrl.worker.rows import row_axpy, row_dot, row_outer

discard_stale(__file__, scalar.__file__, rows.__file__)


class GramFactors(NamedTuple):
    """Eigen-decomposition of sum_j p_j x_j x_j^T of each unit and sum_j p_j y_j x_j in its basis (quadratic loss
    only).
    """

    values: np.ndarray
    vectors: np.ndarray
    target: np.ndarray


@njit(cache=True, nogil=True)
def _solve_lower(H, g):  # type: ignore[no-untyped-def]
    """Overwrite g with H^-1 g; H is positive definite and only its lower triangle is read (it becomes its Cholesky
    factor).
    """
    d = g.shape[0]
    for k in range(d):
        for i in range(k + 1):
            total = H[k, i]
            for r in range(i):
                total -= H[k, r] * H[i, r]
            H[k, i] = np.sqrt(max(total, TINY)) if k == i else total / H[i, i]
    for k in range(d):
        for r in range(k):
            g[k] -= H[k, r] * g[r]
        g[k] /= H[k, k]
    for k in range(d - 1, -1, -1):
        for r in range(k + 1, d):
            g[k] -= H[r, k] * g[r]
        g[k] /= H[k, k]


@njit(cache=True, nogil=True)
def newton_unit(units, i, alpha, u, c, s, iterations):  # type: ignore[no-untyped-def]
    """Newton with line search on the primal form (6): min f_i(u) + |u - c|^2 / (2 s), then alpha = -l'(z).

    Returns the number of steps, negative if they did not suffice.
    """
    first, last = units.starts[i], units.starts[i + 1]
    loss, param = units.loss[i], units.param[i]
    d = u.shape[0]
    H = np.empty((d, d))
    z = np.empty(last - first)
    along = np.empty(last - first)
    gradient = np.empty(d)
    for j in range(first, last):
        z[j - first] = row_dot(units.X, j, u)
    taken, near = 0, False
    while taken < iterations and not near:
        taken += 1
        H[:] = 0.0
        gradient[:] = (u - c) / s
        for j in range(first, last):
            if units.p[j] > 0:
                alpha[j] = loss_slope(loss, param, z[j - first], units.y[j])
                row_axpy(units.X, j, -units.p[j] * alpha[j], gradient)
        size = np.dot(gradient, gradient)
        # The server works with c + s b, which lies s |gradient| away from u; below the rounding of the gradient's own
        # terms nothing is left to gain.
        near = s * s * size <= 1e-20 * (np.dot(u, u) + np.dot(c, c)) or size <= 1e-28 * (1.0 + np.dot(u, u) / (s * s))
        if near:
            break
        for j in range(first, last):
            curvature = units.p[j] * loss_curvature(loss, param, z[j - first], units.y[j])
            if curvature > 0:
                row_outer(units.X, j, curvature, H)
        for k in range(d):
            H[k, k] += 1.0 / s
        direction = -gradient
        _solve_lower(H, direction)
        descent = np.dot(gradient, direction)
        now = 0.0
        for j in range(first, last):
            along[j - first] = row_dot(units.X, j, direction)
            if units.p[j] > 0:
                now += units.p[j] * loss_value(loss, param, z[j - first], units.y[j])
        away = np.dot(u - c, u - c)
        cross = np.dot(u - c, direction)
        length = np.dot(direction, direction)
        t = 1.0
        for _ in range(40):
            change = 0.5 * (2 * t * cross + t * t * length) / s - now
            for j in range(first, last):
                if units.p[j] > 0:
                    change += units.p[j] * loss_value(loss, param, z[j - first] + t * along[j - first], units.y[j])
            if change <= 1e-4 * t * descent + 1e-15 * (abs(now) + away / s):
                break
            t *= 0.5
        u += t * direction
        for j in range(last - first):
            z[j] += t * along[j]
    return taken if near else -taken


@njit(cache=True, nogil=True)
def gram_unit(units, i, alpha, u, c, s, gram):  # type: ignore[no-untyped-def]
    """The exact solution of (6) for squared loss, from the unit's eigen-decomposition."""
    V = gram.vectors[i]
    coordinates = np.dot(c, V)
    for k in range(u.shape[0]):
        coordinates[k] = (gram.target[i, k] + coordinates[k] / s) / (gram.values[i, k] + 1.0 / s)
    u[:] = np.dot(V, coordinates)
    for j in range(units.starts[i], units.starts[i + 1]):
        alpha[j] = units.y[j] - row_dot(units.X, j, u)
