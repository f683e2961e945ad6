"""Checks of parameters. True and False are not numbers here."""

from numbers import Integral, Real


def is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def require(ok: bool, name: str, rule: str, value: object) -> None:
    """Raise ValueError if a parameter breaks its rule."""
    if not ok:
        raise ValueError(f"{name} must be {rule}, got {value!r}")
