"""Problems, and callbacks that kill actors, for tests on a real cluster."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl import Outcome, RoundRecord, Settings, TaskData
from dmtrl.datasets import make_synthetic
from dmtrl.engines import RayEngine, RayOptions
from dmtrl.losses import get_loss
from support import clusters
from support.solving import solve_data

WORKERS = 4
MakeProblem = Callable[[Any], tuple[TaskData, str, float]]


def school(shared_data: Any) -> tuple[TaskData, str, float]:
    with np.load(shared_data / "school.npz") as file:
        train = file["train_1"]
        X, y, task = file["X"][train].astype(float), file["y"][train].astype(float), file["task"][train]
    return TaskData.from_long(X, y - y.mean(), task), "squared", 0.1


def synthetic(shared_data: Any) -> tuple[TaskData, str, float]:
    return make_synthetic(1, rows_per_task=200).train, "hinge", 1e-3


def mds_shaped(shared_data: Any) -> tuple[TaskData, str, float]:
    """22 tasks of unequal size with 10,000 features, of which a row has a few dozen."""
    rng = np.random.default_rng(0)
    parts = []
    for rows in rng.integers(40, 200, size=22):
        X = sparse.random(rows, 10_000, density=0.004, format="csr", random_state=rng)
        parts.append((X, np.where(rng.random(rows) < 0.5, 1.0, -1.0)))
    return TaskData.from_list(parts), "logistic", 1e-3


class Killer:
    """A callback that kills a random actor a moment after random rounds: before or while it computes."""

    def __init__(self, times: int, rounds: int, seed: int = 0):
        self._rng = np.random.default_rng(seed)
        # at least three rounds before the end, so that every loss is detected
        self._when = set(self._rng.choice(rounds - 3, size=times, replace=False).tolist())
        self._timer: threading.Timer | None = None
        self._killed: set[int] = set()

    def __call__(self, record: RoundRecord) -> None:
        self.join()  # so that kills do not overlap
        if record.round in self._when:
            self._timer = threading.Timer(float(self._rng.uniform(0.0, 0.02)), self._kill)
            self._timer.start()

    def _kill(self) -> None:
        alive = [process for process in clusters.actors() if process.pid not in self._killed]
        victim = alive[int(self._rng.integers(len(alive)))]
        if clusters.kill(victim):
            self._killed.add(victim.pid)

    @property
    def killed(self) -> int:
        return len(self._killed)

    def join(self) -> None:
        if self._timer is not None:
            self._timer.join()


def runs(
    problem: tuple[TaskData, str, float],
    rounds: int,
    disturb: Callable[[RoundRecord], object],
    address: str,
    workers: int = WORKERS,
    **options: Any,
) -> tuple[Outcome, Outcome, int]:
    """The same run undisturbed in this process and disturbed on the cluster, and how many workers were lost."""
    data, loss, lam = problem
    common: dict[str, Any] = {"loss": loss, "reg_lambda": lam, "settings": Settings(tol=0.0, max_rounds=rounds)}
    plain = solve_data(data, workers=workers, **common)
    with RayEngine(data.sources(workers), get_loss(loss), RayOptions(address, **options)) as engine:
        disturbed = solve_data(data, engine=engine, callbacks=[disturb], **common)
        return plain, disturbed, engine.losses


def same_bits(a: Outcome, b: Outcome) -> None:
    assert a.W.tobytes() == b.W.tobytes()
    assert a.dual.B.tobytes() == b.dual.B.tobytes()
    assert a.certificate == b.certificate
