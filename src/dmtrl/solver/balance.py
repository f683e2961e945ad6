"""How much work each worker is given in a round, by its measured speed (`Settings.balance`)."""

from collections.abc import Mapping

import numpy as np

from dmtrl.solver.layout import Layout

_OVERHEAD = 1.5  # evaluating a row and summing B, in coordinate steps
_MIN_PASSES = 1.0  # of the slowest worker: with fewer it would evaluate more than improve
_MEMORY = 0.5  # weight of the speeds measured before


class Balance:
    """Limits each worker's coordinate steps so that all end a round together.

    A worker's speed is (steps + 1.5 rows) per second in its last rounds. Every worker gets the time that the median
    worker needs for the passes wanted by the worker that wants most, or the time that the slowest needs for one pass if
    that is longer, and as many steps as fit into it. Other local solvers always do the same work and are not limited.
    """

    def __init__(self, layout: Layout):
        self._rows = np.array([layout.rows[units].sum() for units in layout.positions], dtype=float)
        self._layout = layout
        self._speed: np.ndarray | None = None
        self._passes = 0.0
        self._limit: np.ndarray | None = None  # steps of each worker in the present round

    def limits(self) -> dict[int, np.ndarray]:
        """For each worker the most steps of each of its units in the next round; empty before speeds are known."""
        if self._speed is None:
            return {}
        one_pass = (self._rows / self._speed)[self._rows > 0]  # a worker may hold empty units only
        time = max(np.median((self._passes + _OVERHEAD) * one_pass), np.max((_MIN_PASSES + _OVERHEAD) * one_pass))
        self._limit = np.ceil(self._speed * time - _OVERHEAD * self._rows).astype(np.int64)
        passes, rows = self._limit / np.maximum(self._rows, 1.0), self._layout.rows

        def steps(k: int, units: np.ndarray) -> np.ndarray:
            fair = np.ceil(passes[k] * rows[units])
            return np.where(rows[units] > 0, np.maximum(fair, 1), 0).astype(np.int64)

        return {k: steps(k, units) for k, units in enumerate(self._layout.positions)}

    def learn(self, seconds: Mapping[int, float], steps: np.ndarray) -> None:
        """What the round took: the seconds of each worker, and the coordinate steps of each unit."""
        taken = np.array([steps[units].sum() for units in self._layout.positions], dtype=float)
        elapsed = np.maximum([seconds[k] for k in range(len(taken))], 1e-9)
        speed = np.maximum(taken + _OVERHEAD * self._rows, 1.0) / elapsed
        self._speed = speed if self._speed is None else _MEMORY * self._speed + (1.0 - _MEMORY) * speed
        limited = np.zeros(len(taken), dtype=bool) if self._limit is None else taken >= self._limit
        if not limited.all():  # workers that stopped early show how much is enough
            self._passes = float((taken / np.maximum(self._rows, 1.0))[~limited].max())
