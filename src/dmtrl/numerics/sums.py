"""Sums of arrays with twice the precision of a float, so that the order of the terms does not show in the result."""

import numpy as np


class DoubleSum:
    """A sum of arrays of one shape, held as a float and what rounding took from it.

    `parts` (2, *shape) may be sent elsewhere and added to another sum. The rounding errors of `total` are about 1e-32
    of the sum of the absolute terms, far below the last digit of a float: whatever the order of the terms, `total` is
    the same float except where the exact sum lies that close to the middle between two floats.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.parts = np.zeros((2, *shape))

    @property
    def total(self) -> np.ndarray:
        return np.asarray(self.parts[0] + self.parts[1])

    def add(self, terms: np.ndarray) -> None:
        """Add every array in `terms` (number of terms, *shape)."""
        high, low = terms, np.zeros_like(terms)
        while len(high) > 1:
            half = len(high) // 2
            first, error = _two_sum(high[:half], high[half : 2 * half])
            error += low[:half] + low[half : 2 * half]
            if len(high) % 2:
                first, error = np.concatenate([first, high[-1:]]), np.concatenate([error, low[-1:]])
            high, low = _two_sum(first, error)
        if len(high):
            self._add_one(high[0], low[0])

    def add_parts(self, parts: np.ndarray) -> None:
        """Add another sum."""
        self._add_one(parts[0], parts[1])

    def _add_one(self, high: np.ndarray, low: np.ndarray) -> None:
        first, error = _two_sum(self.parts[0], high)
        self.parts[0], self.parts[1] = _two_sum(first, error + (self.parts[1] + low))


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a + b as a float, and its rounding error, exactly (Knuth)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)
