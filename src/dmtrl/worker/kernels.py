"""The compiled kernels of a worker: evaluating its units and the local solvers.

A *unit* is a task's rows, or a shard of them. Symbols and equation numbers are those of docs/math.md: alpha dual
variables, p row weights that sum to one over a task, q squared row norms, s the step size, c the centre of the local
proximal problem (6).
"""

import types as python_types
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from dmtrl.losses import scalar
from dmtrl.losses.scalar import (
    CUSTOM,
    loss_bracket,
    loss_conjugate,
    loss_slope,
    loss_step,
    loss_value,
)
from dmtrl.numerics.compile_cache import FAST, INNER, INNER_FAST, KERNEL, KERNEL_FAST, discard_stale, njit
from dmtrl.worker import rows, streams
from dmtrl.worker.rows import row_axpy, row_dot, row_square
from dmtrl.worker.streams import below, next_state, shuffle, stream

discard_stale(__file__, scalar.__file__, rows.__file__, streams.__file__)

SDCA, NEWTON, GRAM, SPAN = 0, 1, 2, 3  # the local solvers: a kernel each, here, in exact.py and in span.py
CALM, LONGEST_REST = 0.1, np.uint8(5)  # a calm row's bracket over the target; a rest is at most 2^5 - 1 passes


class UnitRows(NamedTuple):
    """The rows of a worker's units, one unit after the other, and what stays the same over a run.

    X is a C-ordered array, CSR's (data, indices, indptr), or the same three for chunks of a row (see rows.py).
    """

    X: Any
    y: np.ndarray
    p: np.ndarray
    q: np.ndarray
    starts: np.ndarray  # unit i owns rows starts[i]:starts[i+1]
    loss: np.ndarray  # loss id of each unit
    param: np.ndarray  # the loss's parameter: gamma, epsilon, delta or the quantile
    intercept: bool  # whether weights have an intercept after the features, as if X had a last column of ones
    weight: np.ndarray  # of each unit's task in the objective: what p sums to over the task
    offset: np.ndarray | None  # what is added to the score of each row (section 17)


class Duals(NamedTuple):
    """What a round changes: the dual variables, and b = sum p alpha x and u = c + s b of each unit."""

    alpha: np.ndarray
    B: np.ndarray
    U: np.ndarray
    calm: np.ndarray  # for how many visits in a row a row was calm


class Order(NamedTuple):
    """What a round does with each unit."""

    ids: np.ndarray  # the unit's number in its random stream
    W: np.ndarray  # weights that came
    C: np.ndarray  # centres of the local problems
    step: np.ndarray
    intercept_step: np.ndarray  # the step size of the intercept, if there is one
    steps: np.ndarray  # coordinate steps at most
    block: np.ndarray  # rows visited together
    target: float  # local gap at which a unit may stop; negative: never early
    seed: int
    round: int
    evaluate_w: bool
    evaluate_u: bool


@njit(**KERNEL)
def squared_norms(X, q):  # type: ignore[no-untyped-def]
    for j in range(q.shape[0]):
        q[j] = row_square(X, j, q)


@njit(**KERNEL)
def sums_by_unit(values, starts, sums):  # type: ignore[no-untyped-def]
    for i in range(sums.shape[0]):
        sums[i] = 0.0
        for j in range(starts[i], starts[i + 1]):
            sums[i] += values[j]


@njit(**INNER_FAST)
def product(units, j, u):  # type: ignore[no-untyped-def]
    """x_j . u, plus the intercept: how the score of row j changes along u."""
    z = row_dot(units.X, j, u)
    if units.intercept:
        z += u[u.shape[0] - 1]
    return z


@njit(**INNER_FAST)
def plus_offset(total, offset, j, factor):  # type: ignore[no-untyped-def]
    """total + factor times the offset of row j, or of (row, class) j, if there are offsets.

    numba drops the branch that the type of `offset` rules out, but only where it is an argument. A test at run time
    would cost time without offsets, too.
    """
    if offset is None:
        return total
    return total + factor * offset[j]


def score(units, j, u):  # type: ignore[no-untyped-def]
    """z = x_j . u, plus the intercept and the offset of the row: the score at which its loss is taken."""
    raise TypeError("score runs in compiled code only")


@overload(score, jit_options={"fastmath": FAST, "error_model": "numpy"})
def _score(units, j, u):  # type: ignore[no-untyped-def]
    if isinstance(units.types[units.fields.index("offset")], types.NoneType):
        return product.py_func  # a call of it here doubles the time of a round of short rows

    def with_offset(units, j, u):  # type: ignore[no-untyped-def]
        return product(units, j, u) + units.offset[j]

    return with_offset


@njit(**INNER_FAST)
def add_row(units, j, f, intercept_f, u):  # type: ignore[no-untyped-def]
    """u += f x_j, and `intercept_f` to the intercept."""
    row_axpy(units.X, j, f, u)
    if units.intercept:
        u[u.shape[0] - 1] += u.dtype.type(intercept_f)


@njit(**INNER)
def stiffness(units, order, i, j):  # type: ignore[no-untyped-def]
    """How much the score of row j changes with its dual variable."""
    squares = order.step[i] * units.q[j]
    if units.intercept:
        squares += order.intercept_step[i]
    return squares * units.p[j]


@njit(**INNER_FAST)
def evaluate_unit(units, i, alpha, w):  # type: ignore[no-untyped-def]
    """Sums over unit i of p l(z), p l*(-alpha) and the Fenchel-Young brackets p [l(z) + l*(-alpha) + alpha z]  (4).

    An offset o adds alpha o to the conjugate (51); the brackets have it in z.
    """
    loss, param = units.loss[i], units.param[i]
    value = conjugate = bracket = 0.0
    for j in range(units.starts[i], units.starts[i + 1]):
        p = units.p[j]
        if p > 0:
            z = score(units, j, w)
            value_at = loss_value(loss, param, z, units.y[j])
            c = loss_conjugate(loss, param, alpha[j], units.y[j])
            value += p * value_at
            conjugate = plus_offset(conjugate + p * c, units.offset, j, p * alpha[j])
            bracket += p * (value_at + c + alpha[j] * z)
    return value, conjugate, bracket


@njit(**INNER_FAST)
def conjugate_sum(loss, param, first, last, p, alpha, y, offset):  # type: ignore[no-untyped-def]
    """Sum of p l*(-alpha) over rows first..last. It does not know the format of the rows: one compilation for all."""
    total = 0.0
    for j in range(first, last):
        if p[j] > 0:
            total += p[j] * loss_conjugate(loss, param, alpha[j], y[j])
    if offset is not None:
        for j in range(first, last):
            total += p[j] * alpha[j] * offset[j]
    return total


@njit(**INNER, inline="always")
def conjugate_unit(units, i, alpha):  # type: ignore[no-untyped-def]
    """Sum over unit i of p l*(-alpha)."""
    first, last = units.starts[i], units.starts[i + 1]
    return conjugate_sum(units.loss[i], units.param[i], first, last, units.p, alpha, units.y, units.offset)


@njit(**KERNEL)
def evaluate(units, alpha, W, value, conjugate, bracket):  # type: ignore[no-untyped-def]
    for i in range(W.shape[0]):
        value[i], conjugate[i], bracket[i] = evaluate_unit(units, i, alpha, W[i])


@njit(**KERNEL)
def conjugates(units, alpha, out):  # type: ignore[no-untyped-def]
    """sum p l*(-alpha) of each unit. No row is read: `units` may come without X."""
    for i in range(out.shape[0]):
        out[i] = conjugate_unit(units, i, alpha)


@njit(**KERNEL_FAST)
def losses_at_zero(units, out):  # type: ignore[no-untyped-def]
    """sum p l(0) of each unit. No row is read: `units` may come without X."""
    for i in range(out.shape[0]):
        total = 0.0
        for j in range(units.starts[i], units.starts[i + 1]):
            if units.p[j] > 0:
                z = plus_offset(0.0, units.offset, j, 1.0)
                total += units.p[j] * loss_value(units.loss[i], units.param[i], z, units.y[j])
        out[i] = total


@njit(**KERNEL)
def slopes(units, W, smooth, alpha):  # type: ignore[no-untyped-def]
    """alpha = -l'(z) at W for the smooth units: the dual variables that belong to a W from elsewhere."""
    for i in range(W.shape[0]):
        if smooth[i]:
            for j in range(units.starts[i], units.starts[i + 1]):
                alpha[j] = loss_slope(units.loss[i], units.param[i], score(units, j, W[i]), units.y[j])


@njit(**INNER)
def dual_vector(units, i, alpha, b):  # type: ignore[no-untyped-def]
    """b_i = sum_j p_j alpha_j x_j, always made anew from alpha so that it cannot drift."""
    for k in range(b.shape[0]):
        b[k] = 0.0
    for j in range(units.starts[i], units.starts[i + 1]):
        f = units.p[j] * alpha[j]
        if f != 0:
            add_row(units, j, f, f, b)


@njit(**KERNEL)
def dual_vectors(units, alpha, B):  # type: ignore[no-untyped-def]
    for i in range(B.shape[0]):
        dual_vector(units, i, alpha, B[i])


@njit(**INNER_FAST, inline="always")
def sdca_unit(units, duals, order, i, u, evaluate, state, shuffled, rest):  # type: ignore[no-untyped-def]
    """Passes of coordinate ascent (5) over unit i; u = c + s b follows alpha.

    Returns the number of steps and, with `evaluate`, the loss and the brackets at the weights w that came, taken in the
    first pass, which meets every row.

    A pass visits blocks of neighbouring rows in shuffled order, which suits the memory. A row whose bracket is small
    compared with the target is skipped in the next pass, in the next three when it is calm again, and so on. The
    passes end when brackets, each at the u of its moment, sum to at most the target; those of skipped rows summed to at
    most CALM * target when they were last visited.
    """
    alpha, calm = duals.alpha, duals.calm
    w, s, s0 = order.W[i], order.step[i], order.intercept_step[i]
    target, steps, block = order.target, order.steps[i], order.block[i]
    first, n = units.starts[i], units.starts[i + 1] - units.starts[i]
    loss, param = units.loss[i], units.param[i]
    n_blocks = (n + block - 1) // block
    calm_below = CALM * target / units.weight[i] if 0 <= target < np.inf else -1.0
    loss_w = bracket_w = 0.0
    for k in range(n_blocks):
        shuffled[k] = k
    taken = passes = 0
    while n > 0 and taken < steps and passes * n < 4 * steps:
        seen = 0.0
        state = shuffle(shuffled, n_blocks, state)
        for k in range(n_blocks):
            begin = first + shuffled[k] * block
            for j in range(begin, min(begin + block, first + n)):
                if rest[j] > 0:  # never in the first pass of a round
                    rest[j] -= np.uint8(1)
                    continue
                if taken == steps:
                    break
                p, a, y = units.p[j], alpha[j], units.y[j]
                taken += 1
                if p <= 0:
                    continue
                z = np.float64(score(units, j, u))
                if evaluate and passes == 0:
                    z_w = score(units, j, w)
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
                new = loss_step(loss, param, a, z, y, stiffness(units, order, i, j))
                if new != a:
                    alpha[j] = new
                    add_row(units, j, s * p * (new - a), s0 * p * (new - a), u)
        passes += 1
        if seen <= target:
            break
    return taken, loss_w, bracket_w


@njit(**INNER, inline="always")
def start_unit(units, duals, order, i, evaluate, out):  # type: ignore[no-untyped-def]
    """The start of a unit's round: U = C + s B, and with `evaluate` the loss and the brackets at the weights."""
    _combine(units, order, i, duals.B[i], duals.U[i])
    out[i, 0] = out[i, 1] = out[i, 2] = np.inf
    out[i, 4] = 0.0
    if evaluate:
        out[i, 0], _, out[i, 1] = evaluate_unit(units, i, duals.alpha, order.W[i])


@njit(**INNER, inline="always")
def finish_unit(units, duals, order, i, out):  # type: ignore[no-untyped-def]
    """The end of a unit's round: B summed from alpha, U = C + s B, and the sums of `out` that belong to them."""
    dual_vector(units, i, duals.alpha, duals.B[i])
    _combine(units, order, i, duals.B[i], duals.U[i])
    if order.evaluate_u:
        out[i, 2], out[i, 3], _ = evaluate_unit(units, i, duals.alpha, duals.U[i])
    else:
        out[i, 3] = conjugate_unit(units, i, duals.alpha)


@njit(**INNER)
def _combine(units, order, i, b, u):  # type: ignore[no-untyped-def]
    c, s, last = order.C[i], order.step[i], u.shape[0] - 1
    for k in range(u.shape[0]):
        u[k] = c[k] + s * b[k]
    if units.intercept:
        u[last] = c[last] + order.intercept_step[i] * b[last]


# A kernel for a round of each solver, so that a run compiles those it uses. Each improves the units `which` on (6) and
# leaves alpha, B, U and out[i] = (loss at w, brackets there, loss at u, conjugate, steps) of unit i; what is not
# evaluated is infinite.


@njit(**KERNEL_FAST)
def sdca_round(units, duals, order, which, work, shuffled, rest, out):  # type: ignore[no-untyped-def]
    """By coordinate ascent. `work`: a vector of features in the precision of the passes; `rest` holds zeros."""
    for i in which:
        u, n = duals.U[i], units.starts[i + 1] - units.starts[i]
        descend = order.step[i] > 0
        # the first pass meets every row, so it can evaluate the weights as well
        in_pass = order.evaluate_w and descend and order.steps[i] >= n
        start_unit(units, duals, order, i, order.evaluate_w and not in_pass, out)
        if descend:
            for k in range(u.shape[0]):
                work[k] = u[k]
            state = stream(order.seed, order.ids[i], order.round)
            out[i, 4], loss_w, bracket_w = sdca_unit(units, duals, order, i, work, in_pass, state, shuffled, rest)
            if in_pass:
                out[i, 0], out[i, 1] = loss_w, bracket_w
        finish_unit(units, duals, order, i, out)


@njit(**KERNEL_FAST)
def uniform_round(units, duals, order, which, work, out):  # type: ignore[no-untyped-def]
    """By the paper's Algorithm 2: coordinate steps (5) on rows drawn uniformly; `work` = c + s b follows alpha."""
    alpha = duals.alpha
    for i in which:
        u, s, s0 = duals.U[i], order.step[i], order.intercept_step[i]
        first, n = units.starts[i], units.starts[i + 1] - units.starts[i]
        start_unit(units, duals, order, i, order.evaluate_w, out)
        if s > 0 and n > 0:
            for k in range(u.shape[0]):
                work[k] = u[k]
            state = stream(order.seed, order.ids[i], order.round)
            for _ in range(order.steps[i]):
                state = next_state(state)
                j = first + below(state, n)
                p, a, y = units.p[j], alpha[j], units.y[j]
                if p > 0:
                    z = np.float64(score(units, j, work))
                    new = loss_step(units.loss[i], units.param[i], a, z, y, stiffness(units, order, i, j))
                    if new != a:
                        alpha[j] = new
                        add_row(units, j, s * p * (new - a), s0 * p * (new - a), work)
            out[i, 4] = order.steps[i]
        finish_unit(units, duals, order, i, out)


def compiled_for(value: Any, conjugate: Any, step: Any) -> python_types.SimpleNamespace:
    """The kernels that look at the loss, compiled anew from the same source with an author's own functions for
    CUSTOM.
    """
    builtin_value, builtin_conjugate, builtin_step = loss_value, loss_conjugate, loss_step
    builtin_bracket = loss_bracket

    @njit()
    def any_value(loss, param, z, y):  # type: ignore[no-untyped-def]
        return value(z, y) if loss == CUSTOM else builtin_value(loss, param, z, y)

    @njit()
    def any_conjugate(loss, param, a, y):  # type: ignore[no-untyped-def]
        return conjugate(a, y) if loss == CUSTOM else builtin_conjugate(loss, param, a, y)

    @njit()
    def any_step(loss, param, a, z, y, sq):  # type: ignore[no-untyped-def]
        return step(a, z, y, sq) if loss == CUSTOM else builtin_step(loss, param, a, z, y, sq)

    @njit()
    def any_bracket(loss, param, a, z, y):  # type: ignore[no-untyped-def]
        return value(z, y) + conjugate(a, y) + a * z if loss == CUSTOM else builtin_bracket(loss, param, a, z, y)

    scope = dict(globals())
    scope.update(loss_value=any_value, loss_conjugate=any_conjugate, loss_step=any_step, loss_bracket=any_bracket)
    inlined = (evaluate_unit, conjugate_sum, conjugate_unit, sdca_unit, start_unit, finish_unit)
    called = (evaluate, conjugates, losses_at_zero, sdca_round, uniform_round)
    for builtin in (*inlined, *called):
        name, code = builtin.__name__, builtin.py_func.__code__
        scope[name] = njit(**builtin.targetoptions)(python_types.FunctionType(code, scope, name))
    return python_types.SimpleNamespace(**{kernel.__name__: scope[kernel.__name__] for kernel in called})
