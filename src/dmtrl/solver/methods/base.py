"""The contract between the coordinator's loop and the ways of turning B into W.

Room: just below the coordinator. A method with rounds in step says what to send (`Order`) and learns what came back
(`Answers`); it never sees an engine. `AsynchronousSplitting`, which has no barrier, sends and receives by itself and
hands back the same `Answers` and `Report`. `Candidate` is a W at which the loss is known, or will be after the next
round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from dmtrl.protocol.message import Scalar
from dmtrl.relationship.covariance import TaskCovariance


@dataclass(frozen=True)
class Order:
    """What every unit is sent: its task's weights, its step size, and scalars; `factor` only in the block version."""

    W: np.ndarray  # (m, d)
    step: np.ndarray  # (units,)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    factor: np.ndarray | None = None  # (units, r)
    decoupled: bool = False  # whether each unit's local problem is all there is to it


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


class Start(NamedTuple):
    """Where a run may begin: weights (m, d), and the part of every row that all tasks share."""

    W: np.ndarray
    common: np.ndarray


class Method(Protocol):
    name: str

    def order(self) -> Order: ...

    def absorb(self, answers: Answers) -> Report: ...

    def state(self) -> dict[str, np.ndarray]:
        """All that the next rounds depend on, as arrays."""

    def restore(self, state: Mapping[str, np.ndarray], b: np.ndarray) -> None:
        """Go on from such a state; `b` is what the workers' dual variables say now."""


def in_one_piece(covariance: TaskCovariance) -> TaskCovariance:
    """The same, lying in memory as it will after a restore: how rounding falls can depend on that."""
    basis = covariance.basis
    return covariance if basis.flags.forc else replace(covariance, basis=basis.copy())


def take_state(of: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Attributes as arrays: numbers, arrays, covariances; one that is None is left out."""
    state: dict[str, np.ndarray] = {}
    for name in names:
        value = getattr(of, name)
        if isinstance(value, TaskCovariance):
            state |= {f"{name}.{part}": np.asarray(getattr(value, part)) for part in ("basis", "values", "floor")}
        elif value is not None:
            state[name] = np.asarray(value)
    return state


def put_state(of: Any, names: Sequence[str], state: Mapping[str, np.ndarray]) -> None:
    """The same attributes from those arrays."""
    for name in names:
        if f"{name}.basis" in state:
            basis, values, floor = (state[f"{name}.{part}"] for part in ("basis", "values", "floor"))
            setattr(of, name, TaskCovariance(basis, values, float(floor)))
        else:
            value = state.get(name)
            setattr(of, name, value if value is None or value.ndim else value.item())
