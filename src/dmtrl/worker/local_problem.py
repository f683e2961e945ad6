"""The local problems of a worker's units, ready to be improved round after round.

Equation numbers are those of docs/math.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import Blocks
from dmtrl.losses import AnyLoss, CustomLoss, scalar
from dmtrl.numerics.rowwise import row_blocks
from dmtrl.protocol.messages import Improved, Prepare, Round
from dmtrl.worker import exact, kernels
from dmtrl.worker import rows as row_access
from dmtrl.worker.row_formats import csr_arrays, gram_factors, in_chunks

SOLVER_NAMES = {kernels.SDCA: "sdca", kernels.NEWTON: "newton", kernels.GRAM: "gram"}
_NO_GRAM = exact.GramFactors(np.zeros((0, 0)), np.zeros((0, 0, 0)), np.zeros((0, 0)))
_EXACT_LIMIT = 512  # features; above it a Newton step costs more than passes
_FLOAT32_ENOUGH = 1e-5  # local gap
_BLOCK_BYTES = 16384  # of rows that are read together
_DENSE_FROM = 0.5  # share of chunks that are not all zero, from which on dense rows stay dense
_CHUNK_SAMPLE = 64  # rows of a unit in which chunks are counted
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
        self.losses, self.kernels = losses, _kernels_for(losses)
        X, self.q = blocks.X, np.empty(len(blocks.y))
        self.blocks, self.chunks_used, self.chunks = blocks, 0, 0
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
        return X if density > _DENSE_FROM else self._chunked

    @cached_property
    def _chunked(self) -> Any:
        return in_chunks(self.blocks.X)

    def numbers_in_row(self, density: float) -> float:
        """How many numbers a pass reads per row, on average."""
        X = self.blocks.X
        if sparse.issparse(X):
            return float(X.nnz / max(X.shape[0], 1))
        return float(X.shape[1] if density > _DENSE_FROM else X.shape[1] * density)


class LocalProblem:
    """The local problems (6) of one run.

    `held` marks the rows that are held out. `gram`: factors of an earlier run on the same rows, which still hold.
    """

    def __init__(self, rows: LocalRows, held: np.ndarray, order: Prepare, gram: exact.GramFactors | None = None):
        blocks, losses = rows.blocks, rows.losses
        self._blocks, self._kernels, self._order, self.gram = blocks, rows.kernels, order, gram
        p = np.repeat(1.0 / order.total_weight, np.diff(blocks.starts))
        p[held] = 0.0
        if blocks.sample_weight is not None:
            p *= blocks.sample_weight
        ids = np.array([loss.id for loss in losses], dtype=np.int64)
        param = np.array([loss.param for loss in losses])
        y, starts = blocks.y.astype(float, copy=False), blocks.starts.astype(np.int64)
        self.units = kernels.UnitRows(rows.arrays(order.density), y, p, rows.q, starts, ids, param)
        self._numbers_in_row = rows.numbers_in_row(order.density)
        self._stream_ids = blocks.tasks.astype(np.uint64) + (blocks.shards.astype(np.uint64) << np.uint64(40))
        bounds = np.array([loss.smoothness for loss in losses])
        self._smooth = np.isfinite(bounds) & (ids != scalar.CUSTOM)  # Newton needs a slope and a bounded curvature
        self._smoothness = np.where(np.isfinite(bounds), bounds, 1.0)
        weight = sum_by_unit(p, blocks.starts)
        self._mean_q = sum_by_unit(p * rows.q, blocks.starts) / np.maximum(weight, scalar.TINY)
        self._block = self._rows_in_block()

    def begin(self, alpha: np.ndarray | None = None) -> DualState:
        """The state at the start of a run, from dual variables that were kept, else from zero or the weights given."""
        n, d = self._blocks.X.shape
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
        solver = self._choose_solvers(order.step, order.pace)
        if (solver == kernels.GRAM).any() and self.gram is None:
            self.gram = gram_factors(self._blocks, self.units)
        steps, target = self._amount_of_work(order)
        centre = _centre(state, order)
        before = state.alpha.copy() if order.eta < 1 else None
        state.U = np.empty(centre.shape)
        out = np.zeros((len(centre), 5))
        rough = target < 0 or target > _FLOAT32_ENOUGH  # then float32 rows are improved in float32
        work = np.empty(centre.shape[1], dtype=self._blocks.X.dtype if rough else np.float64)
        self._kernels.local_round(
            self.units,
            kernels.Duals(state.alpha, state.B, state.U, state.calm),
            kernels.Order(
                ids=self._stream_ids,
                W=np.ascontiguousarray(order.w),
                C=centre,
                step=np.ascontiguousarray(order.step),
                solver=solver,
                steps=steps,
                block=self._block,
                target=target,
                seed=int(self._order.seed),
                round=int(order.round),
                evaluate_w=bool(order.evaluate_w),
                evaluate_u=bool(order.evaluate_u),
            ),
            self.gram or _NO_GRAM,
            work,
            out,
        )
        if before is not None:
            state.alpha[:] = before + order.eta * (state.alpha - before)
            kernels.dual_vectors(self.units, state.alpha, state.B)
            out[:, 3] = self.conjugates(state.alpha)
        return Improved(
            b=state.B.copy(),
            loss_w=out[:, 0].copy(),
            bracket_w=out[:, 1].copy(),
            loss_u=out[:, 2].copy(),
            conjugate=out[:, 3].copy(),
            steps=out[:, 4].astype(np.int64),
            solver=solver.astype(np.int8),
            loss_probe=None if order.probe is None else self.losses_at(order.probe, state.alpha),
        )

    def conjugates(self, alpha: np.ndarray) -> np.ndarray:
        """The sum of p l*(-alpha) of each unit."""
        sums = np.zeros(self._blocks.n_units)
        self._kernels.conjugates(self.units, alpha, sums)
        return sums

    def losses_at(self, W: np.ndarray, alpha: np.ndarray, p: np.ndarray | None = None) -> np.ndarray:
        """The weighted loss of each unit at W, with row weights `p` instead of the usual ones."""
        value, conjugate, bracket = np.zeros((3, len(W)))
        units = self.units if p is None else self.units._replace(p=p)
        self._kernels.evaluate(units, alpha, np.ascontiguousarray(W), value, conjugate, bracket)
        return value

    def at_zero(self) -> tuple[np.ndarray, np.ndarray]:
        """The loss at zero weights and the conjugate at zero dual variables: they need labels only, no row is read."""
        n, n_units, X = len(self._blocks.y), self._blocks.n_units, self.units.X
        if isinstance(X, np.ndarray):
            nothing: Any = np.empty((n, 0), dtype=X.dtype)
        else:
            values, columns, indptr = X
            nothing = values[:0], columns[:0], np.zeros(n + 1, dtype=indptr.dtype)
        value, conjugate, bracket = np.zeros((3, n_units))
        units = self.units._replace(X=nothing)
        self._kernels.evaluate(units, np.zeros(n), np.zeros((n_units, 0)), value, conjugate, bracket)
        return value, conjugate

    def longest_step(self) -> np.ndarray:
        """The step size beyond which a unit's local problem is too stiff: coordinate ascent then hardly moves, and the
        exact solvers lose the digits of s b."""
        n, q = np.diff(self.units.starts), np.maximum(self._mean_q * self._smoothness, scalar.TINY)
        solved_exactly = self._smooth & (self._blocks.X.shape[1] <= _EXACT_LIMIT)
        return np.where(solved_exactly, 1e8, 1e3 * np.maximum(n, 1)) / q

    def _rows_in_block(self) -> np.ndarray:
        """Rows that are visited together: about as many as memory fetches well, at least 32 blocks in a unit. Zero
        where rows are drawn one by one."""
        n = np.diff(self._blocks.starts)
        if self._order.sampling == "uniform":
            return np.zeros(len(n), dtype=np.int64)
        fit = int(np.clip(_BLOCK_BYTES / max(self._numbers_in_row * self._blocks.X.dtype.itemsize, 1.0), 8, 64))
        return np.clip(n // 32, 1, fit)

    def _amount_of_work(self, order: Round) -> tuple[np.ndarray, float]:
        """Coordinate steps of each unit, and the local gap at which a unit may stop; negative: never early."""
        n = np.diff(self.units.starts)
        if self._order.steps.all():
            steps, target = np.where(n > 0, self._order.steps, 0), -1.0
        else:
            uniform = self._order.sampling == "uniform"
            steps, target = n * int(self._order.max_passes), -1.0 if uniform else float(order.target)
        if order.most is not None:  # a limit, or without a target the number itself
            steps = order.most if target < 0 else np.minimum(steps, order.most)
        return steps, target

    def _choose_solvers(self, step: np.ndarray, pace: float) -> np.ndarray:
        """The local solver of each unit: the one that should reach its target in the fewest operations."""
        wanted = self._order.local_solver
        n_units, d = len(step), self._blocks.X.shape[1]
        solver = np.full(n_units, kernels.SDCA)
        squared = self.units.loss == scalar.SQUARED
        if wanted != "auto":
            code = next(code for code, name in SOLVER_NAMES.items() if name == wanted)
            able = squared if code == kernels.GRAM else self._smooth
            return np.where(able, code, kernels.SDCA)
        n, per_row = np.maximum(np.diff(self.units.starts), 1), self._numbers_in_row
        passes = np.minimum(3 * (1 + step * self._mean_q * self._smoothness / n), int(self._order.max_passes))
        sdca = 4 * n * per_row * (passes if pace > 0 else 1.0)
        newton = 4 * (n * per_row**2 + d**3 / 3)
        gram = n * per_row**2 + 10 * d**3
        # a quarter of the rows' bytes: with a user's array and the solver's own, all stays below 2.5 times the data
        room = (self._blocks.X.data if sparse.issparse(self._blocks.X) else self._blocks.X).nbytes / 4
        gram_fits = 8 * n_units * d * d <= max(room, 8e6)
        if gram_fits and (squared & (gram < max(pace * _ROUNDS_AHEAD, 1.0) * sdca)).any():
            solver[squared] = kernels.GRAM
        return np.where((solver == kernels.SDCA) & self._smooth & (newton < sdca), kernels.NEWTON, solver)


def _centre(state: DualState, order: Round) -> np.ndarray:
    """The centres (17) of the local problems; written over U, which is not needed any more."""
    C, W = state.U, order.w
    if C is None or order.relax == 0.0:
        C = W.copy()
    else:
        np.subtract(W, C, out=C)
        C *= order.relax
        C += W
    for block in row_blocks(*C.shape):
        C[block] -= order.step[block, None] * state.B[block]
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
