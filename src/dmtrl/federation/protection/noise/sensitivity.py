"""By how much what a site releases can change when one row of a task is replaced by another.

Rows are clipped to the norm R and every row has the same weight 1/n, so a mean over rows changes by at most 1/n times
the largest distance between the terms of two rows. The bounds R, Y and L come from the study, never from the data.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class MomentWeights:
    """With which weights the blocks of a row's moments are released; the rows are scaled to norm 1, curvature and slope
    to 1. The noise is the same for every number, so a larger weight makes a block more accurate and all others less.

    A row x with curvature k and slope a contributes curvature k x x^T (symmetric, so off-diagonal entries count twice),
    cross k x, constant k, slope a x and intercept a.
    """

    curvature: float = 1.0
    cross: float = math.sqrt(2.0)
    constant: float = 1.0
    slope: float = 1.0
    intercept: float = 1.0


def moments_sensitivity(weights: MomentWeights, varying: bool) -> float:
    """The largest distance between the weighted moments of two rows of norm at most 1 with slopes in [-1, 1].

    `varying`: the curvature of a row lies in [0, 1]; otherwise it is always 1, and its mean is not released.

    The squared distance |phi - phi'|^2 = |phi|^2 + |phi'|^2 - 2 <phi, phi'> is convex in each curvature, so its maximum
    lies at curvatures of 0 and 1. Let q = x . x' and s = a a', both in [-1, 1]. If both curvatures are 1, <phi, phi'> =
    w1 q^2 + w2 q + w3 + s (w4 q + w5): linear in s and quadratic in q. If one of them is 0, only s (w4 q + w5) is left,
    and |phi'|^2 loses its first part. The bound is attained from two features on.
    """
    w1, w2, w3, w4, w5 = (
        w * w for w in (weights.curvature, weights.cross, weights.constant, weights.slope, weights.intercept)
    )
    if not varying:
        w3 = 0.0
    curved, sloped = w1 + w2 + w3, w4 + w5
    least = min(_minimum(w1, w2 + s * w4, w3 + s * w5) for s in (-1.0, 1.0))
    squared = 2.0 * (curved + sloped - least)
    return math.sqrt(max(squared, curved + 4.0 * sloped) if varying else squared)


def _minimum(a: float, b: float, c: float) -> float:
    """The minimum of a q^2 + b q + c over q in [-1, 1]."""
    points = [-1.0, 1.0]
    if a > 0:
        points.append(min(max(-b / (2.0 * a), -1.0), 1.0))
    return min(a * q * q + b * q + c for q in points)


def dual_sensitivity(row_norm: float, slope: float, rows: np.ndarray, gap: np.ndarray, step: float) -> np.ndarray:
    """By how much the vector b of each task can change: 2 L R / n for the exact proximal point, and 2 sqrt(2 g / s) for
    a point whose duality gap is at most g (docs/math.md (7.1), once for each of the two data sets).

    Exact: let u, u' be the proximal points of F + l/n and F + l'/n with the same centre. Their optimality conditions,
    subtracted and multiplied by u - u', give |u - u'|^2 / s <= <a x - a' x', u - u'> / n, because F is monotone. Hence
    |b - b'| = |u - u'| / s <= |a x - a' x'| / n <= 2 L R / n, whatever s, the loss and the other rows are.
    """
    return 2.0 * slope * row_norm / np.asarray(rows) + 2.0 * np.sqrt(2.0 * np.asarray(gap) / step)


def gap_for(share: float, row_norm: float, slope: float, rows: np.ndarray, step: float) -> np.ndarray:
    """The local gap whose part of `dual_sensitivity` is this share of the exact part."""
    return np.asarray(0.5 * step * (share * slope * row_norm / np.asarray(rows)) ** 2)


def gap_rounding(
    row_norm: float, slope: float, own: float, rows: np.ndarray, points: np.ndarray, step: float
) -> np.ndarray:
    """What rounding can hide of a local gap, a mean of brackets l(z) + l*(-a) + a z at u = c + s b: a bound that
    depends on the number of rows, but on no row.

    own: bounds the loss at 0 and the conjugate. |b| <= L R and |u| <= |c| + s L R for a task with the centre c, which
    is a row of `points`. So the parts of a bracket are at most own + L R |u|, own and L R |u|, and each has a relative
    error of a few and of d machine epsilons. Brackets are not negative, so their sum adds almost nothing to that. The
    computed b differs from that of the dual variables by e, a sum of n terms, and u from c + s b by rounding; (7.1)
    holds for such a u with a gap that is larger by |u - c - s b|^2 / (2 s).
    """
    eps, width = float(np.finfo(float).eps), points.shape[1]
    u = np.linalg.norm(points, axis=1) + step * slope * row_norm
    brackets = (width + 50) * eps * (2.0 * own + 4.0 * slope * row_norm * u)
    off = eps * (np.asarray(rows) * slope * row_norm + u / step)
    return np.asarray(brackets + step * off**2)
