"""What a run returns: weights, task covariance, certificate, and a record of every round."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.solver.certificate import Certificate


@dataclass(frozen=True)
class RoundRecord:
    """One round, as kept in `history_`.

    Gaps are relative; `primal` and `dual` are the best so far. With the default method `w_gap` is the smaller of this
    round's W-step gap and the best pair's joint gap, which bounds that pair's W-step gap.
    """

    round: int
    gap: float
    primal: float
    dual: float
    w_gap: float
    objective: float  # joint objective at this round's weights
    dual_now: float  # W-step dual objective before the round
    rho: float
    step: float
    solver: str
    passes: float
    omega: bool
    bytes_sent: int
    bytes_received: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


Callback = Callable[[RoundRecord], object]
Watch = Callable[[RoundRecord, np.ndarray], object]


class StartPoint(NamedTuple):
    """Where a run begins: weights (m, d), and the part of every row that all tasks share."""

    W: np.ndarray
    common: np.ndarray


@dataclass(frozen=True)
class Candidate:
    """A primal point with its objective; `common` is the part of it that all tasks share."""

    W: np.ndarray
    common: np.ndarray
    objective: float


@dataclass(frozen=True)
class DualPoint:
    """What a dual bound is made of: B and the conjugate sums. It contains nothing about single rows."""

    B: np.ndarray  # (m, d)
    conjugate: float
    conjugate_at_zero: float
    bound: float


@dataclass(frozen=True)
class Outcome:
    """The result of `solve`.

    Attributes
    ----------
    W : ndarray of shape (m, d)
    common : ndarray of shape (d,)
        The part of every row of W that all tasks share.
    covariance : TaskCovariance
        Of the tasks' own part, with trace one.
    certificate : Certificate
    dual : DualPoint
        The point at which the certificate's dual bound was found.
    history : list of RoundRecord
    converged : bool
    method : str
    tasks : ndarray, optional
        Numbers of the tasks in the rows of W. None: all tasks, in order.
    """

    W: np.ndarray
    common: np.ndarray
    covariance: TaskCovariance
    certificate: Certificate
    dual: DualPoint
    history: list[RoundRecord]
    converged: bool
    method: str
    tasks: np.ndarray | None = None
