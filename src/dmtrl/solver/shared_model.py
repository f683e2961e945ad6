"""The quadratic model of the loss in what all tasks share and in the tasks' levels (docs/math.md section 19).

The model is made of sums that the workers send. For the squared loss it is the loss itself, so one exchange serves
every strength of the levels and every ridge.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from dmtrl.engines.base import Engine
from dmtrl.numerics.sums import DoubleSum
from dmtrl.protocol.rounds import Moments, SumMoments
from dmtrl.solver.layout import Layout

_SINGULAR = 1e-10  # of the diagonal: added to the scaled matrix, which columns that depend on each other make singular


@dataclass(frozen=True)
class Minimum:
    """Where the model plus the penalties is least."""

    shared: np.ndarray  # (p,): for each output the weights, then the intercept
    levels: np.ndarray  # (m, k)
    value: float
    log_determinant: float  # of the curvature, over the levels and the shared weights; see `QuadraticModel.minimum`


@dataclass(frozen=True)
class QuadraticModel:
    """x.H x/2 - r.x + constant over x = (shared weights, levels); an arrowhead: levels of two tasks never meet.

    `k` outputs, `p` = k (d + 1) shared weights. The first axis of `matrix` and `linear` is the group of tasks.
    """

    matrix: np.ndarray  # (groups, p, p)
    linear: np.ndarray  # (groups, p)
    cross: np.ndarray  # (m, k, p): curvature between the levels of a task and the shared weights
    curvature: np.ndarray  # (m, k, k) of the levels
    level_linear: np.ndarray  # (m, k)
    constant: float
    loss: float  # at the point of expansion
    slope: np.ndarray  # (p,) of the loss there, in the shared weights

    @property
    def k(self) -> int:
        return self.curvature.shape[1]

    @property
    def p(self) -> int:
        return self.matrix.shape[1]

    @property
    def groups(self) -> int:
        return self.matrix.shape[0]

    @property
    def features(self) -> np.ndarray:
        """Which of the p shared weights belong to features: all but the intercepts."""
        return np.arange(1, self.p + 1) % (self.p // self.k) != 0

    @cached_property
    def total(self) -> np.ndarray:
        """The matrix of all groups."""
        return np.asarray(self.matrix.sum(axis=0))

    @cached_property
    def size(self) -> np.ndarray:
        """Numbers that bring the diagonal of the matrix to one."""
        diagonal = np.diag(self.total)
        return np.sqrt(np.where(diagonal > 0, diagonal, 1.0))

    @cached_property
    def scale(self) -> np.ndarray:
        """The variance of each column, weighted by curvature: a ridge in these units does not depend on the units of
        the features. One for intercepts and for columns that do not vary."""
        total, d = self.total, self.p // self.k
        ends = np.repeat(np.arange(d - 1, self.p, d), d)  # the intercept of each weight's output
        columns = np.arange(self.p)
        weight = np.maximum(total[ends, ends], 1e-300)
        square = total[columns, columns] / weight
        variance = square - (total[columns, ends] / weight) ** 2
        return np.where(self.features & (variance > 1e-9 * square), np.maximum(variance, 1e-300), 1.0)

    @cached_property
    def rank(self) -> int:
        """How many of the shared weights the rows determine."""
        return int((np.linalg.eigvalsh(self.total / np.outer(self.size, self.size)) > 1e-9).sum())

    def minimum(self, level: float, ridge: np.ndarray | float = 0.0, without: int | None = None) -> Minimum:
        """Add level/2 |levels|^2 and sum of ridge/2 shared^2, and minimise (59). An infinite `level` means no levels.

        `without` leaves out a group of tasks. The log determinant is that of I + curvature/level over all levels, plus
        that of the curvature in the shared weights once the levels are eliminated.
        """
        kept: Any = slice(None)
        A, right = self.total.copy(), self.linear.sum(axis=0)
        if without is not None:
            kept = np.arange(len(self.cross)) % self.groups != without
            A -= self.matrix[without]
            right -= self.linear[without]
        constant, log_determinant = self.constant, 0.0
        A[np.diag_indices_from(A)] += ridge
        inverse = None
        if np.isfinite(level):
            H = self.curvature + level * np.eye(self.k)
            inverse = np.linalg.inv(H)
            weighted = inverse @ self.cross  # (m, k, p)
            flat, of_levels = self.cross[kept].reshape(-1, self.p), (inverse @ self.level_linear[:, :, None])[:, :, 0]
            A -= flat.T @ weighted[kept].reshape(-1, self.p)
            right -= flat.T @ of_levels[kept].ravel()
            constant -= 0.5 * float(np.vdot(self.level_linear[kept], of_levels[kept]))
            log_determinant += float(np.linalg.slogdet(H[kept] / level)[1].sum())
        shared, of_matrix = _solve(0.5 * (A + A.T), right, self.size)
        levels = np.zeros_like(self.level_linear)
        if inverse is not None:
            left = self.level_linear - self.cross @ shared
            levels = (inverse @ left[:, :, None])[:, :, 0]
        return Minimum(shared, levels, constant - 0.5 * float(shared @ right), log_determinant + of_matrix)

    def without_levels(self, shared: np.ndarray, group: int) -> float:
        """The model of a group of tasks at these weights with levels of zero, up to a constant (62)."""
        return float(0.5 * shared @ self.matrix[group] @ shared - self.linear[group] @ shared)


def _solve(A: np.ndarray, right: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, float]:
    """A^-1 right and log det A. `size` does not depend on the strengths, so columns that depend on each other add a
    constant to log det A and leave the choice of the strengths alone."""
    scaled = A / np.outer(size, size)
    scaled[np.diag_indices_from(scaled)] += _SINGULAR
    for _ in range(5):  # rounding may leave a negative eigenvalue where columns depend on each other
        try:
            factor = cho_factor(scaled, lower=True)
            break
        except np.linalg.LinAlgError:
            scaled[np.diag_indices_from(scaled)] += 1e3 * _SINGULAR
    else:
        raise np.linalg.LinAlgError("the sums of the workers do not form a positive definite matrix")
    log_determinant = 2.0 * float(np.log(np.diag(factor[0])).sum() + np.log(size).sum())
    return cho_solve(factor, right / size) / size, log_determinant


def ask_model(
    engine: Engine, layout: Layout, shared: np.ndarray, levels: np.ndarray, groups: int = 1
) -> QuadraticModel:
    """One exchange: the model of all tasks around these shared weights (k, d + 1) and levels (m, k)."""
    per_unit = layout.per_unit(levels)
    requests = {
        worker: SumMoments(groups=groups, shared=shared, level=layout.scatter(worker, per_unit))
        for worker in range(engine.n_workers)
    }
    return _model(layout, dict(engine.exchange(requests)), shared, levels, groups)


def _model(
    layout: Layout, answers: Mapping[int, Moments], shared: np.ndarray, levels: np.ndarray, groups: int
) -> QuadraticModel:
    m, (k, width) = layout.m, shared.shape
    d, p = width - 1, shared.size
    loss, slope, curvature, cross = (
        layout.per_task(layout.gather(answers, name)) for name in ("loss", "slope", "curvature", "cross")
    )
    curvature, cross = curvature.reshape(m, k, k), cross.reshape(m, k, k, d)
    matrix, gradient = np.zeros((groups, k, width, k, width)), np.zeros((groups, k, width))
    group = np.arange(m) % groups
    for g in range(groups):
        mine = group == g
        matrix[g, :, :d, :, :d] = _added(answers, "matrix", g).reshape(k, d, k, d)
        between = cross[mine].sum(axis=0)  # (k, k, d), the same for both orders of the outputs
        matrix[g, :, :d, :, d] = between.transpose(0, 2, 1)
        matrix[g, :, d, :, :d] = between
        matrix[g, :, d, :, d] = curvature[mine].sum(axis=0)
        gradient[g, :, :d] = _added(answers, "shared_slope", g).reshape(k, d)
        gradient[g, :, d] = slope[mine].sum(axis=0)
    flat_cross = np.concatenate([cross, curvature[:, :, :, None]], axis=3).reshape(m, k, p)
    flat_matrix, flat_gradient, x = matrix.reshape(groups, p, p), gradient.reshape(groups, p), shared.ravel()
    # the model has its slope at (x, levels); written around zero
    in_shared = flat_cross @ x  # (m, k)
    in_levels = (curvature @ levels[:, :, None])[:, :, 0]
    of_levels = np.stack([np.einsum("ikp,ik->p", flat_cross[group == g], levels[group == g]) for g in range(groups)])
    linear = flat_matrix @ x + of_levels - flat_gradient
    total = float(loss.sum())
    constant = total - float(flat_gradient.sum(axis=0) @ x) - float(np.vdot(slope, levels))
    constant += 0.5 * float(x @ flat_matrix.sum(axis=0) @ x) + float(np.vdot(in_shared, levels))
    constant += 0.5 * float(np.vdot(in_levels, levels))
    return QuadraticModel(
        matrix=flat_matrix,
        linear=linear,
        cross=flat_cross,
        curvature=curvature,
        level_linear=in_levels + in_shared - slope,
        constant=constant,
        loss=total,
        slope=flat_gradient.sum(axis=0),
    )


def _added(answers: Mapping[int, Moments], name: str, group: int) -> np.ndarray:
    """A sum over the units of all workers."""
    parts = [getattr(answers[worker], name)[group] for worker in sorted(answers)]
    found = DoubleSum(parts[0].shape[1:])
    for part in parts:
        found.add_parts(part)
    return found.total
