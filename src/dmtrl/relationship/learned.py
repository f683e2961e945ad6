"""The paper's relationship: Sigma is learned with trace one, so the penalty is half the squared nuclear norm (13)."""

import numpy as np

from dmtrl.relationship.base import Prox, check_tau
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.relationship.nuclear import common_component, nuclear_prox
from dmtrl.relationship.spectrum import largest_singular_value, nuclear_norm, short_side


class Learned:
    """Sigma learned with trace one: penalty `|W|_nuc^2 / 2`, conjugate `|B|_op^2 / 2`; with tau > 0 see (22)-(24)."""

    learned = True
    name = "learned"

    def __init__(self, tau: float = 0.0):
        self.tau = check_tau(tau)

    def only(self, tasks: np.ndarray) -> "Learned":
        """Return the relationship between these tasks, which is the same for any tasks."""
        return self

    def start(self, m: int) -> TaskCovariance:
        return TaskCovariance.identity(m)

    def update(self, W: np.ndarray, smoothing: float = 0.0) -> TaskCovariance:
        """Return (W W^T + eps^2 I)^1/2 over its trace (12), with eps = smoothing times the largest singular value."""
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
        return self.prox_into(None, V, t, common)

    def prox_into(self, out: np.ndarray | None, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        """Like `prox`, but write W into `out`, which may be V."""
        if self.tau == 0:
            W, covariance, size = nuclear_prox(V, t, out=out)
            return Prox(W, 0.5 * size**2, covariance, common)
        w0 = self._common(V, t, common)
        W, covariance, size = nuclear_prox(V, t, w0, out)
        return Prox(W, 0.5 * size**2 + 0.5 * float(w0 @ w0) / self.tau, covariance, w0)

    def _common(self, V: np.ndarray, t: float, common: np.ndarray) -> np.ndarray:
        m, d = V.shape
        if d <= m:
            return common_component(V, t, m + t / self.tau, common)
        # w_0 lies in the span of the rows of V and its starting point: m + 1 coordinates.
        span = np.vstack([V, common])
        s, vectors = short_side(span)
        nonzero = s > 1e-7 * s[0]
        s, vectors = s[nonzero], vectors[:, nonzero]
        inside = vectors * s
        return np.asarray((vectors @ (common_component(inside[:m], t, m + t / self.tau, inside[m]) / s)) @ span)

    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        if self.tau == 0:
            return 0.5 * nuclear_norm(W) ** 2
        return 0.5 * nuclear_norm(W, common) ** 2 + 0.5 * float(common @ common) / self.tau

    def conjugate(self, B: np.ndarray) -> float:
        shared = B.sum(axis=0)
        return 0.5 * largest_singular_value(B) ** 2 + 0.5 * self.tau * float(shared @ shared)

    def w_conjugate(self, B: np.ndarray, covariance: TaskCovariance) -> float:
        shared = B.sum(axis=0)
        return 0.5 * covariance.quadratic(B) + 0.5 * self.tau * float(shared @ shared)
