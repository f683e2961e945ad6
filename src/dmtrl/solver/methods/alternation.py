"""The paper's way: W-step by distributed dual ascent for a fixed Sigma, then the Omega-step.

Room: below the coordinator. W = Sigma B / lambda (3) is made anew after every round and every Omega-step. rho is
the paper's bound, the spectral value or the block version; momentum and a shrinking epsilon are on unless the paper
preset turns them off.
"""

from collections.abc import Mapping

import numpy as np

from dmtrl.relationship import Relationship
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.solver.layout import Layout
from dmtrl.solver.methods.base import Answers, Candidate, Order, Report, in_one_piece, put_state, take_state
from dmtrl.solver.settings import Settings

_STATE = (
    "_B_before", "_smoothing", "_covariance", "_total", "_rho", "_step", "_round_in_w_step", "_momentum_age", "_beta",
)  # fmt: skip


class Alternation:
    name = "dual"

    def __init__(self, relationship: Relationship, lam: float, layout: Layout, settings: Settings, b: np.ndarray):
        self._relationship, self._lam, self._layout, self._settings = relationship, lam, layout, settings
        self._B = layout.per_task(b)
        self._B_before = self._B
        self._smoothing = settings.smoothing
        self._set_sigma(relationship.start(layout.m))

    def _set_sigma(self, covariance: TaskCovariance) -> None:
        layout, settings = self._layout, self._settings
        self._covariance = in_one_piece(covariance)
        self._total = in_one_piece(covariance.plus_common(self._relationship.tau))
        if settings.rho == "paper":
            rho = self._total.paper_rho(layout.task)
        else:
            rho = self._total.spectral_rho(layout.task, layout.owner if settings.rho == "block" else None)
        self._rho = settings.eta * rho
        self._decoupled = rho == 1.0 and settings.eta == 1.0 and not self._relationship.learned
        self._step = self._rho * self._total.diagonal()[layout.task] / self._lam
        self._round_in_w_step = self._momentum_age = 0
        self._beta = 0.0

    def order(self) -> Order:
        W = self._total.apply(self._B) / self._lam
        self._W = W
        momentum = 0.0 if self._decoupled else self._beta  # a unit that is on its own knows best where to go
        scalars = {"momentum": momentum, "eta": self._settings.eta}
        if self._settings.rho != "block":
            return Order(W, self._step, scalars, decoupled=self._decoupled)
        scalars["coupling"] = self._rho / self._lam
        return Order(W, self._step, scalars, self._total.factor()[self._layout.task])

    def absorb(self, answers: Answers) -> Report:
        lam, settings, tau = self._lam, self._settings, self._relationship.tau
        quadratic = 0.5 * self._total.quadratic(self._B) / lam
        w_objective = answers.loss_w + quadratic
        common = tau * self._B.sum(axis=0) / lam
        if self._relationship.learned:
            objective = answers.loss_w + lam * self._relationship.penalty(self._W, common)
        else:
            objective = w_objective
        self._advance_momentum(answers.B)
        self._round_in_w_step += 1
        finished = self._round_in_w_step >= settings.w_rounds or answers.bracket_w <= settings.w_tol * abs(w_objective)
        omega = self._relationship.learned and finished
        report = Report(
            [Candidate(self._W, common, objective)],
            answers.bracket_w,
            w_objective,
            self._rho,
            float(self._step.max()),
            omega,
        )
        if omega:
            own = self._covariance.apply(self._B) / lam
            self._set_sigma(self._relationship.update(own, self._smoothing))
            self._smoothing = max(self._smoothing * settings.smoothing_decay, settings.smoothing_floor)
            self._B_before = self._B
        return report

    def _advance_momentum(self, B: np.ndarray) -> None:
        """Nesterov's sequence, begun again when the last move went against the extrapolation."""
        extrapolated = self._B + self._beta * (self._B - self._B_before)
        if float(((extrapolated - B) * (B - self._B)).sum()) > 0:
            self._momentum_age = 0
        else:
            self._momentum_age += 1
        self._B_before, self._B = self._B, B
        # one sweep over a block is no exact step, and on inexact steps momentum can run away
        wanted = self._settings.momentum and self._settings.rho != "block"
        self._beta = self._momentum_age / (self._momentum_age + 3.0) if wanted else 0.0

    def state(self) -> dict[str, np.ndarray]:
        return take_state(self, _STATE)

    def restore(self, state: Mapping[str, np.ndarray], b: np.ndarray) -> None:
        put_state(self, _STATE, state)
        self._B = self._layout.per_task(b)
