"""How strongly levels and shared weights are shrunk: the marginal likelihood of a model (docs/math.md section 19).

With levels of variance v/level around the shared level, and noise of variance v, this is REML of a random-intercept
model. The sums of the workers are enough for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.optimize import minimize_scalar

from dmtrl.solver.shared_model import QuadraticModel

_WEAKEST, _STRONGEST = 1e-4, 1e3  # of the grids; the strongest in units of the rows that a strength competes with
_GRID = 21
_NEAR = 5.0  # factor around a guess
_ACCURACY = 1e-4  # of the logarithm of a strength
_ALTERNATIONS = 3  # between the two strengths


@dataclass(frozen=True)
class SharedStrengths:
    """`level`: of the deviations of the levels, infinite if there are none. `ridge`: of the shared weights of columns
    with variance one."""

    level: float
    ridge: float


class MarginalLikelihood:
    """Twice the negative logarithm of the marginal likelihood, up to a constant (60), (61).

    `rows` is the total weight of the rows. The variance of the noise is profiled out, unless the loss is the negative
    logarithm of a likelihood that has none (`dispersion=False`).
    """

    def __init__(self, model: QuadraticModel, rows: float, dispersion: bool, scale: np.ndarray):
        self.model, self.rows, self._dispersion, self._scale = model, rows, dispersion, scale

    @property
    def rows_per_task(self) -> float:
        return self.rows / len(self.model.cross)

    def ridges(self, ridge: float) -> np.ndarray:
        """The ridge of each shared weight."""
        return np.where(self.model.features, ridge * self._scale, 0.0)

    def __call__(self, strengths: SharedStrengths) -> float:
        found = self.model.minimum(strengths.level, self.ridges(strengths.ridge))
        free = self.model.rank if strengths.ridge == 0 else self.model.k
        prior = 0.0 if strengths.ridge == 0 else -np.log(strengths.ridge) * int(self.model.features.sum())
        if not self._dispersion:
            return 2.0 * found.value + found.log_determinant + prior
        squares = max(2.0 * found.value, 1e-14 * abs(self.model.constant), 1e-300)
        return max(self.rows - free, 1.0) * float(np.log(squares)) + found.log_determinant + prior


def estimate(
    likelihood: MarginalLikelihood, level: float | None, ridge: float | None, start: SharedStrengths | None = None
) -> SharedStrengths:
    """The strengths that maximise the marginal likelihood; None is estimated, a number is kept.

    `start`: those of a model that differs little.
    """
    now = start or SharedStrengths(np.inf if level is None else level, 1.0 if ridge is None else ridge)
    guess: SharedStrengths | None = start
    for _ in range(_ALTERNATIONS if level is None and ridge is None and start is None else 1):
        before = now
        if level is None:
            at_level, near = partial(_at, likelihood, now, "level"), None if guess is None else guess.level
            now = replace(now, level=_best(at_level, likelihood.rows_per_task, near, may_be_infinite=True))
        if ridge is None:
            at_ridge, near = partial(_at, likelihood, now, "ridge"), None if guess is None else guess.ridge
            now = replace(now, ridge=_best(at_ridge, likelihood.rows, near, may_be_infinite=False))
        if close(before, now):
            break
        guess = now
    return now


def close(one: SharedStrengths, other: SharedStrengths, tolerance: float = 1e-3) -> bool:
    """Whether two strengths differ by less than a share of `tolerance`."""
    pairs = ((one.level, other.level), (one.ridge, other.ridge))
    return all(a == b or (np.isfinite(a + b) and abs(a - b) <= tolerance * max(a, b)) for a, b in pairs)


def _at(likelihood: MarginalLikelihood, others: SharedStrengths, name: str, value: float) -> float:
    return likelihood(replace(others, **{name: value}))


def _best(value: Callable[[float], float], rows: float, guess: float | None, may_be_infinite: bool) -> float:
    """The minimiser of a function of one strength; infinity where that is no worse.

    It is searched near `guess`, or if it is not there, on a grid and around the best value of the grid.
    """
    if guess is not None and np.isfinite(guess):
        point, least = _refined(value, guess / _NEAR, guess * _NEAR)
        if _NEAR**-0.9 < point / guess < _NEAR**0.9:
            return np.inf if may_be_infinite and value(np.inf) <= least else point
    grid = np.geomspace(_WEAKEST, max(_STRONGEST * rows, 1.0), _GRID)
    values = [value(point) for point in grid]
    best = int(np.argmin(values))
    point, least = _refined(value, grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)])
    if values[best] < least:
        point, least = float(grid[best]), values[best]
    return np.inf if may_be_infinite and value(np.inf) <= least else point


def _refined(value: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """The minimiser between two strengths, and the minimum."""
    bounds, options = (np.log(low), np.log(high)), {"xatol": _ACCURACY}
    found = minimize_scalar(lambda x: value(float(np.exp(x))), bounds=bounds, method="bounded", options=options)
    return float(np.exp(found.x)), float(found.fun)
