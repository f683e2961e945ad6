"""Asynchronous splitting: every answer counts when it arrives (docs/math.md section 12).

The iteration of joint splitting, one worker at a time. The coordinator keeps the last point (u, b) of every unit; an
answer replaces those of its worker, the proximal map is taken again, and the worker continues from there at once.
`max_staleness` bounds how far the others may run ahead of a worker. A round is as many answers as there are workers.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from dmtrl.protocol.rounds import Improved, Round
from dmtrl.protocol.steps import Steps
from dmtrl.solver.methods.base import (
    MAX_STEP_CHANGES,
    GapToClose,
    InitialPoint,
    Report,
    RunContext,
    check_finite,
    first_step,
    is_straight,
    step_change,
)
from dmtrl.solver.methods.splitting import STRIDE, norm
from dmtrl.solver.outcome import PrimalPoint

_SMALLER_STEP = 0.5  # of splitting's first step size: the frozen rows of a straggler count as curvature 1/s
_PASSES = 2  # per answer: little work, so that no answer is based on very old weights
_PATIENCE = 4  # answers of the slowest worker without progress, after which answers become more exact


@dataclass
class Probe:
    """Weights at which every worker evaluates its loss, where that of whole tasks is not known otherwise."""

    W: np.ndarray
    common: np.ndarray
    penalty: float
    requested: np.ndarray  # by worker
    loss: np.ndarray  # by worker; NaN until it is known


@dataclass
class AsynchronousState:
    Z: np.ndarray  # weights, made by the proximal map of the penalty
    common: np.ndarray
    U: np.ndarray  # of each unit, where its worker last arrived
    b: np.ndarray
    conjugate: np.ndarray
    W: np.ndarray  # of each unit, the weights at which its loss was last evaluated
    loss: np.ndarray
    solver: np.ndarray  # of each unit in its last answer
    steps: np.ndarray
    s: float  # step size
    staleness: int
    accuracy: float
    passes: int
    answered: np.ndarray  # how often, by worker
    answered_before: np.ndarray  # the same at the end of the last two rounds (2, workers)
    Z_before: np.ndarray  # at the end of the last round
    b_before: np.ndarray
    slowest: np.ndarray  # rows of (answers of the slowest worker, certified gap at that time)
    changes: int = 0  # of the step size
    rounds: int = 0
    taken: int = 0  # answers in this round
    version: int = 0  # of the weights
    probe: Probe | None = None
    found: PrimalPoint | None = None  # the best probed weights of this round
    sent: dict[int, Round] = field(default_factory=dict, metadata={"saved": False})
    versions: dict[int, deque[int]] = field(default_factory=dict, metadata={"saved": False})  # last sent, by worker


class AsynchronousSplitting:
    name = "splitting"
    waits_for_all = False
    State = AsynchronousState

    def __init__(self, context: RunContext):
        self._context = context
        self._shards = context.layout.shards[:, None].astype(float)
        # A task in shards has its loss only where all workers evaluate the same weights, and weights of several
        # versions may lie outside the range of a given Sigma.
        self._probes = context.layout.split or not context.relationship.learned

    def init(self, point: InitialPoint) -> AsynchronousState:
        context, layout, settings = self._context, self._context.layout, self._context.settings
        workers, units = len(layout.positions), len(point.b)
        step = min(_SMALLER_STEP * first_step(context.lam, layout.m), context.longest_step)
        assert point.loss is not None
        return AsynchronousState(
            Z=point.W,
            common=point.common,
            U=layout.per_unit(point.W).copy(),
            b=point.b.copy(),
            conjugate=point.conjugate.copy(),
            W=layout.per_unit(point.W).copy(),
            loss=point.loss.copy(),
            solver=np.zeros(units, dtype=np.int8),
            steps=np.zeros(units, dtype=np.int64),
            s=settings.initial_step or step,
            staleness=self._context.max_staleness,
            accuracy=settings.local_accuracy,
            passes=min(_PASSES, settings.max_passes),
            answered=np.zeros(workers, dtype=np.int64),
            answered_before=np.zeros((2, workers), dtype=np.int64),
            Z_before=point.W,
            b_before=point.b.copy(),
            slowest=np.array([[0.0, np.inf]]),
        )

    # which worker may continue

    def requests(self, state: AsynchronousState, idle: Collection[int], gap: GapToClose) -> dict[int, Round]:
        if gap.new:
            self._sharpen(state, gap.gap)
        target = state.accuracy * gap.gap / len(self._context.layout.task)
        requests = {}
        for k in sorted(idle):
            if self._may_continue(state, k):
                requests[k] = state.sent[k] = self._request(state, k, target)
                newest = deque[int](maxlen=self._context.max_staleness + 1)
                state.versions.setdefault(k, newest).append(state.version)
        return requests

    def _may_continue(self, state: AsynchronousState, k: int) -> bool:
        """Whether no worker with a request would fall behind worker k by more than the staleness allowed."""
        for other in state.sent:
            since = state.versions[other][-1]
            newer = sum(version > since for version in state.versions.get(k, ()))
            if state.version > since and newer >= state.staleness:
                return False
        return True

    def _request(self, state: AsynchronousState, k: int, target: float) -> Round:
        layout, settings = self._context.layout, self._context.settings
        units, answered = layout.positions[k], state.answered[k]
        # The first answer is based on the start of the run and should arrive soon: one pass, no factors that pay only
        # over many answers, and no evaluation, because the loss there is known. A worker that lags (fewer than half the
        # answers of the median worker) keeps to one pass for two more answers: the others have not yet adapted to what
        # it sent before.
        first, lags = bool(answered == 0), bool(2 * answered < np.median(state.answered))
        brief = first or (lags and answered == 1)
        one_pass = first or (lags and answered <= 2)
        step = self._context.steps(state.s).only(units)
        probe = None
        if state.probe is not None and not state.probe.requested[k]:
            state.probe.requested[k] = True
            probe = state.probe.W[layout.task[units]]
        return Round(
            round=state.version,
            target=target,
            relax=0.0 if first else settings.relaxation - 1.0,
            evaluate_w=not (first or self._probes),
            pace=0.0 if brief else float(min(answered / max(np.median(state.answered), 1.0), 1.0)),
            w=state.Z[layout.task[units]],
            step=step.features,
            intercept_step=step.intercept,
            most=None if settings.steps is not None else (1 if one_pass else state.passes) * layout.rows[units],
            probe=probe,
        )

    # what an answer changes

    def step(self, state: AsynchronousState, answers: dict[int, Improved]) -> Report | None:
        for k, answer in sorted(answers.items()):
            self._take(state, k, answer)
        state.taken += len(answers)
        self._finish_probe(state)
        self._renew(state)
        if state.taken < len(state.answered):
            return None
        self._adapt(state)
        points, state.found = [self._primal_point(state), *([state.found] if state.found else [])], None
        b = state.b.copy()
        return Report(
            points=points,
            B=self._context.layout.per_task(b),
            conjugate=float(state.conjugate.sum()),
            w_gap=np.inf,
            w_objective=float("nan"),
            rho=float("nan"),
            step=state.s,
            solver=state.solver.copy(),
            steps=state.steps.copy(),
        )

    def _take(self, state: AsynchronousState, k: int, answer: Improved) -> None:
        """Replace the worker's rows of U and B with where it arrived from the centre (17) that it used."""
        units, request = self._context.layout.positions[k], state.sent.pop(k)
        check_finite(answer.b, self._context.layout, request.round, k)
        W = request.w
        ridge = self._context.intercept_ridge
        ridge = None if ridge is None else ridge[units]
        step = Steps(request.step, request.intercept_step, ridge, self._context.layout.outputs)
        anchor = W + request.relax * (W - state.U[units]) if request.relax else W
        state.U[units] = step.centre(W, anchor, state.b[units]) + step.times(answer.b)
        state.b[units], state.conjugate[units] = answer.b, answer.conjugate
        if request.evaluate_w:
            state.W[units], state.loss[units] = request.w, answer.loss_w
        state.solver[units], state.steps[units] = answer.solver, answer.steps
        if state.probe is not None and answer.loss_probe is not None:
            state.probe.loss[k] = float(answer.loss_probe.sum())
        state.answered[k] += 1

    def _renew(self, state: AsynchronousState) -> None:
        """New weights from the last points of all units (16)."""
        layout, workers = self._context.layout, len(state.answered)
        U, B = layout.per_task(state.U / self._shards), layout.per_task(state.b)
        prox = self._context.prox(U, B, state.s, state.common)
        state.Z, state.common = prox.W, prox.common
        state.version += 1
        if self._probes and state.probe is None:
            unknown = np.full(workers, np.nan)
            state.probe = Probe(prox.W, prox.common, prox.penalty, np.zeros(workers, dtype=bool), unknown)

    def _finish_probe(self, state: AsynchronousState) -> None:
        """Keep the weights of the probe as a primal point, once every worker has evaluated them."""
        probe = state.probe
        if probe is None or np.isnan(probe.loss).any():
            return
        state.probe = None
        objective = float(sum(probe.loss)) + self._context.lam * probe.penalty
        if state.found is None or objective < state.found.objective:
            state.found = PrimalPoint(probe.W, probe.common, objective)

    def _primal_point(self, state: AsynchronousState) -> PrimalPoint:
        """For each task the weights at which its loss was last evaluated; they need not be of one version."""
        if self._probes or not np.isfinite(state.loss).all():
            return PrimalPoint(state.Z, state.common, np.inf)
        penalty = self._context.relationship.penalty(state.W, state.common)
        return PrimalPoint(state.W.copy(), state.common, float(state.loss.sum()) + self._context.lam * penalty)

    # step size and accuracy

    def _adapt(self, state: AsynchronousState) -> None:
        """After each round: a long stride where the losses look linear, or every second time a balance of the residuals
        (20). Both use the tasks of workers that answered in both of the last two rounds: the rows of the others stand
        still and say nothing about the step."""
        recent = (state.answered > state.answered_before[0]) & (state.answered_before[0] > state.answered_before[1])
        Z_before, b_before = state.Z_before, state.b_before
        state.answered_before = np.stack([state.answered, state.answered_before[0]])
        state.Z_before, state.b_before, state.taken = state.Z, state.b.copy(), 0
        state.rounds += 1
        if state.changes >= MAX_STEP_CHANGES or not recent.any():
            return
        units = np.flatnonzero(recent[self._context.layout.owner])
        tasks = self._context.layout.task[units]
        features = self._context.features
        U, Z, b = features(state.U)[units], features(state.Z)[tasks], features(state.b)[units]
        moved, size, slope = norm(Z - features(Z_before)[tasks]), norm(Z), max(norm(b), 1e-300)
        change = 1.0
        straight = is_straight(moved, size, norm(b - features(b_before)[units]), slope)
        if straight and self._context.may_stride(state.s):
            change = STRIDE
        elif state.rounds > 2 and state.rounds % 2:
            primal, dual = norm(U - Z) / max(norm(U), size, 1e-300), moved / (state.s * slope)
            if primal > 0 and dual > 0:
                change = float(np.clip(np.sqrt(dual / primal), 0.2, 5.0))
        change = step_change(change, state.s, self._context.longest_step)
        if change != 1.0:
            state.s *= change
            state.changes += 1

    def _sharpen(self, state: AsynchronousState, gap: float) -> None:
        """When four answers of the slowest worker made almost no progress, ask for more accuracy and less staleness: in
        the end as exact and as synchronous as the theorem on splitting requires."""
        answers = int(state.answered.min())
        if answers == state.slowest[-1, 0]:
            return
        state.slowest = np.vstack([state.slowest, [answers, gap]])
        earlier = state.slowest[state.slowest[:, 0] <= answers - _PATIENCE, 1]
        if len(earlier) and not (np.isfinite(gap) and gap <= 0.8 * earlier[-1]):
            state.accuracy = max(0.5 * state.accuracy, 1e-4)
            state.passes = min(2 * state.passes, self._context.settings.max_passes)
            state.staleness //= 2
            state.slowest = np.array([[answers, gap]])
