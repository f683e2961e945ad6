"""Compiled local solvers that solve the local problem (6) exactly: Newton, and one linear solve for squared loss."""

from typing import NamedTuple

import numpy as np

from dmtrl.losses import scalar
from dmtrl.losses.scalar import TINY, loss_curvature, loss_slope, loss_value
from dmtrl.numerics.compile_cache import INNER, INNER_FAST, KERNEL, KERNEL_FAST, discard_stale, njit
from dmtrl.worker import kernels, rows
from dmtrl.worker.kernels import add_row, finish_unit, product, score, start_unit
from dmtrl.worker.rows import row_outer

discard_stale(__file__, scalar.__file__, rows.__file__, kernels.__file__)

_STEPS = 60


class GramFactors(NamedTuple):
    """Eigen-decomposition of G = sum_j p_j x_j x_j^T of each unit and g = sum_j p_j y_j x_j in its basis, for squared
    loss.

    With an intercept, which is eliminated (docs/math.md section 10): of G - k h h^T and g - k h sum_j p_j y_j, where
    h = sum_j p_j x_j and k = 1 / (sum_j p_j + 1 / s_0).
    """

    values: np.ndarray
    vectors: np.ndarray
    target: np.ndarray
    mean: np.ndarray  # h in the basis
    share: np.ndarray  # k
    label: np.ndarray  # sum_j p_j y_j
    intercept_step: np.ndarray  # s_0 of each unit; empty without an intercept


class NewtonWork(NamedTuple):
    """Memory for one unit at a time."""

    H: np.ndarray
    gradient: np.ndarray
    direction: np.ndarray
    step: np.ndarray  # of each feature, and of the intercept
    off: np.ndarray  # (u - c) / step
    z: np.ndarray
    along: np.ndarray  # the change of z along the direction
    before: np.ndarray  # alpha


def newton_work(d: int, longest: int) -> NewtonWork:
    return NewtonWork(np.empty((d, d)), *np.empty((4, d)), *np.empty((3, longest)))


@njit(**INNER_FAST)
def dot(a, b, n):  # type: ignore[no-untyped-def]
    """The dot product of the first n numbers of two vectors."""
    total = 0.0
    for k in range(n):
        total += a[k] * b[k]
    return total


@njit(**INNER_FAST)
def solve_lower(H, g, d):  # type: ignore[no-untyped-def]
    """Overwrite the first d numbers of g with H^-1 g. H is positive definite and only the lower triangle of its first d
    rows is read; it becomes its Cholesky factor. Each sum grows in a variable, not in g: see numerics.compile_cache.
    """
    for k in range(d):
        for i in range(k + 1):
            total = H[k, i]
            for r in range(i):
                total -= H[k, r] * H[i, r]
            H[k, i] = np.sqrt(max(total, TINY)) if k == i else total / H[i, i]
    for k in range(d):
        total = g[k]
        for r in range(k):
            total -= H[k, r] * g[r]
        g[k] = total / H[k, k]
    for k in range(d - 1, -1, -1):
        total = g[k]
        for r in range(k + 1, d):
            total -= H[r, k] * g[r]
        g[k] = total / H[k, k]


@njit(**INNER, inline="always")
def _newton_unit(units, i, alpha, u, c, s, s0, work):  # type: ignore[no-untyped-def]
    """Newton with line search on the primal form (6): min f_i(u) + |u - c|^2 / (2 s), then alpha = -l'(z).

    Returns the number of steps, negative if they did not suffice.
    """
    first, last = units.starts[i], units.starts[i + 1]
    loss, param = units.loss[i], units.param[i]
    d = u.shape[0]
    H, gradient, direction, step, off = work.H, work.gradient, work.direction, work.step, work.off
    z, along = work.z, work.along
    for j in range(first, last):
        z[j - first] = score(units, j, u)
    for taken in range(1, _STEPS + 1):
        for k in range(d):
            step[k] = s0 if units.intercept and k == d - 1 else s
            off[k] = (u[k] - c[k]) / step[k]
            gradient[k] = off[k]
        for j in range(first, last):
            if units.p[j] > 0:
                alpha[j] = loss_slope(loss, param, z[j - first], units.y[j])
                f = -units.p[j] * alpha[j]
                add_row(units, j, f, f, gradient)
        size, size_u, moved = dot(gradient, gradient, d), dot(u, u, d), 0.0
        for k in range(d):
            moved += (step[k] * gradient[k]) ** 2
        # The coordinator works with c + s b, which lies s |gradient| away from u; below the rounding of the gradient's
        # own terms nothing is left to gain.
        if moved <= 1e-20 * (size_u + dot(c, c, d)) or size <= 1e-28 * (1.0 + size_u / (s * s)):
            return taken
        for k in range(d):
            direction[k] = -gradient[k]
            for r in range(k):
                H[k, r] = 0.0
            H[k, k] = 0.0
        for j in range(first, last):
            curvature = units.p[j] * loss_curvature(loss, param, z[j - first], units.y[j])
            if curvature > 0:
                row_outer(units.X, j, curvature, H)
                if units.intercept:
                    add_row(units, j, curvature, curvature, H[d - 1])
        for k in range(d):
            H[k, k] += 1.0 / step[k]
        solve_lower(H, direction, d)
        descent = dot(gradient, direction, d)
        now = 0.0
        for j in range(first, last):
            along[j - first] = product(units, j, direction)
            if units.p[j] > 0:
                now += units.p[j] * loss_value(loss, param, z[j - first], units.y[j])
        away = length = 0.0
        for k in range(d):
            away += step[k] * off[k] ** 2
            length += direction[k] ** 2 / step[k]
        cross = dot(off, direction, d)
        t = 1.0
        for _ in range(40):
            change = 0.5 * (2 * t * cross + t * t * length) - now
            for j in range(first, last):
                if units.p[j] > 0:
                    change += units.p[j] * loss_value(loss, param, z[j - first] + t * along[j - first], units.y[j])
            if change <= 1e-4 * t * descent + 1e-15 * (abs(now) + away):
                break
            t *= 0.5
        for k in range(d):
            u[k] += t * direction[k]
        for j in range(last - first):
            z[j] += t * along[j]
    return -taken


@njit(**KERNEL)
def newton_round(units, duals, order, which, work, out):  # type: ignore[no-untyped-def]
    """A round of Newton steps for the units `which`, as the rounds in kernels.py.

    Where they did not suffice, alpha is as before and the steps in `out` are negative: coordinate ascent, which never
    makes the dual worse, must take over.
    """
    for i in which:
        alpha, first, last = duals.alpha, units.starts[i], units.starts[i + 1]
        start_unit(units, duals, order, i, order.evaluate_w, out)
        if order.step[i] > 0:
            for j in range(first, last):
                work.before[j - first] = alpha[j]
            s, s0 = order.step[i], order.intercept_step[i]
            out[i, 4] = _newton_unit(units, i, alpha, duals.U[i], order.C[i], s, s0, work)
            if out[i, 4] < 0:
                for j in range(first, last):
                    alpha[j] = work.before[j - first]
                continue
        finish_unit(units, duals, order, i, out)


@njit(**INNER, inline="always")
def _gram_unit(units, i, alpha, u, c, s, s0, gram, coordinates):  # type: ignore[no-untyped-def]
    """The exact solution of (6) for squared loss, from the unit's eigen-decomposition."""
    V, d = gram.vectors[i], gram.vectors.shape[1]
    for k in range(d):
        coordinates[k] = 0.0
    for r in range(d):
        for k in range(d):
            coordinates[k] += c[r] * V[r, k]
    pull = gram.share[i] * c[d] / s0 if units.intercept else 0.0
    for k in range(d):
        target = gram.target[i, k] - pull * gram.mean[i, k]
        coordinates[k] = (target + coordinates[k] / s) / (gram.values[i, k] + 1.0 / s)
    for r in range(d):
        u[r] = dot(V[r], coordinates, d)
    if units.intercept:
        u[d] = gram.share[i] * (gram.label[i] - dot(gram.mean[i], coordinates, d)) + pull
    for j in range(units.starts[i], units.starts[i + 1]):
        alpha[j] = units.y[j] - score(units, j, u)


@njit(**KERNEL_FAST)
def gram_round(units, duals, order, which, gram, coordinates, out):  # type: ignore[no-untyped-def]
    """A round of exact solutions for the units `which`, all with squared loss, as the rounds in kernels.py."""
    for i in which:
        start_unit(units, duals, order, i, order.evaluate_w, out)
        if order.step[i] > 0:
            s, s0 = order.step[i], order.intercept_step[i]
            _gram_unit(units, i, duals.alpha, duals.U[i], order.C[i], s, s0, gram, coordinates)
            out[i, 4] = 1.0
        finish_unit(units, duals, order, i, out)
