"""A new task joins a learned model without the data of the other tasks.

The old tasks' weights are held fixed: a worker without rows answers for them, whose loss is zero at those weights and
infinite elsewhere. So the ordinary rounds solve the restricted problem. The old tasks' B and conjugate sums were kept,
so the dual bound of the whole problem can still be computed: it bounds what a full refit could gain.
"""

from dataclasses import dataclass, replace

import numpy as np

from dmtrl.data.task_data import TaskData
from dmtrl.engines.local import LocalEngine
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Describe, Description, Improved, Prepare, Prepared, Round
from dmtrl.protocol.steps import Steps
from dmtrl.solver.api import solve_on
from dmtrl.solver.certificate import Certificate, scaled_dual
from dmtrl.solver.checkpoint.session import CheckpointSession
from dmtrl.solver.outcome import DualPoint, Outcome
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings
from dmtrl.worker.worker import Worker


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
