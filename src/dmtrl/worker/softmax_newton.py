"""Newton's method for the local problem (6) of a unit with the softmax loss, where it has few weights."""

from typing import NamedTuple

import numpy as np

from dmtrl.losses import vector
from dmtrl.losses.vector import softmax_chances
from dmtrl.numerics.compile_cache import INNER, KERNEL, discard_stale, njit
from dmtrl.worker import exact, kernels, rows, softmax_ascent
from dmtrl.worker.exact import solve_lower
from dmtrl.worker.rows import row_axpy, row_outer
from dmtrl.worker.softmax_ascent import add_row, finish_unit, products, scores, start_unit

discard_stale(__file__, vector.__file__, rows.__file__, kernels.__file__, exact.__file__, softmax_ascent.__file__)

_STEPS = 60


class NewtonWork(NamedTuple):
    """Memory for one unit at a time. In H and `direction` an intercept follows the features of its class."""

    H: np.ndarray
    blocks: np.ndarray  # sum_j f_j x_j x_j^T for each pair of classes; lower triangles
    direction: np.ndarray
    gradient: np.ndarray
    along: np.ndarray
    step: np.ndarray
    z: np.ndarray  # (rows, k)
    change: np.ndarray  # of z along the direction
    chance: np.ndarray
    moved: np.ndarray
    before: np.ndarray  # alpha


def newton_work(k: int, d: int, intercept: bool, longest: int) -> NewtonWork:
    """For k classes, d features and units of at most `longest` rows."""
    size = d + intercept
    direction, gradient, along, step = np.empty((4, k * size))
    z, change, chance, before = np.empty((4, longest, k))
    H, blocks = np.empty((k * size, k * size)), np.empty((k * (k + 1) // 2, size, size))
    return NewtonWork(H, blocks, direction, gradient, along, step, z, change, chance, np.empty(k), before)


@njit(**INNER)
def _value(units, i, z, t, change, work):  # type: ignore[no-untyped-def]
    """The loss of unit i at scores z + t change."""
    first, total = units.starts[i], 0.0
    for j in range(first, units.starts[i + 1]):
        if units.p[j] > 0:
            for c in range(z.shape[1]):
                work.moved[c] = z[j - first, c] + t * change[j - first, c]
            lse = softmax_chances(work.moved, units.possible[i], work.chance[j - first])
            total += units.p[j] * (lse - work.moved[units.y[j]])
    return total


@njit(**INNER)
def _assemble(units, i, k, d, work):  # type: ignore[no-untyped-def]
    """H = sum_j p_j (diag(pi_j) - pi_j pi_j^T) (x) x_j x_j^T + 1 / step."""
    H, blocks, size = work.H, work.blocks, d + (1 if units.intercept else 0)
    blocks[:] = 0.0
    first = units.starts[i]
    for j in range(first, units.starts[i + 1]):
        chance = work.chance[j - first]
        if units.p[j] <= 0:
            continue
        pair = 0
        for c in range(k):
            for other in range(c + 1):
                f = units.p[j] * ((chance[c] if c == other else 0.0) - chance[c] * chance[other])
                if f != 0:
                    row_outer(units.X, j, f, blocks[pair])
                    if units.intercept:
                        row_axpy(units.X, j, f, blocks[pair, d])
                        blocks[pair, d, d] += f
                pair += 1
    pair = 0
    for c in range(k):
        for other in range(c + 1):
            block = blocks[pair]
            for r in range(size):
                for q in range(r + 1 if c == other else size):
                    H[c * size + r, other * size + q] = block[max(r, q), min(r, q)]
            pair += 1
        for r in range(size):
            H[c * size + r, c * size + r] += 1.0 / work.step[c * d + r if r < d else k * d + c]


@njit(**INNER)
def _newton_unit(units, order, i, alpha, u, k, work):  # type: ignore[no-untyped-def]
    """Newton with line search on min f_i(u) + |u - c|^2 / (2 s), then alpha = e_y - softmax(z).

    Returns the number of steps, negative if they did not suffice.
    """
    first, last, c, s = units.starts[i], units.starts[i + 1], order.C[i], order.step[i]
    size = u.shape[0] // k
    d = size - (1 if units.intercept else 0)
    step, gradient, along, direction = work.step, work.gradient, work.along, work.direction
    for r in range(k * size):
        step[r] = s if r < k * d else order.intercept_step[i]
    for j in range(first, last):
        scores(units, j, u, work.z[j - first])
    work.change[:] = 0.0
    for taken in range(1, _STEPS + 1):
        now = _value(units, i, work.z, 0.0, work.change, work)
        size_u = size_c = 0.0
        for r in range(k * size):
            gradient[r] = (u[r] - c[r]) / step[r]
            size_u += u[r] * u[r]
            size_c += c[r] * c[r]
        for j in range(first, last):
            if units.p[j] > 0:
                for one in range(k):
                    alpha[j, one] = -work.chance[j - first, one]
                alpha[j, units.y[j]] += 1.0
                add_row(units, j, -units.p[j], -units.p[j], alpha[j], gradient)
        square = moved = 0.0
        for r in range(k * size):
            square += gradient[r] * gradient[r]
            moved += (step[r] * gradient[r]) ** 2
        # as in exact.py: the coordinator works with c + s b, which lies s |gradient| away from u
        if moved <= 1e-20 * (size_u + size_c) or square <= 1e-28 * (1.0 + size_u / (s * s)):
            return taken
        _assemble(units, i, k, d, work)
        for one in range(k):
            for r in range(size):
                direction[one * size + r] = -gradient[one * d + r if r < d else k * d + one]
        solve_lower(work.H, direction, k * size)
        for one in range(k):
            for r in range(size):
                along[one * d + r if r < d else k * d + one] = direction[one * size + r]
        descent = cross = length = away = 0.0
        for r in range(k * size):
            off = (u[r] - c[r]) / step[r]
            descent += gradient[r] * along[r]
            cross += off * along[r]
            length += along[r] * along[r] / step[r]
            away += step[r] * off * off
        for j in range(first, last):
            products(units, j, along, work.change[j - first])
        t = 1.0
        for _ in range(40):
            after = _value(units, i, work.z, t, work.change, work) - now + t * cross + 0.5 * t * t * length
            if after <= 1e-4 * t * descent + 1e-15 * (abs(now) + away):
                break
            t *= 0.5
        for r in range(k * size):
            u[r] += t * along[r]
        for j in range(last - first):
            for one in range(k):
                work.z[j, one] += t * work.change[j, one]
    return -taken


@njit(**KERNEL)
def newton_round(units, duals, order, which, row, work, out):  # type: ignore[no-untyped-def]
    """A round of Newton steps for the units `which`, as softmax_ascent.ascent_round.

    Where they did not suffice, alpha is as before and the steps in `out` are negative: coordinate ascent takes over.
    """
    k = units.possible.shape[1]
    for i in which:
        first, last = units.starts[i], units.starts[i + 1]
        start_unit(units, duals, order, i, order.evaluate_w, row, out)
        if order.step[i] > 0:
            for j in range(first, last):
                work.before[j - first] = duals.alpha[j]
            out[i, 4] = _newton_unit(units, order, i, duals.alpha, duals.U[i], k, work)
            if out[i, 4] < 0:
                for j in range(first, last):
                    duals.alpha[j] = work.before[j - first]
                continue
        finish_unit(units, duals, order, i, row, out)
