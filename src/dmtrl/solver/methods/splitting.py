"""Joint splitting: the default way from B to W (docs/math.md section 6).

Room: below the coordinator. Over-relaxed Douglas-Rachford on f(W) + g(W): the workers take the proximal step of the
losses, the server that of the relationship's penalty, so W and Sigma are learned at once: no inner W-step to
finish, no epsilon, no rho. The messages are the paper's: weights down, B up.
"""

from collections.abc import Mapping

import numpy as np

from dmtrl.numerics.rowwise import distance, over_rows
from dmtrl.relationship import Relationship
from dmtrl.solver.layout import Layout
from dmtrl.solver.methods.base import Answers, Candidate, Order, Report, put_state, take_state
from dmtrl.solver.settings import Settings

_STATE = ("_Z", "_common", "_w_conjugate", "_penalty", "_U", "_s", "_round", "_changes", "_at_u", "_least")  # and b
STRIDE = 8.0  # how much longer the step becomes where the losses prove straight
_SHARE, _POWER = 0.8, 0.7  # in the balance (20); counted out over data sets and lambdas
_NEAR = 0.03  # W-step gap over objective, below which U is looked at when it may be better; no round depends on tol
_MANY = 3000  # tasks; with more of the same kind the best step hardly changes
_MAX_STEP_CHANGES = 30  # finitely many, so that the convergence theorem for a fixed step applies in the end


def first_step(lam: float, m: int) -> float:
    """The proximal step size with which a run begins."""
    return 1.0 / (lam * float(np.sqrt(min(m, _MANY))))


def straight(moved: float, size: float, turned: float, slope: float) -> bool:
    """Whether the losses are, as far as it can be seen: weights of this size have moved, and b of this size has not."""
    return moved > 0.1 * size and turned <= 0.01 * slope


def norm(A: np.ndarray) -> float:
    return float(np.linalg.norm(A))


def _known_loss(answers: Answers, U: np.ndarray) -> float:
    """The loss at U, or where nobody looked the least it can be: its Fenchel-Young brackets (7) are not negative."""
    if np.isfinite(answers.loss_u):
        return answers.loss_u
    return -answers.conjugate - float(np.vdot(U, answers.B))


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
        covariance = relationship.update(W - common) if W.any() else relationship.start(layout.m)
        self._penalty = relationship.penalty(W, common) if W.any() else 0.0
        self._b, self._B = b, layout.per_task(b)
        self._w_conjugate = relationship.w_conjugate(self._B, covariance)
        self._U: np.ndarray | None = None
        self._lent = False  # whether U was reported as a candidate, so that the next is not written over it
        self._longest_step = longest_step
        self._s = settings.initial_step or min(first_step(lam, layout.m), longest_step)
        self._round = self._changes = 0
        self._at_u = False  # whether the loss at U is worth a pass
        self._least = np.inf  # objective at Z so far

    def order(self) -> Order:
        relax = 0.0 if self._U is None else self._settings.relaxation - 1.0
        return Order(self._Z, self._s * self._shards[:, 0], {"relax": relax, "at_u": bool(self._at_u)})

    def absorb(self, answers: Answers) -> Report:
        U = self._arrived(answers.b)
        report = self._report(answers, U)
        turned = distance(answers.B, self._B) if self._may_adapt else 0.0
        self._b, self._B = answers.b, answers.B  # what was there before is let go: room for the proximal map
        V = self._before_prox(U, answers.B)
        prox = self._relationship.prox(V, self._s * self._lam, self._common)
        del V
        self._adapt(U, prox.W, turned)
        self._Z, self._penalty, self._common = prox.W, prox.penalty, prox.common
        self._w_conjugate = self._relationship.w_conjugate(self._B, prox.covariance)
        self._U = U
        self._round += 1
        return report

    def _arrived(self, b: np.ndarray) -> np.ndarray:
        """U, where the workers arrived from the centres (17) that they used."""
        U = np.empty_like(b) if self._U is None or self._lent else self._U

        def arrive(rows: slice) -> None:
            u, step = self._Z[self._layout.task[rows]], self._s * self._shards[rows]
            if self._U is not None:
                u += (self._settings.relaxation - 1.0) * (u - self._U[rows])
            u -= step * self._b[rows]
            u += step * b[rows]
            U[rows] = u

        over_rows(arrive, *U.shape)
        return U

    def _before_prox(self, U: np.ndarray, B: np.ndarray) -> np.ndarray:
        """U + s B (16), where a task is split with the mean of its shards' U."""
        if self._layout.split:
            return np.asarray(self._layout.per_task(U / self._shards) + self._s * B)
        V = np.empty_like(U)

        def add(rows: slice) -> None:
            np.multiply(self._s, B[rows], out=V[rows])
            V[rows] += U[rows]

        over_rows(add, *V.shape)
        return V

    def _report(self, answers: Answers, U: np.ndarray) -> Report:
        lam, relationship = self._lam, self._relationship
        objective = answers.loss_w + lam * self._penalty
        w_gap = answers.bracket_w + lam * self._penalty + self._w_conjugate / lam - float(np.vdot(self._Z, self._B))
        candidates = [Candidate(self._Z, self._common, objective)]
        self._lent = False
        if not self._layout.split:
            near = w_gap <= _NEAR * abs(objective)
            loss_u, at_u = _known_loss(answers, U) if near else answers.loss_u, np.inf
            if loss_u < objective:  # otherwise its penalty cannot make it better
                at_u = loss_u + lam * relationship.penalty(U, self._common)
            if answers.loss_u < objective:
                candidates.append(Candidate(U, self._common, at_u))
                self._lent = True
            self._at_u = not objective < self._least or at_u < objective
            self._least = min(self._least, objective)
        return Report(candidates, w_gap, objective, float("nan"), self._s)

    @property
    def _may_adapt(self) -> bool:
        return self._round >= 1 and self._changes < _MAX_STEP_CHANGES

    def _adapt(self, U: np.ndarray, Z: np.ndarray, turned: float) -> None:
        """Balance primal and dual residual (20), every second round and only when it matters; a long stride where
        the weights move and the dual variables do not (B by `turned`), because there the losses are straight."""
        if not self._may_adapt:
            return
        moved, size, slope = distance(Z, self._Z), norm(Z), max(norm(self._B), 1e-300)
        if straight(moved, size, turned, slope):
            change = STRIDE
        elif self._round > 1 and self._round % 2 == 0:
            primal = distance(U, self._layout.per_unit(Z)) / max(norm(U), size, 1e-300)
            dual = moved / (self._s * slope)
            change = float(np.clip(_SHARE * (dual / primal) ** _POWER, 0.2, 5.0)) if primal > 0 and dual > 0 else 1.0
        else:
            return
        change = min(change, self._longest_step / self._s)
        if not 1 / 1.5 < change < 1.5:
            self._s *= change
            self._changes += 1

    def state(self) -> dict[str, np.ndarray]:
        return take_state(self, _STATE)

    def restore(self, state: Mapping[str, np.ndarray], b: np.ndarray) -> None:
        put_state(self, _STATE, state)
        self._b, self._B = b, self._layout.per_task(b)
