"""How certain the correlations of tasks are: intervals from refits in which a group of rows counts less.

Equation numbers are those of docs/math.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import t as student

from dmtrl import notebook
from dmtrl.data.task_data import TaskData

_LARGEST = 0.999  # a correlation of one is infinite on Fisher's scale
_REMOVED = 0.75  # of the weight of a group of rows
_PAIRS_AT_ONCE = 2**22  # products of two tasks' deviations that are held in memory


@dataclass(frozen=True)
class CorrelationIntervals:
    """Intervals of the correlation of each pair of tasks.

    An interval contains zero unless the rows of the two tasks show that their weights are related: the weights are
    fitted to each task alone for this, because a fit that shares pulls tasks together. `p_value` is the probability of
    a product of weights at least as large if the true weights are orthogonal. Nothing is known of a task with a single
    row, with zero weights or without a fit: its intervals are -1 to 1, its `p_value` is NaN.
    """

    lower: Any
    upper: Any
    p_value: Any
    level: float

    @property
    def without_zero(self) -> np.ndarray:
        """Which intervals do not contain zero."""
        return np.asarray((np.asarray(self.lower) > 0) | (np.asarray(self.upper) < 0))

    def __str__(self) -> str:
        sure = self.without_zero
        pairs = np.triu_indices(len(sure), 1)
        return f"{int(sure[pairs].sum())} of {len(pairs[0])} correlations have a {self.level:.0%} interval without zero"

    def _repr_html_(self) -> str:
        low, high = np.asarray(self.lower), np.asarray(self.upper)
        if len(low) > notebook.MAX_CELLS:
            return notebook.section(notebook.text(str(self)))
        names = list(getattr(self.lower, "index", range(len(low))))
        labels = [[f"{a:.2f} to {b:.2f}" for a, b in zip(*rows, strict=True)] for rows in zip(low, high, strict=True)]
        # coloured by the end that is nearer to zero: an interval that contains zero has no colour
        nearer = np.where((low > 0) | (high < 0), np.where(low > 0, low, high), 0.0)
        return notebook.section(notebook.text(str(self)), notebook.heat_map(nearer, names, labels))


@dataclass(frozen=True)
class Groups:
    """Rows of each task, divided into groups of about the same number of rows."""

    of_row: np.ndarray  # (n,)
    count: np.ndarray  # (m,): of each task, at most its rows

    @classmethod
    def draw(cls, starts: np.ndarray, most: int, rng: np.random.Generator) -> "Groups":
        rows = np.diff(starts)
        count = np.minimum(rows, most)
        return cls(np.concatenate([rng.permutation(n) % k for n, k in zip(rows, count, strict=True)]), count)

    def lighter(self, data: TaskData) -> Iterator[TaskData]:
        """The data with less weight on the first, second, ... group of every task."""
        before = np.ones(len(self.of_row)) if data.sample_weight is None else data.sample_weight
        for group in range(int(self.count.max())):
            yield replace(data, sample_weight=np.where(self.of_row == group, (1 - _REMOVED) * before, before))

    def deviations(self, refits: np.ndarray) -> np.ndarray:
        """Deviations (groups, m, d) of the weights of refits, scaled so that their squares sum to variances (48)."""
        used = np.arange(len(refits))[:, None] < self.count  # a task with few rows does not change in later refits
        mean = np.where(used[..., None], refits, 0.0).sum(axis=0) / self.count[:, None]
        return np.where(used[..., None], (refits - mean) * _scale(self.count)[:, None], 0.0)


def _scale(count: np.ndarray) -> np.ndarray:
    """The factor from a change in a refit to its share of a standard error."""
    safe = np.maximum(count, 2)
    return (safe - _REMOVED) / (_REMOVED * np.sqrt(safe * (safe - 1.0)))


def relation_test(W: np.ndarray, deviations: np.ndarray, groups: "Groups") -> tuple[np.ndarray, np.ndarray]:
    """The products of weights (m, d) of tasks fitted alone over their standard errors (49), and degrees of freedom."""
    of_one = np.square(np.einsum("gjd,id->gij", deviations, W, optimize=True)).sum(axis=0)  # w_i V_j w_i
    of_both = _traces(deviations)
    variance = np.maximum(of_one + of_one.T - of_both, of_both / 4)  # chance must not make it vanish
    product = W @ W.T
    statistic = np.divide(product, np.sqrt(variance), out=np.zeros_like(product), where=variance > 0)
    squares = np.square(of_one) / np.maximum(groups.count - 1, 1)
    freedom = np.square(of_one + of_one.T) / np.maximum(squares + squares.T, np.finfo(float).tiny)
    return statistic, np.maximum(freedom, 1.0)


def _traces(deviations: np.ndarray) -> np.ndarray:
    """The traces of the products of every two covariances, tr(V_i V_j)."""
    groups, m, d = deviations.shape
    flat = deviations.transpose(1, 0, 2).reshape(m * groups, d)
    found = np.empty((m, m))
    step = max(1, _PAIRS_AT_ONCE // (groups * groups * m))
    for first in range(0, m, step):
        some = flat[first * groups : (first + step) * groups]
        squares = np.square(some @ flat.T).reshape(len(some) // groups, groups, m, groups)
        found[first : first + step] = squares.sum(axis=(1, 3))
    return found


def intervals_of(
    estimate: np.ndarray,
    refits: np.ndarray,
    test: tuple[np.ndarray, np.ndarray],
    groups: Groups,
    unknown: np.ndarray,
    level: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The lower and upper ends (50) of correlations (m, m), from those (groups, m, m) of refits, and p-values.

    test: statistics and degrees of freedom. unknown: the tasks of which nothing is known.
    """
    statistic, freedom = test
    z, changes = fisher(estimate), fisher(refits)
    fewer = np.minimum(groups.count[:, None], groups.count)
    spread = np.sqrt(np.square(changes - changes.mean(axis=0)).sum(axis=0)) * _scale(fewer)
    half = student.ppf((1 + level) / 2, np.maximum(fewer - 1, 1)) * spread
    far, near, agrees = np.abs(z) + half, np.abs(z) - half, statistic * np.sign(z)
    limit = student.ppf((1 + level) / 2, freedom)
    clear = agrees > limit
    by_test = np.abs(z) * (1 - np.divide(limit, agrees, out=np.ones_like(z), where=clear))
    near = np.where(clear, np.maximum(near, by_test), np.minimum(near, 0.0))
    low = np.minimum(np.tanh(np.where(z >= 0, near, -far)), estimate)
    high = np.maximum(np.tanh(np.where(z >= 0, far, -near)), estimate) + 0.0  # no negative zero
    p_value = 2 * student.sf(np.abs(statistic), freedom)
    pairs = unknown[:, None] | unknown
    low[pairs], high[pairs], p_value[pairs] = -1.0, 1.0, np.nan
    for ends, same in ((low, 1.0), (high, 1.0), (p_value, 0.0)):
        np.fill_diagonal(ends, same)
    return low, high, p_value


def pad_pairs(values: np.ndarray, tasks: np.ndarray, m: int, empty: float) -> np.ndarray:
    """A matrix (m, m) with the values of some tasks, `empty` for pairs with another one, and one diagonal."""
    padded = np.full((m, m), empty)
    np.fill_diagonal(padded, values[0, 0])
    padded[np.ix_(tasks, tasks)] = values
    return padded


def fisher(correlation: np.ndarray) -> np.ndarray:
    """The inverse hyperbolic tangent, on which the spread of a correlation hardly depends on its size."""
    return np.arctanh(np.clip(correlation, -_LARGEST, _LARGEST))
