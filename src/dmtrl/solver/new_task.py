"""A new task joins a learned model without touching the others' data.

Room: above the coordinator, beside solve. The old tasks' weights are held where they are: a worker without rows
answers for them, whose loss is zero at those weights and infinite elsewhere. So the ordinary rounds solve the
restricted problem, and because the old tasks' B and conjugate sums were kept, the dual bound of the *whole* problem
with all tasks can still be computed: it says how much a full refit could gain.
"""

from dataclasses import dataclass, replace

import numpy as np

from dmtrl.data.task_data import TaskData
from dmtrl.engines.base import Engine
from dmtrl.losses import AnyLoss
from dmtrl.protocol.message import Message
from dmtrl.relationship import Relationship
from dmtrl.solver.certificate import Certificate, scaled_dual
from dmtrl.solver.coordinator import Coordinator, DualPoint, Outcome
from dmtrl.solver.settings import Settings
from dmtrl.worker.worker import Worker


class _Pinned:
    """Answers like a worker for tasks whose weights may not move."""

    def __init__(self, W: np.ndarray, B: np.ndarray):
        self._W, self._b, self._u = W, B, W

    def answer(self, message: Message) -> Message:
        m, d = self._W.shape
        ones, zeros = np.ones(m), np.zeros(m)
        if message.name == "describe":
            arrays = {"tasks": np.arange(m), "shards": np.zeros(m, int), "rows": np.ones(m, int), "weight": ones}
            return Message("described", {"features": d}, arrays)
        if message.name == "prepare":
            arrays = {
                "b": self._b,
                "conjugate": self._conjugate(),
                "conjugate_at_zero": zeros,
                "longest_step": ones * np.inf,
            }
            return Message("prepared", {}, arrays)
        w, step = message.arrays["w"], message.arrays["step"][:, None]
        anchor = w + float(message.scalars["relax"]) * (w - self._u)
        centre = anchor - step * self._b
        self._b, self._u = (self._W - centre) / step, self._W
        arrays = {
            "b": self._b,
            "loss_w": np.where((w == self._W).all(axis=1), 0.0, np.inf),
            "bracket_w": np.where((w == self._W).all(axis=1), 0.0, np.inf),
            "loss_u": zeros,
            "conjugate": self._conjugate(),
            "steps": np.zeros(m, np.int64),
            "solver": np.zeros(m, np.int8),
        }
        return Message("improved", {}, arrays)

    def _conjugate(self) -> np.ndarray:
        return -(self._W * self._b).sum(axis=1)


class _Pair(Engine):
    """An engine of two: the pinned tasks and the newcomer."""

    n_workers = 2

    def __init__(self, pinned: _Pinned, worker: Worker):
        self._members = (pinned, worker)
        self._waiting: list[tuple[int, Message]] = []

    def send(self, k: int, message: Message) -> None:
        self._waiting.append((k, message))

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        k, message = self._waiting.pop(0)
        return k, self._members[k].answer(message)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Extension:
    """The new task's weights; the restricted problem's outcome; and the certificate of all tasks together, in
    which the old ones stayed where they were: its gap bounds what fitting everything anew could gain."""

    w: np.ndarray
    outcome: Outcome
    certificate: Certificate
    dual: DualPoint  # of all tasks together


def extend(
    W: np.ndarray,
    dual: DualPoint,
    losses: float,
    newcomer: TaskData,
    loss: AnyLoss,
    relationship: Relationship,
    reg_lambda: float,
    settings: Settings,
) -> Extension:
    """W (m, d), `dual` and `losses` (the old tasks' summed mean losses at W) come from the model; `relationship` is
    for m + 1.
    """
    m, d = W.shape
    if newcomer.m != 1:
        raise ValueError(f"one task can be added at a time, got {newcomer.m}")
    if newcomer.X.shape[1] != d:
        raise ValueError(f"the new task has {newcomer.X.shape[1]} features, the model has {d}")
    blocks = newcomer.partition(1)[0]
    worker = Worker(type(blocks)(**{**vars(blocks), "tasks": np.array([m])}), loss)
    settings = replace(settings, method="splitting", max_staleness=0)
    coordinator = Coordinator(_Pair(_Pinned(W, dual.B), worker), m + 1, relationship, reg_lambda, settings)
    outcome = coordinator.run()
    # The whole problem's dual at the old tasks' kept B and the newcomer's: any scaling of it is valid as well.
    together = np.vstack([dual.B, outcome.dual.B[m:]])
    fresh = outcome.dual.conjugate + float((W * outcome.dual.B[:m]).sum())  # the newcomer's own conjugate sum
    conjugate = dual.conjugate + fresh
    at_zero = dual.conjugate_at_zero + outcome.dual.conjugate_at_zero
    bound = scaled_dual(relationship.conjugate(together) / reg_lambda, conjugate, at_zero)
    certificate = Certificate(losses + outcome.certificate.primal, bound)
    return Extension(outcome.W[m], outcome, certificate, DualPoint(together, conjugate, at_zero, bound))
