"""Random numbers in compiled code: splitmix64, one stream for each seed, unit and round."""

import numpy as np

from dmtrl.numerics.compile_cache import INNER, njit


@njit(**INNER)
def next_state(state):  # type: ignore[no-untyped-def]
    """splitmix64: the next state; its mixed value is the random number."""
    return state + np.uint64(0x9E3779B97F4A7C15)


@njit(**INNER)
def _mix(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(**INNER)
def stream(seed, unit, round_number):  # type: ignore[no-untyped-def]
    """The random stream of (seed, unit, round): the same wherever and with whatever neighbours the unit runs."""
    state = _mix(np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15))
    state = _mix(state ^ np.uint64(unit) * np.uint64(0xD1342543DE82EF95))
    return _mix(state ^ np.uint64(round_number) * np.uint64(0xAEF17502108EF2D9))


@njit(**INNER)
def below(state, n):  # type: ignore[no-untyped-def]
    return np.int64(((_mix(state) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@njit(**INNER)
def shuffle(order, n, state):  # type: ignore[no-untyped-def]
    for k in range(n - 1, 0, -1):
        state = next_state(state)
        other = below(state, k + 1)
        order[k], order[other] = order[other], order[k]
    return state
