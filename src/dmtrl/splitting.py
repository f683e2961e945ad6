"""Joint splitting: the default way from B to W (docs/math.md section 6).

Room: below the coordinator. Over-relaxed Douglas-Rachford on f(W) + g(W): the workers take the proximal step of the
losses, the server that of the relationship's penalty, so W and Sigma are learned at once: no inner W-step to
finish, no epsilon, no rho. The messages are the paper's: weights down, B up.
"""

import numpy as np

from dmtrl.layout import Layout
from dmtrl.method import Answers, Candidate, Order, Report
from dmtrl.relationship import Relationship
from dmtrl.settings import Settings

_MAX_STEP_CHANGES = 30  # finitely many, so that the convergence theorem for a fixed step applies in the end


def _norm(A: np.ndarray) -> float:
    return float(np.linalg.norm(A))


class Splitting:
    name = "splitting"

    def __init__(
        self,
        relationship: Relationship,
        lam: float,
        layout: Layout,
        settings: Settings,
        W: np.ndarray,
        common: np.ndarray,
        b: np.ndarray,
        longest_step: float = np.inf,
    ):
        self._relationship, self._lam, self._layout, self._settings = relationship, lam, layout, settings
        self._shards = layout.shards[:, None].astype(float)
        self._Z, self._common = W, common
        self._covariance = relationship.update(W - common) if W.any() else relationship.start(layout.m)
        self._penalty = relationship.penalty(W, common) if W.any() else 0.0
        self._b, self._B = b, layout.per_task(b)
        self._U: np.ndarray | None = None
        self._longest_step = longest_step
        self._s = settings.initial_step or min(1.0 / (lam * float(np.sqrt(layout.m))), longest_step)
        self._round = self._changes = 0

    def order(self) -> Order:
        relax = 0.0 if self._U is None else self._settings.relaxation - 1.0
        return Order(self._Z, self._s * self._shards[:, 0], {"relax": relax})

    def absorb(self, answers: Answers) -> Report:
        Z, s, lam = self._Z, self._s, self._lam
        W = Z[self._layout.task]
        anchor = W if self._U is None else W + (self._settings.relaxation - 1.0) * (W - self._U)
        # (17): the centre the workers used, then the point where they arrived
        U = anchor - s * self._shards * self._b + s * self._shards * answers.b
        report = self._report(answers, U)
        V = self._layout.per_task(U / self._shards) + s * answers.B
        prox = self._relationship.prox(V, s * lam, self._common)
        self._adapt(U, prox.W, Z, answers.B)
        self._Z, self._penalty, self._covariance, self._common = prox.W, prox.penalty, prox.covariance, prox.common
        self._U, self._b, self._B = U, answers.b, answers.B
        self._round += 1
        return report

    def _report(self, answers: Answers, U: np.ndarray) -> Report:
        lam, relationship = self._lam, self._relationship
        objective = answers.loss_w + lam * self._penalty
        candidates = [Candidate(self._Z, self._common, objective)]
        if not self._layout.split and answers.loss_u < objective:  # otherwise its penalty cannot make it better
            candidates.append(Candidate(U, self._common, answers.loss_u + lam * relationship.penalty(U, self._common)))
        rest = (
            lam * self._penalty
            + relationship.w_conjugate(self._B, self._covariance) / lam
            - float((self._Z * self._B).sum())
        )
        return Report(candidates, answers.bracket_w + rest, objective, float("nan"), self._s)

    def _adapt(self, U: np.ndarray, Z: np.ndarray, Z_before: np.ndarray, B: np.ndarray) -> None:
        """Balance primal and dual residual (20), every second round and only when it matters."""
        if self._round < 2 or self._round % 2 or self._changes >= _MAX_STEP_CHANGES:
            return
        primal = _norm(U - Z[self._layout.task]) / max(_norm(U), _norm(Z), 1e-300)
        dual = _norm(Z - Z_before) / (self._s * max(_norm(B), 1e-300))
        if primal > 0 and dual > 0:
            change = float(np.clip(np.sqrt(dual / primal), 0.2, min(5.0, self._longest_step / self._s)))
            if not 1 / 1.5 < change < 1.5:
                self._s *= change
                self._changes += 1
