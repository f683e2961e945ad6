"""Every built-in loss as compiled scalar functions, selected by an integer id.

Symbols and equation numbers are those of docs/math.md. To change how a loss behaves, change its branch here: value,
conjugate, dual coordinate step, and for differentiable losses slope and curvature. The kernels of `dmtrl.worker` inline
these functions.
"""

import numpy as np

from dmtrl.numerics.compile_cache import SCALAR, njit

HINGE, SMOOTHED_HINGE, SQUARED_HINGE, LOGISTIC, SQUARED, ABSOLUTE = 0, 1, 2, 3, 4, 5
EPSILON_INSENSITIVE, HUBER, QUANTILE, POISSON, CUSTOM = 6, 7, 8, 9, 10

TINY = 1e-200


@njit(**SCALAR)
def _xlogx(x):  # type: ignore[no-untyped-def]
    return x * np.log(x) if x > 0 else 0.0


@njit(**SCALAR)
def loss_value(loss, param, z, y):  # type: ignore[no-untyped-def]
    """Return l(z, y)."""
    if loss == SQUARED:
        return 0.5 * (z - y) * (z - y)
    if loss <= LOGISTIC:
        margin = y * z
        slack = 1.0 - margin
        if loss == LOGISTIC:
            return np.log1p(np.exp(-margin)) if margin > 0 else np.log1p(np.exp(margin)) - margin
        if slack <= 0:
            return 0.0
        if loss == HINGE:
            return slack
        if loss == SQUARED_HINGE:
            return 0.5 * slack * slack
        return slack - 0.5 * param if slack >= param else 0.5 * slack * slack / param
    if loss == POISSON:
        return np.exp(z) - y * z + _xlogx(y) - y  # half the deviance, so non-negative
    r = y - z
    if loss == QUANTILE:
        return param * r if r >= 0 else (param - 1.0) * r
    r = abs(r)
    if loss == HUBER:
        return 0.5 * r * r if r <= param else param * (r - 0.5 * param)
    return max(r - param, 0.0)  # epsilon-insensitive; absolute is epsilon = 0


@njit(**SCALAR)
def loss_conjugate(loss, param, a, y):  # type: ignore[no-untyped-def]
    """Return l*(-a), which is infinite outside the domain."""
    if loss == SQUARED:
        return 0.5 * a * a - a * y
    if loss <= LOGISTIC:
        t = a * y
        if t < 0 or (t > 1 and loss != SQUARED_HINGE):
            return np.inf
        if loss == LOGISTIC:
            return _xlogx(t) + _xlogx(1.0 - t)
        if loss == SQUARED_HINGE:
            return 0.5 * t * t - t
        return 0.5 * param * t * t - t if loss == SMOOTHED_HINGE else -t
    if loss == POISSON:
        return np.inf if a > y else _xlogx(y - a) - _xlogx(y) + a
    if loss == QUANTILE:
        return np.inf if a > param or a < param - 1.0 else -a * y
    if loss == HUBER:
        return np.inf if abs(a) > param else 0.5 * a * a - a * y
    return np.inf if abs(a) > 1 else param * abs(a) - a * y


@njit(**SCALAR)
def _logistic_step(t0, margin, sq):  # type: ignore[no-untyped-def]
    """Return t in [0, 1] with logit(t) + margin + sq (t - t0) = 0, by Newton on the logit v."""
    flipped = margin + sq * (0.5 - t0) < 0
    if flipped:  # solve for 1 - t, so that v <= 0: there the equation is convex in v and Newton cannot cycle
        t0, margin = 1.0 - t0, -margin
    v = min(-margin, 0.0)  # the solution for sq = 0
    enough = 1e-4 if sq < 1e4 else 1e-6  # the error of t is the cube of the last step, and z moves sq times as much
    for k in range(30):
        e = np.exp(v)
        t = e / (1.0 + e)
        slope = t * (1.0 - t)
        change = -(v + margin + sq * (t - t0)) / (1.0 + sq * slope)
        if abs(change) <= enough:
            t += slope * change * (1.0 + 0.5 * (1.0 - 2.0 * t) * change)
            break
        v += change
        if k == 0 and abs(change) >= 1.0:  # far away: with t = exp(v), x = sq t solves x + log(x) = far
            far = sq * t0 - margin + np.log(sq)
            above = max(far, 1.0)
            near = min(far, np.log(above - np.log(above))) - np.log(sq)
            v = min(max(v, near - 1.0), near + 1.0)
        v = min(v, 0.0)
    return 1.0 - t if flipped else t


@njit(**SCALAR)
def _poisson_step(a0, z, y, sq):  # type: ignore[no-untyped-def]
    """Return a = y - r, where r > 0 solves log(r) - z - sq (y - a0 - r) = 0, by safeguarded Newton on v = log(r)."""
    rest = y - a0
    # x = sq r solves x + log(x) = k. From the right, Newton moves only by about one per step: start close.
    k = z + sq * rest + np.log(sq)
    v = (np.log(k - np.log(k)) if k > 1 else k) - np.log(sq)
    low, high = -745.0, 709.0
    v = min(max(v, low), high)
    for _ in range(100):
        r = np.exp(v)
        g = v - z + sq * (r - rest)
        if g > 0:
            high = v
        else:
            low = v
        new = v - g / (1.0 + sq * r)
        if not (low <= new <= high):
            new = 0.5 * (low + high)
        if abs(new - v) <= 1e-14 * (1.0 + abs(v)):
            v = new
            break
        v = new
    return y - np.exp(v)


@njit(**SCALAR)
def loss_step(loss, param, a, z, y, sq):  # type: ignore[no-untyped-def]
    """Return the new a that maximises -l*(-a') - (a' - a) z - sq (a' - a)^2 / 2  (5); sq may be zero."""
    if loss == SQUARED:
        return a + (y - z - a) / (1.0 + sq)
    sq = max(sq, TINY)
    if loss <= LOGISTIC:
        t = a * y
        slack = 1.0 - y * z
        if loss == LOGISTIC:
            return y * _logistic_step(t, y * z, sq)
        if loss == HINGE:
            return y * min(max(t + slack / sq, 0.0), 1.0)
        if loss == SQUARED_HINGE:
            return y * max(t + (slack - t) / (1.0 + sq), 0.0)
        return y * min(max(t + (slack - param * t) / (param + sq), 0.0), 1.0)
    if loss == POISSON:
        return _poisson_step(a, z, y, sq)
    if loss == HUBER:
        return min(max(a + (y - z - a) / (1.0 + sq), -param), param)
    v = a + (y - z) / sq
    if loss == QUANTILE:
        return min(max(v, param - 1.0), param)
    shrunk = max(abs(v) - param / sq, 0.0)
    return min(shrunk, 1.0) if v > 0 else -min(shrunk, 1.0)


@njit(**SCALAR)
def loss_bracket(loss, param, a, z, y):  # type: ignore[no-untyped-def]
    """Return the Fenchel-Young bracket l(z) + l*(-a) + a z, or for the logistic loss an upper bound.

    There it is the Kullback-Leibler divergence of t = a y from s = 1 / (1 + exp(y z)), at most (t - s)^2 / (s (1 - s)),
    which needs no logarithm.
    """
    if loss == LOGISTIC:
        e = np.exp(min(max(y * z, -300.0), 300.0))
        off = a * y * (1.0 + e) - 1.0
        return off * off / e
    return loss_value(loss, param, z, y) + loss_conjugate(loss, param, a, y) + a * z


@njit(**SCALAR)
def loss_slope(loss, param, z, y):  # type: ignore[no-untyped-def]
    """Return -l'(z), the dual variable that belongs to z. Differentiable losses only."""
    if loss == SQUARED:
        return y - z
    if loss <= LOGISTIC:
        slack = 1.0 - y * z
        if loss == LOGISTIC:
            return y / (1.0 + np.exp(y * z))
        if loss == SQUARED_HINGE:
            return y * max(slack, 0.0)
        return y * min(max(slack / param, 0.0), 1.0)
    if loss == POISSON:
        return y - np.exp(z)
    return min(max(y - z, -param), param)  # Huber


@njit(**SCALAR)
def loss_curvature(loss, param, z, y):  # type: ignore[no-untyped-def]
    """Return l''(z), or an element of its generalised derivative. Differentiable losses only."""
    if loss == SQUARED:
        return 1.0
    if loss <= LOGISTIC:
        slack = 1.0 - y * z
        if loss == LOGISTIC:
            t = 1.0 / (1.0 + np.exp(abs(z)))
            return t * (1.0 - t)
        if slack <= 0:
            return 0.0
        if loss == SQUARED_HINGE:
            return 1.0
        return 1.0 / param if slack <= param else 0.0  # at the kink the larger value keeps steps short
    if loss == POISSON:
        return np.exp(z)
    return 1.0 if abs(y - z) <= param else 0.0  # Huber
