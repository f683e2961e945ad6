"""The local solver for units with few rows: exact, in the span of the rows (docs/math.md section 2).

The solution of (6) is u = c + s sum_j a_j x_j with a_j = p_j alpha_j, so n numbers describe it and the features enter
only through the products of the rows, K_jk = x_j . x_k. Nothing here depends on the format of the rows but
`centre_scores` and `take_round`.

A loss with kinks is smoothed: its conjugate gets mu alpha^2 / 2. As |alpha| <= 1, the local gap that remains is at most
mu / 2, so mu is the local gap that is wanted.
"""

from typing import NamedTuple

import numpy as np

from dmtrl.losses import scalar
from dmtrl.losses.scalar import (
    EPSILON_INSENSITIVE,
    HINGE,
    QUANTILE,
    loss_bracket,
    loss_curvature,
    loss_slope,
    loss_value,
)
from dmtrl.numerics.compile_cache import INNER, INNER_FAST, KERNEL, discard_stale, njit
from dmtrl.worker import box, exact, kernels, rows
from dmtrl.worker.box import box_unit
from dmtrl.worker.exact import dot, solve_lower
from dmtrl.worker.kernels import finish_unit, score, start_unit

discard_stale(__file__, scalar.__file__, rows.__file__, kernels.__file__, exact.__file__, box.__file__)

_NEWTON_STEPS = 200


class RowProducts(NamedTuple):
    """K of each unit that has one: unit i owns the n * n numbers from start[i] on; -1 where it has none."""

    K: np.ndarray
    start: np.ndarray


@njit(**KERNEL)
def centre_scores(units, C, which, r):  # type: ignore[no-untyped-def]
    """The score at c of every row of the units `which`. It has the row's offset, and so has every z below."""
    for i in which:
        for j in range(units.starts[i], units.starts[i + 1]):
            r[j] = score(units, j, C[i])


@njit(**KERNEL)
def take_round(units, duals, order, which, alpha, steps, out):  # type: ignore[no-untyped-def]
    """The end of a round: take over the dual variables found for the units `which`, as the rounds in kernels.py."""
    for i in which:
        start_unit(units, duals, order, i, order.evaluate_w, out)
        for j in range(units.starts[i], units.starts[i + 1]):
            duals.alpha[j] = alpha[j]
        finish_unit(units, duals, order, i, out)
        out[i, 4] = steps[i]


@njit(**INNER_FAST)
def _times(K, n, s, s0, v, out):  # type: ignore[no-untyped-def]
    """out = (s K + s0 1 1^T) v: how the scores change with a."""
    total = 0.0
    for k in range(n):
        total += v[k]
    for j in range(n):
        product = 0.0
        for k in range(n):
            product += K[j, k] * v[k]
        out[j] = s * product + s0 * total


@njit(**INNER)
def _smoothed(loss, param, mu, z, y):  # type: ignore[no-untyped-def]
    """The value of the loss at z, the dual variable that belongs to it, and the second derivative; with mu > 0 those of
    a loss with kinks, smoothed."""
    if mu == 0:
        return loss_value(loss, param, z, y), loss_slope(loss, param, z, y), loss_curvature(loss, param, z, y)
    low, high, sign, free = -1.0, 1.0, 1.0, 0.0
    if loss == HINGE:
        low, sign = 0.0, y
    elif loss == QUANTILE:
        low, high = param - 1.0, param
    elif loss == EPSILON_INSENSITIVE:
        free = param
    r = 1.0 - y * z if loss == HINGE else y - z
    inner = max(abs(r) - free, 0.0) * (1.0 if r > 0 else -1.0)
    a = min(max(inner / mu, low), high)
    curvature = 1.0 / mu if low < a < high and a != 0 else 0.0
    return a * r - free * abs(a) - 0.5 * mu * a * a, sign * a, curvature


@njit(**INNER_FAST)
def _loss_at(labels, i, mu, n, z, t, along):  # type: ignore[no-untyped-def]
    total = 0.0
    for j in range(n):
        p, y = labels.p[labels.starts[i] + j], labels.y[labels.starts[i] + j]
        if p > 0:
            total += p * _smoothed(labels.loss[i], labels.param[i], mu, z[j] + t * along[j], y)[0]
    return total


@njit(**INNER_FAST)
def _gap(labels, i, K, n, r, s, s0, alpha, work):  # type: ignore[no-untyped-def]
    """The local gap (7) of alpha."""
    first, total = labels.starts[i], 0.0
    for j in range(n):
        work.a[j] = labels.p[first + j] * alpha[j]
    _times(K, n, s, s0, work.a, work.z)
    for j in range(n):
        p = labels.p[first + j]
        if p > 0:
            z = r[j] + work.z[j]
            total += p * loss_bracket(labels.loss[i], labels.param[i], alpha[j], z, labels.y[first + j])
    return total


@njit(**INNER)
def _newton(labels, i, mu, good, enough, K, n, r, s, s0, alpha, work):  # type: ignore[no-untyped-def]
    """Newton with line search on F(a) = sum p l(r + A a) + a^T A a / 2 with A = s K + s0 1 1^T. Where the gradient
    vanishes, a = p alpha(z). The coordinator works with b = sum p alpha(z) x, whose scores are z - A (a - p alpha(z)):
    the steps end where the local gap (7) there is at most `enough`, or at most `good` and no longer falls fast.

    Leaves the best alpha. Returns the number of steps, negative if none was better than the start.
    """
    first, loss, param = labels.starts[i], labels.loss[i], labels.param[i]
    M, a, z, g, root, move, along = work.M, work.a, work.z, work.g, work.root, work.move, work.along
    bent, inner = work.rows, work.inner
    start, least = _gap(labels, i, K, n, r, s, s0, alpha, work), np.inf  # leaves a and A a in `work`
    warm = 0.5 * dot(a, z, n)
    for j in range(n):
        z[j] += r[j]
        along[j] = 0.0
    if not _loss_at(labels, i, mu, n, z, 0.0, along) + warm < _loss_at(labels, i, mu, n, r, 0.0, along):
        for j in range(n):  # zero is the better start
            a[j] = 0.0
            z[j] = r[j]
    last = np.inf
    for taken in range(1, _NEWTON_STEPS + 1):
        for j in range(n):
            _, move[j], _ = _smoothed(loss, param, mu, z[j], labels.y[first + j])
            g[j] = a[j] - labels.p[first + j] * move[j]
        _times(K, n, s, s0, g, along)  # the gradient of F
        now, gap = _loss_at(labels, i, mu, n, z, 0.0, g), 0.0
        for j in range(n):
            p = labels.p[first + j]
            if p > 0:
                gap += p * loss_bracket(loss, param, move[j], z[j] - along[j], labels.y[first + j])
        if gap < least and gap < start:
            least = gap
            for j in range(n):
                alpha[j] = move[j]
        if least <= enough or gap <= 1e-15 * abs(now) or (least <= good and gap > 0.1 * last):
            return taken
        last = gap
        size = 0  # of the system: rows whose loss is linear here do not enter it
        for j in range(n):
            _, _, curvature = _smoothed(loss, param, mu, z[j], labels.y[first + j])
            move[j] = -g[j]
            if curvature > 0 and labels.p[first + j] > 0:
                bent[size] = j
                root[size] = np.sqrt(labels.p[first + j] * curvature)
                inner[size] = root[size] * along[j]
                size += 1
        for j in range(size):
            row = K[bent[j]]
            for k in range(j + 1):
                M[j, k] = root[j] * (s * row[bent[k]] + s0) * root[k]
            M[j, j] += 1.0
        solve_lower(M, inner, size)
        for j in range(size):
            move[bent[j]] += root[j] * inner[j]
        descent = dot(along, move, n)
        _times(K, n, s, s0, move, along)
        cross, length = dot(a, along, n), dot(move, along, n)
        t, searching = 1.0, True
        for _ in range(40):
            change = _loss_at(labels, i, mu, n, z, t, along) - now + t * cross + 0.5 * t * t * length
            if change <= 1e-4 * t * descent + 1e-15 * abs(now):
                searching = False
                break
            t *= 0.5
        if searching:
            break
        for j in range(n):
            a[j] += t * move[j]
            z[j] += t * along[j]
    return taken if least < np.inf else -taken


@njit(**INNER)
def _kinked(labels, i, accuracy, widest, K, n, r, s, s0, alpha, work):  # type: ignore[no-untyped-def]
    """Solve the unit as a quadratic program in a box; where that stalls, less and less smoothed: each solution is a
    good start for the next."""
    weight = labels.weight[i]
    steps, solved = box_unit(labels, i, 0.1 * accuracy * weight, K, n, r, s, s0, alpha, work)
    if solved:
        return steps
    mu = min(max(_gap(labels, i, K, n, r, s, s0, alpha, work) / weight, accuracy), widest)
    while True:
        steps += abs(_newton(labels, i, mu, mu * weight, mu * weight, K, n, r, s, s0, alpha, work))
        if mu <= accuracy:
            return steps
        mu = max(0.1 * mu, accuracy)


@njit(**KERNEL)
def solve_units(labels, kinked, accuracy, widest, products, which, r, order, alpha, steps, work):  # type: ignore[no-untyped-def]
    """Solve (6) for the units `which` around centres with scores r, starting from alpha and leaving it in alpha.

    `labels` is a UnitRows without X; `kinked` says which losses have no derivative; `accuracy` is the local gap that is
    wanted, over the weight of the task, and `widest` the largest mu of use. The number of steps is negative where none
    was better than the start.
    """
    for i in which:
        first, n, s = labels.starts[i], labels.starts[i + 1] - labels.starts[i], order.step[i]
        steps[i] = 0
        if s <= 0:
            continue
        s0 = order.intercept_step[i] if labels.intercept else 0.0
        K = products.K[products.start[i] : products.start[i] + n * n].reshape((n, n))
        own, centre = alpha[first : first + n], r[first : first + n]
        if kinked[i]:
            steps[i] = _kinked(labels, i, accuracy[i], widest[i], K, n, centre, s, s0, own, work)
        else:  # Newton's last steps are worth their price
            wanted = accuracy[i] * labels.weight[i]
            steps[i] = _newton(labels, i, 0.0, 0.01 * wanted, 1e-12 * wanted, K, n, centre, s, s0, own, work)
