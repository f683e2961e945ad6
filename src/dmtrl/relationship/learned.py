"""The paper's relationship: Sigma is learned with trace one, so the penalty is half the squared nuclear norm (13)."""

from dataclasses import replace

import numpy as np

from dmtrl.relationship.base import Prox, check_kappa, check_tau
from dmtrl.relationship.common import common_prox
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.relationship.nuclear import nuclear_prox
from dmtrl.relationship.spectrum import largest_singular_value, nuclear_norm, short_side

_SLACK = 1e-7  # by which the penalty may be above its exact value, where that saves a decomposition


class Learned:
    """Sigma learned with trace one: penalty `|W|_nuc^2 / 2`, conjugate `|B|_op^2 / 2`; with tau > 0 see (22)-(24), with
    kappa > 0 see (37)-(39)."""

    learned = True
    name = "learned"

    def __init__(self, tau: float = 0.0, kappa: float = 0.0):
        self.tau, self.kappa = check_tau(tau), check_kappa(kappa)

    def only(self, tasks: np.ndarray) -> "Learned":
        """Return the relationship between these tasks, which is the same for any tasks."""
        return self

    def start(self, m: int) -> TaskCovariance:
        return TaskCovariance.identity(m)

    def update(self, W: np.ndarray, smoothing: float = 0.0) -> TaskCovariance:
        """Return (W W^T + eps^2 I)^1/2 over its trace (12), with eps = smoothing times the largest singular value.
        With kappa > 0, of the related part of W."""
        if self.kappa > 0:
            W = nuclear_prox(W, self.kappa)[0]
        if W.shape[0] <= W.shape[1]:
            s, basis = short_side(W, exact=True)
        else:
            basis, s, _ = np.linalg.svd(W, full_matrices=False)
        if len(s) == 0 or s[0] == 0:
            return TaskCovariance.identity(len(W))
        s = s / s[0]
        keep = s > 1e-13
        basis, s = basis[:, keep], s[keep]
        values = np.sqrt(s**2 + smoothing**2) - smoothing
        trace = values.sum() + len(W) * smoothing
        return TaskCovariance(basis, values / trace, smoothing / trace)

    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        """Return the proximal point, which is written over V if V is an array of float64."""
        V = np.asarray(V, dtype=float)
        if self.kappa == 0:
            return self._prox_shared(V, t, common)
        # (39): the related and common parts take a longer step, and a share of what they leave is the own part
        shared = self._prox_shared(V.copy(), t + self.kappa, common)
        own = V - shared.W
        own *= self.kappa / (t + self.kappa)
        W = np.add(shared.W, own, out=V)
        return replace(shared, W=W, penalty=shared.penalty + 0.5 * float(np.vdot(own, own)) / self.kappa)

    def _prox_shared(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        """The proximal map without own parts, written over V."""
        if self.tau == 0:
            W, covariance, size = nuclear_prox(V, t, out=V)
            return Prox(W, 0.5 * size**2, covariance, common)
        found = common_prox(V, t, self.tau, common)
        shared = 0.5 * float(found.common @ found.common) / self.tau
        return Prox(found.W, found.own_penalty + shared, found.covariance, found.common)

    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        centre, of_common = (None, 0.0) if self.tau == 0 else (common, 0.5 * float(common @ common) / self.tau)
        if self.kappa == 0:
            return 0.5 * nuclear_norm(W, centre, _SLACK) ** 2 + of_common
        away = W if centre is None else W - centre
        related, _, size = nuclear_prox(away, self.kappa)
        own = away - related
        return 0.5 * size**2 + of_common + 0.5 * float(np.vdot(own, own)) / self.kappa

    def conjugate(self, B: np.ndarray) -> float:
        return 0.5 * largest_singular_value(B) ** 2 + self._conjugate_of_parts(B)

    def w_conjugate(self, B: np.ndarray, covariance: TaskCovariance) -> float:
        return 0.5 * covariance.quadratic(B) + self._conjugate_of_parts(B)

    def _conjugate_of_parts(self, B: np.ndarray) -> float:
        """The conjugate (38) of the common and own parts."""
        shared = B.sum(axis=0)
        own = 0.5 * self.kappa * float(np.vdot(B, B)) if self.kappa else 0.0
        return 0.5 * self.tau * float(shared @ shared) + own
