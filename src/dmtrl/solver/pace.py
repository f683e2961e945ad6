"""What depends on time: who answered when, and how much work each worker is given.

Room: beside the coordinator's methods. Seconds enter a run only here and through the order in which answers arrive;
both are kept in a `Trace`, from which the same run can be made again to the bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dmtrl.solver.layout import Layout

_OVERHEAD = 1.5  # evaluating a row and summing B, in coordinate steps
_LEAST = 1.0  # passes of the slowest worker: with fewer it would evaluate more than improve
_MEMORY = 0.5  # weight of the speeds measured before


@dataclass(frozen=True)
class Trace:
    """All of a run that depended on time. `arrivals`: the workers whose answers were taken together, batch after
    batch, where rounds are not in step. `work`: for each round the most coordinate steps of every worker, where work is
    balanced."""

    arrivals: Sequence[Sequence[int]] = ()
    work: Sequence[Sequence[int]] = ()


class Balance:
    """How many coordinate steps each worker may take in a round so that all end together.

    A worker's speed is (steps + 1.5 rows) a second, from its own last rounds. All get the time that the median worker
    would need for the passes wanted by the one that wants most, or the slowest for one pass if that is longer, and the
    steps that fit into that time. Local solvers that do not go by coordinates always do the same work and are left
    alone.
    """

    def __init__(self, layout: Layout, again: Sequence[Sequence[int]] = ()):
        self._rows = np.array([layout.rows[units].sum() for units in layout.positions], dtype=float)
        self._layout = layout
        self._speed: np.ndarray | None = None
        self._passes = 0.0
        self._again = iter(again)
        self.work: list[tuple[int, ...]] = []

    def limits(self) -> dict[int, np.ndarray]:
        """For each worker the most steps of each of its units in the round to come; nothing before speeds are known."""
        most = self._most()
        if most is None:
            return {}
        passes = most / np.maximum(self._rows, 1.0)
        rows = self._layout.rows

        def steps(k: int, units: np.ndarray) -> np.ndarray:
            fair = np.ceil(passes[k] * rows[units])
            return np.where(rows[units] > 0, np.maximum(fair, 1), 0).astype(np.int64)

        return {k: steps(k, units) for k, units in enumerate(self._layout.positions)}

    def _most(self) -> np.ndarray | None:
        recorded = next(self._again, None)
        if recorded is not None:
            most = np.array(recorded, dtype=np.int64)
        elif self._speed is None:
            most = np.zeros(0, dtype=np.int64)
        else:
            one_pass = (self._rows / self._speed)[self._rows > 0]  # a worker may hold empty pieces only
            time = max(np.median((self._passes + _OVERHEAD) * one_pass), np.max((_LEAST + _OVERHEAD) * one_pass))
            most = np.ceil(self._speed * time - _OVERHEAD * self._rows).astype(np.int64)
        self.work.append(tuple(int(steps) for steps in most))
        return most if len(most) else None

    def learn(self, seconds: Mapping[int, float], steps: np.ndarray) -> None:
        """What the round took: the seconds of each worker, and the coordinate steps of each unit."""
        layout = self._layout
        taken = np.array([steps[units].sum() for units in layout.positions], dtype=float)
        speed = np.maximum(taken + _OVERHEAD * self._rows, 1.0) / np.maximum(
            [seconds[k] for k in range(len(taken))], 1e-9
        )
        self._speed = speed if self._speed is None else _MEMORY * self._speed + (1.0 - _MEMORY) * speed
        limited = np.zeros(len(taken), dtype=bool)
        if self.work and self.work[-1]:
            limited = taken >= np.array(self.work[-1])
        if not limited.all():  # those that stopped by themselves say how much is enough
            self._passes = float((taken / np.maximum(self._rows, 1.0))[~limited].max())
