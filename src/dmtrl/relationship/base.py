"""The contract of a relationship: a convex penalty on the weights W, with its conjugate and proximal map.

`dmtrl.check_relationship` tests an implementation against the obligations listed here.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dmtrl.numerics.checks import is_number, require
from dmtrl.relationship.covariance import TaskCovariance


@dataclass(frozen=True)
class Prox:
    """The result of a proximal map.

    Attributes
    ----------
    W : ndarray of shape (m, d)
        The proximal point.
    penalty : float
        The penalty of W, or an upper bound on it.
    covariance : TaskCovariance
        Sigma of the related part of W, without the common component and the own parts.
    common : ndarray of shape (d,)
        The common component w_0, the starting point of the next call.
    """

    W: np.ndarray
    penalty: float
    covariance: TaskCovariance
    common: np.ndarray


class Relationship(Protocol):
    """How tasks relate: a penalty g(W) on the weights W of shape (m, d). Tasks are rows.

    Obligations:

    - g is convex, never negative, and zero at W = 0.
    - `conjugate` is the convex conjugate of g: g(W) + g*(B) >= <W, B> for all W and B.
    - `prox` returns the minimiser: g(W) + g*(B) = <W, B> at B = (V - W) / t. The certificate relies on this.
    - Every `TaskCovariance` has m tasks and trace one.
    - No method changes its arguments. The exception is V, which `prox` may overwrite and return as W.

    A relationship may also have `only(tasks)`, which returns the relationship between the given tasks, by number.
    Runs that leave out the tasks of a lost worker need it.

    Attributes
    ----------
    name : str
    learned : bool
        Whether Sigma depends on W. If so, the joint solver is used.
    tau : float
        Strength of a component that all tasks share; 0 for none.
    kappa : float
        Strength of a part of each task's weights that is not related to other tasks; 0 for none.
    """

    name: str
    learned: bool
    tau: float
    kappa: float

    def start(self, m: int) -> TaskCovariance:
        """Return Sigma for W = 0, without the common component and the own parts."""

    def update(self, W: np.ndarray, smoothing: float = 0.0) -> TaskCovariance:
        """Return Sigma for W without its common component: the Omega-step. With kappa > 0, Sigma of its related
        part."""

    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        """Return `argmin_W |W - V|^2 / 2 + t g(W)`. May overwrite V.

        `common` is the w_0 of the round before, from which an iteration continues until the error is a fraction of what
        it was. A single call must pass zeros, from which it continues to full accuracy.
        """

    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        """Return g(W), or the upper bound on it that follows from the common component `common`."""

    def conjugate(self, B: np.ndarray) -> float:
        """Return g*(B) = sup_W <W, B> - g(W)."""

    def w_conjugate(self, B: np.ndarray, covariance: TaskCovariance) -> float:
        """Return the conjugate of the W-step, which holds Sigma at `covariance`. It is at most g*(B)."""


def check_tau(tau: float) -> float:
    return _checked_strength("common (the strength of the shared component)", tau)


def check_kappa(kappa: float) -> float:
    return _checked_strength("own (the strength of the tasks' own parts)", kappa)


def _checked_strength(name: str, value: Any) -> float:
    require(is_number(value) and 0 <= value < np.inf, name, "at least 0 and finite", value)
    return float(value)
