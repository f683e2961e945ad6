"""A relationship on all columns of W but the last ones, which are intercepts."""

import numpy as np

from dmtrl.relationship.base import Prox, Relationship
from dmtrl.relationship.covariance import TaskCovariance


class FreeIntercept:
    """Any relationship on all columns but the last ones, which are intercepts with a ridge penalty of their own.

    The penalty is a sum over the two parts, so its proximal map and its conjugate separate. `prox` overwrites V.

    Parameters
    ----------
    base : Relationship
    weight : float
        The intercept's ridge penalty, divided by lambda.
    shared : bool
        Whether all tasks have the same intercept.
    columns : int
        How many intercepts a task has: one, or one for each of its classes.
    """

    def __init__(self, base: Relationship, weight: float, shared: bool = False, columns: int = 1):
        if not (weight > 0 and np.isfinite(weight)):
            raise ValueError(f"the intercept's penalty must be positive and finite, got {weight!r}")
        self.base, self.weight, self.shared, self.columns = base, weight, shared, columns
        self.name, self.learned, self.tau = base.name, base.learned, base.tau
        self.kappa = base.kappa

    def start(self, m: int) -> TaskCovariance:
        return self.base.start(m)

    def update(self, W: np.ndarray, smoothing: float = 0.0) -> TaskCovariance:
        return self.base.update(W[:, : -self.columns], smoothing)

    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        return self.prox_with_steps(V, t, t, common)

    def prox_with_steps(self, V: np.ndarray, t: float, intercept_t: float | np.ndarray, common: np.ndarray) -> Prox:
        """Like `prox`, with a step size for the intercepts, or one for those of each task."""
        own, outside, inside = V[:, : -self.columns], V[:, -self.columns :], common[: -self.columns]
        inner = self.base.prox(own, t, inside)
        steps = np.broadcast_to(intercept_t, len(V))
        intercept = outside / (1.0 + steps * self.weight)[:, None]
        if self.shared:
            intercept[:] = ((1.0 / steps) @ outside) / ((1.0 / steps).sum() + len(V) * self.weight)
        penalty = inner.penalty + 0.5 * self.weight * float((intercept**2).sum())
        if inner.W is not own:
            own[:] = inner.W
        outside[:] = intercept
        return Prox(V, penalty, inner.covariance, np.append(inner.common, np.zeros(self.columns)))

    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        own, outside, inside = W[:, : -self.columns], W[:, -self.columns :], common[: -self.columns]
        if self.shared and np.ptp(outside, axis=0).any():
            return float("inf")
        return self.base.penalty(own, inside) + 0.5 * self.weight * float((outside**2).sum())

    def conjugate(self, B: np.ndarray) -> float:
        return self.base.conjugate(B[:, : -self.columns]) + self._intercept_conjugate(B[:, -self.columns :])

    def w_conjugate(self, B: np.ndarray, covariance: TaskCovariance) -> float:
        own = self.base.w_conjugate(B[:, : -self.columns], covariance)
        return own + self._intercept_conjugate(B[:, -self.columns :])

    def _intercept_conjugate(self, b: np.ndarray) -> float:
        squares = (b.sum(axis=0) ** 2).sum() / len(b) if self.shared else (b**2).sum()
        return 0.5 * float(squares) / self.weight
