"""The compiled kernels of a worker: evaluating its units and the local solvers.

A *unit* is a task's rows, or a shard of them. Symbols and equation numbers are those of docs/math.md: alpha dual
variables, p row weights that sum to one over a task, q squared row norms, s the step size, c the centre of the local
proximal problem (6).
"""

import types as python_types
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from dmtrl.losses import scalar
from dmtrl.losses.scalar import (
    CUSTOM,
    TINY,
    loss_bracket,
    loss_conjugate,
    loss_curvature,
    loss_slope,
    loss_step,
    loss_value,
)
from dmtrl.numerics.compile_cache import discard_stale
from dmtrl.worker import rows
from dmtrl.worker.rows import FAST, row_axpy, row_dot, row_outer, row_square

discard_stale(__file__, scalar.__file__, rows.__file__)

SDCA, NEWTON, GRAM = 0, 1, 2
CALM, LONGEST_REST = 0.1, np.uint8(5)  # a calm row's bracket over the target; a rest is at most 2^5 - 1 passes


class Units(NamedTuple):
    """The rows of a worker's units, one after the other. X is a C-ordered array, CSR's (data, indices, indptr), or the
    same three for chunks of a row: (numbers x CHUNK, first column of each, indptr).
    """

    X: Any
    y: np.ndarray
    p: np.ndarray
    q: np.ndarray
    starts: np.ndarray  # unit i owns rows starts[i]:starts[i+1]
    loss: np.ndarray  # loss id of each unit
    param: np.ndarray  # the loss's one number: gamma, epsilon, delta or the quantile


class GramFactors(NamedTuple):
    """Eigen-decomposition of sum_j p_j x_j x_j^T of each unit and sum_j p_j y_j x_j in its basis (quadratic loss
    only).
    """

    values: np.ndarray
    vectors: np.ndarray
    target: np.ndarray


@njit(cache=True)
def next_state(state):  # type: ignore[no-untyped-def]
    """splitmix64: the next state; its mixed value is the random number."""
    return state + np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True)
def _mix(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def stream(seed, unit, round_number):  # type: ignore[no-untyped-def]
    """The random stream of (seed, unit, round): the same wherever and with whatever neighbours the unit runs."""
    state = _mix(np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15))
    state = _mix(state ^ np.uint64(unit) * np.uint64(0xD1342543DE82EF95))
    return _mix(state ^ np.uint64(round_number) * np.uint64(0xAEF17502108EF2D9))


@njit(cache=True)
def below(state, n):  # type: ignore[no-untyped-def]
    return np.int64(((_mix(state) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@njit(cache=True, nogil=True)
def squared_norms(X, q):  # type: ignore[no-untyped-def]
    one = np.ones(1)
    for j in range(q.shape[0]):
        q[j] = row_square(X, j, one)


@njit(cache=True, nogil=True)
def sums_by_unit(values, starts, sums):  # type: ignore[no-untyped-def]
    for i in range(sums.shape[0]):
        sums[i] = 0.0
        for j in range(starts[i], starts[i + 1]):
            sums[i] += values[j]


@njit(cache=True, nogil=True, fastmath=FAST)
def evaluate_unit(units, i, alpha, w):  # type: ignore[no-untyped-def]
    """Sums over unit i of p l(z), p l*(-alpha) and the Fenchel-Young brackets p [l(z) + l*(-alpha) + alpha z]  (4)."""
    loss, param = units.loss[i], units.param[i]
    value = conjugate = bracket = 0.0
    for j in range(units.starts[i], units.starts[i + 1]):
        p = units.p[j]
        if p > 0:
            z = row_dot(units.X, j, w)
            value_at = loss_value(loss, param, z, units.y[j])
            c = loss_conjugate(loss, param, alpha[j], units.y[j])
            value += p * value_at
            conjugate += p * c
            bracket += p * (value_at + c + alpha[j] * z)
    return value, conjugate, bracket


@njit(cache=True, nogil=True, fastmath=FAST)
def conjugate_unit(units, i, alpha):  # type: ignore[no-untyped-def]
    """Sum over unit i of p l*(-alpha)."""
    total = 0.0
    for j in range(units.starts[i], units.starts[i + 1]):
        if units.p[j] > 0:
            total += units.p[j] * loss_conjugate(units.loss[i], units.param[i], alpha[j], units.y[j])
    return total


@njit(cache=True, nogil=True)
def evaluate(units, alpha, W, value, conjugate, bracket):  # type: ignore[no-untyped-def]
    for i in range(W.shape[0]):
        value[i], conjugate[i], bracket[i] = evaluate_unit(units, i, alpha, W[i])


@njit(cache=True, nogil=True)
def conjugates(units, alpha, out):  # type: ignore[no-untyped-def]
    """sum p l*(-alpha) of each unit."""
    for i in range(out.shape[0]):
        out[i] = conjugate_unit(units, i, alpha)


@njit(cache=True, nogil=True)
def slopes(units, W, smooth, alpha):  # type: ignore[no-untyped-def]
    """alpha = -l'(z) at W for the smooth units: the dual variables that belong to a W from elsewhere."""
    for i in range(W.shape[0]):
        if smooth[i]:
            for j in range(units.starts[i], units.starts[i + 1]):
                alpha[j] = loss_slope(units.loss[i], units.param[i], row_dot(units.X, j, W[i]), units.y[j])


@njit(cache=True, nogil=True)
def dual_vector(units, i, alpha, b):  # type: ignore[no-untyped-def]
    """b_i = sum_j p_j alpha_j x_j, always made anew from alpha so that it cannot drift."""
    b[:] = 0.0
    for j in range(units.starts[i], units.starts[i + 1]):
        f = units.p[j] * alpha[j]
        if f != 0:
            row_axpy(units.X, j, f, b)


@njit(cache=True, nogil=True)
def dual_vectors(units, alpha, B):  # type: ignore[no-untyped-def]
    for i in range(B.shape[0]):
        dual_vector(units, i, alpha, B[i])


@njit(cache=True, nogil=True)
def _shuffle(order, n, state):  # type: ignore[no-untyped-def]
    for k in range(n - 1, 0, -1):
        state = next_state(state)
        other = below(state, k + 1)
        order[k], order[other] = order[other], order[k]
    return state


@njit(cache=True, nogil=True, fastmath=FAST)
def uniform_unit(units, i, alpha, u, s, steps, state):  # type: ignore[no-untyped-def]
    """The paper's Algorithm 2: coordinate steps (5) on rows of unit i drawn uniformly; u = c + s b follows alpha."""
    first, n = units.starts[i], units.starts[i + 1] - units.starts[i]
    for _ in range(steps if n > 0 else 0):
        state = next_state(state)
        j = first + below(state, n)
        p, a, y = units.p[j], alpha[j], units.y[j]
        if p > 0:
            z = np.float64(row_dot(units.X, j, u))
            new = loss_step(units.loss[i], units.param[i], a, z, y, s * p * units.q[j])
            if new != a:
                alpha[j] = new
                row_axpy(units.X, j, s * p * (new - a), u)
    return steps if n > 0 else 0


@njit(cache=True, nogil=True, fastmath=FAST)
def sdca_unit(  # type: ignore[no-untyped-def]
    units, i, alpha, u, w, look, s, target, steps, block, state, order, calm, rest
):  # fmt: skip
    """Passes of coordinate ascent (5) over unit i; u = c + s b follows alpha. Returns the number of steps and, if one
    is to `look`, the loss at w and the brackets there, taken on the way of the first pass, which meets every row.

    A pass takes blocks of neighbouring rows in shuffled order, as memory likes it. A row whose bracket is small beside
    the target is left alone for one pass, for three when it is met calm again, and so on. The last pass finds brackets,
    each at the u of its moment, that sum to at most `target` (there is none if that is negative); those of the rows it
    left alone were CALM * target at most when they were last met.
    """
    first, n = units.starts[i], units.starts[i + 1] - units.starts[i]
    loss, param = units.loss[i], units.param[i]
    n_blocks = (n + block - 1) // block
    calm_below = CALM * target if 0 <= target < np.inf else -1.0
    loss_w = bracket_w = 0.0
    for k in range(n_blocks):
        order[k] = k
    taken = passes = 0
    while n > 0 and taken < steps and passes * n < 4 * steps:
        seen = 0.0
        state = _shuffle(order, n_blocks, state)
        for k in range(n_blocks):
            begin = first + order[k] * block
            for j in range(begin, min(begin + block, first + n)):
                if rest[j] > 0:  # not in the first pass: nobody rests when a round begins
                    rest[j] -= np.uint8(1)
                    continue
                if taken == steps:
                    break
                p, a, y = units.p[j], alpha[j], units.y[j]
                taken += 1
                if p <= 0:
                    continue
                z = np.float64(row_dot(units.X, j, u))
                if look and passes == 0:
                    z_w = row_dot(units.X, j, w)
                    value = loss_value(loss, param, z_w, y)
                    loss_w += p * value
                    bracket_w += p * (value + loss_conjugate(loss, param, a, y) + a * z_w)
                if target >= 0:
                    bracket = loss_bracket(loss, param, a, z, y)
                    seen += p * bracket
                    if bracket <= calm_below:
                        calm[j] = min(calm[j] + np.uint8(1), LONGEST_REST)
                        rest[j] = (np.uint8(1) << calm[j]) - np.uint8(1)
                        continue
                    calm[j] = rest[j] = np.uint8(0)
                new = loss_step(loss, param, a, z, y, s * p * units.q[j])
                if new != a:
                    alpha[j] = new
                    row_axpy(units.X, j, s * p * (new - a), u)
        passes += 1
        if seen <= target:
            break
    return taken, loss_w, bracket_w


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


@njit(cache=True, nogil=True)
def local_round(  # type: ignore[no-untyped-def]
    units, ids, alpha, B, C, U, W, step, solver, gram, steps, block, target, seed, round_number, factor, coupling,
    look, at_u, from_zero, work, calm, rest, out
):  # fmt: skip
    """One round of a worker: `look` at W, solve (6) for each unit, leaving alpha, B (from alpha), U = C + s B.

    `block` is the number of rows in a block, 0 where rows are drawn uniformly. `factor` (units x r, r may be 0) holds
    the worker's rows of a covariance factor: with coupling = rho / lambda the units are swept in turn and each feels
    what the ones before it changed, the block version (10). Where all is zero when the round begins (`from_zero`), b is
    read off u = s b instead of summed anew. out[i] is (loss at w, brackets there, loss at u, conjugate,
    steps); what nobody looks at is infinite.
    """
    d = B.shape[1]
    moved = np.zeros((factor.shape[1], d))
    b_before = np.empty(d)
    longest = 0
    for i in range(B.shape[0]):
        longest = max(longest, units.starts[i + 1] - units.starts[i])
    order = np.empty(longest, np.int64)
    for i in range(B.shape[0]):
        b, c, u, s = B[i], C[i], U[i], step[i]
        first, last = units.starts[i], units.starts[i + 1]
        if factor.shape[1] > 0:
            c += coupling * np.dot(factor[i], moved)
            b_before[:] = b
        u[:] = c + s * b
        descend = s > 0 and solver[i] == SDCA
        on_the_way = look and descend and block[i] > 0 and steps[i] >= last - first
        out[i, :3] = np.inf
        if look and not on_the_way:
            out[i, 0], _, out[i, 1] = evaluate_unit(units, i, alpha, W[i])
        out[i, 4] = 0.0
        if s > 0 and solver[i] == NEWTON:
            start = alpha[first:last].copy()
            out[i, 4] = newton_unit(units, i, alpha, u, c, s, 60)
            if out[i, 4] < 0:  # coordinate ascent never makes the dual worse
                alpha[first:last] = start
                u[:] = c + s * b
                descend = True
        elif s > 0 and solver[i] == GRAM:
            gram_unit(units, i, alpha, u, c, s, gram)
            out[i, 4] = 1.0
        if descend:
            work[:] = u
            state = stream(seed, ids[i], round_number)
            if block[i] > 0:
                out[i, 4], loss_w, bracket_w = sdca_unit(
                    units, i, alpha, work, W[i], on_the_way, s, target[i], steps[i], block[i], state, order, calm, rest
                )
                if on_the_way:
                    out[i, 0], out[i, 1] = loss_w, bracket_w
            else:
                out[i, 4] = uniform_unit(units, i, alpha, work, s, steps[i], state)
        if from_zero and descend:
            b[:] = work / s
        else:
            dual_vector(units, i, alpha, b)
        u[:] = c + s * b
        if at_u:
            out[i, 2], out[i, 3], _ = evaluate_unit(units, i, alpha, u)
        else:
            out[i, 3] = conjugate_unit(units, i, alpha)
        if factor.shape[1] > 0:
            for r in range(factor.shape[1]):
                moved[r] += factor[i, r] * (b - b_before)


@njit(cache=True, nogil=True, fastmath=FAST)
def metric_unit(  # type: ignore[no-untyped-def]
    units, i, alpha, b, v, directions, floor, passes, block, state, order, along, q, before, e
):  # fmt: skip
    """Passes of coordinate ascent on (37) for unit i, in the metric F F^T + floor I; `directions` are the columns of F.

    v = c + F^T b and e = floor b follow alpha. The first pass keeps what it sees of the rows along the directions:
    without a floor later passes need no more of them, and b is made up for where alpha has changed. Returns the loss at
    u, known without another reading only where there is no floor.
    """
    first, n = units.starts[i], units.starts[i + 1] - units.starts[i]
    loss, param, r = units.loss[i], units.param[i], len(v)
    n_blocks = (n + block - 1) // block
    for k in range(n_blocks):
        order[k] = k
    before[:n] = alpha[first : first + n]
    e[:] = floor * b
    for number in range(passes if n > 0 else 0):
        state = _shuffle(order, n_blocks, state)
        for k in range(n_blocks):
            begin = first + order[k] * block
            for j in range(begin, min(begin + block, first + n)):
                p, a, x = units.p[j], alpha[j], along[j - first]
                if p <= 0:
                    continue
                if number == 0:
                    q[j - first] = floor * units.q[j]
                    for c in range(r):
                        x[c] = row_dot(units.X, j, directions[c])
                        q[j - first] += x[c] * x[c]
                z = np.float64(row_dot(units.X, j, e)) if floor > 0 else 0.0
                for c in range(r):
                    z += x[c] * v[c]
                new = loss_step(loss, param, a, z, units.y[j], p * q[j - first])
                if new != a:
                    alpha[j] = new
                    for c in range(r):
                        v[c] += p * (new - a) * x[c]
                    if floor > 0:
                        row_axpy(units.X, j, floor * p * (new - a), e)
    if floor > 0:
        b[:] = e / floor
        return np.inf
    value = 0.0
    for j in range(first, first + n):
        p, f, z = units.p[j], units.p[j] * (alpha[j] - before[j - first]), 0.0
        if p <= 0:
            continue
        if f != 0:
            row_axpy(units.X, j, f, b)
        for c in range(r):
            z += along[j - first, c] * v[c]
        value += p * loss_value(loss, param, z, units.y[j])
    return value


@njit(cache=True, nogil=True)
def catch_up(  # type: ignore[no-untyped-def]
    units, ids, alpha, B, C, directions, floor, passes, block, seed, round_number, out
):  # fmt: skip
    """Improve alpha and B on the problems (37) of all units; out[i] is (loss at u or infinity, conjugate, steps)."""
    r, d, longest = directions.shape[0], B.shape[1], 0
    for i in range(B.shape[0]):
        longest = max(longest, units.starts[i + 1] - units.starts[i])
    order, along, q = np.empty(longest, np.int64), np.empty((longest, r)), np.empty(longest)
    before, e = np.empty(longest), np.empty(d)
    for i in range(B.shape[0]):
        v, state = C[i] + np.dot(directions, B[i]), stream(seed, ids[i], round_number)
        out[i, 0] = metric_unit(
            units, i, alpha, B[i], v, directions, floor, passes, block[i], state, order, along, q, before, e
        )
        out[i, 1] = conjugate_unit(units, i, alpha)
        out[i, 2] = passes * (units.starts[i + 1] - units.starts[i])


def compiled_for(value: Any, conjugate: Any, step: Any) -> python_types.SimpleNamespace:
    """The kernels that look at the loss, compiled anew from the same source with an author's own functions for
    CUSTOM.
    """
    builtin_value, builtin_conjugate, builtin_step = loss_value, loss_conjugate, loss_step
    builtin_bracket = loss_bracket

    @njit
    def any_value(loss, param, z, y):  # type: ignore[no-untyped-def]
        return value(z, y) if loss == CUSTOM else builtin_value(loss, param, z, y)

    @njit
    def any_conjugate(loss, param, a, y):  # type: ignore[no-untyped-def]
        return conjugate(a, y) if loss == CUSTOM else builtin_conjugate(loss, param, a, y)

    @njit
    def any_step(loss, param, a, z, y, sq):  # type: ignore[no-untyped-def]
        return step(a, z, y, sq) if loss == CUSTOM else builtin_step(loss, param, a, z, y, sq)

    @njit
    def any_bracket(loss, param, a, z, y):  # type: ignore[no-untyped-def]
        return value(z, y) + conjugate(a, y) + a * z if loss == CUSTOM else builtin_bracket(loss, param, a, z, y)

    scope = dict(globals())
    scope.update(loss_value=any_value, loss_conjugate=any_conjugate, loss_step=any_step, loss_bracket=any_bracket)
    names = (
        "uniform_unit", "sdca_unit", "evaluate_unit", "conjugate_unit", "evaluate", "conjugates", "local_round",
        "metric_unit", "catch_up",
    )  # fmt: skip
    for name in names:
        source = globals()[name].py_func
        fast: Any = FAST if name.endswith("_unit") else False
        scope[name] = njit(nogil=True, fastmath=fast)(python_types.FunctionType(source.__code__, scope, name))
    return python_types.SimpleNamespace(**{name: scope[name] for name in names})
