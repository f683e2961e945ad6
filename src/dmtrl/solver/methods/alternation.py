"""The paper's method: W-step by distributed dual ascent for a fixed Sigma, then the Omega-step.

W = Sigma B / lambda (3) is computed after every round and every Omega-step. rho is the paper's bound or the spectral
value; the smoothing epsilon shrinks unless the paper preset keeps it fixed.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from dmtrl.protocol.rounds import Improved, Round
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.solver.methods.base import GapToClose, InitialPoint, Report, RunContext, Totals
from dmtrl.solver.outcome import PrimalPoint


@dataclass
class AlternationState:
    b: np.ndarray  # of each unit
    covariance: TaskCovariance  # Sigma
    total: TaskCovariance  # Sigma with the common component and the own parts
    rho: float  # times eta
    step: np.ndarray  # of each unit
    smoothing: float
    round: int = 0
    round_in_w_step: int = 0
    W: np.ndarray | None = field(default=None, metadata={"saved": False})  # as last sent


class Alternation:
    name = "dual"
    waits_for_all = True
    State = AlternationState

    def __init__(self, context: RunContext):
        self._context = context

    def init(self, point: InitialPoint) -> AlternationState:
        start = self._context.relationship.start(self._context.layout.m)
        covariance, total, rho, step = self._prepared(start)
        return AlternationState(point.b, covariance, total, rho, step, self._context.settings.smoothing)

    def _prepared(self, covariance: TaskCovariance) -> tuple[TaskCovariance, TaskCovariance, float, np.ndarray]:
        """Sigma, Sigma with the common component and the own parts, rho and the step sizes."""
        context, layout, settings = self._context, self._context.layout, self._context.settings
        covariance = _contiguous(covariance)
        relationship = context.relationship
        total = _contiguous(covariance.plus_common(relationship.tau).plus_own(relationship.kappa))
        rho = total.paper_rho(layout.task) if settings.rho == "paper" else total.spectral_rho(layout.task)
        rho *= settings.eta
        return covariance, total, rho, rho * total.diagonal()[layout.task] / context.lam

    def requests(self, state: AlternationState, idle: Collection[int], gap: GapToClose) -> dict[int, Round]:
        context, layout = self._context, self._context.layout
        state.W = state.total.apply(layout.per_task(state.b)) / context.lam
        target = gap.accuracy * gap.gap
        if state.rho == 1.0 and context.settings.eta == 1.0 and not context.relationship.learned:
            target = min(target, gap.finish)  # the local problems are the whole one
        W = layout.per_unit(state.W)
        return {
            k: Round(
                round=state.round,
                target=target / len(layout.task),
                eta=context.settings.eta,
                w=layout.scatter(k, W),
                step=layout.scatter(k, state.step),
            )
            for k in idle
        }

    def step(self, state: AlternationState, answers: dict[int, Improved]) -> Report:
        context, settings, relationship = self._context, self._context.settings, self._context.relationship
        totals = Totals.of(answers, context.layout, state.round)
        B, W = context.layout.per_task(state.b), state.W
        assert W is not None
        w_objective = totals.loss_w + 0.5 * state.total.quadratic(B) / context.lam
        common = relationship.tau * B.sum(axis=0) / context.lam
        if relationship.learned:
            objective = totals.loss_w + context.lam * relationship.penalty(W, common)
        else:
            objective = w_objective
        state.b = totals.b
        state.round += 1
        state.round_in_w_step += 1
        done = state.round_in_w_step >= settings.w_rounds or totals.bracket_w <= settings.w_tol * abs(w_objective)
        omega = relationship.learned and done
        report = Report(
            points=[PrimalPoint(W, common, objective)],
            B=totals.B,
            conjugate=totals.conjugate,
            w_gap=totals.bracket_w,
            w_objective=w_objective,
            rho=state.rho,
            step=float(state.step.max()),
            solver=totals.solver,
            steps=totals.steps,
            omega=omega,
        )
        if omega:
            related = state.covariance.plus_own(relationship.kappa).apply(totals.B) / context.lam
            updated = relationship.update(related, state.smoothing)
            state.covariance, state.total, state.rho, state.step = self._prepared(updated)
            state.smoothing = max(state.smoothing * settings.smoothing_decay, settings.smoothing_floor)
            state.round_in_w_step = 0
        return report


def _contiguous(covariance: TaskCovariance) -> TaskCovariance:
    """The same, laid out in memory as after a restore: rounding can depend on that."""
    basis = covariance.basis
    return covariance if basis.flags.forc else replace(covariance, basis=basis.copy())
