"""The local problems of units whose rows have a score for each class and the softmax loss (docs/math.md section 15)."""

import numpy as np

from dmtrl.losses.classes import Softmax
from dmtrl.protocol.messages import Improved, Prepare, Round, Scores
from dmtrl.protocol.steps import Steps
from dmtrl.worker import kernels, softmax_ascent, softmax_newton
from dmtrl.worker.local_problem import (
    EXACT_LIMIT,
    FLOAT32_ENOUGH,
    DualState,
    LocalRows,
    amount_of_work,
    local_centre,
    rows_in_block,
    sum_by_unit,
)
from dmtrl.worker.softmax_ascent import ClassRows, row_work

_SEPARABLE = 3000  # rows; with fewer a unit may well be separable
_STEP_COST = 100  # operations of a step on a row, per class
_WORTH_PASSES = 20  # passes of coordinate ascent that an exact solution is worth for the sake of its intercept


class SoftmaxProblem:
    """The local problems (6) of one run for the softmax loss. See local_problem.LocalProblem."""

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
        self._numbers_in_row = rows.numbers_in_row(order.density)
        self._block = rows_in_block(blocks, self._numbers_in_row, order.sampling)
        fixed_work = order.sampling == "uniform" or bool(order.steps.all())
        few = self._k * (blocks.X.shape[1] + self.units.intercept) <= EXACT_LIMIT
        self._exact = few and not fixed_work and order.local_solver in ("auto", "newton")

    def begin(self, alpha: np.ndarray | None = None) -> DualState:
        """The state at the start of a run, from dual variables that were kept, else from zero or the weights given."""
        n, d = self._blocks.X.shape
        if alpha is None:
            alpha = np.zeros((n, self._k))
        if self._order.w is not None and not alpha.any():
            softmax_ascent.slopes(self.units, np.ascontiguousarray(self._order.w), row_work(self._k), alpha)
        B = np.zeros((self._blocks.n_units, self._k * (d + self.units.intercept)))
        if alpha.any():
            softmax_ascent.dual_vectors(self.units, alpha, B)
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
        solver = self._choose_solvers(order.step, intercept_step)
        out = self._solve(kernels.Duals(state.alpha, state.B, state.U, state.calm), plan, solver)
        if before is not None:
            state.alpha[:] = before + order.eta * (state.alpha - before)
            softmax_ascent.dual_vectors(self.units, state.alpha, state.B)
        return Improved(
            b=state.B,
            loss_w=out[:, 0].copy(),
            bracket_w=out[:, 1].copy(),
            loss_u=out[:, 2].copy(),
            conjugate=self.conjugates(state.alpha),
            steps=out[:, 4].astype(np.int64),
            solver=solver.astype(np.int8),
            loss_probe=None if order.probe is None else self.losses_at(order.probe, state.alpha),
        )

    def _solve(self, duals: kernels.Duals, plan: kernels.Order, solver: np.ndarray) -> np.ndarray:
        """Run the kernel of each solver on its units. Returns a row of sums for each unit, without conjugates."""
        longest, d = int(np.diff(self.units.starts).max(initial=0)), self._blocks.X.shape[1]
        out, row = np.zeros((len(solver), 5)), row_work(self._k)
        by_newton, descend = np.flatnonzero(solver == kernels.NEWTON), np.flatnonzero(solver == kernels.SDCA)
        if len(by_newton):
            work = softmax_newton.newton_work(self._k, d, self.units.intercept, longest)
            softmax_newton.newton_round(self.units, duals, plan, by_newton, row, work, out)
            descend = np.union1d(descend, by_newton[out[by_newton, 4] < 0])
        if len(descend):
            rough = plan.target < 0 or plan.target > FLOAT32_ENOUGH  # then float32 rows are improved in float32
            u = np.empty(plan.C.shape[1], dtype=self._blocks.X.dtype if rough else np.float64)
            shuffled, rest = np.empty(longest, dtype=np.int64), np.zeros_like(duals.calm)
            softmax_ascent.ascent_round(self.units, duals, plan, descend, u, shuffled, rest, row, out)
        return out

    def _choose_solvers(self, step: np.ndarray, intercept_step: np.ndarray) -> np.ndarray:
        """The local solver of each unit: the one that should reach its target in fewer operations."""
        n = np.maximum(np.diff(self.units.starts), 1)
        if not self._exact:
            return np.full(len(n), kernels.SDCA)
        if self._order.local_solver == "newton":
            return np.full(len(n), kernels.NEWTON)
        stiffness = (step * self._mean_q + intercept_step) * self._curvature / n
        ascent = self._pass_cost() * np.minimum(1 + 0.2 * stiffness, int(self._order.max_passes))
        return np.where(self._newton_cost() < ascent, kernels.NEWTON, kernels.SDCA)

    def _pass_cost(self) -> np.ndarray:
        """Operations of a pass over each unit."""
        return np.asarray(np.diff(self.units.starts) * self._k * (4.0 * self._numbers_in_row + _STEP_COST))

    def _newton_cost(self) -> np.ndarray:
        """Operations of Newton's method for each unit."""
        n, per_row = np.diff(self.units.starts), self._k * self._numbers_in_row
        return np.asarray(4 * (n * per_row**2 / 2 + (self._k * self._blocks.X.shape[1]) ** 3 / 3))

    def conjugates(self, alpha: np.ndarray) -> np.ndarray:
        """The sum of p l*(-alpha) of each unit."""
        sums = np.zeros(self._blocks.n_units)
        softmax_ascent.conjugates(self._labels, alpha, sums)
        return sums

    def dual_vectors(self, state: DualState) -> np.ndarray:
        """b of each unit."""
        return state.B

    def losses_at(self, W: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """The weighted loss of each unit at W."""
        value = np.zeros(len(W))
        softmax_ascent.evaluate(self.units, alpha, np.ascontiguousarray(W), row_work(self._k), value)
        return value

    def held_out(self, W: np.ndarray, weight: np.ndarray) -> Scores:
        """Errors of W on rows with these weights."""
        loss, wrong = np.zeros((2, len(W)))
        softmax_ascent.held_out(self.units, weight, np.ascontiguousarray(W), row_work(self._k), loss, wrong)
        total = sum_by_unit(weight, self._blocks.starts)
        return Scores(weight=total, loss=loss, squared_error=np.zeros(len(W)), wrong=wrong)

    def at_zero(self) -> tuple[np.ndarray, np.ndarray]:
        """The loss at zero weights and the conjugate at zero dual variables."""
        weight = sum_by_unit(self.units.p, self._blocks.starts)
        return weight * np.log(self.units.possible.sum(axis=1)), np.zeros(self._blocks.n_units)

    def longest_step(self) -> np.ndarray:
        """The step size beyond which coordinate ascent hardly moves, or Newton's method loses the digits of s b."""
        n = np.maximum(np.diff(self.units.starts), 1)
        most = np.full(len(n), 1e8) if self._exact else 1e3 * n
        return np.asarray(most / np.maximum(self._mean_q * self._curvature, 1e-200))

    def intercept_step(self) -> np.ndarray | None:
        """The step size of the intercepts: almost exact minimisation where Newton's method is cheap, else as long as
        coordinate ascent hardly notices. A unit with few rows is often separable, so that its loss has little
        curvature, and needs a longer one."""
        if not self.units.intercept:
            return None
        if self._order.intercept_ridge < 0:
            return np.asarray(20.0 / self._curvature)
        n = np.maximum(np.diff(self.units.starts), 1)
        cheap = self._exact & (self._newton_cost() <= _WORTH_PASSES * self._pass_cost())
        return np.asarray(np.where(cheap, 1e6, np.clip(_SEPARABLE, n, 30 * n)) / self._curvature)
