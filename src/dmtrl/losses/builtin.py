"""The built-in losses, and `CustomLoss` for others.

Built-in losses are compiled together and selected by an integer id (`dmtrl.losses.scalar`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dmtrl.losses import scalar
from dmtrl.losses.base import AnyLoss
from dmtrl.losses.classes import OneVsRest, Softmax

CLASSIFICATION, REGRESSION = "classification", "regression"


@dataclass(frozen=True)
class Loss:
    """A built-in loss. Its methods accept scalars and arrays; see `AnyLoss` for their meaning.

    Parameters
    ----------
    name : str
        Name of the loss.
    id : int
        Number of the compiled functions in `dmtrl.losses.scalar`.
    kind : {"classification", "regression"}
        For classification the labels are -1 and 1.
    smoothness, lipschitz : float
        Upper bounds of l'' and of the absolute value of l'.
    param : float, default=0.0
        Parameter of the loss: gamma, epsilon, delta or the quantile.
    """

    name: str
    id: int
    kind: str
    smoothness: float
    lipschitz: float
    param: float = 0.0

    outputs = 1

    def value(self, z: Any, y: Any) -> Any:
        """Return l(z, y).

        Parameters
        ----------
        z, y : float or ndarray
            Predictions and labels.
        """
        return _elementwise(scalar.loss_value, self.id, self.param, z, y)

    def conjugate(self, a: Any, y: Any) -> Any:
        """Return l*(-a), which is infinite outside the domain.

        Parameters
        ----------
        a, y : float or ndarray
            Dual variables and labels.
        """
        return _elementwise(scalar.loss_conjugate, self.id, self.param, a, y)

    def step(self, a: Any, z: Any, y: Any, sq: Any) -> Any:
        """Return the a' that maximises -l*(-a') - (a' - a) z - sq (a' - a)^2 / 2.

        Parameters
        ----------
        a, z, y : float or ndarray
            Dual variables, predictions and labels.
        sq : float or ndarray
            Curvature of the quadratic term.
        """
        return _elementwise(scalar.loss_step, self.id, self.param, a, z, y, sq)

    def slope(self, z: Any, y: Any) -> Any:
        """Return -l'(z), the dual variable that belongs to z. Differentiable losses only.

        Parameters
        ----------
        z, y : float or ndarray
            Predictions and labels.
        """
        if not self.differentiable:
            raise ValueError(f"the {self.name} loss is not differentiable and has no slope; use a smooth loss")
        return _elementwise(scalar.loss_slope, self.id, self.param, z, y)

    def domain(self, y: float) -> tuple[float, float]:
        """Return the interval of feasible a for label y.

        Parameters
        ----------
        y : float
            A label.
        """
        if self.kind == CLASSIFICATION:
            upper = math.inf if self.id == scalar.SQUARED_HINGE else 1.0
            return (0.0, upper) if y > 0 else (-upper, 0.0)
        if self.id == scalar.SQUARED:
            return -math.inf, math.inf
        if self.id == scalar.POISSON:
            return -math.inf, y
        if self.id == scalar.QUANTILE:
            return self.param - 1.0, self.param
        limit = self.param if self.id == scalar.HUBER else 1.0
        return -limit, limit

    @property
    def differentiable(self) -> bool:
        return math.isfinite(self.smoothness) or self.id == scalar.POISSON

    def check_labels(self, y: np.ndarray, where: str) -> None:
        """Raise ValueError with the first label for which the loss is not defined.

        Parameters
        ----------
        y : ndarray
            Labels.
        where : str
            Start of the error message.
        """
        wrong, rule = self.invalid_labels(y)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"{where}, row {row}: the {self.name} loss needs {rule}, found {y[row]:g}")

    def invalid_labels(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Return a mask of the labels for which the loss is not defined, and the rule in words.

        Parameters
        ----------
        y : ndarray
            Labels.
        """
        if self.kind == CLASSIFICATION:
            return (y != 1) & (y != -1), "labels -1 and +1"
        if self.id == scalar.POISSON:
            return y < 0, "non-negative counts"
        return np.zeros(y.shape, dtype=bool), "numbers"


@dataclass(frozen=True)
class CustomLoss:
    """A convex loss of your own. `check_loss` tests whether its members are consistent.

    Parameters
    ----------
    name : str
    value, conjugate, step : callable
        value(z, y), conjugate(a, y) and step(a, z, y, sq), compiled with numba's @njit.
    domain : callable
        domain(y) returns the interval of feasible a.
    kind : {"regression", "classification"}
        For classification the labels are -1 and 1.
    smoothness, lipschitz : float
        Upper bounds of l'' and of the absolute value of l'.
    """

    name: str
    value: Callable[[float, float], float]
    conjugate: Callable[[float, float], float]
    step: Callable[[float, float, float, float], float]
    domain: Callable[[float], tuple[float, float]]
    kind: str = REGRESSION
    smoothness: float = math.inf
    lipschitz: float = math.inf

    id = scalar.CUSTOM
    param = 0.0
    outputs = 1
    differentiable = False  # the local solvers have no slope

    def check_labels(self, y: np.ndarray, where: str) -> None:
        """Raise ValueError if the loss is not finite at z = 0 for some label.

        Parameters
        ----------
        y : ndarray
            Labels.
        where : str
            Start of the error message.
        """
        if not np.isfinite([self.value(0.0, float(label)) for label in np.unique(y)[:100]]).all():
            raise ValueError(f"{where}: the loss {self.name!r} is not finite at z = 0 for some labels")


@cache
def identity(loss: AnyLoss) -> tuple[Any, ...]:
    """Return what distinguishes a loss from all others.

    For a custom loss this includes function values on a grid, rounded so that they are the same on every machine.
    """
    if isinstance(loss, Loss):
        return loss.name, loss.param
    if isinstance(loss, Softmax):
        return loss.name, loss.outputs, loss.possible
    if isinstance(loss, OneVsRest):
        return loss.name, loss.outputs, loss.possible, identity(loss.binary)
    points = [(z, y) for y in (-1.0, 0.0, 0.7, 1.0, 2.0) for z in np.linspace(-2.9, 3.1, 13).tolist()]
    return (
        loss.name,
        loss.param,
        *(_rounded(function, *point) for function in (loss.value, loss.conjugate) for point in points),
    )


def _rounded(function: Callable[[float, float], float], z: float, y: float) -> str:
    try:
        return f"{round(float(function(z, y)), 9) + 0.0:.6g}"  # no -0, and no digits of rounding errors around zero
    except (ArithmeticError, ValueError):  # the loss is not defined for this label
        return "none"


def _elementwise(function: Callable[..., float], loss: int, param: float, *args: Any) -> Any:
    result = np.vectorize(function, otypes=[float])(loss, param, *(np.asarray(a, dtype=float) for a in args))
    return float(result) if result.ndim == 0 else result


def _positive(name: str, what: str, number: float) -> float:
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"the {name} loss needs {what} > 0, got {number!r}")
    return float(number)


def hinge() -> Loss:
    """For classes: `max(0, 1 - y z)`."""
    return Loss("hinge", scalar.HINGE, CLASSIFICATION, math.inf, 1.0)


def smoothed_hinge(gamma: float = 1.0) -> Loss:
    """For classes: the hinge with its kink rounded off between margins 1 - gamma and 1.

    Parameters
    ----------
    gamma : float, default=1.0
        Width of the rounded part, positive.
    """
    gamma = _positive("smoothed_hinge", "gamma", gamma)
    return Loss("smoothed_hinge", scalar.SMOOTHED_HINGE, CLASSIFICATION, 1.0 / gamma, 1.0, gamma)


def squared_hinge() -> Loss:
    """For classes: `max(0, 1 - y z)^2 / 2`."""
    return Loss("squared_hinge", scalar.SQUARED_HINGE, CLASSIFICATION, 1.0, math.inf)


def logistic() -> Loss:
    """For classes, with probabilities: `log(1 + exp(-y z))`."""
    return Loss("logistic", scalar.LOGISTIC, CLASSIFICATION, 0.25, 1.0)


def squared() -> Loss:
    """For numbers, predicts the mean: `(y - z)^2 / 2`."""
    return Loss("squared", scalar.SQUARED, REGRESSION, 1.0, math.inf)


def absolute() -> Loss:
    """For numbers, predicts the median: `|y - z|`."""
    return Loss("absolute", scalar.ABSOLUTE, REGRESSION, math.inf, 1.0)


def epsilon_insensitive(epsilon: float = 0.1) -> Loss:
    """For numbers, ignores small errors: `max(0, |y - z| - epsilon)`.

    Parameters
    ----------
    epsilon : float, default=0.1
        Size of the errors that cost nothing, not negative.
    """
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise ValueError(f"the epsilon_insensitive loss needs epsilon >= 0, got {epsilon!r}")
    return Loss("epsilon_insensitive", scalar.EPSILON_INSENSITIVE, REGRESSION, math.inf, 1.0, float(epsilon))


def huber(delta: float = 1.35) -> Loss:
    """For numbers with outliers: squared up to an error of delta, linear beyond.

    Parameters
    ----------
    delta : float, default=1.35
        Where the loss becomes linear, positive, in units of y.
    """
    delta = _positive("huber", "delta", delta)
    return Loss("huber", scalar.HUBER, REGRESSION, 1.0, delta, delta)


def quantile(quantile: float = 0.5) -> Loss:
    """For numbers, predicts a quantile: `q r` for errors r = y - z >= 0, `(q - 1) r` otherwise.

    Parameters
    ----------
    quantile : float, default=0.5
        The quantile q, between 0 and 1.
    """
    if not 0 < quantile < 1:
        raise ValueError(f"the quantile loss needs a quantile between 0 and 1, got {quantile!r}")
    return Loss("quantile", scalar.QUANTILE, REGRESSION, math.inf, max(quantile, 1 - quantile), float(quantile))


def poisson() -> Loss:
    """For counts: `exp(z) - y z`, up to a term in y alone. Models predict exp(z)."""
    return Loss("poisson", scalar.POISSON, REGRESSION, math.inf, math.inf)


_OF_CLASSES: list[Callable[..., Loss]] = [hinge, smoothed_hinge, squared_hinge, logistic]
_OF_NUMBERS: list[Callable[..., Loss]] = [squared, absolute, epsilon_insensitive, huber, quantile, poisson]
BUILTIN = {loss.__name__: loss for loss in _OF_CLASSES + _OF_NUMBERS}


def get_loss(loss: str | AnyLoss) -> AnyLoss:
    """Return a loss by name, or the loss itself.

    Parameters
    ----------
    loss : str, Loss, CustomLoss, Softmax or OneVsRest
        The name of a built-in loss, or a loss.
    """
    if isinstance(loss, Loss | CustomLoss | Softmax | OneVsRest):
        return loss
    if isinstance(loss, str) and loss in BUILTIN:
        return BUILTIN[loss]()
    raise ValueError(
        f"unknown loss {loss!r}; choose one of {', '.join(sorted(BUILTIN))}, or pass a Loss or a CustomLoss"
    )
