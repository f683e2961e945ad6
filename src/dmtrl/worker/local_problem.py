"""The local problems of a worker's units, ready to be improved round after round.

Equation numbers are those of docs/math.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import Blocks
from dmtrl.losses import AnyLoss, CustomLoss, scalar
from dmtrl.numerics.rowwise import row_blocks
from dmtrl.protocol.messages import Improved, Prepare, Round, Scores
from dmtrl.protocol.steps import Steps
from dmtrl.worker import exact, kernels, span
from dmtrl.worker import rows as row_access
from dmtrl.worker.box import box_work
from dmtrl.worker.row_formats import csr_arrays, gram_factors, in_chunks, row_products

SOLVER_NAMES = {kernels.SDCA: "sdca", kernels.NEWTON: "newton", kernels.GRAM: "gram", kernels.SPAN: "span"}
EXACT_LIMIT = 512  # features or rows; above it an exact solution costs more than passes
FLOAT32_ENOUGH = 1e-5  # local gap
_BLOCK_BYTES = 16384  # of rows that are read together
_DENSE_FROM = 0.5  # share of chunks that are not all zero, from which on dense rows stay dense
_CHUNK_SAMPLE = 64  # rows of a unit in which chunks are counted
_PRODUCTS_AT_ONCE = 1 << 17  # of rows, in memory
_WORTH_PASSES = 20  # passes of coordinate ascent that an exact solution is worth for the sake of its intercept
_ENOUGH_FOR_INTERCEPT = 32  # stiffness of an intercept: a round then leaves about 1 / 32 of its error
_ENOUGH_AT_KINKS = 128  # the same for losses with kinks, which have no curvature to rely on
_FEW_ROWS = 128  # with so few, an exact solution is always cheap
_OF_CLASSES = (scalar.SMOOTHED_HINGE, scalar.SQUARED_HINGE, scalar.LOGISTIC)  # smooth losses of two classes
_TURNING = (scalar.ABSOLUTE, scalar.EPSILON_INSENSITIVE, scalar.QUANTILE, scalar.HUBER)  # slopes that turn around y
_WORTH_TIMES = 5  # the most passes: what an exact solution is worth where they do not suffice
_ROUNDS_AHEAD = 10  # over how many rounds a factorisation is expected to pay


@dataclass
class DualState:
    """What changes from round to round, and what a worker saves. B follows from alpha and is never saved."""

    alpha: np.ndarray
    B: np.ndarray
    calm: np.ndarray  # for how many visits in a row a row was calm
    U: np.ndarray | None = None  # where the last round ended


class LocalRows:
    """The rows and losses of a worker, with what every run needs of them: squared norms and compiled kernels."""

    def __init__(self, blocks: Blocks, losses: Sequence[AnyLoss]):
        self.losses, self.kernels, self._one_copy = losses, _kernels_for(losses), Lock()
        X, self.q = blocks.X, np.empty(len(blocks.y))
        self.blocks, self.chunks_used, self.chunks = blocks, 0, 0
        self._products: span.RowProducts | None = None
        if sparse.issparse(X):
            kernels.squared_norms(csr_arrays(X), self.q)
            return
        kernels.squared_norms(X, self.q)
        if X.shape[1] >= 4 * row_access.CHUNK:
            self.chunks_used, self.chunks = row_access.chunks_in_use(X, blocks.starts, _CHUNK_SAMPLE)

    def arrays(self, density: float) -> Any:
        """X in the format of the kernels. Dense rows that are mostly zero, as in images, are stored as the chunks that
        are not; `density`, taken over all workers, decides, so that the partition does not."""
        X = self.blocks.X
        if sparse.issparse(X):
            return csr_arrays(X)
        if density > _DENSE_FROM:
            return X
        with self._one_copy:  # workers that share these rows may ask at the same time
            return self._chunked

    def products(self, which: np.ndarray, stored: np.ndarray) -> Iterator[tuple[span.RowProducts, np.ndarray]]:
        """The products of the rows of the units `which`, some units at a time. Those of the units `stored` (a mask) are
        computed once."""
        kept, others = which[stored[which]], which[~stored[which]]
        if len(kept):
            if self._products is None:
                self._products = row_products(self.blocks, np.flatnonzero(stored))
            yield self._products, kept
        sizes = np.cumsum(np.diff(self.blocks.starts)[others] ** 2)
        for part in np.split(others, np.flatnonzero(np.diff(sizes // _PRODUCTS_AT_ONCE)) + 1):
            if len(part):
                yield row_products(self.blocks, part), part

    @cached_property
    def _chunked(self) -> Any:
        return in_chunks(self.blocks.X)

    def numbers_in_row(self, density: float) -> float:
        """How many numbers a pass reads per row, on average."""
        X = self.blocks.X
        if sparse.issparse(X):
            return float(X.nnz / max(X.shape[0], 1))
        return float(X.shape[1] if density > _DENSE_FROM else X.shape[1] * density)

    def numbers_by_unit(self, density: float) -> np.ndarray:
        """How many numbers a row of each unit has, on average, and at least one."""
        X, starts = self.blocks.X, self.blocks.starts
        if not sparse.issparse(X):
            return np.full(self.blocks.n_units, max(self.numbers_in_row(density), 1.0))
        return np.maximum(np.diff(X.indptr[starts]) / np.maximum(np.diff(starts), 1), 1.0)


class LocalProblem:
    """The local problems (6) of one run.

    `held` marks the rows that are held out. `gram`: factors of an earlier run on the same rows, which still hold.
    """

    def __init__(self, rows: LocalRows, held: np.ndarray, order: Prepare, gram: exact.GramFactors | None = None):
        blocks, losses = rows.blocks, rows.losses
        self._rows, self._blocks, self._kernels, self._order, self.gram = rows, blocks, rows.kernels, order, gram
        in_objective = np.ones(blocks.n_units) if order.task_weight is None else order.task_weight
        p = np.repeat(in_objective / order.total_weight, np.diff(blocks.starts))
        p[held] = 0.0
        if blocks.sample_weight is not None:
            p *= blocks.sample_weight
        ids = np.array([loss.id for loss in losses], dtype=np.int64)
        param = np.array([loss.param for loss in losses])
        y, starts = blocks.y.astype(float, copy=False), blocks.starts.astype(np.int64)
        X = rows.arrays(order.density)
        self.units = kernels.UnitRows(X, y, p, rows.q, starts, ids, param, bool(order.intercept), in_objective)
        self._labels = self.units._replace(X=None)  # compiled once for all formats of rows
        self._numbers_in_row = rows.numbers_in_row(order.density)
        self._stream_ids = blocks.tasks.astype(np.uint64) + (blocks.shards.astype(np.uint64) << np.uint64(40))
        bounds = np.array([loss.smoothness for loss in losses])
        self._smooth = np.isfinite(bounds) & (ids != scalar.CUSTOM)
        self._has_slope = self._smooth | (ids == scalar.POISSON)  # Newton needs one
        weight = np.maximum(sum_by_unit(p, blocks.starts), scalar.TINY)
        self._mean_q = sum_by_unit(p * rows.q, blocks.starts) / weight
        self._curvature = in_objective * self._typical_curvature(bounds, weight)
        self._in_span = self._solvable_in_span()
        # products of rows are kept where they take at most a quarter of the memory of the rows
        self._stored = self._in_span & (4 * np.diff(blocks.starts) <= self._numbers_in_row)
        self._block = rows_in_block(blocks, self._numbers_in_row, order.sampling)

    def begin(self, alpha: np.ndarray | None = None) -> DualState:
        """The state at the start of a run, from dual variables that were kept, else from zero or the weights given."""
        n, d = self._blocks.X.shape
        d += self.units.intercept
        if alpha is None:
            alpha = np.zeros(n)
        if self._order.w is not None and not alpha.any():
            kernels.slopes(self.units, np.ascontiguousarray(self._order.w), self._smooth, alpha)
        B = np.zeros((self._blocks.n_units, d))
        if alpha.any():
            kernels.dual_vectors(self.units, alpha, B)
        return DualState(alpha, B, np.zeros(n, dtype=np.uint8))

    def improve(self, state: DualState, order: Round) -> Improved:
        """Improve the dual variables on the local problems around the weights that came."""
        step = Steps(order.step, order.intercept_step, self._order.intercept_ridge)
        intercept_step = np.zeros(len(order.step)) if step.intercept is None else step.effective_intercept
        solver = self._choose_solvers(order.step, intercept_step, order.pace)
        steps, target = amount_of_work(np.diff(self.units.starts), self._order, order)
        centre = local_centre(state, order, step)
        before = state.alpha.copy() if order.eta < 1 else None
        # B is replaced, not changed: the coordinator may have the last one, which was not copied for the answer
        state.B, state.U = state.B.copy(), np.empty(centre.shape)
        duals = kernels.Duals(state.alpha, state.B, state.U, state.calm)
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
        out = self._solve(duals, plan, solver)
        if before is not None:
            state.alpha[:] = before + order.eta * (state.alpha - before)
            kernels.dual_vectors(self.units, state.alpha, state.B)
            out[:, 3] = self.conjugates(state.alpha)
        return Improved(
            b=state.B,
            loss_w=out[:, 0].copy(),
            bracket_w=out[:, 1].copy(),
            loss_u=out[:, 2].copy(),
            conjugate=out[:, 3].copy(),
            steps=out[:, 4].astype(np.int64),
            solver=solver.astype(np.int8),
            loss_probe=None if order.probe is None else self.losses_at(order.probe, state.alpha),
        )

    def _solve(self, duals: kernels.Duals, plan: kernels.Order, solver: np.ndarray) -> np.ndarray:
        """Run the kernel of each solver on its units. Returns a row of sums for each unit: see kernels.py."""
        longest, d = int(np.diff(self.units.starts).max(initial=0)), plan.C.shape[1]
        out = np.zeros((len(solver), 5))
        codes = kernels.GRAM, kernels.NEWTON, kernels.SPAN, kernels.SDCA
        by_gram, by_newton, in_span, descend = (np.flatnonzero(solver == code) for code in codes)
        if len(in_span):
            solved = self._solve_in_span(duals, plan, in_span, out)
            descend = np.union1d(descend, in_span[~solved])
        if len(by_gram):
            if self.gram is None or not self._serves(self.gram, plan):
                self.gram = gram_factors(self._blocks, self.units, plan.intercept_step)
            exact.gram_round(self.units, duals, plan, by_gram, self.gram, np.empty(d), out)
        if len(by_newton):
            exact.newton_round(self.units, duals, plan, by_newton, exact.newton_work(d, longest), out)
            descend = np.union1d(descend, by_newton[out[by_newton, 4] < 0])
        if len(descend):
            rough = plan.target < 0 or plan.target > FLOAT32_ENOUGH  # then float32 rows are improved in float32
            work = np.empty(d, dtype=self._blocks.X.dtype if rough else np.float64)
            if self._order.sampling == "uniform":
                self._kernels.uniform_round(self.units, duals, plan, descend, work, out)
            else:
                shuffled, rest = np.empty(longest, dtype=np.int64), np.zeros_like(duals.calm)
                self._kernels.sdca_round(self.units, duals, plan, descend, work, shuffled, rest, out)
        return out

    def _serves(self, gram: exact.GramFactors, plan: kernels.Order) -> bool:
        """Whether factors of an earlier run have the intercept and its step size of this one."""
        return np.array_equal(gram.intercept_step, plan.intercept_step if self.units.intercept else [])

    def _solve_in_span(
        self, duals: kernels.Duals, plan: kernels.Order, which: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Returns which of the units were solved."""
        alpha, r, steps = duals.alpha.copy(), np.empty(len(duals.alpha)), np.zeros(len(out))
        work = span.span_work(int(np.diff(self.units.starts)[which].max()))
        box = box_work(work.M)
        span.centre_scores(self.units, plan.C, which, r)
        widest = 0.01 * self.units.weight / self._curvature
        accuracy = np.clip(plan.target / self.units.weight, 1e-7 * widest, widest)
        for products, part in self._rows.products(which, self._stored):
            span.solve_units(
                self._labels, ~self._has_slope, accuracy, widest, products, part, r, plan, alpha, steps, work, box
            )
        solved = steps[which] >= 0
        span.take_round(self.units, duals, plan, which[solved], alpha, steps, out)
        return np.asarray(solved)

    def conjugates(self, alpha: np.ndarray) -> np.ndarray:
        """The sum of p l*(-alpha) of each unit."""
        sums = np.zeros(self._blocks.n_units)
        self._kernels.conjugates(self._labels, alpha, sums)
        return sums

    def dual_vectors(self, state: DualState) -> np.ndarray:
        """b of each unit."""
        return state.B

    def losses_at(self, W: np.ndarray, alpha: np.ndarray, p: np.ndarray | None = None) -> np.ndarray:
        """The weighted loss of each unit at W, with row weights `p` instead of the usual ones."""
        value, conjugate, bracket = np.zeros((3, len(W)))
        units = self.units if p is None else self.units._replace(p=p)
        self._kernels.evaluate(units, alpha, np.ascontiguousarray(W), value, conjugate, bracket)
        return value

    def held_out(self, W: np.ndarray, weight: np.ndarray) -> Scores:
        """Errors of W on rows with these weights."""
        blocks, y = self._blocks, self.units.y
        z = np.zeros(len(y))
        for i in range(blocks.n_units):
            rows = blocks.starts[i] + np.flatnonzero(weight[blocks.starts[i] : blocks.starts[i + 1]] > 0)
            w = W[i]
            z[rows] = blocks.X[rows] @ w[: blocks.X.shape[1]] + (w[-1] if self.units.intercept else 0.0)
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
        return np.where(self._solved_exactly(), 1e11, 1e3 * np.maximum(n, 1)) / q

    def intercept_step(self) -> np.ndarray | None:
        """The step size of the intercepts. An intercept is not coupled to other tasks, so its step should be long:
        almost exact minimisation where that is cheap. Coordinate ascent slows down with it, while a round with step
        k / curvature leaves about 1 / k of the error of a smooth loss: there, a short one is long enough. Where several
        units must agree on an intercept, it is shorter still."""
        if not self.units.intercept:
            return None
        if self._order.intercept_ridge < 0:
            return 20.0 / self._curvature
        n, d, long = np.maximum(np.diff(self.units.starts), 1), self._blocks.X.shape[1], 1e6 / self._curvature
        solver = self._choose_solvers(np.zeros(len(n)), long, 1.0)  # where the intercept alone makes a unit stiff
        newton, in_span = self._exact_costs(_ROUNDS_AHEAD)
        cheap = np.minimum(newton, in_span) <= _WORTH_PASSES * 4 * n * self._numbers_in_row
        # Classes that can be separated leave an intercept undetermined, which passes find slowly. Amounts do not: more
        # rows than 2 d are solved exactly only where that happens anyway.
        passes = np.isin(self.units.loss, _TURNING) & (n > 2 * d)
        if np.isfinite(self._order.first_step):
            first = np.full(len(n), self._order.first_step)
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
        if not np.isfinite(self._order.first_step):
            return np.full(self._blocks.n_units, np.inf)
        y, p, starts = self.units.y, self.units.p, self._blocks.starts
        balance = np.ones(self._blocks.n_units)
        classes = np.isin(self.units.loss, _OF_CLASSES)
        if classes.any():
            positive = sum_by_unit(p * (y > 0), starts) / np.maximum(sum_by_unit(p, starts), scalar.TINY)
            balance = np.where(classes, np.maximum(4.0 * positive * (1.0 - positive), 1e-6), 1.0)
        stiffness = (
            self._order.first_step * self._mean_q * self._curvature / self._rows.numbers_by_unit(self._order.density)
        )
        return np.asarray(np.maximum(_ENOUGH_FOR_INTERCEPT / balance, stiffness))

    def _solved_exactly(self) -> np.ndarray:
        """Whether an exact solver can take over from coordinate ascent where a unit is stiff."""
        return self._in_span | (self._has_slope & (self._blocks.X.shape[1] <= EXACT_LIMIT))

    def _typical_curvature(self, bounds: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The second derivative of each unit's loss where it is smooth, else the slope over the spread of the labels
        across which it turns."""
        y, p, starts, loss = self.units.y, self.units.p, self._blocks.starts, self.units.loss
        curvature = np.where(np.isfinite(bounds), bounds, 1.0)
        turning = np.isin(loss, _TURNING)
        counts = loss == scalar.POISSON
        if not (turning | counts).any():  # then nothing of the size of the labels is needed
            return curvature
        mean = sum_by_unit(p * y, starts) / weight
        spread = sum_by_unit(p * np.abs(y - np.repeat(mean, np.diff(starts))), starts) / weight
        width = np.where(loss == scalar.HUBER, self.units.param, 1.0) / np.where(spread > 0, spread, 1.0)
        curvature = np.where(turning, np.where(np.isfinite(bounds), np.minimum(curvature, width), width), curvature)
        return np.where(counts, np.maximum(mean, 0.1), curvature)

    def _solvable_in_span(self) -> np.ndarray:
        """Units with so few rows that linear solves with the products of the rows are cheap."""
        fixed_work = self._order.sampling == "uniform" or bool(self._order.steps.all())
        few = np.diff(self.units.starts) <= EXACT_LIMIT
        return few & (self.units.loss != scalar.CUSTOM) & (not fixed_work)

    def _bytes(self) -> float:
        X = self._blocks.X
        return float((X.data if sparse.issparse(X) else X).nbytes)

    def _choose_solvers(self, step: np.ndarray, intercept_step: np.ndarray, pace: float) -> np.ndarray:
        """The local solver of each unit: the one that should reach its target in the fewest operations."""
        wanted = self._order.local_solver
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
        most = _WORTH_TIMES * one_pass * int(self._order.max_passes)
        ahead = max(pace * _ROUNDS_AHEAD, 1.0)
        few = n <= _FEW_ROWS
        newton, in_span = (np.where((cost <= most) | few, cost, np.inf) for cost in self._exact_costs(ahead))
        gram = 4 * d**2 + (n * per_row**2 + 10 * d**3) / ahead
        # a quarter of the rows' bytes: with a user's array and the solver's own, all stays below 2.5 times the data
        gram_fits = 8 * n_units * d * d <= max(self._bytes() / 4, 8e6)
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


def rows_in_block(blocks: Blocks, numbers_in_row: float, sampling: str) -> np.ndarray:
    """Rows that are visited together: about as many as memory fetches well, at least 32 blocks in a unit. Zero where
    rows are drawn one by one."""
    n = np.diff(blocks.starts)
    if sampling == "uniform":
        return np.zeros(len(n), dtype=np.int64)
    fit = int(np.clip(_BLOCK_BYTES / max(numbers_in_row * blocks.X.dtype.itemsize, 1.0), 8, 64))
    return np.clip(n // 32, 1, fit)


def amount_of_work(n: np.ndarray, run: Prepare, order: Round) -> tuple[np.ndarray, float]:
    """Coordinate steps of units with n rows, and the local gap at which a unit may stop; negative: never early."""
    if run.steps.all():
        steps, target = np.where(n > 0, run.steps, 0), -1.0
    else:
        uniform = run.sampling == "uniform"
        steps, target = n * int(run.max_passes), -1.0 if uniform else float(order.target)
    if order.most is not None:  # a limit, or without a target the number itself
        steps = order.most if target < 0 else np.minimum(steps, order.most)
    return steps, target


def local_centre(state: DualState, order: Round, step: Steps) -> np.ndarray:
    """The centres (17) of the local problems; written over U, which is not needed any more."""
    C, W = state.U, order.w
    if C is None or order.relax == 0.0:
        C = W.copy()
    else:
        np.subtract(W, C, out=C)
        C *= order.relax
        C += W
    for block in row_blocks(*C.shape):
        C[block] = step.only(block).centre(W[block], C[block], state.B[block])
    return C


def sum_by_unit(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Each unit's own sum, which does not depend on its neighbours; a unit may be empty."""
    sums = np.empty(len(starts) - 1)
    kernels.sums_by_unit(values, starts, sums)
    return sums


def _kernels_for(losses: Sequence[AnyLoss]) -> Any:
    custom = {loss for loss in losses if isinstance(loss, CustomLoss)}
    if not custom:
        return kernels
    if len(custom) > 1:
        names = ", ".join(sorted(loss.name for loss in custom))
        raise ValueError(f"a problem may use one custom loss beside the built-in ones, got {names}")
    loss = custom.pop()
    return kernels.compiled_for(loss.value, loss.conjugate, loss.step)
