"""Runs that are stopped halfway and leave a checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl import (
    Checkpoint,
    TaskData,
)
from support.solving import solve_data


class Stopped(Exception):
    pass


def stop_after(number: int) -> Callable[[Any], None]:
    def stop(record: Any) -> None:
        if record.round == number:
            raise Stopped

    return stop


@dataclass(frozen=True)
class CVCallback:
    """A callback of an estimator that chooses lambda by cross-validation."""

    on_fit: Callable[[int, int], object] = lambda done, total: None
    on_round: Callable[[Any], object] = lambda record: None
    on_final_round: Callable[[Any], object] = lambda record: None

    def __call__(self, record: Any) -> None:
        self.on_final_round(record)

    def on_cv_round(self, record: Any) -> None:
        self.on_round(record)

    def on_cv_fit(self, done: int, total: int) -> None:
        self.on_fit(done, total)


def halfway(data: TaskData, place: Any, stop: int = 7, **more: Any) -> dict[str, Any]:
    """Leaves a checkpoint of a run that was stopped; the words with which it can go on."""
    how: dict[str, Any] = {"loss": "squared", "reg_lambda": 0.05, "workers": 2} | more
    with pytest.raises(Stopped):
        solve_data(data, checkpoint=Checkpoint(place, every_rounds=2), callbacks=[stop_after(stop)], **how)
    return how


def version(place: Path, number: int) -> Path:
    """The folder of a version, the second part of whose name is its run's own."""
    (found,) = place.glob(f"version-{number:06d}-*")
    return found


def numbers(place: Path) -> list[int]:
    """Of the versions at a place."""
    return sorted(int(path.name.split("-")[1]) for path in place.glob("version-*-*"))


def table(classes: int = 0, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X, tasks = rng.normal(size=(90, 4)), np.repeat(["a", "b", "c"], 30)
    z = X[:, 0] * np.where(tasks == "c", -1, 1) + X[:, 1] + 0.5 * rng.normal(size=90)
    return X, z if classes == 0 else np.digitize(z, np.quantile(z, np.arange(1, classes) / classes)), tasks
