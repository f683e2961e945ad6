"""What a run returns: weights, task covariance, certificate, and a record of every round."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.solver.certificate import Certificate
from dmtrl.solver.shared_fit import SharedFit


@dataclass(frozen=True)
class RoundRecord:
    """One round, as stored in `history_`. Gaps are relative.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    gap : float
        Gap between the best primal and dual values so far.
    primal : float
        Best joint objective so far.
    dual : float
        Best lower bound so far.
    w_gap : float
        Gap of the W-step. With the default method the smaller of the W-step gap of the round and the joint gap of the
        best pair, which bounds the W-step gap of that pair.
    objective : float
        Joint objective at the weights of the round.
    dual_now : float
        Dual objective of the W-step before the round.
    rho : float
        Coupling of the tasks.
    step : float
        Step size of the splitting.
    solver : str
        Local solvers that the workers used.
    passes : float
        Mean number of passes over the rows.
    omega : bool
        Whether the task covariance was updated.
    bytes_sent : int
        Bytes of the messages to the workers.
    bytes_received : int
        Bytes of the answers of the workers.
    seconds : float
        Duration of the round.
    """

    round: int
    gap: float
    primal: float
    dual: float
    w_gap: float
    objective: float
    dual_now: float
    rho: float
    step: float
    solver: str
    passes: float
    omega: bool
    bytes_sent: int
    bytes_received: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return the record as a dict."""
        return asdict(self)


Callback = Callable[[RoundRecord], object]
Watch = Callable[[RoundRecord, np.ndarray], object]


class StartPoint(NamedTuple):
    """Where a run begins: weights (m, d), and the part of every row that all tasks share."""

    W: np.ndarray
    common: np.ndarray


@dataclass(frozen=True)
class PrimalPoint:
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
        Weights of each task.
    common : ndarray of shape (d,)
        The part of every row of W that all tasks share.
    covariance : TaskCovariance
        Covariance of the part of W that is not shared, with trace one.
    certificate : Certificate
        Proven bounds of the optimum.
    dual : DualPoint
        The point of the dual bound.
    history : list of RoundRecord
        One record per round.
    converged : bool
        Whether the relative gap reached tol.
    method : str
        The method that was used.
    task_weight : ndarray of shape (m,)
        Weight of each task in the objective.
    task_size : ndarray of shape (m,)
        Sum of the sample weights of each task, or its number of rows.
    tasks : ndarray of int or None
        Numbers of the tasks in the rows of W. None means all tasks, in order.
    shared : SharedFit or None
        What all tasks share, if it was fitted first. W then holds deviations from it, with the deviation of the level
        of each task in the last columns, and the certificate is of the deviations, given the shared part.
    """

    W: np.ndarray
    common: np.ndarray
    covariance: TaskCovariance
    certificate: Certificate
    dual: DualPoint
    history: list[RoundRecord]
    converged: bool
    method: str
    task_weight: np.ndarray
    task_size: np.ndarray
    tasks: np.ndarray | None = None
    shared: SharedFit | None = None
