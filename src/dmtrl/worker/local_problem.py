"""The local problems of units whose rows have one score: which local solver each unit gets, and its step sizes.

Equation numbers are those of docs/math.md.
"""

import numpy as np
from scipy import sparse

from dmtrl.losses import scalar
from dmtrl.numerics.rowwise import row_blocks
from dmtrl.protocol.rounds import Prepare, Scores
from dmtrl.worker import exact, kernels, span
from dmtrl.worker.box import span_work
from dmtrl.worker.local_rows import LocalRows, gram_factors, sum_by_unit
from dmtrl.worker.rounds import EXACT_LIMIT, LONG_STEP, WORTH_PASSES, RoundProblem

SOLVER_NAMES = {kernels.SDCA: "sdca", kernels.NEWTON: "newton", kernels.GRAM: "gram", kernels.SPAN: "span"}
_ENOUGH_FOR_INTERCEPT = 32  # stiffness of an intercept: a round then leaves about 1 / 32 of its error
_ENOUGH_AT_KINKS = 128  # the same for losses with kinks, which have no curvature to rely on
_FEW_ROWS = 128  # with so few, an exact solution is always cheap
_OF_CLASSES = (scalar.SMOOTHED_HINGE, scalar.SQUARED_HINGE, scalar.LOGISTIC)  # smooth losses of two classes
_TURNING = (scalar.ABSOLUTE, scalar.EPSILON_INSENSITIVE, scalar.QUANTILE, scalar.HUBER)  # slopes that turn around y
_WORTH_TIMES = 5  # the most passes: what an exact solution is worth where they do not suffice
_ROUNDS_AHEAD = 10  # over how many rounds a factorisation is expected to pay


class LocalProblem(RoundProblem):
    """The local problems of rows with one score.

    `gram`: factors of an earlier run on the same rows, which still hold.
    """

    def __init__(self, rows: LocalRows, held: np.ndarray, order: Prepare, gram: exact.GramFactors | None = None):
        super().__init__(rows, held, order)
        blocks, losses, self._kernels, self.gram = rows.blocks, rows.losses, rows.kernels, gram
        ids = np.array([loss.id for loss in losses], dtype=np.int64)
        param = np.array([loss.param for loss in losses])
        y, starts = rows.y.astype(float, copy=False), blocks.starts.astype(np.int64)
        X = rows.arrays(order.density)
        self.units = kernels.UnitRows(
            X, y, self._p, rows.q, starts, ids, param, bool(order.intercept), self._in_objective, rows.offset
        )
        self._labels = self.units._replace(X=None)
        bounds = np.array([loss.smoothness for loss in losses])
        self._smooth = np.isfinite(bounds) & (ids != scalar.CUSTOM)
        self._has_slope = self._smooth | (ids == scalar.POISSON)  # Newton needs one
        self._curvature = self._in_objective * self._typical_curvature(bounds)
        # units with so few rows that linear solves with the products of the rows are cheap
        few = np.diff(blocks.starts) <= EXACT_LIMIT
        self._in_span = few & (ids != scalar.CUSTOM) & (not self._fixed_work)
        # products of rows are kept where they take at most a quarter of the memory of the rows
        self._stored = self._in_span & (4 * np.diff(blocks.starts) <= self._numbers_in_row)

    def _duals_at(self, W: np.ndarray, alpha: np.ndarray) -> None:
        kernels.slopes(self.units, W, self._smooth, alpha)

    def _sum_duals(self, alpha: np.ndarray, B: np.ndarray) -> None:
        kernels.dual_vectors(self.units, alpha, B)

    def _solve(self, duals: kernels.Duals, plan: kernels.Order, solver: np.ndarray) -> np.ndarray:
        longest, d = int(np.diff(self.units.starts).max(initial=0)), plan.C.shape[1]
        out = np.zeros((len(solver), 5))
        codes = kernels.GRAM, kernels.NEWTON, kernels.SPAN, kernels.SDCA
        by_gram, by_newton, in_span, descend = (np.flatnonzero(solver == code) for code in codes)
        if len(in_span):
            solved = self._solve_in_span(duals, plan, in_span, out)
            descend = np.union1d(descend, in_span[~solved])
        if len(by_gram):
            used = plan.intercept_step if self.units.intercept else np.empty(0)
            if self.gram is None or not np.array_equal(self.gram.intercept_step, used):  # of an earlier run
                self.gram = gram_factors(self._blocks, self.units, plan.intercept_step)
            exact.gram_round(self.units, duals, plan, by_gram, self.gram, np.empty(d), out)
        if len(by_newton):
            exact.newton_round(self.units, duals, plan, by_newton, exact.newton_work(d, longest), out)
            descend = np.union1d(descend, by_newton[out[by_newton, 4] < 0])
        if len(descend):
            work = self._vector_for_passes(plan)
            if self._prepare.sampling == "uniform":
                self._kernels.uniform_round(self.units, duals, plan, descend, work, out)
            else:
                shuffled, rest = np.empty(longest, dtype=np.int64), np.zeros_like(duals.calm)
                self._kernels.sdca_round(self.units, duals, plan, descend, work, shuffled, rest, out)
        return out

    def _solve_in_span(
        self, duals: kernels.Duals, plan: kernels.Order, which: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Returns which of the units were solved."""
        alpha, r, steps = duals.alpha.copy(), np.empty(len(duals.alpha)), np.zeros(len(out))
        work = span_work(int(np.diff(self.units.starts)[which].max()))
        span.centre_scores(self.units, plan.C, which, r)
        widest = 0.01 * self.units.weight / self._curvature
        accuracy = np.clip(plan.target / self.units.weight, 1e-7 * widest, widest)
        for products, part in self._rows.products(which, self._stored):
            span.solve_units(
                self._labels, ~self._has_slope, accuracy, widest, products, part, r, plan, alpha, steps, work
            )
        solved = steps[which] >= 0
        span.take_round(self.units, duals, plan, which[solved], alpha, steps, out)
        return np.asarray(solved)

    def losses_at(self, W: np.ndarray, alpha: np.ndarray, p: np.ndarray | None = None) -> np.ndarray:
        """The weighted loss of each unit at W, with row weights `p` instead of the usual ones."""
        value, conjugate, bracket = np.zeros((3, len(W)))
        units = self.units if p is None else self.units._replace(p=p)
        self._kernels.evaluate(units, alpha, np.ascontiguousarray(W), value, conjugate, bracket)
        return value

    def held_out(self, W: np.ndarray, weight: np.ndarray) -> Scores:
        blocks, y = self._blocks, self._blocks.y.astype(float, copy=False)
        z, d, tested = np.zeros(len(y)), blocks.X.shape[1], np.flatnonzero(weight > 0)
        unit = np.searchsorted(blocks.starts, tested, side="right") - 1
        if sparse.issparse(blocks.X):
            first = np.searchsorted(tested, blocks.starts)
            for i in np.unique(unit):
                rows = tested[first[i] : first[i + 1]]
                z[rows] = blocks.X[rows] @ W[i, :d]
        else:
            for some in row_blocks(len(tested), d):
                z[tested[some]] = np.einsum("ij,ij->i", blocks.X[tested[some]], W[unit[some], :d])
        if self.units.intercept:
            z[tested] += W[unit, -1]
        if blocks.offset is not None:
            z += blocks.offset
        return Scores(
            weight=sum_by_unit(weight, blocks.starts),
            loss=self.losses_at(W, np.zeros(len(y)), p=weight),
            squared_error=sum_by_unit(weight * (y - z) ** 2, blocks.starts),
            wrong=sum_by_unit(weight * (y * z <= 0), blocks.starts),
        )

    def at_zero(self) -> tuple[np.ndarray, np.ndarray]:
        """The loss at zero weights and the conjugate at zero dual variables: they need labels only, no row is read."""
        value = np.zeros(self._blocks.n_units)
        self._kernels.losses_at_zero(self._labels, value)
        return value, self.conjugates(np.zeros(len(self._blocks.y)))

    def longest_step(self) -> np.ndarray:
        """The step size beyond which a unit's local problem is too stiff: coordinate ascent then hardly moves, and the
        exact solvers lose the digits of s b."""
        n, q = np.diff(self.units.starts), np.maximum(self._mean_q * self._curvature, scalar.TINY)
        exactly = self._in_span | (self._has_slope & (self._blocks.X.shape[1] <= EXACT_LIMIT))
        return np.where(exactly, 1e11, 1e3 * np.maximum(n, 1)) / q

    def _own_intercept_step(self) -> np.ndarray:
        """An intercept is not coupled to other tasks, so its step should be long: almost exact minimisation where that
        is cheap. Coordinate ascent slows down with it, while a round with step k / curvature leaves about 1 / k of the
        error of a smooth loss: there, a short one is long enough."""
        n, d, long = np.maximum(np.diff(self.units.starts), 1), self._blocks.X.shape[1], LONG_STEP / self._curvature
        solver = self._choose_solvers(np.zeros(len(n)), long, 1.0)  # where the intercept alone makes a unit stiff
        newton, in_span = self._exact_costs(_ROUNDS_AHEAD)
        cheap = np.minimum(newton, in_span) <= WORTH_PASSES * 4 * n * self._numbers_in_row
        # Classes that can be separated leave an intercept undetermined, which passes find slowly. Amounts do not: more
        # rows than 2 d are solved exactly only where that happens anyway.
        passes = np.isin(self.units.loss, _TURNING) & (n > 2 * d)
        if np.isfinite(self._prepare.first_step):
            first = np.full(len(n), self._prepare.first_step)
            passes &= self._choose_solvers(first, n / self._curvature, 1.0) == kernels.SDCA
        few = self._in_span & (n <= _FEW_ROWS) & ~passes
        exact = few | (cheap & (solver != kernels.SDCA)) | (solver == kernels.GRAM)
        enough = np.where(self._has_slope, self._enough_for_intercept(), np.maximum(n / 4, _ENOUGH_AT_KINKS))
        return np.where(exact, long, np.minimum(n, enough) / self._curvature)

    def _enough_for_intercept(self) -> np.ndarray:
        """The stiffness that the intercept of a unit needs with a smooth loss, over the bound of its curvature.

        A round then leaves about 1 / 32 of the error at the curvature that classes of these shares have without
        features. Where the first step size is long, classes may be separated and the curvature small: there, the
        intercept is as stiff as a number of a row on average."""
        if not np.isfinite(self._prepare.first_step):
            return np.full(self._blocks.n_units, np.inf)
        y, p, starts = self.units.y, self.units.p, self._blocks.starts
        balance = np.ones(self._blocks.n_units)
        classes = np.isin(self.units.loss, _OF_CLASSES)
        if classes.any():
            positive = sum_by_unit(p * (y > 0), starts) / np.maximum(sum_by_unit(p, starts), scalar.TINY)
            balance = np.where(classes, np.maximum(4.0 * positive * (1.0 - positive), 1e-6), 1.0)
        stiffness = (
            self._prepare.first_step
            * self._mean_q
            * self._curvature
            / self._rows.numbers_by_unit(self._prepare.density)
        )
        return np.asarray(np.maximum(_ENOUGH_FOR_INTERCEPT / balance, stiffness))

    def _typical_curvature(self, bounds: np.ndarray) -> np.ndarray:
        """The second derivative of each unit's loss where it is smooth, else the slope over the spread of the labels
        across which it turns."""
        y, p, starts, loss = self.units.y, self.units.p, self._blocks.starts, self.units.loss
        curvature = np.where(np.isfinite(bounds), bounds, 1.0)
        turning = np.isin(loss, _TURNING)
        counts = loss == scalar.POISSON
        if not (turning | counts).any():  # then nothing of the size of the labels is needed
            return curvature
        mean = sum_by_unit(p * y, starts) / self._weight
        spread = sum_by_unit(p * np.abs(y - np.repeat(mean, np.diff(starts))), starts) / self._weight
        width = np.where(loss == scalar.HUBER, self.units.param, 1.0) / np.where(spread > 0, spread, 1.0)
        curvature = np.where(turning, np.where(np.isfinite(bounds), np.minimum(curvature, width), width), curvature)
        return np.where(counts, np.maximum(mean, 0.1), curvature)

    def _choose_solvers(self, step: np.ndarray, intercept_step: np.ndarray, pace: float) -> np.ndarray:
        wanted = self._prepare.local_solver
        n_units, d = len(step), self._blocks.X.shape[1]
        squared = self.units.loss == scalar.SQUARED
        if wanted != "auto":
            code = next(code for code, name in SOLVER_NAMES.items() if name == wanted)
            able = {kernels.GRAM: squared, kernels.SPAN: self._in_span}.get(code, self._has_slope)
            return np.where(able, code, kernels.SDCA)
        n, per_row = np.maximum(np.diff(self.units.starts), 1), self._numbers_in_row
        stiffness = (step * self._mean_q + intercept_step) * self._curvature / n
        one_pass = 4 * n * per_row
        sdca = one_pass * (3 * (1 + stiffness) if pace > 0 else 1.0)
        # where passes do not suffice, an exact solution may cost several times as much as the most passes allowed
        most = _WORTH_TIMES * one_pass * int(self._prepare.max_passes)
        ahead = max(pace * _ROUNDS_AHEAD, 1.0)
        few = n <= _FEW_ROWS
        newton, in_span = (np.where((cost <= most) | few, cost, np.inf) for cost in self._exact_costs(ahead))
        gram = 4 * d**2 + (n * per_row**2 + 10 * d**3) / ahead
        # a quarter of the rows' bytes: with a user's array and the solver's own, all stays below 2.5 times the data
        X = self._blocks.X
        gram_fits = 8 * n_units * d * d <= max((X.data if sparse.issparse(X) else X).nbytes / 4, 8e6)
        solver = np.argmin([sdca, newton, np.full(n_units, np.inf), in_span], axis=0)
        if gram_fits and (squared & (gram < np.minimum(sdca, in_span))).any():
            solver[squared] = kernels.GRAM
        return np.asarray(solver)

    def _exact_costs(self, rounds: float) -> tuple[np.ndarray, np.ndarray]:
        """Operations of Newton's method and of the solver in the span, in each of so many rounds; infinite where a
        unit cannot be solved that way."""
        n, d, per_row = np.maximum(np.diff(self.units.starts), 1), self._blocks.X.shape[1], self._numbers_in_row
        newton = np.where(self._has_slope, 4 * (n * per_row**2 + d**3 / 3), np.inf)
        products = n**2 * per_row / np.where(self._stored, rounds, 1.0)
        return newton, np.where(self._in_span, 4 * n * (n**2 / 3 + 3 * n) + products, np.inf)
