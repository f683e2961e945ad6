"""Turns the `relationship` argument of estimators and `solve` into a Relationship."""

from typing import Any

import numpy as np

from dmtrl.relationship.base import Relationship
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.relationship.fixed import Fixed, covariance, graph, independent, shared
from dmtrl.relationship.learned import Learned


def get_relationship(relationship: Any, m: int, tau: float = 0.0, kappa: float = 0.0) -> Relationship:
    """Return a relationship from its name, a covariance (array), a graph (sparse adjacency), or a Relationship."""
    if isinstance(relationship, str):
        if relationship == "learned":
            return Learned(tau, kappa)
        if relationship in ("independent", "shared"):
            return (independent if relationship == "independent" else shared)(m, tau=tau, kappa=kappa)
        raise ValueError(
            f"unknown relationship {relationship!r}; choose learned, independent, shared, "
            "a covariance (array), a graph (sparse adjacency), or a Relationship"
        )
    if relationship is None:
        raise ValueError("relationship must not be None; for unrelated tasks pass 'independent'")
    if isinstance(relationship, TaskCovariance):
        return Fixed(relationship, tau, kappa=kappa)
    if hasattr(relationship, "prox"):
        if tau and not np.isclose(relationship.tau, tau):
            raise ValueError(f"common={tau:g} contradicts the relationship, which has tau={relationship.tau:g}")
        if kappa and not np.isclose(relationship.kappa, kappa):
            raise ValueError(f"own={kappa:g} contradicts the relationship, which has kappa={relationship.kappa:g}")
        return relationship
    if hasattr(relationship, "tocsr"):
        return graph(relationship, tau=tau, kappa=kappa)
    return covariance(np.asarray(relationship), tau, kappa)


def is_learned(relationship: Any) -> bool:
    """Whether a `relationship` argument, by name or as an object, is learned from the data."""
    return isinstance(relationship, Learned) or (isinstance(relationship, str) and relationship == "learned")
