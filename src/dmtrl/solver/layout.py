"""The coordinator's map from workers and units to tasks.

Units are kept in the order of (task, shard), so every sum over units or tasks is taken in the same order whatever the
number of workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dmtrl.protocol.rounds import Description


@dataclass(frozen=True)
class Layout:
    positions: Sequence[np.ndarray]  # for each worker: where its units stand in the common order
    task: np.ndarray  # task of each unit
    owner: np.ndarray  # worker of each unit
    rows: np.ndarray
    weight: np.ndarray
    m: int
    d: int  # weights of a task, without its intercepts
    outputs: int = 1  # scores of a row: one, or one for each class
    density: float = 1.0  # share of the sampled chunks of dense rows that are not all zero

    @classmethod
    def from_descriptions(cls, answers: Mapping[int, Description], m: int, may_lack_rows: bool = False) -> "Layout":
        """`may_lack_rows`: tasks may have no row that trains, in a fold."""
        workers = sorted(answers)
        features = {int(answers[k].features) for k in workers}
        outputs = {int(answers[k].outputs) for k in workers}
        if len(features) != 1 or len(outputs) != 1:
            what = ("features", features) if len(features) != 1 else ("classes", outputs)
            raise ValueError(f"workers disagree about the number of {what[0]}: {sorted(what[1])}")

        def join(name: str) -> np.ndarray:
            return np.concatenate([getattr(answers[k], name) for k in workers])

        task, shard, rows, weight = (join(name) for name in ("tasks", "shards", "rows", "weight"))
        order = np.lexsort((shard, task))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        sizes = [len(answers[k].tasks) for k in workers]
        positions = np.split(place, np.cumsum(sizes)[:-1])
        owner = np.repeat(np.arange(len(workers)), sizes)[order]
        used, sampled = sum(answers[k].chunks_used for k in workers), sum(answers[k].chunks for k in workers)
        if task.max(initial=0) >= m:
            raise ValueError(f"the workers hold task number {task.max()}, but the problem has {m} tasks")
        needed = (("no rows", rows), ("a total sample weight of zero", weight))
        for lack, values in needed[:1] if may_lack_rows else needed:
            empty = np.flatnonzero(np.bincount(task, weights=values, minlength=m) <= 0)
            if len(empty):
                raise ValueError(f"task number {empty[0]} has {lack}; leave it out or give it data")
        return cls(
            positions=positions,
            task=task[order],
            owner=owner,
            rows=rows[order],
            weight=weight[order],
            m=m,
            d=features.pop() * max(outputs),
            outputs=outputs.pop(),
            density=used / sampled if sampled else 1.0,
        )

    @property
    def split(self) -> bool:
        """Whether some task lies on several workers."""
        return len(self.task) > self.m

    @property
    def shards(self) -> np.ndarray:
        """For each unit: into how many its task is split."""
        return np.bincount(self.task, minlength=self.m)[self.task]

    def per_task(self, per_unit: np.ndarray) -> np.ndarray:
        """Sums over the units of each task."""
        if not self.split:
            return per_unit
        return np.asarray(np.add.reduceat(per_unit, np.searchsorted(self.task, np.arange(self.m)), axis=0))

    def per_unit(self, per_task: np.ndarray) -> np.ndarray:
        """Each unit's row of a per-task array; not a copy if no task is split."""
        return per_task[self.task] if self.split else per_task

    def scatter(self, worker: int, per_unit: np.ndarray) -> np.ndarray:
        """A worker's rows of a per-unit array; not a copy if its units are neighbours."""
        return np.ascontiguousarray(per_unit[self._places[worker]])

    def gather(self, answers: Mapping[int, Any], name: str) -> np.ndarray:
        """One field of all workers' answers, joined in unit order."""
        parts = [getattr(answers[k], name) for k in range(len(self.positions))]
        if len(parts) == 1 and isinstance(self._places[0], slice):
            return parts[0]
        joined = np.empty((len(self.task), *parts[0].shape[1:]), dtype=parts[0].dtype)
        for place, part in zip(self._places, parts, strict=True):
            joined[place] = part
        return joined

    @cached_property
    def _places(self) -> list[slice | np.ndarray]:
        return [slice(int(p[0]), int(p[-1]) + 1) if len(p) and (np.diff(p) == 1).all() else p for p in self.positions]
