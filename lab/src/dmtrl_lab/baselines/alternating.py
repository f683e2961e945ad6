"""The loop that both baselines share: W-step, Omega-step, records, certificate.

A baseline provides only its W-step. Equation numbers are those of docs/math.md.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.task_data import TaskData
from dmtrl.losses import Loss, get_loss
from dmtrl.numerics.blas import single_threaded_blas
from dmtrl.relationship import FreeIntercept, get_relationship
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.solver.certificate import Certificate, scaled_dual
from dmtrl.solver.outcome import RoundRecord, Watch
from dmtrl.worker import kernels
from dmtrl.worker.input_check import check_blocks


@dataclass(frozen=True)
class Fitted:
    """The result of a baseline. The certificate is of the joint problem (13)."""

    W: np.ndarray  # (m, d), with the lowest objective
    covariance: TaskCovariance
    certificate: Certificate
    history: list[RoundRecord]  # one record per pass or solve


@dataclass(frozen=True)
class Measured:
    """Sums at the current alpha and W = Sigma B / lambda."""

    w_gap: float  # of the W-step (4)
    w_objective: float  # with the current Sigma
    objective: float  # with the best Sigma for W (13), if Sigma is learned
    dual_bound: float  # of the whole problem (15)


class Problem:
    """The rows of all tasks in the kernels' format, the dual variables alpha, and the current Sigma, B and W."""

    def __init__(self, data: TaskData, loss: str | Loss, reg_lambda: float, relationship: Any):
        if not (np.isfinite(reg_lambda) and reg_lambda > 0):
            raise ValueError(f"reg_lambda must be positive and finite, got {reg_lambda!r}")
        chosen = get_loss(loss)
        if not isinstance(chosen, Loss):
            raise ValueError(f"the baselines support built-in losses only, got {chosen.name!r}; use dmtrl.solve")
        self.relationship = get_relationship(relationship, data.m)
        if self.relationship.tau != 0 or isinstance(self.relationship, FreeIntercept):
            raise ValueError("the baselines support neither a common component nor a free intercept; use dmtrl.solve")
        self.data, self.loss, self.lam = data, chosen, float(reg_lambda)
        self.task = np.repeat(np.arange(data.m), np.diff(data.starts))
        self.units = _units(data, self.task, chosen)
        self.alpha = np.zeros(len(data.y))
        self.B = np.zeros((data.m, data.X.shape[1]))
        at_zero = np.zeros(data.m)
        kernels.conjugates(self.units, self.alpha, at_zero)
        self._at_zero = float(at_zero.sum())
        self.set_covariance(self.relationship.start(data.m))

    def set_covariance(self, covariance: TaskCovariance) -> None:
        """Set Sigma, and compute W from it (3)."""
        self.covariance = covariance
        self.sigma = covariance.dense() / self.lam
        self.W = covariance.apply(self.B) / self.lam

    def measure(self) -> Measured:
        """Compute B and W from alpha, not from increments, and evaluate there."""
        kernels.dual_vectors(self.units, self.alpha, self.B)
        self.W = self.covariance.apply(self.B) / self.lam
        sums = np.zeros((3, self.data.m))
        kernels.evaluate(self.units, self.alpha, self.W, *sums)
        loss, conjugate, w_gap = (float(total) for total in sums.sum(axis=1))
        w_objective = loss + 0.5 * self.covariance.quadratic(self.B) / self.lam
        objective = w_objective
        if self.relationship.learned:
            objective = loss + self.lam * self.relationship.penalty(self.W, np.zeros(self.W.shape[1]))
        bound = scaled_dual(self.relationship.conjugate(self.B) / self.lam, conjugate, self._at_zero)
        return Measured(w_gap, w_objective, objective, bound)


# improve(problem, number) moves problem.alpha towards the optimum for problem.covariance; returns the passes over rows
WStep = Callable[[Problem, int], float]


@dataclass(frozen=True)
class Schedule:
    """The number of Omega-steps and their smoothing. A W-step ends at a relative gap of `w_tol` or after `passes`."""

    omega_steps: int
    passes: int
    w_tol: float
    smoothing: float

    def __post_init__(self) -> None:
        for name, least in (("omega_steps", 1), ("passes", 1), ("w_tol", 0), ("smoothing", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)!r}")


def alternate(
    problem: Problem, solver: str, improve: WStep, schedule: Schedule, watch: Watch | None, began: float
) -> Fitted:
    """Alternate W-steps and Omega-steps. A fixed relationship has one W-step.

    `solver` is the name in the records. The first record's seconds count from `began`. Records exclude the time of
    `watch`.
    """
    history: list[RoundRecord] = []
    best_W, primal, dual = problem.W, np.inf, -np.inf
    small = problem.data.m * problem.W.size < 1e8
    for _ in range(schedule.omega_steps if problem.relationship.learned else 1):
        for done in range(schedule.passes):
            made = improve(problem, len(history))
            step = float(problem.sigma.diagonal().max())
            with single_threaded_blas() if small else nullcontext():
                now = problem.measure()
                W = problem.W
                w_gap = now.w_gap / (abs(now.w_objective) or 1.0)
                finished = w_gap <= schedule.w_tol or done == schedule.passes - 1
                omega = finished and problem.relationship.learned
                if omega:
                    problem.set_covariance(problem.relationship.update(W, schedule.smoothing))
            if now.objective < primal:
                best_W, primal = W, now.objective
            dual = max(dual, now.dual_bound)
            record = RoundRecord(
                round=len(history),
                gap=Certificate(primal, dual).relative_gap,
                primal=primal,
                dual=dual,
                w_gap=w_gap,
                objective=now.objective,
                dual_now=now.w_objective - now.w_gap,
                rho=1.0,
                step=step,
                solver=solver,
                passes=made,
                omega=omega,
                bytes_sent=0,
                bytes_received=0,
                seconds=time.perf_counter() - began,
            )
            history.append(record)
            if watch is not None:
                watch(record, W)
            began = time.perf_counter()
            if finished:
                break
    return Fitted(best_W, problem.relationship.update(best_W), Certificate(primal, dual), history)


def _units(data: TaskData, task: np.ndarray, loss: Loss) -> kernels.UnitRows:
    """Return all tasks as the units of one worker, after the checks of a worker."""
    blocks = data.sources(1)[0]
    X = (blocks.X.data, blocks.X.indices, blocks.X.indptr) if sparse.issparse(blocks.X) else blocks.X
    q = np.empty(len(data.y))
    kernels.squared_norms(X, q)
    check_blocks(blocks, [loss] * data.m, q)
    weight = np.ones(len(data.y)) if data.sample_weight is None else data.sample_weight
    total = np.bincount(task, weights=weight, minlength=data.m)
    if (total <= 0).any():
        name = blocks.names[int(np.argmax(total <= 0))]
        raise ValueError(f"task {name!r} has a total sample weight of zero; leave it out or give it data")
    ids, params = np.full(data.m, loss.id, dtype=np.int64), np.full(data.m, loss.param)
    starts = blocks.starts.astype(np.int64)
    y, p, equal = np.asarray(data.y, dtype=float), weight / total[task], np.ones(data.m)
    return kernels.UnitRows(X, y, p, q, starts, ids, params, False, equal, None)
