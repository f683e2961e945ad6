"""Joint splitting, the default method (docs/math.md section 6).

Over-relaxed Douglas-Rachford on f(W) + g(W): the workers take the proximal step of the losses, the coordinator that
of the relationship's penalty, so W and Sigma are learned together. There is no inner W-step, no epsilon and no rho. The
messages are the paper's: weights down, B up.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from dmtrl.numerics.rowwise import distance, over_rows
from dmtrl.protocol.rounds import Improved, Round
from dmtrl.solver.methods.base import (
    MAX_STEP_CHANGES,
    GapToClose,
    InitialPoint,
    Report,
    RunContext,
    Totals,
    first_step,
    is_straight,
    step_change,
)
from dmtrl.solver.outcome import PrimalPoint

STRIDE = 8.0  # how much longer the step becomes where the losses look linear
_SHARE, _POWER = 1.25, 0.6  # of the balance (20); tuned over random problems
_LEAST_SCALE, _LARGEST_SCALE = 0.2, 1e6  # of the step sizes of intercepts


@dataclass
class SplittingState:
    Z: np.ndarray  # weights, made by the proximal map of the penalty
    common: np.ndarray
    penalty: float
    w_conjugate: float
    b: np.ndarray  # of each unit
    s: float  # step size
    prox_s: float  # the step size with which Z was made
    U: np.ndarray | None = None  # where the workers arrived in the last round
    round: int = 0
    changes: int = 0  # of the step size
    evaluate_u: bool = False  # whether the loss at U is worth a pass
    lowest: float = np.inf  # objective at Z so far
    intercept_scale: float = 1.0  # of the step sizes of intercepts around a shared level
    intercept_changes: int = 0  # of that scale
    turned: float | None = None  # how far B moved in the last round, until new weights are made from it
    keep_u: bool = field(default=False, metadata={"saved": False})  # U are the best weights: do not write over it


class Splitting:
    name = "splitting"
    waits_for_all = True
    State = SplittingState

    def __init__(self, context: RunContext):
        self._context = context
        self._shards = context.layout.shards[:, None].astype(float)

    def init(self, point: InitialPoint) -> SplittingState:
        context = self._context
        relationship, layout, settings = context.relationship, context.layout, context.settings
        W, common, started = point.W, point.common, bool(point.W.any())
        covariance = relationship.update(W - common) if started else relationship.start(layout.m)
        s = settings.initial_step or min(first_step(context.lam, layout.m), context.longest_step)
        return SplittingState(
            Z=W,
            common=common,
            penalty=relationship.penalty(W, common) if started else 0.0,
            w_conjugate=relationship.w_conjugate(layout.per_task(point.b), covariance),
            b=point.b,
            s=s,
            prox_s=s,
        )

    def requests(self, state: SplittingState, idle: Collection[int], gap: GapToClose) -> dict[int, Round]:
        self._renew(state)
        state.keep_u = state.U is not None and state.U is gap.best
        layout = self._context.layout
        W, step = layout.per_unit(state.Z), self._context.steps(state.s, state.intercept_scale)
        relax = 0.0 if state.U is None else self._context.settings.relaxation - 1.0
        target = gap.accuracy * gap.gap / len(layout.task)
        return {
            k: Round(
                round=state.round,
                target=target,
                relax=relax,
                evaluate_u=bool(state.evaluate_u),
                w=layout.scatter(k, W),
                step=layout.scatter(k, step.features),
                intercept_step=None if step.intercept is None else layout.scatter(k, step.intercept),
            )
            for k in idle
        }

    def step(self, state: SplittingState, answers: dict[int, Improved]) -> Report:
        totals = Totals.of(answers, self._context.layout, state.round)
        (U, rise), B_before = self._arrived(state, totals.b), self._context.layout.per_task(state.b)
        report = self._report(state, totals, U, rise, B_before)
        features = self._context.features
        state.turned = distance(features(totals.B), features(B_before)) if self._may_adapt(state) else 0.0
        state.b, state.U = totals.b, U
        return report

    def _renew(self, state: SplittingState) -> None:
        """New weights from where the workers arrived (16). Only when the next round is due: a run needs none after its
        last round, and by then what the round before made obsolete is freed."""
        if state.turned is None:
            return
        assert state.U is not None
        B = self._context.layout.per_task(state.b)
        state.prox_s = state.s
        U = self._of_tasks(state.U)
        prox = self._context.prox(U, B, state.s, state.common, state.intercept_scale)
        if self._may_adapt(state):
            self._adapt(state, state.U, prox.W, B, state.turned)
        self._adapt_intercepts(state, U, prox.W)
        state.Z, state.penalty, state.common = prox.W, prox.penalty, prox.common
        state.w_conjugate = self._context.relationship.w_conjugate(B, prox.covariance)
        state.turned = None
        state.round += 1

    def _may_adapt(self, state: SplittingState) -> bool:
        return state.round >= 1 and state.changes < MAX_STEP_CHANGES

    def _arrived(self, state: SplittingState, b: np.ndarray) -> tuple[np.ndarray, float]:
        """U, where the workers arrived from the centres (17); and the rise of lambda times the penalty from Z to U that
        its subgradient at Z predicts."""
        before, features = state.U, self._context.features
        U = np.empty_like(b) if before is None or state.keep_u else before
        relaxation, task = self._context.settings.relaxation, self._context.layout.task
        step = self._context.steps(state.s, state.intercept_scale)

        def arrive(rows: slice) -> float:
            W, own = state.Z[task[rows]], step.only(rows)
            anchor, slope = W, state.b[rows]
            if before is not None:
                away = W - before[rows]
                anchor, slope = W + (relaxation - 1.0) * away, slope - away / state.prox_s
            U[rows] = own.centre(W, anchor, state.b[rows]) + own.times(b[rows])
            return float(np.vdot(features(slope), features(U[rows] - W)))

        return U, sum(over_rows(arrive, *U.shape))

    def _of_tasks(self, U: np.ndarray) -> np.ndarray:
        """For a task in several shards, the mean of their U."""
        layout = self._context.layout
        return layout.per_task(U / self._shards) if layout.split else U

    def _report(
        self, state: SplittingState, totals: Totals, U: np.ndarray, rise: float, B_before: np.ndarray
    ) -> Report:
        lam, relationship = self._context.lam, self._context.relationship
        objective = totals.loss_w + lam * state.penalty
        at_z_and_b = float(np.vdot(state.Z, B_before))
        w_gap = totals.bracket_w + lam * state.penalty + state.w_conjugate / lam - at_z_and_b
        points = [PrimalPoint(state.Z, state.common, objective)]
        if not self._context.layout.split:
            loss_u, at_u = _least_loss(totals, U), np.inf
            if loss_u + max(lam * state.penalty + rise, 0.0) < objective:  # else the penalty rules it out
                at_u = loss_u + lam * relationship.penalty(U, state.common)
            if totals.loss_u < np.inf and at_u < objective:
                points.append(PrimalPoint(U, state.common, at_u))
            state.evaluate_u = not objective < state.lowest or at_u < objective
            state.lowest = min(state.lowest, objective)
        return Report(
            points, totals.B, totals.conjugate, w_gap, objective, float("nan"), state.s, totals.solver, totals.steps
        )

    def _adapt(self, state: SplittingState, U: np.ndarray, Z: np.ndarray, B: np.ndarray, turned: float) -> None:
        """Balance primal and dual residual (20), every second round and only when it matters. Take a long stride where
        the weights move and the dual vectors do not (B by `turned`): there the losses look linear. Intercepts have a
        step size of their own, so they do not count."""
        features = self._context.features
        U, Z, Z_before, B = features(U), features(Z), features(state.Z), features(B)
        moved, size, slope = distance(Z, Z_before), norm(Z), max(norm(B), 1e-300)
        if is_straight(moved, size, turned, slope) and self._context.may_stride(state.s):
            change = STRIDE
        elif state.round > 1 and state.round % 2 == 0:
            primal = distance(U, self._context.layout.per_unit(Z)) / max(norm(U), size, 1e-300)
            dual = moved / (state.s * slope)
            change = float(np.clip(_SHARE * (dual / primal) ** _POWER, 0.2, 5.0)) if primal > 0 and dual > 0 else 1.0
        else:
            return
        change = step_change(change, state.s, self._context.longest_step)
        if change != 1.0:
            state.s *= change
            state.changes += 1

    def _adapt_intercepts(self, state: SplittingState, U: np.ndarray, Z: np.ndarray) -> None:
        """The balance (20) for intercepts around a shared level: how well a step size suits depends on how much of a
        level the features can explain, which changes with their step size."""
        may_change = self._context.has_level and state.intercept_changes < MAX_STEP_CHANGES
        if not may_change or state.round <= 1 or state.round % 2:
            return
        primal, dual = self._context.level_residuals(U, Z, state.Z)
        if primal > 0 and dual > 0:
            wanted = float(np.clip(_SHARE * (dual / primal) ** _POWER, 0.2, 5.0))
            wanted = max(wanted, _LEAST_SCALE / state.intercept_scale)
            change = step_change(wanted, state.intercept_scale, _LARGEST_SCALE)
            state.intercept_scale *= change
            state.intercept_changes += change != 1.0


def norm(A: np.ndarray) -> float:
    return float(np.linalg.norm(A))


def _least_loss(totals: Totals, U: np.ndarray) -> float:
    """The loss at U; where it was not evaluated the least it can be, as Fenchel-Young brackets (7) are not negative."""
    if np.isfinite(totals.loss_u):
        return totals.loss_u
    return -totals.conjugate - float(np.vdot(U, totals.B))
