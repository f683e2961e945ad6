"""Who holds what: the coordinator's map from workers and units to tasks.

Room: beside the coordinator's methods. Units are kept in the order of (task, shard), so every sum over units or
tasks is taken in the same order whatever the number of workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dmtrl.message import Message


@dataclass(frozen=True)
class Layout:
    positions: Sequence[np.ndarray]  # for each worker: where its units stand in the common order
    task: np.ndarray  # task of each unit
    owner: np.ndarray  # worker of each unit
    rows: np.ndarray
    weight: np.ndarray
    m: int
    d: int

    @classmethod
    def from_descriptions(cls, answers: Mapping[int, Message], m: int) -> "Layout":
        workers = sorted(answers)
        features = {int(answers[k].scalars["features"]) for k in workers}
        if len(features) != 1:
            raise ValueError(f"workers disagree about the number of features: {sorted(features)}")

        def join(name: str) -> np.ndarray:
            return np.concatenate([answers[k].arrays[name] for k in workers])

        task, shard = join("tasks"), join("shards")
        order = np.lexsort((shard, task))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        sizes = [len(answers[k].arrays["tasks"]) for k in workers]
        positions = np.split(place, np.cumsum(sizes)[:-1])
        owner = np.repeat(np.arange(len(workers)), sizes)[order]
        layout = cls(positions, task[order], owner, join("rows")[order], join("weight")[order], m, features.pop())
        layout._check()
        return layout

    def _check(self) -> None:
        for what, total in (
            ("no rows", self.per_task(self.rows)),
            ("a total sample weight of zero", self.per_task(self.weight)),
        ):
            empty = np.flatnonzero(total <= 0)
            if len(empty):
                raise ValueError(f"task number {empty[0]} has {what}; leave it out or give it data")

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
        total = np.zeros((self.m, *per_unit.shape[1:]), dtype=per_unit.dtype)
        np.add.at(total, self.task, per_unit)
        return total

    def scatter(self, worker: int, per_unit: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(per_unit[self.positions[worker]])

    def gather(self, answers: Mapping[int, Message], name: str) -> np.ndarray:
        parts = [answers[k].arrays[name] for k in range(len(self.positions))]
        joined = np.empty((len(self.task), *parts[0].shape[1:]), dtype=parts[0].dtype)
        for position, part in zip(self.positions, parts, strict=True):
            joined[position] = part
        return joined
