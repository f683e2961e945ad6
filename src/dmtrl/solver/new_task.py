"""A new task joins a learned model without the data of the other tasks.

The old tasks' weights are held fixed: a worker without rows answers for them, whose loss is zero at those weights and
infinite elsewhere. So the ordinary rounds solve the restricted problem. The old tasks' B and conjugate sums were kept,
so the dual bound of the whole problem can still be computed: it bounds what a full refit could gain.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from dmtrl.data.task_data import TaskData
from dmtrl.engines.local import LocalEngine
from dmtrl.losses import AnyLoss
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Describe, Description, Improved, Prepare, Prepared, Round
from dmtrl.protocol.steps import Steps
from dmtrl.relationship import FreeIntercept
from dmtrl.solver.api import solve, solve_on
from dmtrl.solver.certificate import Certificate, scaled_dual
from dmtrl.solver.checkpoint.session import CheckpointSession
from dmtrl.solver.execution import Execution
from dmtrl.solver.outcome import DualPoint, Outcome
from dmtrl.solver.problem import Intercept, Problem, Strengths
from dmtrl.solver.settings import Settings
from dmtrl.worker.worker import Worker

_STRONG = 1e8  # lambda that leaves no deviation, times the mean squared row norm


class _FixedTasks:
    """Answers like a worker for tasks whose weights may not change."""

    def __init__(self, W: np.ndarray, B: np.ndarray, features: int, outputs: int):
        self._W, self._b, self._u, self._features, self._outputs = W, B, W, features, outputs
        self._ridge: np.ndarray | None = None

    def sibling(self, number: int) -> "_FixedTasks":
        return self

    def answer(self, message: Message) -> Message:
        request, m = decode(message), len(self._W)
        ones, zeros = np.ones(m), np.zeros(m)
        if isinstance(request, Describe):
            return encode(
                Description(
                    features=self._features,
                    outputs=self._outputs,
                    chunks=0,
                    chunks_used=0,
                    tasks=np.arange(m),
                    shards=np.zeros(m, int),
                    rows=np.ones(m, int),
                    weight=ones,
                )
            )
        if isinstance(request, Prepare):
            self._ridge = request.intercept_ridge
            bounds = {"conjugate": self._conjugate(), "conjugate_at_zero": zeros, "longest_step": ones * np.inf}
            return encode(Prepared(b=self._b, **bounds, intercept_step=ones if request.intercept else None))
        assert isinstance(request, Round)
        w, step = request.w, Steps(request.step, request.intercept_step, self._ridge, self._outputs)
        centre = step.centre(w, w + request.relax * (w - self._u), self._b)
        own = 1.0 / step.features[:, None] * (self._W - centre)
        if step.intercept is not None:
            k = self._outputs
            own[:, -k:] = (self._W - centre)[:, -k:] / step.effective_intercept[:, None]
        self._b, self._u = own, self._W
        at_w = np.where((w == self._W).all(axis=1), 0.0, np.inf)
        return encode(
            Improved(
                b=self._b,
                loss_w=at_w,
                bracket_w=at_w,
                loss_u=zeros,
                conjugate=self._conjugate(),
                steps=np.zeros(m, np.int64),
                solver=np.zeros(m, np.int8),
            )
        )

    def _conjugate(self) -> np.ndarray:
        return -(self._W * self._b).sum(axis=1)


@dataclass(frozen=True)
class Extension:
    """The new task's weights, the outcome of the restricted problem, and the certificate of all tasks together, in
    which the old ones stayed fixed: its gap bounds what fitting everything again could gain."""

    w: np.ndarray
    outcome: Outcome
    certificate: Certificate
    dual: DualPoint  # of all tasks together


def extend(
    W: np.ndarray, dual: DualPoint, losses: float, new: TaskData, problem: Problem, settings: Settings
) -> Extension:
    """W (m, d), `dual` and `losses` (the old tasks' summed mean losses at W) come from the model; `problem` is that of
    m + 1 tasks."""
    m, d = W.shape
    if new.m != 1:
        raise ValueError(f"one task can be added at a time, got {new.m}")
    if problem.outputs * (new.X.shape[1] + (problem.intercept is not None)) != d:
        raise ValueError(f"the new task has {new.X.shape[1]} features, which does not fit the weights of the model")
    blocks = replace(new.sources(1)[0], tasks=np.array([m]))
    fixed = _FixedTasks(W, dual.B, new.X.shape[1], problem.outputs)
    engine = LocalEngine((), (), workers=[fixed, Worker(blocks, problem.losses)])
    outcome = solve_on(engine, problem, replace(settings, method="splitting"), CheckpointSession())
    # the dual of the whole problem at the old tasks' B and the new one's; any scaling of it is valid as well
    B = np.vstack([dual.B, outcome.dual.B[m:]])
    own = outcome.dual.conjugate + float((W * outcome.dual.B[:m]).sum())  # the new task's conjugate sum
    conjugate = dual.conjugate + own
    at_zero = dual.conjugate_at_zero + outcome.dual.conjugate_at_zero
    bound = scaled_dual(problem.regulariser().conjugate(B) / problem.strengths.reg_lambda, conjugate, at_zero)
    certificate = Certificate(losses + outcome.certificate.primal, bound)
    return Extension(outcome.W[m], outcome, certificate, DualPoint(B, conjugate, at_zero, bound))


def extend_outcome(before: Outcome, new: TaskData, problem: Problem, settings: Settings) -> Extension:
    """Extend a solved problem; `problem` is that of m + 1 tasks."""
    relationship = problem.regulariser()
    if isinstance(relationship, FreeIntercept) and isinstance(relationship.weight, np.ndarray):  # without the new one
        relationship = FreeIntercept(relationship.base, relationship.weight[:-1], columns=relationship.columns)
    penalty = relationship.penalty(before.W, before.common)
    losses = before.certificate.primal - problem.strengths.reg_lambda * penalty
    return extend(before.W, before.dual, losses, new, problem, settings)


def extend_deviations(
    before: Outcome, new: TaskData, loss: AnyLoss, strengths: Strengths, task_weight: np.ndarray, settings: Settings
) -> Extension:
    """Extend a problem with a shared part, which does not change. `task_weight`: of all m + 1 tasks."""
    shared, k = before.shared, loss.outputs
    assert shared is not None
    new = replace(new, offset=shared.scores(new.X))
    size = float(len(new.y) if new.sample_weight is None else new.sample_weight.sum())
    per_row = task_weight / np.append(before.task_size, size)
    intercept = Intercept(shared.level * per_row) if np.isfinite(shared.level) else None
    if np.isinf(strengths.reg_lambda):
        return _extend_levels(before, new, loss, task_weight, intercept, settings)
    problem = Problem(len(per_row), loss, strengths, task_weight=task_weight, intercept=intercept)
    if intercept is not None:
        return extend_outcome(before, new, problem, settings)
    inner = replace(
        before, W=before.W[:, :-k], common=before.common[:-k], dual=replace(before.dual, B=before.dual.B[:, :-k])
    )
    found = extend_outcome(inner, new, problem, settings)
    outcome = replace(found.outcome, common=np.append(found.outcome.common, np.zeros(k)))
    dual = replace(found.dual, B=np.hstack([found.dual.B, np.zeros((len(per_row), k))]))
    return replace(found, w=np.append(found.w, np.zeros(k)), outcome=outcome, dual=dual)


def _extend_levels(
    before: Outcome,
    new: TaskData,
    loss: AnyLoss,
    task_weight: np.ndarray,
    intercept: Intercept | None,
    settings: Settings,
) -> Extension:
    """A task without deviations has a level alone, which is a fit with a very strong lambda."""
    k, d = loss.outputs, new.X.shape[1]
    squares = new.X.multiply(new.X).sum() if sparse.issparse(new.X) else np.vdot(new.X, new.X)
    strong = _STRONG * max(float(task_weight[-1] * squares) / len(new.y), 1.0)
    if intercept is not None:
        assert isinstance(intercept.ridge, np.ndarray)
        intercept = Intercept(intercept.ridge[-1:])
    problem = Problem(new, loss, Strengths(strong), "independent", task_weight[-1:], intercept)
    outcome = solve(problem, Execution(settings=settings, warn=False))
    w = np.zeros(k * (d + 1))
    if intercept is not None:
        w[-k:] = outcome.W[0, -k:]
    old, found = before.certificate, outcome.certificate
    certificate = Certificate(old.primal + found.primal, old.dual + found.dual)
    b = np.append(np.zeros(k * d), outcome.dual.B[0, -k:] if intercept is not None else np.zeros(k))
    B, bound = np.vstack([before.dual.B, b]), before.dual.bound + outcome.dual.bound
    conjugate = before.dual.conjugate + outcome.dual.conjugate
    everything = replace(outcome, common=before.common, task_weight=task_weight)
    return Extension(w, everything, certificate, DualPoint(B, conjugate, conjugate, bound))
