"""The contract between the coordinator's loop and the two ways of turning B into W.

Room: just below the coordinator. A method says what to send (`Order`) and learns what came back (`Answers`); it
never sees an engine. `Candidate` is a W at which the loss is known, or will be after the next round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dmtrl.message import Scalar


@dataclass(frozen=True)
class Order:
    """What every unit is sent: its task's weights, its step size, and scalars; `factor` only in the block version."""

    W: np.ndarray  # (m, d)
    step: np.ndarray  # (units,)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    factor: np.ndarray | None = None  # (units, r)


@dataclass(frozen=True)
class Answers:
    """What came back, in unit order."""

    b: np.ndarray
    B: np.ndarray  # (m, d), summed over the units of a task
    loss_w: float
    bracket_w: float
    loss_u: float
    conjugate: float


@dataclass(frozen=True)
class Candidate:
    """A primal point with its objective; `common` is the part of it that all tasks share."""

    W: np.ndarray
    common: np.ndarray
    objective: float


@dataclass(frozen=True)
class Report:
    """What a method has to say about a round."""

    candidates: list[Candidate]
    w_gap: float  # W-step gap at the weights that were sent and the dual variables from before the round
    w_objective: float  # the W-step objective at those weights
    rho: float
    step: float
    omega: bool = False  # whether Sigma was made anew after this round


class Method(Protocol):
    name: str

    def order(self) -> Order: ...

    def absorb(self, answers: Answers) -> Report: ...
