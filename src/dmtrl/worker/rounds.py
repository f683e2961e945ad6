"""What the local problems of all losses have in common: the state of a run, and the frame of a round.

Equation numbers are those of docs/math.md.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmtrl.data.blocks import Blocks
from dmtrl.losses import scalar
from dmtrl.numerics.rowwise import row_blocks
from dmtrl.protocol.rounds import Improved, Prepare, Round, Scores
from dmtrl.protocol.steps import AGREED_STIFFNESS, Steps
from dmtrl.worker import kernels
from dmtrl.worker.local_rows import LocalRows, sum_by_unit

EXACT_LIMIT = 512  # features or rows; above it an exact solution costs more than passes
LONG_STEP = 1e6  # step size of an intercept, times the curvature, that is almost exact minimisation
WORTH_PASSES = 20  # passes of coordinate ascent that an exact solution is worth for the sake of its intercept
_FLOAT32_ENOUGH = 1e-5  # local gap
_BLOCK_BYTES = 16384  # of rows that are read together


@dataclass
class DualState:
    """What changes from round to round, and what a worker saves. B follows from alpha and is never saved."""

    alpha: np.ndarray
    B: np.ndarray
    calm: np.ndarray  # for how many visits in a row a row was calm
    U: np.ndarray | None = None  # where the last round ended


class RoundProblem(ABC):
    """The local problems (6) of one run. A subclass has the rows as its kernels need them, and the local solvers.

    `held` marks the rows that are held out. `outputs`: scores of a row.
    """

    gram: Any = None  # factors that a later run on the same rows can use
    units: Any  # the rows, as the kernels need them
    _kernels: Any
    _labels: Any  # `units` without X: compiled once for all formats of rows
    _curvature: np.ndarray  # of the loss of each unit, times the weight of its task

    def __init__(self, rows: LocalRows, held: np.ndarray, prepare: Prepare, outputs: int = 1):
        blocks = rows.blocks
        self._rows, self._blocks, self._prepare, self._k = rows, blocks, prepare, outputs
        self._in_objective = np.ones(blocks.n_units) if prepare.task_weight is None else prepare.task_weight
        p = np.repeat(self._in_objective / prepare.total_weight, np.diff(blocks.starts))
        p[held] = 0.0
        if blocks.sample_weight is not None:
            p *= blocks.sample_weight
        self._p, self._weight = p, np.maximum(sum_by_unit(p, blocks.starts), scalar.TINY)
        self._mean_q = sum_by_unit(p * rows.q, blocks.starts) / self._weight
        self._stream_ids = blocks.tasks.astype(np.uint64) + (blocks.shards.astype(np.uint64) << np.uint64(40))
        self._numbers_in_row = rows.numbers_in_row(prepare.density)
        self._block = rows_in_block(blocks, self._numbers_in_row, prepare.sampling)
        self._fixed_work = prepare.sampling == "uniform" or bool(prepare.steps.all())

    @abstractmethod
    def _duals_at(self, W: np.ndarray, alpha: np.ndarray) -> None:
        """Write the dual variables that belong to W, where the loss is smooth."""

    @abstractmethod
    def _sum_duals(self, alpha: np.ndarray, B: np.ndarray) -> None:
        """Write b of each unit."""

    @abstractmethod
    def _choose_solvers(self, step: np.ndarray, intercept_step: np.ndarray, pace: float) -> np.ndarray:
        """The local solver of each unit: the one that should reach its target in the fewest operations."""

    @abstractmethod
    def _solve(self, duals: kernels.Duals, plan: kernels.Order, solver: np.ndarray) -> np.ndarray:
        """Run the kernel of each solver on its units. Returns a row of sums for each unit: see kernels.py."""

    @abstractmethod
    def losses_at(self, W: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """The weighted loss of each unit at W."""

    @abstractmethod
    def held_out(self, W: np.ndarray, weight: np.ndarray) -> Scores:
        """Errors of W on rows with these weights."""

    @abstractmethod
    def at_zero(self) -> tuple[np.ndarray, np.ndarray]:
        """The loss at zero weights and the conjugate at zero dual variables."""

    @abstractmethod
    def longest_step(self) -> np.ndarray:
        """The step size beyond which a unit's local problem is too stiff."""

    @abstractmethod
    def _own_intercept_step(self) -> np.ndarray:
        """The step size of intercepts that the local problems minimise over."""

    def intercept_step(self) -> np.ndarray | None:
        """The step size of the intercepts, if there are any. It is short where several units must agree on one."""
        if not self.units.intercept:
            return None
        if self._prepare.intercept_ridge is None:
            return AGREED_STIFFNESS / self._curvature
        # the ridge limits how stiff an intercept is: where it is the tighter limit, almost exact minimisation is free
        step = self._own_intercept_step()
        return np.where(self._prepare.intercept_ridge * step >= 1.0, LONG_STEP / self._curvature, step)

    def begin(self, alpha: np.ndarray | None = None) -> DualState:
        """The state at the start of a run, from dual variables that were kept, else from zero or the weights given."""
        n, d = self._blocks.X.shape
        if alpha is None:
            alpha = np.zeros(n if self._k == 1 else (n, self._k))
        if self._prepare.w is not None and not alpha.any():
            self._duals_at(np.ascontiguousarray(self._prepare.w), alpha)
        B = np.zeros((self._blocks.n_units, self._k * (d + self.units.intercept)))
        if alpha.any():
            self._sum_duals(alpha, B)
        return DualState(alpha, B, np.zeros(n, dtype=np.uint8))

    def improve(self, state: DualState, request: Round) -> Improved:
        """Improve the dual variables on the local problems around the weights that came."""
        step = Steps(request.step, request.intercept_step, self._prepare.intercept_ridge, self._k)
        intercept_step = np.zeros(len(request.step)) if step.intercept is None else step.effective_intercept
        solver = self._choose_solvers(request.step, intercept_step, request.pace)
        steps, target = amount_of_work(np.diff(self.units.starts), self._prepare, request)
        centre = local_centre(state, request, step)
        before = state.alpha.copy() if request.eta < 1 else None
        # B is replaced, not changed: the coordinator may have the last one, which was not copied for the answer
        state.B, state.U = state.B.copy(), np.empty(centre.shape)
        plan = kernels.Order(
            ids=self._stream_ids,
            W=np.ascontiguousarray(request.w),
            C=centre,
            step=np.ascontiguousarray(request.step),
            intercept_step=np.ascontiguousarray(intercept_step),
            steps=steps,
            block=self._block,
            target=target,
            seed=int(self._prepare.seed),
            round=int(request.round),
            evaluate_w=bool(request.evaluate_w),
            evaluate_u=bool(request.evaluate_u),
        )
        out = self._solve(kernels.Duals(state.alpha, state.B, state.U, state.calm), plan, solver)
        if before is not None:
            state.alpha[:] = before + request.eta * (state.alpha - before)
            self._sum_duals(state.alpha, state.B)
            out[:, 3] = self.conjugates(state.alpha)
        return Improved(
            b=state.B,
            loss_w=out[:, 0].copy(),
            bracket_w=out[:, 1].copy(),
            loss_u=out[:, 2].copy(),
            conjugate=out[:, 3].copy(),
            steps=out[:, 4].astype(np.int64),
            solver=solver.astype(np.int8),
            loss_probe=None if request.probe is None else self.losses_at(request.probe, state.alpha),
        )

    def _vector_for_passes(self, plan: kernels.Order) -> np.ndarray:
        """Memory for the weights of a unit. Float32 rows are improved in float32 where that is accurate enough."""
        rough = plan.target < 0 or plan.target > _FLOAT32_ENOUGH
        return np.empty(plan.C.shape[1], dtype=self._blocks.X.dtype if rough else np.float64)

    def conjugates(self, alpha: np.ndarray) -> np.ndarray:
        """The sum of p l*(-alpha) of each unit."""
        sums = np.zeros(self._blocks.n_units)
        self._kernels.conjugates(self._labels, alpha, sums)
        return sums

    def dual_vectors(self, state: DualState) -> np.ndarray:
        """b of each unit."""
        return state.B


def rows_in_block(blocks: Blocks, numbers_in_row: float, sampling: str) -> np.ndarray:
    """Rows that are visited together: about as many as memory fetches well, at least 32 blocks in a unit. Zero where
    rows are drawn one by one."""
    n = np.diff(blocks.starts)
    if sampling == "uniform":
        return np.zeros(len(n), dtype=np.int64)
    fit = int(np.clip(_BLOCK_BYTES / max(numbers_in_row * blocks.X.dtype.itemsize, 1.0), 8, 64))
    return np.clip(n // 32, 1, fit)


def amount_of_work(n: np.ndarray, prepare: Prepare, request: Round) -> tuple[np.ndarray, float]:
    """Coordinate steps of units with n rows, and the local gap at which a unit may stop; negative: never early."""
    if prepare.steps.all():
        steps, target = np.where(n > 0, prepare.steps, 0), -1.0
    else:
        uniform = prepare.sampling == "uniform"
        steps, target = n * int(prepare.max_passes), -1.0 if uniform else float(request.target)
    if request.most is not None:  # a limit, or without a target the number itself
        steps = request.most if target < 0 else np.minimum(steps, request.most)
    return steps, target


def local_centre(state: DualState, request: Round, step: Steps) -> np.ndarray:
    """The centres (17) of the local problems; written over U, which is not needed any more."""
    C, W = state.U, request.w
    if C is None or request.relax == 0.0:
        C = W.copy()
    else:
        np.subtract(W, C, out=C)
        C *= request.relax
        C += W
    for block in row_blocks(*C.shape):
        C[block] = step.only(block).centre(W[block], C[block], state.B[block])
    return C
