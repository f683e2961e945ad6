"""The local problems of units whose rows have a score for each class and the softmax loss (docs/math.md section 15).

The weights of a unit are one vector: d numbers for each of k classes, then the k intercepts. A row has k dual
variables, which one coordinate step changes together.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from dmtrl.losses import vector
from dmtrl.losses.classes import Softmax
from dmtrl.losses.vector import softmax_bracket, softmax_chances, softmax_conjugate, softmax_step
from dmtrl.numerics.compile_cache import INNER, INNER_FAST, KERNEL, KERNEL_FAST, discard_stale
from dmtrl.protocol.messages import Improved, Prepare, Round, Scores
from dmtrl.protocol.steps import Steps
from dmtrl.worker import kernels, rows
from dmtrl.worker.kernels import CALM, LONGEST_REST, below, next_state, shuffle, stream
from dmtrl.worker.local_problem import (
    FLOAT32_ENOUGH,
    DualState,
    LocalRows,
    amount_of_work,
    local_centre,
    rows_in_block,
    sum_by_unit,
)
from dmtrl.worker.rows import row_axpy, row_dot

discard_stale(__file__, vector.__file__, rows.__file__, kernels.__file__)

_SEPARABLE = 3000  # rows; with fewer a unit may well be separable


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


class RowWork(NamedTuple):
    """Memory for one row: k numbers each."""

    z: np.ndarray
    chance: np.ndarray
    new: np.ndarray
    v: np.ndarray
    move: np.ndarray


def row_work(k: int) -> RowWork:
    return RowWork(*np.empty((5, k)))


@njit(**INNER_FAST)
def _scores(units, j, u, z):  # type: ignore[no-untyped-def]
    """z = the k scores of row j."""
    k = z.shape[0]
    d = (u.shape[0] - k if units.intercept else u.shape[0]) // k
    for c in range(k):
        z[c] = row_dot(units.X, j, u[c * d : (c + 1) * d])
        if units.intercept:
            z[c] += u[k * d + c]


@njit(**INNER_FAST)
def _add_row(units, j, f, intercept_f, change, u):  # type: ignore[no-untyped-def]
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
    _scores(units, j, w, work.z)
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


@njit(**KERNEL)
def slopes(units, W, work, alpha):  # type: ignore[no-untyped-def]
    """The dual variables that belong to W."""
    for i in range(W.shape[0]):
        for j in range(units.starts[i], units.starts[i + 1]):
            _scores(units, j, W[i], work.z)
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
                _scores(units, j, W[i], work.z)
                loss[i] += weight[j] * (softmax_chances(work.z, units.possible[i], work.chance) - work.z[units.y[j]])
                if np.argmax(work.chance) != units.y[j]:
                    wrong[i] += weight[j]


@njit(**INNER)
def _dual_vector(units, i, alpha, b):  # type: ignore[no-untyped-def]
    b[:] = 0.0
    for j in range(units.starts[i], units.starts[i + 1]):
        if units.p[j] > 0:
            _add_row(units, j, units.p[j], units.p[j], alpha[j], b)


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
    softmax_step(a, work.z, units.y[j], p * squares, units.possible[i], work.new, work.v, work.chance, work.move)
    for c in range(a.shape[0]):
        change = work.new[c] - a[c]
        a[c] = work.new[c]
        work.new[c] = change
    _add_row(units, j, order.step[i] * p, order.intercept_step[i] * p, work.new, u)


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
                _scores(units, j, u, work.z)
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
                _scores(units, j, u, work.z)
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


@njit(**KERNEL_FAST)
def softmax_round(units, duals, order, u, shuffled, rest, work, out):  # type: ignore[no-untyped-def]
    """A round of all units by coordinate ascent. `u`: a vector of weights in the precision of the passes. Leaves alpha,
    B, U and `out` as the rounds in kernels.py."""
    for i in range(out.shape[0]):
        b, end, n = duals.B[i], duals.U[i], units.starts[i + 1] - units.starts[i]
        k = units.possible.shape[1]
        _combine(units, order, i, k, b, end)
        out[i, :3], out[i, 4] = np.inf, 0.0
        descend = order.step[i] > 0
        # the first pass visits every row, so it can evaluate the weights as well
        in_pass = order.evaluate_w and descend and order.steps[i] >= n and order.block[i] > 0
        if order.evaluate_w and not in_pass:
            out[i, 0], out[i, 1] = _evaluate_unit(units, i, duals.alpha, order.W[i], work)
        if descend:
            for c in range(u.shape[0]):
                u[c] = end[c]
            state = stream(order.seed, order.ids[i], order.round)
            taken, loss_w, bracket_w = _passes(units, duals, order, i, u, in_pass, state, shuffled, rest, work)
            out[i, 4] = taken
            if in_pass:
                out[i, 0], out[i, 1] = loss_w, bracket_w
        _dual_vector(units, i, duals.alpha, b)
        _combine(units, order, i, k, b, end)
        if order.evaluate_u:
            out[i, 2], _ = _evaluate_unit(units, i, duals.alpha, end, work)


class SoftmaxProblem:
    """The local problems (6) of one run for the softmax loss, by coordinate ascent. See local_problem.LocalProblem."""

    gram = None  # no factors to keep

    def __init__(self, rows: LocalRows, held: np.ndarray, order: Prepare, gram: object = None):
        blocks = rows.blocks
        self._blocks, self._order = blocks, order
        weight = np.ones(blocks.n_units) if order.task_weight is None else order.task_weight
        p = np.repeat(weight / order.total_weight, np.diff(blocks.starts))
        p[held] = 0.0
        if blocks.sample_weight is not None:
            p *= blocks.sample_weight
        masks = [loss.mask for loss in rows.losses if isinstance(loss, Softmax)]
        possible = np.array(masks).reshape(blocks.n_units, -1)
        y, starts = blocks.y.astype(np.int64), blocks.starts.astype(np.int64)
        self.units = ClassRows(
            rows.arrays(order.density), y, p, rows.q, starts, possible, bool(order.intercept), weight
        )
        self._labels = self.units._replace(X=None)
        self._k, self._curvature = possible.shape[1], weight * Softmax.smoothness
        self._stream_ids = blocks.tasks.astype(np.uint64) + (blocks.shards.astype(np.uint64) << np.uint64(40))
        self._mean_q = sum_by_unit(p * rows.q, blocks.starts) / np.maximum(sum_by_unit(p, blocks.starts), 1e-200)
        self._block = rows_in_block(blocks, rows.numbers_in_row(order.density), order.sampling)

    def begin(self, alpha: np.ndarray | None = None) -> DualState:
        """The state at the start of a run, from dual variables that were kept, else from zero or the weights given."""
        n, d = self._blocks.X.shape
        if alpha is None:
            alpha = np.zeros((n, self._k))
        if self._order.w is not None and not alpha.any():
            slopes(self.units, np.ascontiguousarray(self._order.w), row_work(self._k), alpha)
        B = np.zeros((self._blocks.n_units, self._k * (d + self.units.intercept)))
        if alpha.any():
            dual_vectors(self.units, alpha, B)
        return DualState(alpha, B, np.zeros(n, dtype=np.uint8))

    def improve(self, state: DualState, order: Round) -> Improved:
        """Improve the dual variables on the local problems around the weights that came."""
        step = Steps(order.step, order.intercept_step, self._order.intercept_ridge, self._k)
        intercept_step = np.zeros(len(order.step)) if step.intercept is None else step.effective_intercept
        steps, target = amount_of_work(np.diff(self.units.starts), self._order, order)
        centre = local_centre(state, order, step)
        before = state.alpha.copy() if order.eta < 1 else None
        # B is replaced, not changed: the coordinator may have the last one, which was not copied for the answer
        state.B, state.U = state.B.copy(), np.empty(centre.shape)
        plan = kernels.Order(
            ids=self._stream_ids,
            W=np.ascontiguousarray(order.w),
            C=centre,
            step=np.ascontiguousarray(order.step),
            intercept_step=np.ascontiguousarray(intercept_step),
            steps=steps,
            block=self._block,
            target=target,
            seed=int(self._order.seed),
            round=int(order.round),
            evaluate_w=bool(order.evaluate_w),
            evaluate_u=bool(order.evaluate_u),
        )
        rough = target < 0 or target > FLOAT32_ENOUGH  # then float32 rows are improved in float32
        u = np.empty(centre.shape[1], dtype=self._blocks.X.dtype if rough else np.float64)
        shuffled = np.empty(int(np.diff(self.units.starts).max(initial=0)), dtype=np.int64)
        out, rest = np.zeros((len(steps), 5)), np.zeros_like(state.calm)
        duals = kernels.Duals(state.alpha, state.B, state.U, state.calm)
        softmax_round(self.units, duals, plan, u, shuffled, rest, row_work(self._k), out)
        if before is not None:
            state.alpha[:] = before + order.eta * (state.alpha - before)
            dual_vectors(self.units, state.alpha, state.B)
        return Improved(
            b=state.B,
            loss_w=out[:, 0].copy(),
            bracket_w=out[:, 1].copy(),
            loss_u=out[:, 2].copy(),
            conjugate=self.conjugates(state.alpha),
            steps=out[:, 4].astype(np.int64),
            solver=np.full(len(out), kernels.SDCA, dtype=np.int8),
            loss_probe=None if order.probe is None else self.losses_at(order.probe, state.alpha),
        )

    def conjugates(self, alpha: np.ndarray) -> np.ndarray:
        """The sum of p l*(-alpha) of each unit."""
        sums = np.zeros(self._blocks.n_units)
        conjugates(self._labels, alpha, sums)
        return sums

    def dual_vectors(self, state: DualState) -> np.ndarray:
        """b of each unit."""
        return state.B

    def losses_at(self, W: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """The weighted loss of each unit at W."""
        value = np.zeros(len(W))
        evaluate(self.units, alpha, np.ascontiguousarray(W), row_work(self._k), value)
        return value

    def held_out(self, W: np.ndarray, weight: np.ndarray) -> Scores:
        """Errors of W on rows with these weights."""
        loss, wrong = np.zeros((2, len(W)))
        held_out(self.units, weight, np.ascontiguousarray(W), row_work(self._k), loss, wrong)
        total = sum_by_unit(weight, self._blocks.starts)
        return Scores(weight=total, loss=loss, squared_error=np.zeros(len(W)), wrong=wrong)

    def at_zero(self) -> tuple[np.ndarray, np.ndarray]:
        """The loss at zero weights and the conjugate at zero dual variables."""
        weight = sum_by_unit(self.units.p, self._blocks.starts)
        return weight * np.log(self.units.possible.sum(axis=1)), np.zeros(self._blocks.n_units)

    def longest_step(self) -> np.ndarray:
        """The step size beyond which coordinate ascent hardly moves."""
        n = np.maximum(np.diff(self.units.starts), 1)
        return np.asarray(1e3 * n / np.maximum(self._mean_q * self._curvature, 1e-200))

    def intercept_step(self) -> np.ndarray | None:
        """The step size of the intercepts: as long as coordinate ascent hardly notices. A unit with few rows is often
        separable, so that its loss has little curvature, and needs a longer one."""
        if not self.units.intercept:
            return None
        if self._order.intercept_ridge < 0:
            return np.asarray(20.0 / self._curvature)
        n = np.maximum(np.diff(self.units.starts), 1)
        return np.asarray(np.clip(_SEPARABLE, n, 30 * n) / self._curvature)
