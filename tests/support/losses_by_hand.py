"""A loss of somebody's own, as a user would write it."""

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
