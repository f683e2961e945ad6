"""How tasks relate: penalties on W, and the task covariance Sigma."""

from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.relationship.penalties import (
    Fixed,
    FreeIntercept,
    Learned,
    Prox,
    Relationship,
    covariance,
    get_relationship,
    graph,
    independent,
    is_learned,
    shared,
)

__all__ = [
    "Fixed",
    "FreeIntercept",
    "Learned",
    "Prox",
    "Relationship",
    "TaskCovariance",
    "covariance",
    "get_relationship",
    "graph",
    "independent",
    "is_learned",
    "shared",
]
