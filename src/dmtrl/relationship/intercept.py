"""A relationship on all columns of W but the last, which is an intercept."""

import numpy as np

from dmtrl.relationship.base import Prox, Relationship
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.relationship.learned import Learned


class FreeIntercept:
    """Any relationship on all columns but the last, which is an intercept with a ridge penalty of its own.

    The penalty is a sum over the two parts, so its proximal map and its conjugate separate. `prox` overwrites V.

    Parameters
    ----------
    base : Relationship
    weight : float
        The intercept's ridge penalty, divided by lambda.
    shared : bool
        Whether all tasks have the same intercept.
    """

    def __init__(self, base: Relationship, weight: float, shared: bool = False):
        if not (weight > 0 and np.isfinite(weight)):
            raise ValueError(f"the intercept's penalty must be positive and finite, got {weight!r}")
        self.base, self.weight, self.shared = base, weight, shared
        self.name, self.learned, self.tau = base.name, base.learned, base.tau
        self.kappa = base.kappa

    def start(self, m: int) -> TaskCovariance:
        return self.base.start(m)

    def update(self, W: np.ndarray, smoothing: float = 0.0) -> TaskCovariance:
        return self.base.update(W[:, :-1], smoothing)

    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        return self.prox_with_steps(V, t, t, common)

    def prox_with_steps(self, V: np.ndarray, t: float, intercept_t: float | np.ndarray, common: np.ndarray) -> Prox:
        """Like `prox`, with a step size for the intercepts, or one for each of them."""
        own, inside = V[:, :-1], common[:-1]
        if type(self.base) is Learned:  # a subclass may override prox
            inner = self.base.prox_into(own, own, t, inside)
        else:
            inner = self.base.prox(own, t, inside)
        intercept = V[:, -1] / (1.0 + intercept_t * self.weight)
        if self.shared:
            precision = np.broadcast_to(1.0 / np.asarray(intercept_t), len(V))
            intercept[:] = (precision @ V[:, -1]) / (precision.sum() + len(V) * self.weight)
        penalty = inner.penalty + 0.5 * self.weight * float(intercept @ intercept)
        if inner.W is not own:
            own[:] = inner.W
        V[:, -1] = intercept
        return Prox(V, penalty, inner.covariance, np.append(inner.common, 0.0))

    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        if self.shared and np.ptp(W[:, -1]) > 0:
            return float("inf")
        return self.base.penalty(W[:, :-1], common[:-1]) + 0.5 * self.weight * float(W[:, -1] @ W[:, -1])

    def conjugate(self, B: np.ndarray) -> float:
        return self.base.conjugate(B[:, :-1]) + self._intercept_conjugate(B[:, -1])

    def w_conjugate(self, B: np.ndarray, covariance: TaskCovariance) -> float:
        return self.base.w_conjugate(B[:, :-1], covariance) + self._intercept_conjugate(B[:, -1])

    def _intercept_conjugate(self, b: np.ndarray) -> float:
        squares = float(b.sum()) ** 2 / len(b) if self.shared else float(b @ b)
        return 0.5 * squares / self.weight
