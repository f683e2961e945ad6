"""Custom losses, as a user would write them."""

import math

from numba import njit

from dmtrl import CustomLoss


@njit
def _value(z: float, y: float) -> float:
    return 0.5 * abs(y - z)


@njit
def _conjugate(a: float, y: float) -> float:
    return -a * y if abs(a) <= 0.5 else float("inf")


@njit
def _step(a: float, z: float, y: float, sq: float) -> float:
    return min(max(a + (y - z) / sq if sq > 0 else a, -0.5), 0.5)


def halved_absolute() -> CustomLoss:
    return CustomLoss("halved absolute", _value, _conjugate, _step, lambda y: (-0.5, 0.5), lipschitz=0.5)


@njit
def expectile_value(z, y):  # type: ignore[no-untyped-def]
    r = y - z
    return 0.5 * (0.8 if r >= 0 else 0.2) * r * r


@njit
def expectile_conjugate(a, y):  # type: ignore[no-untyped-def]
    """With w the weight of the side: sup_r a r - w r^2 / 2 = a^2 / (2 w), and the sign of r is that of a."""
    return 0.5 * a * a / (0.8 if a >= 0 else 0.2) - a * y


@njit
def expectile_step(a, z, y, sq):  # type: ignore[no-untyped-def]
    """a'/w = y - z - sq (a' - a); w > 0, so a' has the sign of y - z + sq a."""
    top = y - z + sq * a
    return top / (1.0 / (0.8 if top >= 0 else 0.2) + sq)


EXPECTILE = CustomLoss(
    "expectile",
    expectile_value,
    expectile_conjugate,
    expectile_step,
    domain=lambda y: (-math.inf, math.inf),
    smoothness=0.8,
)
