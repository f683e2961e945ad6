"""The contract of a method: how the coordinator turns the workers' dual vectors B into weights W.

A method has no state of its own. `init` makes the state of a run, a dataclass; `requests` says what to send to the
workers that are idle; `step` updates the state with answers and returns a `Report` when a round is complete. The state
is updated in place, because for 100,000 tasks a second copy would not fit into memory. A checkpoint holds that
dataclass. Every state has a field `b`: on resume it is compared with the `b` that the workers recompute, and replaced
by it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from dmtrl.numerics.rowwise import over_rows
from dmtrl.protocol.rounds import Improved, Round
from dmtrl.protocol.steps import AGREED_STIFFNESS, Steps
from dmtrl.relationship import FreeIntercept, Relationship
from dmtrl.relationship.base import Prox
from dmtrl.solver.layout import Layout
from dmtrl.solver.outcome import PrimalPoint
from dmtrl.solver.settings import Settings

MAX_STEP_CHANGES = 30  # finitely many, so that the convergence theorem for a fixed step applies in the end


@dataclass(frozen=True)
class RunContext:
    """What stays the same over a run."""

    relationship: Relationship
    lam: float
    layout: Layout
    settings: Settings
    longest_step: float = np.inf
    intercept_step: np.ndarray | None = None  # of each task, if weights have intercepts after the features
    intercept_ridge: np.ndarray | None = None  # of each task, in the local problems; None: the coordinator steps
    max_staleness: int = 0  # of the engine

    def steps(self, s: float, intercept_scale: float = 1.0) -> Steps:
        """The step sizes of each unit: a task in k shards takes steps k times as long."""
        shards, task = self.layout.shards, self.layout.task
        intercept = self._intercept_steps(intercept_scale)
        intercept = None if intercept is None else intercept[task] * shards
        return Steps(s * shards, intercept, self.intercept_ridge, self.layout.outputs)

    def _intercept_steps(self, scale: float) -> np.ndarray | None:
        """The step sizes of the intercepts of each task, the part of them that may change multiplied by `scale`."""
        if self.intercept_step is None or scale == 1.0:
            return self.intercept_step
        return self.deviation_step + scale * (self.intercept_step - self.deviation_step)

    def level_residuals(self, U: np.ndarray, Z: np.ndarray, Z_before: np.ndarray) -> tuple[float, float]:
        """How far U is from Z and Z from the Z before in the intercepts, in the metric of their step sizes."""
        assert isinstance(self.relationship, FreeIntercept)
        assert self.intercept_step is not None
        k, root = self.layout.outputs, np.sqrt(self.intercept_step - self.deviation_step)[:, None]
        moved = Z[:, -k:] - Z_before[:, -k:]
        return float(np.linalg.norm((U[:, -k:] - Z[:, -k:]) / root)), float(np.linalg.norm(moved / root))

    @property
    def has_level(self) -> bool:
        """Whether intercepts are measured from a level that all tasks share."""
        return isinstance(self.relationship, FreeIntercept) and self.relationship.centre is not None

    @cached_property
    def deviation_step(self) -> np.ndarray:
        """1 / mu of each task for which the workers minimise over the deviation of its intercept from the shared level,
        else 0 (section 18): the part of the intercept's step size that belongs to the deviation."""
        relationship = self.relationship
        if self.intercept_step is None or not isinstance(relationship, FreeIntercept) or relationship.centre is None:
            return np.zeros(self.layout.m)
        slack = 1.0 / (self.lam * np.broadcast_to(relationship.weight, self.layout.m))
        whole = np.bincount(self.layout.task, minlength=self.layout.m) == 1
        return np.where(whole & (self.intercept_step > slack), slack, 0.0)

    def prox(self, U: np.ndarray, B: np.ndarray, s: float, common: np.ndarray, intercept_scale: float = 1.0) -> Prox:
        """The proximal map (16) of lambda times the penalty at U + s B, for arrays of tasks."""
        V, t = np.empty_like(U), s * self.lam

        def add(rows: slice) -> None:
            np.multiply(s, B[rows], out=V[rows])
            V[rows] += U[rows]

        over_rows(add, *V.shape)
        step = self._intercept_steps(intercept_scale)
        if step is None:
            return self.relationship.prox(V, t, common)
        assert isinstance(self.relationship, FreeIntercept)
        k = self.layout.outputs
        if self.intercept_ridge is not None:  # the workers have taken the proximal step of the ridge already
            V[:, -k:] = U[:, -k:]
            return self.relationship.prox_with_steps(V, t, np.zeros(len(U)), common)
        away, deviation = self.deviation_step, None
        V[:, -k:] = U[:, -k:] + (step - 2.0 * away)[:, None] * B[:, -k:]
        if away.any():
            deviation = np.where(away > 0, away, np.nan)[:, None] * B[:, -k:]
        return self.relationship.prox_with_steps(V, t, (step - away) * self.lam, common, deviation)

    def may_stride(self, s: float) -> bool:
        """Whether a longer step can still bring the weights forward. The penalty is at least that of a ridge of lambda
        over 1 + m tau + kappa, the largest variance there is. With longer steps the proximal map is near its limit, and
        B hardly moves because the steps are long, not because the losses are linear."""
        relationship = self.relationship
        return s * self.lam <= 1.0 + self.layout.m * relationship.tau + relationship.kappa

    def features(self, A: np.ndarray) -> np.ndarray:
        """The columns of the features: a view without the intercepts."""
        return A if self.intercept_step is None else A[:, : -self.layout.outputs]


@dataclass(frozen=True)
class InitialPoint:
    """Where a run begins: weights, and b, loss and conjugate of each unit there."""

    W: np.ndarray  # (m, d)
    common: np.ndarray
    b: np.ndarray  # (units, d)
    conjugate: np.ndarray
    loss: np.ndarray | None = None  # at W; None if it was not evaluated


@dataclass(frozen=True)
class GapToClose:
    """How accurate the answers of the next round should be."""

    gap: float  # certified so far: objective minus bound
    accuracy: float  # share of it at which the sum of the local gaps aims
    finish: float  # sum of local gaps that ends the run, if the units are independent of each other
    new: bool = True  # whether it was computed after the last answer
    best: np.ndarray | None = None  # the best weights so far, which must not be written over


@dataclass(frozen=True)
class Report:
    """What a round found."""

    points: list[PrimalPoint]
    B: np.ndarray  # (m, d), the dual point
    conjugate: float
    w_gap: float  # W-step gap at the weights that were sent and the dual variables from before the round
    w_objective: float  # the W-step objective at those weights
    rho: float
    step: float
    solver: np.ndarray  # code of each unit's local solver
    steps: np.ndarray  # coordinate steps of each unit
    omega: bool = False  # whether Sigma was updated after this round


S = TypeVar("S")


class Method(Protocol[S]):
    name: str
    waits_for_all: bool  # whether `step` needs the answers of all workers together
    State: type[Any]

    def init(self, point: InitialPoint) -> S:
        """The state at the start of a run."""
        ...

    def requests(self, state: S, idle: Collection[int], gap: GapToClose) -> dict[int, Round]:
        """What to send now, by worker."""
        ...

    def step(self, state: S, answers: dict[int, Improved]) -> Report | None:
        """Update the state with answers, which it may empty; a report when a round is complete."""
        ...


@dataclass(frozen=True)
class Totals:
    """The answers of all workers, joined in unit order and summed."""

    b: np.ndarray
    B: np.ndarray  # (m, d), summed over the units of a task
    loss_w: float
    bracket_w: float
    loss_u: float
    conjugate: float
    solver: np.ndarray
    steps: np.ndarray

    @classmethod
    def of(cls, answers: dict[int, Improved], layout: Layout, round_number: int) -> "Totals":
        """Empties `answers`: the workers' b are not kept beside the joined one."""
        b = layout.gather(answers, "b")
        check_finite(b, layout, round_number)
        names = ("loss_w", "bracket_w", "loss_u", "conjugate")
        sums = {name: float(layout.gather(answers, name).sum()) for name in names}
        solver, steps = layout.gather(answers, "solver"), layout.gather(answers, "steps")
        answers.clear()
        return cls(b=b, B=layout.per_task(b), solver=solver, steps=steps, **sums)


def check_finite(b: np.ndarray, layout: Layout, round_number: int, worker: int | None = None) -> None:
    """Raise FloatingPointError if b, of one worker or of all, is not finite."""
    if not np.isfinite(b).all():
        unit = int(np.flatnonzero(~np.isfinite(b).all(axis=1))[0])
        unit = unit if worker is None else int(layout.positions[worker][unit])
        raise FloatingPointError(
            f"round {round_number}: worker {layout.owner[unit]} answered NaN or infinity for task {layout.task[unit]}"
        )


def agreed_intercept_step(step: np.ndarray, ridge: np.ndarray, local: np.ndarray) -> np.ndarray:
    """The step sizes of intercepts for which the coordinator steps (docs/math.md section 18): those that suit the
    workers, but no longer than the ridge allows. Where the workers minimise over a deviation (`local`) and the ridge on
    it is strong, those that suit what is left."""
    curvature = AGREED_STIFFNESS / step
    eliminated = local & (10.0 * ridge >= curvature)
    return np.where(eliminated, 1.0 / curvature + 2.0 / ridge, np.minimum(step, 1.0 / np.sqrt(curvature * ridge)))


def first_step(lam: float, m: int) -> float:
    """The proximal step size with which splitting begins. Beyond 3000 tasks of the same kind it hardly changes."""
    return 1.0 / (lam * float(np.sqrt(min(m, 3000))))


def is_straight(moved: float, size: float, turned: float, slope: float) -> bool:
    """Whether the losses look linear: weights of this size moved, and b of this size hardly did."""
    return moved > 0.1 * size and turned <= 0.01 * slope


def step_change(wanted: float, step: float, longest_step: float) -> float:
    """The factor by which the step size changes: 1 unless the change matters."""
    change = min(wanted, longest_step / step)
    return 1.0 if 1 / 1.5 < change < 1.5 else change
