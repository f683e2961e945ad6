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
    """

    def __init__(self, base: Relationship, weight: float):
        if not (weight > 0 and np.isfinite(weight)):
            raise ValueError(f"the intercept's penalty must be positive and finite, got {weight!r}")
        self.base, self.weight = base, weight
        self.name, self.learned, self.tau = base.name, base.learned, base.tau

    def start(self, m: int) -> TaskCovariance:
        return self.base.start(m)

    def update(self, W: np.ndarray, smoothing: float = 0.0) -> TaskCovariance:
        return self.base.update(W[:, :-1], smoothing)

    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        own, inside = V[:, :-1], common[:-1]
        if type(self.base) is Learned:  # a subclass may override prox
            inner = self.base.prox_into(own, own, t, inside)
        else:
            inner = self.base.prox(own, t, inside)
        intercept = V[:, -1] / (1.0 + t * self.weight)
        penalty = inner.penalty + 0.5 * self.weight * float(intercept @ intercept)
        if inner.W is not own:
            own[:] = inner.W
        V[:, -1] = intercept
        return Prox(V, penalty, inner.covariance, np.append(inner.common, 0.0))

    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        return self.base.penalty(W[:, :-1], common[:-1]) + 0.5 * self.weight * float(W[:, -1] @ W[:, -1])

    def conjugate(self, B: np.ndarray) -> float:
        return self.base.conjugate(B[:, :-1]) + 0.5 * float(B[:, -1] @ B[:, -1]) / self.weight

    def w_conjugate(self, B: np.ndarray, covariance: TaskCovariance) -> float:
        return self.base.w_conjugate(B[:, :-1], covariance) + 0.5 * float(B[:, -1] @ B[:, -1]) / self.weight
