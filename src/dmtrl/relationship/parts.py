"""The parts of weights: what all tasks share, what related tasks share, and what a task has of its own."""

from typing import NamedTuple

import numpy as np

from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.relationship.nuclear import nuclear_prox


class WeightParts(NamedTuple):
    """W = 1 common^T + related + own."""

    common: np.ndarray  # (d,)
    related: np.ndarray  # (m, d)
    own: np.ndarray  # (m, d)

    def shares(self) -> np.ndarray:
        """For each task (m, 3): the length of each part over the sum of the three lengths; zeros if all are zero."""
        lengths = np.column_stack(
            [
                np.full(len(self.own), np.linalg.norm(self.common)),
                np.linalg.norm(self.related, axis=1),
                np.linalg.norm(self.own, axis=1),
            ]
        )
        total = lengths.sum(axis=1, keepdims=True)
        return np.divide(lengths, total, out=np.zeros_like(lengths), where=total > 0)


def learned_parts(W: np.ndarray, common: np.ndarray, kappa: float) -> WeightParts:
    """The parts of W for a learned relationship and this common component: those with the least penalty (37)."""
    away = W - common
    related = nuclear_prox(away, kappa)[0] if kappa > 0 else away
    return WeightParts(common, related, away - related)


def given_parts(covariance: TaskCovariance, W: np.ndarray, tau: float, kappa: float) -> WeightParts:
    """The parts of W for a given Sigma: (Sigma + tau 1 1^T + kappa I)^-1 W times each term of the sum."""
    solved = covariance.plus_common(tau).plus_own(kappa).solve(W)
    return WeightParts(tau * solved.sum(axis=0), covariance.apply(solved), kappa * solved)
