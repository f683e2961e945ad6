"""Compiled coordinate ascent for units whose rows have a score for each class and the softmax loss.

The weights of a unit are one vector: d numbers for each of k classes, then the k intercepts. A row has k dual
variables, which one step changes together (docs/math.md section 15).
"""

from typing import Any, NamedTuple

import numpy as np

from dmtrl.losses import vector
from dmtrl.losses.vector import softmax_bracket, softmax_chances, softmax_conjugate, softmax_step
from dmtrl.numerics.compile_cache import INNER, INNER_FAST, KERNEL, KERNEL_FAST, discard_stale, njit
from dmtrl.worker import kernels, rows, streams
from dmtrl.worker.kernels import CALM, LONGEST_REST, plus_offset
from dmtrl.worker.rows import row_axpy, row_dot
from dmtrl.worker.streams import below, next_state, shuffle, stream

discard_stale(__file__, vector.__file__, rows.__file__, streams.__file__, kernels.__file__)


class ClassRows(NamedTuple):
    """The rows of a worker's units, as in kernels.UnitRows; labels are numbers of classes."""

    X: Any
    y: np.ndarray
    p: np.ndarray
    q: np.ndarray
    starts: np.ndarray
    possible: np.ndarray  # (units, k)
    intercept: bool
    weight: np.ndarray  # of each unit's task in the objective: what p sums to over the task
    offset: np.ndarray | None  # (rows, k): what is added to the scores of each row


class RowWork(NamedTuple):
    """Memory for one row: k numbers each."""

    z: np.ndarray
    chance: np.ndarray
    new: np.ndarray
    v: np.ndarray
    slope: np.ndarray
    move: np.ndarray


def row_work(k: int) -> RowWork:
    return RowWork(*np.empty((6, k)))


@njit(**INNER_FAST)
def products(units, j, u, z):  # type: ignore[no-untyped-def]
    """z = how the k scores of row j change along u."""
    k = z.shape[0]
    d = (u.shape[0] - k if units.intercept else u.shape[0]) // k
    for c in range(k):
        z[c] = row_dot(units.X, j, u[c * d : (c + 1) * d])
        if units.intercept:
            z[c] += u[k * d + c]


@njit(**INNER_FAST)
def scores(units, j, u, z):  # type: ignore[no-untyped-def]
    """z = the k scores of row j, with its offsets."""
    products(units, j, u, z)
    for c in range(z.shape[0]):
        z[c] = plus_offset(z[c], units.offset, (j, c), 1.0)


@njit(**INNER_FAST)
def add_row(units, j, f, intercept_f, change, u):  # type: ignore[no-untyped-def]
    """u += f change_c x_j for each class c, and `intercept_f` change_c to its intercept."""
    k = change.shape[0]
    d = (u.shape[0] - k if units.intercept else u.shape[0]) // k
    for c in range(k):
        if change[c] != 0:
            row_axpy(units.X, j, f * change[c], u[c * d : (c + 1) * d])
            if units.intercept:
                u[k * d + c] += u.dtype.type(intercept_f * change[c])


@njit(**INNER_FAST)
def _evaluate_row(units, i, j, a, w, work):  # type: ignore[no-untyped-def]
    """Loss and bracket of row j at w."""
    scores(units, j, w, work.z)
    value = softmax_chances(work.z, units.possible[i], work.chance) - work.z[units.y[j]]
    return value, softmax_bracket(a, units.y[j], units.possible[i], work.chance)


@njit(**INNER_FAST)
def _evaluate_unit(units, i, alpha, w, work):  # type: ignore[no-untyped-def]
    """Sums over unit i of p l(z) and of the brackets (42)."""
    total = brackets = 0.0
    for j in range(units.starts[i], units.starts[i + 1]):
        if units.p[j] > 0:
            value, bracket = _evaluate_row(units, i, j, alpha[j], w, work)
            total += units.p[j] * value
            brackets += units.p[j] * bracket
    return total, brackets


@njit(**KERNEL)
def evaluate(units, alpha, W, work, out):  # type: ignore[no-untyped-def]
    for i in range(W.shape[0]):
        out[i], _ = _evaluate_unit(units, i, alpha, W[i], work)


@njit(**KERNEL)
def conjugates(units, alpha, out):  # type: ignore[no-untyped-def]
    """sum p l*(-alpha) of each unit. No row is read: `units` may come without X."""
    for i in range(out.shape[0]):
        out[i] = 0.0
        for j in range(units.starts[i], units.starts[i + 1]):
            if units.p[j] > 0:
                out[i] += units.p[j] * softmax_conjugate(alpha[j], units.y[j], units.possible[i])
                for c in range(alpha.shape[1]):
                    out[i] = plus_offset(out[i], units.offset, (j, c), units.p[j] * alpha[j, c])


@njit(**KERNEL)
def slopes(units, W, work, alpha):  # type: ignore[no-untyped-def]
    """The dual variables that belong to W."""
    for i in range(W.shape[0]):
        for j in range(units.starts[i], units.starts[i + 1]):
            scores(units, j, W[i], work.z)
            softmax_chances(work.z, units.possible[i], work.chance)
            for c in range(alpha.shape[1]):
                alpha[j, c] = -work.chance[c]
            alpha[j, units.y[j]] += 1.0


@njit(**KERNEL)
def held_out(units, weight, W, work, loss, wrong):  # type: ignore[no-untyped-def]
    """Sums over the rows of each unit of weight times loss, and of the weights of rows that get a wrong answer."""
    for i in range(W.shape[0]):
        loss[i] = wrong[i] = 0.0
        for j in range(units.starts[i], units.starts[i + 1]):
            if weight[j] > 0:
                scores(units, j, W[i], work.z)
                loss[i] += weight[j] * (softmax_chances(work.z, units.possible[i], work.chance) - work.z[units.y[j]])
                if np.argmax(work.chance) != units.y[j]:
                    wrong[i] += weight[j]


@njit(**INNER)
def _dual_vector(units, i, alpha, b):  # type: ignore[no-untyped-def]
    b[:] = 0.0
    for j in range(units.starts[i], units.starts[i + 1]):
        if units.p[j] > 0:
            add_row(units, j, units.p[j], units.p[j], alpha[j], b)


@njit(**KERNEL)
def dual_vectors(units, alpha, B):  # type: ignore[no-untyped-def]
    for i in range(B.shape[0]):
        _dual_vector(units, i, alpha, B[i])


@njit(**INNER)
def _combine(units, order, i, k, b, u):  # type: ignore[no-untyped-def]
    """u = c + s b."""
    n = u.shape[0] - k if units.intercept else u.shape[0]
    for c in range(n):
        u[c] = order.C[i, c] + order.step[i] * b[c]
    for c in range(n, u.shape[0]):
        u[c] = order.C[i, c] + order.intercept_step[i] * b[c]


@njit(**INNER_FAST)
def _visit(units, order, i, j, alpha, u, work):  # type: ignore[no-untyped-def]
    """The coordinate step (43) on row j, whose scores are in `work.z`."""
    p, squares = units.p[j], order.step[i] * units.q[j]
    if units.intercept:
        squares += order.intercept_step[i]
    a = alpha[j]
    new, v, chance, slope, move = work.new, work.v, work.chance, work.slope, work.move
    softmax_step(a, work.z, units.y[j], p * squares, units.possible[i], new, v, chance, slope, move)
    for c in range(a.shape[0]):
        change = work.new[c] - a[c]
        a[c] = work.new[c]
        work.new[c] = change
    add_row(units, j, order.step[i] * p, order.intercept_step[i] * p, work.new, u)


@njit(**INNER_FAST)
def _passes(units, duals, order, i, u, evaluate, state, shuffled, rest, work):  # type: ignore[no-untyped-def]
    """Passes of coordinate ascent over unit i, as kernels.sdca_unit; rows drawn uniformly where blocks have no rows.

    Returns the number of steps and, with `evaluate`, the loss and the brackets at the weights w that came.
    """
    alpha, calm, target, steps, block = duals.alpha, duals.calm, order.target, order.steps[i], order.block[i]
    first, n = units.starts[i], units.starts[i + 1] - units.starts[i]
    loss_w = bracket_w = 0.0
    taken = passes = 0
    if block == 0:
        while n > 0 and taken < steps:
            state = next_state(state)
            j = first + below(state, n)
            taken += 1
            if units.p[j] > 0:
                scores(units, j, u, work.z)
                _visit(units, order, i, j, alpha, u, work)
        return taken, loss_w, bracket_w
    n_blocks = (n + block - 1) // block
    calm_below = CALM * target / units.weight[i] if 0 <= target < np.inf else -1.0
    for k in range(n_blocks):
        shuffled[k] = k
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
                taken += 1
                p = units.p[j]
                if p <= 0:
                    continue
                if evaluate and passes == 0:
                    value, bracket = _evaluate_row(units, i, j, alpha[j], order.W[i], work)
                    loss_w += p * value
                    bracket_w += p * bracket
                scores(units, j, u, work.z)
                if target >= 0:
                    softmax_chances(work.z, units.possible[i], work.chance)
                    bracket = softmax_bracket(alpha[j], units.y[j], units.possible[i], work.chance)
                    seen += p * bracket
                    if bracket <= calm_below:
                        calm[j] = min(calm[j] + np.uint8(1), LONGEST_REST)
                        rest[j] = (np.uint8(1) << calm[j]) - np.uint8(1)
                        continue
                    calm[j] = rest[j] = np.uint8(0)
                _visit(units, order, i, j, alpha, u, work)
        passes += 1
        if seen <= target:
            break
    return taken, loss_w, bracket_w


@njit(**INNER)
def start_unit(units, duals, order, i, evaluate, work, out):  # type: ignore[no-untyped-def]
    """The start of a unit's round: U = C + s B, and with `evaluate` the loss and the brackets at the weights."""
    _combine(units, order, i, units.possible.shape[1], duals.B[i], duals.U[i])
    out[i, :3], out[i, 4] = np.inf, 0.0
    if evaluate:
        out[i, 0], out[i, 1] = _evaluate_unit(units, i, duals.alpha, order.W[i], work)


@njit(**INNER)
def finish_unit(units, duals, order, i, work, out):  # type: ignore[no-untyped-def]
    """The end of a unit's round: B summed from alpha, U = C + s B, and the loss there if it is wanted."""
    _dual_vector(units, i, duals.alpha, duals.B[i])
    _combine(units, order, i, units.possible.shape[1], duals.B[i], duals.U[i])
    if order.evaluate_u:
        out[i, 2], _ = _evaluate_unit(units, i, duals.alpha, duals.U[i], work)


@njit(**KERNEL_FAST)
def ascent_round(units, duals, order, which, u, shuffled, rest, work, out):  # type: ignore[no-untyped-def]
    """A round of coordinate ascent for the units `which`. `u`: a vector of weights in the precision of the passes.
    Leaves alpha, B, U and `out` as the rounds in kernels.py, but for the conjugates."""
    for i in which:
        n, descend = units.starts[i + 1] - units.starts[i], order.step[i] > 0
        # the first pass visits every row, so it can evaluate the weights as well
        in_pass = order.evaluate_w and descend and order.steps[i] >= n and order.block[i] > 0
        start_unit(units, duals, order, i, order.evaluate_w and not in_pass, work, out)
        if descend:
            for c in range(u.shape[0]):
                u[c] = duals.U[i, c]
            state = stream(order.seed, order.ids[i], order.round)
            out[i, 4], loss_w, bracket_w = _passes(units, duals, order, i, u, in_pass, state, shuffled, rest, work)
            if in_pass:
                out[i, 0], out[i, 1] = loss_w, bracket_w
        finish_unit(units, duals, order, i, work, out)
