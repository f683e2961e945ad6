"""The softmax loss of a row with k scores, as compiled functions of vectors (docs/math.md section 15).

z are the scores of a row, y the number of its class, `possible` marks the classes that its task has. The dual variable
a has one number per class: e_y - a is a distribution over the possible classes. The kernels of `dmtrl.worker.softmax`
inline these functions.
"""

import numpy as np

from dmtrl.numerics.compile_cache import SCALAR, njit

_NEWTON_STEPS = 100
_EXPLICIT = 1e-9  # of sq; below it the step is explicit
_CLOSE = 1e-10  # Newton decrement after which one more step is exact
_ROUNDING = 1e-9  # how far e_y - a may be from a distribution


@njit(**SCALAR)
def softmax_chances(z, possible, chance):  # type: ignore[no-untyped-def]
    """chance = softmax(z) over the possible classes. Returns log sum exp(z)."""
    top, total = -np.inf, 0.0
    for c in range(z.shape[0]):
        if possible[c] and z[c] > top:
            top = z[c]
    for c in range(z.shape[0]):
        chance[c] = np.exp(z[c] - top) if possible[c] else 0.0
    for c in range(z.shape[0]):
        total += chance[c]
    for c in range(z.shape[0]):
        chance[c] /= total
    return top + np.log(total)


@njit(**SCALAR)
def softmax_conjugate(a, y, possible):  # type: ignore[no-untyped-def]
    """l*(-a) (41): the negative entropy of e_y - a, infinite if that is not a distribution over possible classes."""
    total, off = 0.0, 0.0
    for c in range(a.shape[0]):
        off += a[c]
        share = (1.0 if c == y else 0.0) - a[c]
        if share < -_ROUNDING or (not possible[c] and a[c] != 0):
            return np.inf
        if share > 0:
            total += share * np.log(share)
    return total if abs(off) <= _ROUNDING else np.inf


@njit(**SCALAR)
def softmax_bracket(a, y, possible, chance):  # type: ignore[no-untyped-def]
    """The Fenchel-Young bracket l(z) + l*(-a) + a . z (42) for chance = softmax(z): a Kullback-Leibler divergence.

    Every term of the sum is non-negative, so no rounding makes it negative.
    """
    total = 0.0
    for c in range(a.shape[0]):
        if possible[c]:
            share, other = (1.0 if c == y else 0.0) - a[c], max(chance[c], 1e-300)
            total += share * np.log(share / other) - share + other if share > 0 else other
    return total


@njit(**SCALAR)
def softmax_step(a, z, y, sq, possible, new, v, chance, slope, move):  # type: ignore[no-untyped-def]
    """new = the a' that maximises -l*(-a') - (a' - a) . z - sq |a' - a|^2 / 2 (43). The others: memory.

    Newton with line search for the scores v = z + sq (a' - a) to which the step leads: they minimise
    l(v) + a . (v - z) + |v - z|^2 / (2 sq), whose second derivative is diagonal plus rank one.
    """
    k = z.shape[0]
    start = softmax_chances(z, possible, chance)
    for c in range(k):
        v[c] = z[c]
    value = start - z[y]
    for _ in range(_NEWTON_STEPS if sq > _EXPLICIT else 0):
        along = weight = decrement = 0.0
        for c in range(k):  # no loop both sums and writes: see numerics.compile_cache
            slope[c] = chance[c] - (1.0 if c == y else 0.0) + a[c] + (v[c] - z[c]) / sq if possible[c] else 0.0
            move[c] = sq * slope[c] / (1.0 + sq * chance[c])
        for c in range(k):
            along += chance[c] * move[c]
            weight += chance[c] / (1.0 + sq * chance[c])
        for c in range(k):
            move[c] += sq * chance[c] / (1.0 + sq * chance[c]) * along / weight
        for c in range(k):
            decrement += slope[c] * move[c]
        t, before = 1.0, value
        while True:
            for c in range(k):
                v[c] -= t * move[c]
            value = softmax_chances(v, possible, chance) - v[y]
            for c in range(k):
                if possible[c]:
                    value += (v[c] - z[c]) * (a[c] + 0.5 * (v[c] - z[c]) / sq)
            if value <= before - 1e-4 * t * decrement + 1e-14 * (1.0 + abs(before)) or t < 1e-12:
                break
            for c in range(k):
                v[c] += t * move[c]
            t *= 0.5
        if decrement <= _CLOSE:
            break
    for c in range(k):
        new[c] = (1.0 if c == y else 0.0) - chance[c] if possible[c] else 0.0
