"""Relationships with a given Sigma: independent tasks, equally related tasks, a covariance, a task graph."""

from typing import Any

import numpy as np

from dmtrl.relationship.base import Prox, check_kappa, check_tau
from dmtrl.relationship.covariance import TaskCovariance


class Fixed:
    """A given Sigma; with tau or kappa > 0, Sigma + tau 1 1^T + kappa I.

    The penalty is tr(W^T Sigma^-1 W) / 2 and its conjugate tr(B^T Sigma B) / 2.
    """

    learned = False

    def __init__(self, covariance: TaskCovariance, tau: float = 0.0, name: str = "covariance", kappa: float = 0.0):
        self.name = name
        self.tau, self.kappa = check_tau(tau), check_kappa(kappa)
        self.covariance = covariance
        self._total = covariance.plus_common(tau).plus_own(kappa)

    def start(self, m: int) -> TaskCovariance:
        if self.covariance.m != m:
            raise ValueError(f"the task relationship has {self.covariance.m} tasks, the data has {m}")
        return self.covariance

    def only(self, tasks: np.ndarray) -> "Fixed":
        """Return the relationship between these tasks, by number."""
        return Fixed(self.covariance.only(tasks), self.tau, self.name, self.kappa)

    def update(self, W: np.ndarray, smoothing: float = 0.0) -> TaskCovariance:
        return self.covariance

    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        W = self._total.shrink(V, t)
        # With B = (V - W) / t, W = Sigma B, so the penalty needs no inverse.
        return Prox(W, 0.5 * self._total.quadratic((V - W) / t), self.covariance, common)

    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        return 0.5 * self._total.inverse_quadratic(W)

    def conjugate(self, B: np.ndarray) -> float:
        return 0.5 * self._total.quadratic(B)

    def w_conjugate(self, B: np.ndarray, covariance: TaskCovariance) -> float:
        return self.conjugate(B)


def independent(m: int, tau: float = 0.0, kappa: float = 0.0) -> Fixed:
    """Single-task learning: Sigma = I / m."""
    return Fixed(TaskCovariance.identity(m), tau, "independent", kappa)


def shared(m: int, correlation: float = 0.5, tau: float = 0.0, kappa: float = 0.0) -> Fixed:
    """All tasks equally related: every two have the same correlation."""
    if not 0 <= correlation <= 1:
        raise ValueError(f"correlation must be between 0 and 1, got {correlation!r}")
    ones = np.full((m, 1), m**-0.5)
    return Fixed(TaskCovariance(ones, np.array([correlation]), (1 - correlation) / m), tau, "shared", kappa)


def graph(adjacency: Any, strength: float = 1.0, tau: float = 0.0, kappa: float = 0.0) -> Fixed:
    """Tasks joined by an edge are related: Sigma is proportional to (I + strength L)^-1, with L the Laplacian."""
    return Fixed(TaskCovariance.from_graph(adjacency, strength), tau, "graph", kappa)


def covariance(sigma: np.ndarray, tau: float = 0.0, kappa: float = 0.0) -> Fixed:
    """A given task covariance, scaled to trace one."""
    return Fixed(TaskCovariance.from_dense(sigma), tau, "covariance", kappa)
