"""The local problems of units whose rows have a score for each class and the softmax loss (docs/math.md section 15)."""

import numpy as np

from dmtrl.losses import scalar
from dmtrl.losses.classes import Softmax
from dmtrl.protocol.rounds import Prepare, Scores
from dmtrl.worker import kernels, softmax_ascent, softmax_newton
from dmtrl.worker.local_rows import LocalRows, sum_by_unit
from dmtrl.worker.rounds import EXACT_LIMIT, LONG_STEP, WORTH_PASSES, RoundProblem
from dmtrl.worker.softmax_ascent import ClassRows, row_work

_SEPARABLE = 3000  # rows; with fewer a unit may well be separable
_STEP_COST = 100  # operations of a step on a row, per class


class SoftmaxProblem(RoundProblem):
    """The local problems of rows with a score for each class and the softmax loss."""

    _kernels = softmax_ascent

    def __init__(self, rows: LocalRows, held: np.ndarray, order: Prepare):
        masks = [loss.mask for loss in rows.losses if isinstance(loss, Softmax)]
        blocks, possible = rows.blocks, np.array(masks).reshape(len(masks), -1)
        super().__init__(rows, held, order, possible.shape[1])
        y, starts = blocks.y.astype(np.int64), blocks.starts.astype(np.int64)
        X = rows.arrays(order.density)
        intercept, offset = bool(order.intercept), blocks.offset
        self.units = ClassRows(X, y, self._p, rows.q, starts, possible, intercept, self._in_objective, offset)
        self._labels = self.units._replace(X=None)
        self._curvature = self._in_objective * Softmax.smoothness
        few = self._k * (blocks.X.shape[1] + self.units.intercept) <= EXACT_LIMIT
        self._exact = few and not self._fixed_work and order.local_solver in ("auto", "newton")

    def _duals_at(self, W: np.ndarray, alpha: np.ndarray) -> None:
        softmax_ascent.slopes(self.units, W, row_work(self._k), alpha)

    def _sum_duals(self, alpha: np.ndarray, B: np.ndarray) -> None:
        softmax_ascent.dual_vectors(self.units, alpha, B)

    def _solve(self, duals: kernels.Duals, plan: kernels.Order, solver: np.ndarray) -> np.ndarray:
        longest, d = int(np.diff(self.units.starts).max(initial=0)), self._blocks.X.shape[1]
        out, row = np.zeros((len(solver), 5)), row_work(self._k)
        by_newton, descend = np.flatnonzero(solver == kernels.NEWTON), np.flatnonzero(solver == kernels.SDCA)
        if len(by_newton):
            work = softmax_newton.newton_work(self._k, d, self.units.intercept, longest)
            softmax_newton.newton_round(self.units, duals, plan, by_newton, row, work, out)
            descend = np.union1d(descend, by_newton[out[by_newton, 4] < 0])
        if len(descend):
            shuffled, rest = np.empty(longest, dtype=np.int64), np.zeros_like(duals.calm)
            softmax_ascent.ascent_round(
                self.units, duals, plan, descend, self._vector_for_passes(plan), shuffled, rest, row, out
            )
        out[:, 3] = self.conjugates(duals.alpha)  # the kernels leave it out
        return out

    def _choose_solvers(self, step: np.ndarray, intercept_step: np.ndarray, pace: float) -> np.ndarray:
        n = np.maximum(np.diff(self.units.starts), 1)
        if not self._exact:
            return np.full(len(n), kernels.SDCA)
        if self._prepare.local_solver == "newton":
            return np.full(len(n), kernels.NEWTON)
        stiffness = (step * self._mean_q + intercept_step) * self._curvature / n
        ascent = self._pass_cost() * np.minimum(1 + 0.2 * stiffness, int(self._prepare.max_passes))
        return np.where(self._newton_cost() < ascent, kernels.NEWTON, kernels.SDCA)

    def _pass_cost(self) -> np.ndarray:
        """Operations of a pass over each unit."""
        return np.asarray(np.diff(self.units.starts) * self._k * (4.0 * self._numbers_in_row + _STEP_COST))

    def _newton_cost(self) -> np.ndarray:
        """Operations of Newton's method for each unit."""
        n, per_row = np.diff(self.units.starts), self._k * self._numbers_in_row
        return np.asarray(4 * (n * per_row**2 / 2 + (self._k * self._blocks.X.shape[1]) ** 3 / 3))

    def losses_at(self, W: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        value = np.zeros(len(W))
        softmax_ascent.evaluate(self.units, alpha, np.ascontiguousarray(W), row_work(self._k), value)
        return value

    def held_out(self, W: np.ndarray, weight: np.ndarray) -> Scores:
        loss, wrong = np.zeros((2, len(W)))
        softmax_ascent.held_out(self.units, weight, np.ascontiguousarray(W), row_work(self._k), loss, wrong)
        total = sum_by_unit(weight, self._blocks.starts)
        return Scores(weight=total, loss=loss, squared_error=np.zeros(len(W)), wrong=wrong)

    def at_zero(self) -> tuple[np.ndarray, np.ndarray]:
        """The loss at zero weights and the conjugate at zero dual variables."""
        starts, zero = self._blocks.starts, np.zeros(self._blocks.n_units)
        if self.units.offset is None:
            return sum_by_unit(self.units.p, starts) * np.log(self.units.possible.sum(axis=1)), zero
        z = np.where(np.repeat(self.units.possible, np.diff(starts), axis=0), self.units.offset, -np.inf)
        loss = np.logaddexp.reduce(z, axis=1) - np.take_along_axis(z, self.units.y[:, None], axis=1)[:, 0]
        return sum_by_unit(self.units.p * loss, starts), zero

    def longest_step(self) -> np.ndarray:
        """The step size beyond which coordinate ascent hardly moves, or Newton's method loses the digits of s b."""
        n = np.maximum(np.diff(self.units.starts), 1)
        most = np.full(len(n), 1e8) if self._exact else 1e3 * n
        return np.asarray(most / np.maximum(self._mean_q * self._curvature, scalar.TINY))

    def _own_intercept_step(self) -> np.ndarray:
        """Almost exact minimisation where Newton's method is cheap, else as long as coordinate ascent hardly notices. A
        unit with few rows is often separable, so that its loss has little curvature, and needs a longer one."""
        n = np.maximum(np.diff(self.units.starts), 1)
        cheap = self._exact & (self._newton_cost() <= WORTH_PASSES * self._pass_cost())
        return np.asarray(np.where(cheap, LONG_STEP, np.clip(_SEPARABLE, n, 30 * n)) / self._curvature)
