"""Losses of rows with several scores, one for each class: the softmax loss, and any loss for two classes one-vs-rest.

Labels are the numbers of the classes. A task may lack classes: `possible` lists those that it has, and the scores of
the others do not enter the loss.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dmtrl.losses.base import AnyLoss
from dmtrl.losses.vector import softmax_chances, softmax_conjugate, softmax_step
from dmtrl.numerics.checks import is_whole


@dataclass(frozen=True)
class ClassLoss(ABC):
    """What both have in common. Rows have vectors of k scores z and k dual variables a; y is the number of a class.

    What subclasses define is listed in `AnyLoss`. Here `step` returns a vector, and `domain` the smallest and the
    largest feasible a of each class.
    """

    outputs: int
    possible: tuple[int, ...] | None = None

    id = -1
    param = 0.0
    kind = "classification"

    def __post_init__(self) -> None:
        if not (is_whole(self.outputs) and self.outputs >= 2):
            raise ValueError(f"{self.name} needs at least two classes, got {self.outputs!r}")
        some = self.possible
        if some is not None and not (some and set(some) <= set(range(self.outputs))):
            raise ValueError(f"possible must list some of the classes 0 to {self.outputs - 1}, got {some!r}")

    @property
    @abstractmethod
    def name(self) -> str: ...

    @cached_property
    def mask(self) -> np.ndarray:
        """Whether each class is possible."""
        some = range(self.outputs) if self.possible is None else self.possible
        return np.isin(np.arange(self.outputs), list(some))

    def check_labels(self, y: np.ndarray, where: str) -> None:
        """Raise ValueError with the first label that is not the number of a possible class."""
        wrong = ~np.isin(y, np.flatnonzero(self.mask))
        if wrong.any():
            row = int(np.argmax(wrong))
            rule = f"labels from 0 to {self.outputs - 1}"
            if self.possible is not None:
                rule = f"the labels {', '.join(map(str, sorted(self.possible)))}"
            raise ValueError(f"{where}, row {row}: the {self.name} loss needs {rule}, found {y[row]:g}")


@dataclass(frozen=True)
class Softmax(ClassLoss):
    """The multinomial logistic loss of k classes, with probabilities: l(z, y) = log sum_c exp(z_c) - z_y (41).

    The conjugate is infinite unless e_y - a is a distribution over the possible classes.

    Parameters
    ----------
    outputs : int
        Number of classes, k.
    possible : tuple of int, default=None
        The numbers of the classes that the task has. None means all.
    """

    smoothness = 0.5
    lipschitz = math.sqrt(2.0)
    differentiable = True
    name = "softmax"

    def domain(self, y: int) -> tuple[np.ndarray, np.ndarray]:
        own = np.arange(self.outputs) == y
        return np.where(own | ~self.mask, 0.0, -1.0), np.where(own, 1.0, 0.0)

    def value(self, z: Any, y: int) -> float:
        z = np.asarray(z, dtype=float)
        return float(softmax_chances(z, self.mask, np.empty(self.outputs)) - z[y])

    def conjugate(self, a: Any, y: int) -> float:
        return float(softmax_conjugate(np.asarray(a, dtype=float), y, self.mask))

    def step(self, a: Any, z: Any, y: int, sq: float) -> np.ndarray:
        new, v, chance, slope, move = np.empty((5, self.outputs))
        a, z = np.asarray(a, dtype=float), np.asarray(z, dtype=float)
        softmax_step(a, z, y, float(sq), self.mask, new, v, chance, slope, move)
        return new

    def slope(self, z: Any, y: int) -> np.ndarray:
        """Return minus the gradient, the dual variables that belong to z."""
        return self.step(np.zeros(self.outputs), z, y, 0.0)


@dataclass(frozen=True)
class OneVsRest(ClassLoss):
    """The sum, over the possible classes, of a two-class loss: this class against the rest.

    Parameters
    ----------
    outputs : int
        Number of classes, k.
    possible : tuple of int, default=None
        The numbers of the classes that the task has. None means all.
    binary : Loss or CustomLoss
        The loss for two classes, with labels -1 and 1.
    """

    binary: AnyLoss = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self.binary, "kind", None) != self.kind or self.binary.outputs != 1:
            raise ValueError("OneVsRest needs a loss for two classes, such as logistic or hinge")

    @property
    def name(self) -> str:
        return f"one-vs-rest {self.binary.name}"

    @property
    def smoothness(self) -> float:
        return self.binary.smoothness

    @property
    def lipschitz(self) -> float:
        return math.sqrt(np.count_nonzero(self.mask)) * self.binary.lipschitz  # of the vector of slopes

    @property
    def differentiable(self) -> bool:
        return self.binary.differentiable

    def domain(self, y: int) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.array([self.binary.domain(sign) if some else (0.0, 0.0) for sign, some in self._classes(y)]).T
        return low, high

    def value(self, z: Any, y: int) -> float:
        return float(sum(self.binary.value(score, sign) for sign, some, score in self._classes(y, z) if some))

    def conjugate(self, a: Any, y: int) -> float:
        classes = self._classes(y, a)
        return float(sum(self.binary.conjugate(one, sign) if some else one and math.inf for sign, some, one in classes))

    def step(self, a: Any, z: Any, y: int, sq: float) -> np.ndarray:
        classes = self._classes(y, a, z)
        return np.array([self.binary.step(one, score, sign, sq) if some else 0.0 for sign, some, one, score in classes])

    def _classes(self, y: int, *vectors: Any) -> Iterator[tuple[Any, ...]]:
        """For each class its label -1 or 1, whether it is possible, and its numbers in the vectors."""
        signs = np.where(np.arange(self.outputs) == y, 1.0, -1.0)
        numbers = [np.asarray(vector, dtype=float).tolist() for vector in vectors]
        return zip(signs.tolist(), self.mask.tolist(), *numbers, strict=True)
