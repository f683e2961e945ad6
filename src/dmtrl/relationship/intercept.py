"""A relationship on all columns of W but the last ones, which are intercepts (docs/math.md sections 10 and 18)."""

import numpy as np

from dmtrl.relationship.base import Prox, Relationship
from dmtrl.relationship.covariance import TaskCovariance


class FreeIntercept:
    """Any relationship on all columns but the last ones, which are intercepts with a ridge penalty of their own.

    The penalty is a sum over the two parts, so its proximal map and its conjugate separate. `prox` overwrites V.

    Parameters
    ----------
    base : Relationship
    weight : float or ndarray of shape (m,)
        The ridge penalty on the intercepts, or on those of each task, divided by lambda.
    shared : bool
        Whether all tasks have the same intercept.
    columns : int
        How many intercepts a task has: one, or one for each of its classes.
    centre : float, default=None
        Measure the intercepts from a level that all tasks share instead of from zero (54). This is the ridge penalty on
        that level, divided by lambda.
    per_row : bool
        Whether `weight` is still to be multiplied with the weight of each task over its number of rows: see `of_tasks`.
    """

    def __init__(
        self,
        base: Relationship,
        weight: float | np.ndarray,
        shared: bool = False,
        columns: int = 1,
        centre: float | None = None,
        per_row: bool = False,
    ):
        for value in (weight, centre):
            if value is not None and not (np.greater(value, 0).all() and np.isfinite(value).all()):
                raise ValueError(f"the intercept's penalty must be positive and finite, got {value!r}")
        if shared and centre is not None:
            raise ValueError("an intercept that all tasks share cannot deviate from a shared level")
        self.base, self.weight, self.shared, self.columns = base, weight, shared, columns
        self.centre, self.per_row = centre, per_row
        self.name, self.learned, self.tau = base.name, base.learned, base.tau
        self.kappa = base.kappa

    def of_tasks(self, task_weight: np.ndarray, sizes: np.ndarray) -> "FreeIntercept":
        """With `per_row`, the relationship for tasks of these weights in the objective and these numbers of rows (52):
        an intercept is shrunk more where a task has few rows."""
        if not self.per_row:
            return self
        rows = np.where(sizes > 0, sizes, 1.0)  # the intercept of a task without rows is zero with any penalty
        return FreeIntercept(self.base, self.weight * task_weight / rows, self.shared, self.columns, self.centre)

    def start(self, m: int) -> TaskCovariance:
        if np.ndim(self.weight) > 0 and len(np.asarray(self.weight)) != m:
            raise ValueError(f"got {np.size(self.weight)} penalties of intercepts for {m} tasks; give one per task")
        return self.base.start(m)

    def update(self, W: np.ndarray, smoothing: float = 0.0) -> TaskCovariance:
        return self.base.update(W[:, : -self.columns], smoothing)

    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        return self.prox_with_steps(V, t, t, common)

    def prox_with_steps(
        self,
        V: np.ndarray,
        t: float,
        intercept_t: float | np.ndarray,
        common: np.ndarray,
        deviation: np.ndarray | None = None,
    ) -> Prox:
        """Like `prox`, with a step size for the intercepts, or one for those of each task.

        `deviation` (m, columns) holds how far intercepts lie from the shared level, where the workers have minimised
        over that; else NaN. V then holds the workers' wishes for the shared level.
        """
        own, outside, inside = V[:, : -self.columns], V[:, -self.columns :], common[: -self.columns]
        inner = self.base.prox(own, t, inside)
        steps = np.broadcast_to(intercept_t, len(V))
        if self.centre is not None:
            intercept = self._prox_around_level(outside, steps, deviation)
        else:
            intercept = outside / (1.0 + steps * self.weight)[:, None]
        if self.shared:
            intercept[:] = ((1.0 / steps) @ outside) / ((1.0 / steps).sum() + len(V) * np.mean(self.weight))
        penalty = inner.penalty + self._intercept_penalty(intercept)
        if inner.W is not own:
            own[:] = inner.W
        outside[:] = intercept
        return Prox(V, penalty, inner.covariance, np.append(inner.common, np.zeros(self.columns)))

    def _prox_around_level(self, V: np.ndarray, steps: np.ndarray, deviation: np.ndarray | None) -> np.ndarray:
        """Diagonal plus rank one (55)."""
        assert self.centre is not None
        slack = np.broadcast_to(1.0 / np.asarray(self.weight), len(V))
        found = np.zeros(len(V), dtype=bool) if deviation is None else ~np.isnan(deviation[:, 0])
        slack = np.where(found, 0.0, slack)
        pull = 1.0 / (slack + steps)
        level = (pull @ V) / (pull.sum() + self.centre)
        intercept = level + (V - level) * (slack * pull)[:, None]
        if deviation is not None:
            intercept[found] += deviation[found]
        return np.asarray(intercept)

    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        own, outside, inside = W[:, : -self.columns], W[:, -self.columns :], common[: -self.columns]
        if self.shared and np.ptp(outside, axis=0).any():
            return float("inf")
        return self.base.penalty(own, inside) + self._intercept_penalty(outside)

    def level(self, W: np.ndarray) -> np.ndarray:
        """The shared level of each class: the one with the least penalty; zero if intercepts are measured from zero."""
        outside = W[:, -self.columns :]
        if self.centre is None:
            return np.zeros(self.columns)
        weight = np.broadcast_to(self.weight, len(W))
        return np.asarray(weight @ outside / (weight.sum() + self.centre))

    def conjugate(self, B: np.ndarray) -> float:
        return self.base.conjugate(B[:, : -self.columns]) + self._intercept_conjugate(B[:, -self.columns :])

    def w_conjugate(self, B: np.ndarray, covariance: TaskCovariance) -> float:
        own = self.base.w_conjugate(B[:, : -self.columns], covariance)
        return own + self._intercept_conjugate(B[:, -self.columns :])

    def _intercept_penalty(self, intercept: np.ndarray) -> float:
        level = self.level(intercept)
        if np.ndim(self.weight) == 0:
            penalty = 0.5 * float(self.weight) * float(((intercept - level) ** 2).sum())
        else:
            penalty = 0.5 * float(self.weight @ ((intercept - level) ** 2).sum(axis=1))
        return penalty + 0.5 * (self.centre or 0.0) * float((level**2).sum())

    def _intercept_conjugate(self, b: np.ndarray) -> float:
        total = float((b.sum(axis=0) ** 2).sum())
        if self.shared:
            return 0.5 * (total / len(b)) / float(np.mean(self.weight))
        if np.ndim(self.weight) == 0:
            own = 0.5 * float((b**2).sum()) / float(self.weight)
        else:
            own = 0.5 * float(((b**2).sum(axis=1) / self.weight).sum())
        return own if self.centre is None else own + 0.5 * total / self.centre
