"""How tasks relate: penalties on W, and the task covariance Sigma."""

from dmtrl.relationship.base import Prox, Relationship
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.relationship.fixed import Fixed, covariance, graph, independent, shared
from dmtrl.relationship.intercept import FreeIntercept
from dmtrl.relationship.learned import Learned
from dmtrl.relationship.lookup import get_relationship, is_learned
from dmtrl.relationship.metric import Metric, feature_metric

__all__ = [
    "Fixed",
    "FreeIntercept",
    "Learned",
    "Metric",
    "Prox",
    "Relationship",
    "TaskCovariance",
    "covariance",
    "feature_metric",
    "get_relationship",
    "graph",
    "independent",
    "is_learned",
    "shared",
]
