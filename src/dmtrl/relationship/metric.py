"""A metric between features that makes the penalty a sum over tasks. Asynchronous rounds use it to catch up."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag

from dmtrl.protocol.message import Message
from dmtrl.relationship.base import Relationship
from dmtrl.relationship.intercept import FreeIntercept
from dmtrl.relationship.learned import Learned
from dmtrl.relationship.spectrum import short_side

# Shares of the largest singular value of W: above the first a direction is in use, above the second it dominates.
_IN_USE, _DOMINANT = 1e-3, 0.1
_MAX_DIRECTIONS, _MAX_SHARE = 16, 1 / 8  # the second is a share of min(tasks, features)


@dataclass(frozen=True)
class Metric:
    """M = F F^T + floor I between features. The weights of task i are measured from its centre F c_i (36)."""

    directions: np.ndarray  # F, features x r
    centre: np.ndarray  # c of each task, tasks x r
    floor: float

    @property
    def longest(self) -> float:
        """The largest step along one of the directions."""
        return float(np.square(self.directions).sum(axis=0).max()) + self.floor

    def weights(self, b: np.ndarray) -> np.ndarray:
        """Return the weights that belong to the dual vectors b of the same tasks (37)."""
        F = self.directions
        return np.asarray((self.centre + b @ F) @ F.T + self.floor * b)

    @classmethod
    def from_message(cls, message: Message) -> "Metric":
        """Return the metric that a message carries."""
        return cls(message.arrays["directions"], message.arrays["centre"], float(message.scalars["floor"]))


def feature_metric(relationship: Relationship, W: np.ndarray, lam: float, step: float) -> Metric | None:
    """Return M such that, with the features' covariance fixed, lam * penalty is the sum of w . M^-1 w / 2 (36).

    Return None for other relationships than the learned one, and if W has too many dominant directions for the metric
    to save work. A free intercept stays near its present value, as after a proximal step.
    """
    if isinstance(relationship, FreeIntercept):
        inner = feature_metric(relationship.base, W[:, :-1], lam, step)
        if inner is None:
            return None
        width = float(np.sqrt(step))
        centre = np.column_stack([inner.centre, W[:, -1] / width])
        return Metric(block_diag(inner.directions, width), centre, inner.floor)
    if type(relationship) is not Learned or relationship.tau:
        return None
    s, vectors = short_side(W)
    if not (len(s) and s[0] > 0):
        return None
    in_use, most = int((s > _IN_USE * s[0]).sum()), int(min(_MAX_DIRECTIONS, _MAX_SHARE * min(W.shape)))
    rank = in_use if in_use <= most else int((s > _DOMINANT * s[0]).sum())
    if rank > most:
        return None
    rest = float(s[rank:in_use].sum())
    s, vectors = s[:rank], vectors[:, :rank]
    if W.shape[0] <= W.shape[1]:
        vectors = W.T @ vectors / s
    scale = 1.0 / (lam * (s.sum() + rest))
    floor = scale * rest / max(in_use - rank, 1)  # the mean of the other directions in use
    return Metric(vectors * np.sqrt(scale * s - floor), np.zeros((len(W), rank)), floor)
