"""Losses of rows with several scores, one for each class: the softmax loss, and any loss for two classes one-vs-rest.

Labels are the numbers of the classes. A task may lack classes: `possible` lists those that it has, and the scores of
the others do not enter the loss.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dmtrl.losses.base import AnyLoss
from dmtrl.losses.vector import softmax_chances, softmax_conjugate, softmax_step


@dataclass(frozen=True)
class ClassLoss(ABC):
    """What both have in common.

    Parameters
    ----------
    outputs : int
        Number of classes, k.
    possible : tuple of int, default=None
        The numbers of the classes that the task has. None means all.
    """

    outputs: int
    possible: tuple[int, ...] | None = None

    id = -1
    param = 0.0
    kind = "classification"

    def __post_init__(self) -> None:
        if not self.outputs >= 2:
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

    @abstractmethod
    def domain(self, y: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the smallest and the largest feasible a of each class.

        Parameters
        ----------
        y : int
            The number of the class.

        Returns
        -------
        tuple of ndarray
        """

    @abstractmethod
    def value(self, z: Any, y: int) -> float:
        """Return l(z, y).

        Parameters
        ----------
        z : array-like of shape (k,)
            Scores.
        y : int
            The number of the class.

        Returns
        -------
        float
        """

    @abstractmethod
    def conjugate(self, a: Any, y: int) -> float:
        """Return l*(-a), which is infinite outside the domain; for softmax, unless e_y - a is a distribution over the
        possible classes.

        Parameters
        ----------
        a : array-like of shape (k,)
            Dual variables.
        y : int
            The number of the class.

        Returns
        -------
        float
        """

    @abstractmethod
    def step(self, a: Any, z: Any, y: int, sq: float) -> np.ndarray:
        """Return the a' that maximises `-l*(-a') - (a' - a) . z - sq |a' - a|^2 / 2`.

        Parameters
        ----------
        a : array-like of shape (k,)
            Dual variables.
        z : array-like of shape (k,)
            Scores.
        y : int
            The number of the class.
        sq : float
            Curvature of the quadratic term.

        Returns
        -------
        ndarray of shape (k,)
        """

    def check_labels(self, y: np.ndarray, where: str) -> None:
        """Raise ValueError with the first label that is not the number of a possible class.

        Parameters
        ----------
        y : ndarray
            Labels.
        where : str
            Start of the error message.
        """
        wrong = ~np.isin(y, np.flatnonzero(self.mask))
        if wrong.any():
            row = int(np.argmax(wrong))
            rule = f"labels from 0 to {self.outputs - 1}"
            if self.possible is not None:
                rule = f"the labels {', '.join(map(str, sorted(self.possible)))}"
            raise ValueError(f"{where}, row {row}: the {self.name} loss needs {rule}, found {y[row]:g}")


@dataclass(frozen=True)
class Softmax(ClassLoss):
    """The multinomial logistic loss l(z, y) = log sum_c exp(z_c) - z_y of k scores z and a class y (41).

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

    @property
    def name(self) -> str:
        return "softmax"

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
        """Return minus the gradient, the dual variables that belong to z.

        Parameters
        ----------
        z : array-like of shape (k,)
            Scores.
        y : int
            The number of the class.

        Returns
        -------
        ndarray of shape (k,)
        """
        return self.step(np.zeros(self.outputs), z, y, 0.0)


@dataclass(frozen=True)
class OneVsRest(ClassLoss):
    """The sum over the possible classes of a loss for two classes: is a row of this class or not?

    Parameters
    ----------
    outputs : int
        Number of classes, k.
    possible : tuple of int, default=None
        The numbers of the classes that the task has. None means all.
    binary : Loss or CustomLoss
        The loss for two classes, with labels -1 and 1.
    """

    binary: AnyLoss | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.binary is None or self.binary.kind != self.kind or self.binary.outputs != 1:
            raise ValueError("one_vs_rest needs a loss for two classes, such as logistic or hinge")

    @property
    def name(self) -> str:
        return f"one-vs-rest {self.inner.name}"

    @property
    def inner(self) -> AnyLoss:
        assert self.binary is not None
        return self.binary

    @property
    def smoothness(self) -> float:
        return self.inner.smoothness

    @property
    def lipschitz(self) -> float:
        return math.sqrt(np.count_nonzero(self.mask)) * self.inner.lipschitz  # of the vector of slopes

    @property
    def differentiable(self) -> bool:
        return self.inner.differentiable

    def domain(self, y: int) -> tuple[np.ndarray, np.ndarray]:
        ends = [self.inner.domain(sign) if some else (0.0, 0.0) for sign, some in self._signs(y)]
        return np.array([low for low, _ in ends]), np.array([high for _, high in ends])

    def value(self, z: Any, y: int) -> float:
        return float(sum(self.inner.value(score, sign) for score, (sign, some) in self._with(z, y) if some))

    def conjugate(self, a: Any, y: int) -> float:
        terms = (
            self.inner.conjugate(one, sign) if some else one and math.inf for one, (sign, some) in self._with(a, y)
        )
        return float(sum(terms))

    def step(self, a: Any, z: Any, y: int, sq: float) -> np.ndarray:
        pairs = zip(self._with(a, y), z, strict=True)
        return np.array([self.inner.step(one, float(c), sign, sq) if some else 0.0 for (one, (sign, some)), c in pairs])

    def _signs(self, y: int) -> list[tuple[float, bool]]:
        """For each class its label -1 or 1, and whether it is possible."""
        return [(1.0 if c == y else -1.0, bool(some)) for c, some in enumerate(self.mask)]

    def _with(self, values: Any, y: int) -> list[tuple[float, tuple[float, bool]]]:
        return list(zip(np.asarray(values, dtype=float).tolist(), self._signs(y), strict=True))


def softmax(classes: int, possible: tuple[int, ...] | None = None) -> Softmax:
    """For several classes at once, with probabilities: `log sum_c exp(z_c) - z_y`.

    Parameters
    ----------
    classes : int
        Number of classes.
    possible : tuple of int, default=None
        The classes that occur in a task. None means all.

    Returns
    -------
    Softmax
    """
    return Softmax(classes, possible)


def one_vs_rest(binary: AnyLoss, classes: int, possible: tuple[int, ...] | None = None) -> OneVsRest:
    """For several classes: the sum of a two-class loss of each class against the rest.

    Parameters
    ----------
    binary : Loss
        The loss for two classes.
    classes : int
        Number of classes.
    possible : tuple of int, default=None
        The classes that occur in a task. None means all.

    Returns
    -------
    OneVsRest
    """
    return OneVsRest(classes, possible, binary)
