"""The loop that the single-machine solvers share: W-step, Omega-step, records, certificate.

Room: baselines. A solver brings only its W-step, an object with `improve`; everything that is measured is measured
here, by the library's own kernels and certificate. Equation numbers are those of docs/math.md.
"""

import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from dmtrl.data.task_data import TaskData
from dmtrl.losses.builtin import Loss, get_loss
from dmtrl.relationship import FreeIntercept, get_relationship
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.solver.certificate import Certificate, scaled_dual
from dmtrl.solver.coordinator import RoundRecord, Watch, single_threaded_blas
from dmtrl.worker import kernels
from dmtrl.worker.input_check import check_blocks


@dataclass(frozen=True)
class Fitted:
    """What every baseline answers. The certificate is of the problem that the method itself minimises: the joint
    problem (13) for `centralised_mtrl` and `ssdca`, its own one for `single_task` and `pooled`.
    """

    W: np.ndarray  # (m, d), the best seen
    covariance: TaskCovariance
    certificate: Certificate
    history: list[RoundRecord]  # as of a distributed fit: one record a pass (or a round)


@dataclass(frozen=True)
class Measured:
    """Sums at the current alpha and W = Sigma B / lambda."""

    w_gap: float  # of the W-step (4)
    w_objective: float  # with Sigma as it is
    objective: float  # with the best Sigma for W (13), if Sigma is learned
    dual_bound: float  # of the whole problem (15)


class Problem:
    """The rows of all tasks as the kernels read them, the dual variables alpha, and Sigma, B and W that belong to
    them.
    """

    def __init__(self, data: TaskData, loss: str | Loss, reg_lambda: float, relationship: Any):
        if not (np.isfinite(reg_lambda) and reg_lambda > 0):
            raise ValueError(f"reg_lambda must be positive and finite, got {reg_lambda!r}")
        chosen = get_loss(loss)
        if not isinstance(chosen, Loss):
            raise ValueError(f"the baselines know the built-in losses only, got {chosen.name!r}; use dmtrl.solve")
        self.relationship = get_relationship(relationship, data.m)
        if self.relationship.tau != 0 or isinstance(self.relationship, FreeIntercept):
            raise ValueError(
                "the baselines know neither a common component nor a free intercept; use dmtrl.solve for those"
            )
        self.data, self.loss, self.lam = data, chosen, float(reg_lambda)
        self.units = _units(data, chosen)
        self.task = np.repeat(np.arange(data.m), np.diff(data.starts))
        self.alpha = np.zeros(len(data.y))
        self.B = np.zeros((data.m, data.X.shape[1]))
        at_zero = np.zeros(data.m)
        kernels.conjugates(self.units, self.alpha, at_zero)
        self._at_zero = float(at_zero.sum())
        self.set_covariance(self.relationship.start(data.m))

    def set_covariance(self, covariance: TaskCovariance) -> None:
        """A new Sigma, and W made again from it (3)."""
        self.covariance = covariance
        self.sigma = covariance.dense() / self.lam
        self.W = covariance.apply(self.B) / self.lam

    def measure(self) -> Measured:
        """Make B and W from alpha, never from increments, and evaluate there."""
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


class WStep(Protocol):
    name: str  # as it stands in the records

    def improve(self, problem: Problem, number: int) -> float:
        """Move problem.alpha towards the optimum for problem.covariance; how many passes over the rows that took."""


def alternate(
    problem: Problem,
    w_step: WStep,
    *,
    omega_steps: int,
    passes: int,
    w_tol: float,
    smoothing: float,
    watch: Watch | None,
    began: float,
) -> Fitted:
    """`omega_steps` times: improve W until its relative gap is at most `w_tol` or `passes` times, then Sigma from W.

    With a relationship that is given instead of learned there is one W-step. The first record's seconds count from
    `began`; what `watch` takes is in no record.
    """
    history: list[RoundRecord] = []
    best_W, primal, dual = problem.W, np.inf, -np.inf
    small = problem.data.m * problem.W.size < 1e8
    for _ in range(omega_steps if problem.relationship.learned else 1):
        for done in range(passes):
            made = w_step.improve(problem, len(history))
            step = float(problem.sigma.diagonal().max())
            with single_threaded_blas(small):
                now = problem.measure()
                W = problem.W
                w_gap = now.w_gap / (abs(now.w_objective) or 1.0)
                finished = w_gap <= w_tol or done == passes - 1
                omega = finished and problem.relationship.learned
                if omega:
                    problem.set_covariance(problem.relationship.update(W, smoothing))
            if now.objective < primal:
                best_W, primal = W, now.objective
            dual = max(dual, now.dual_bound)
            record = RoundRecord(
                round=len(history), gap=Certificate(primal, dual).relative_gap, primal=primal, dual=dual, w_gap=w_gap,
                objective=now.objective, dual_now=now.w_objective - now.w_gap, rho=1.0, step=step, solver=w_step.name,
                passes=made, omega=omega, bytes_sent=0, bytes_received=0, seconds=time.perf_counter() - began,
            )  # fmt: skip
            history.append(record)
            if watch is not None:
                watch(record, W)
            began = time.perf_counter()
            if finished:
                break
    return Fitted(best_W, problem.relationship.update(best_W), Certificate(primal, dual), history)


def require(ok: bool, name: str, rule: str, value: object) -> None:
    if not ok:
        raise ValueError(f"{name} must be {rule}, got {value!r}")


def _units(data: TaskData, loss: Loss) -> kernels.Units:
    """All tasks as the units of one worker, after the checks that a worker makes."""
    blocks = data.partition(1)[0]
    X = (blocks.X.data, blocks.X.indices, blocks.X.indptr) if sparse.issparse(blocks.X) else blocks.X
    q = np.empty(len(data.y))
    kernels.squared_norms(X, q)
    check_blocks(blocks, [loss] * data.m, q)
    weight = np.ones(len(data.y)) if data.sample_weight is None else data.sample_weight
    task = np.repeat(np.arange(data.m), np.diff(data.starts))
    total = np.bincount(task, weights=weight, minlength=data.m)
    if (total <= 0).any():
        name = blocks.names[int(np.argmax(total <= 0))]
        raise ValueError(f"task {name!r} has a total sample weight of zero; leave it out or give it data")
    ids, params = np.full(data.m, loss.id, dtype=np.int64), np.full(data.m, loss.param)
    starts = blocks.starts.astype(np.int64)
    return kernels.Units(X, np.asarray(data.y, dtype=float), weight / total[task], q, starts, ids, params)
