"""A real cluster of three nodes, whose actors and one of whose nodes are killed: the weights must not notice."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import clusters
from dmtrl import Outcome, RoundRecord, Settings, TaskData, solve
from dmtrl.datasets import make_synthetic
from dmtrl.engines import RayEngine, RayOptions
from dmtrl.losses import get_loss

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::dmtrl.NotConvergedWarning"),
]
WORKERS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with clusters.of_nodes(3) as cluster:
        yield cluster


def school(shared_data: Any) -> tuple[TaskData, str, float]:
    with np.load(shared_data / "school.npz") as file:
        train = file["train_1"]
        X, y, task = file["X"][train].astype(float), file["y"][train].astype(float), file["task"][train]
    return TaskData.from_long(X, y - y.mean(), task), "squared", 0.1


def synthetic(shared_data: Any) -> tuple[TaskData, str, float]:
    return make_synthetic(1, rows_per_task=200).train, "hinge", 1e-3


def mds_shaped(shared_data: Any) -> tuple[TaskData, str, float]:
    """22 tasks of unequal size, ten thousand features, a few dozen of them in a row."""
    rng = np.random.default_rng(0)
    parts = []
    for rows in rng.integers(40, 200, size=22):
        X = sparse.random(rows, 10_000, density=0.004, format="csr", random_state=rng)
        parts.append((X, np.where(rng.random(rows) < 0.5, 1.0, -1.0)))
    return TaskData.from_list(parts), "logistic", 1e-3


class Killer:
    """After some rounds, drawn at random, kills a random actor a moment later: while it works, or before it does."""

    def __init__(self, times: int, rounds: int, seed: int = 0):
        self._rng = np.random.default_rng(seed)
        # not so late that the run may be over before an actor is there to be killed
        self._when = set(self._rng.choice(rounds - 5, size=times, replace=False).tolist())
        self._timers: list[threading.Timer] = []
        self.killed = 0

    def __call__(self, record: RoundRecord) -> None:
        if record.round in self._when:
            timer = threading.Timer(float(self._rng.uniform(0.0, 0.02)), self._kill)
            self._timers.append(timer)
            timer.start()

    def _kill(self) -> None:
        alive = clusters.actors()
        if not alive:  # all that there were are being replaced
            return
        self.killed += clusters.kill(alive[int(self._rng.integers(len(alive)))])

    def join(self) -> None:
        for timer in self._timers:
            timer.join()


def runs(
    problem: tuple[TaskData, str, float], rounds: int, disturb: Callable[[RoundRecord], object], address: str
) -> tuple[Outcome, Outcome, int]:
    """The same run undisturbed in this process, and disturbed over the cluster; how many workers were lost."""
    data, loss, lam = problem
    common: dict[str, Any] = {"loss": loss, "reg_lambda": lam, "settings": Settings(tol=0.0, max_rounds=rounds)}
    plain = solve(data, workers=WORKERS, **common)
    with RayEngine(data.sources(WORKERS), get_loss(loss), RayOptions(address=address)) as engine:
        disturbed = solve(data, engine=engine, callbacks=[disturb], **common)
        return plain, disturbed, engine.losses


def same_bits(a: Outcome, b: Outcome) -> None:
    assert a.W.tobytes() == b.W.tobytes()
    assert a.dual.B.tobytes() == b.dual.B.tobytes()
    assert a.certificate == b.certificate


def test_actors_killed_in_one_run(cluster: Any, shared_data: Any) -> None:
    killer = Killer(10, 30)
    plain, disturbed, losses = runs(school(shared_data), 30, killer, cluster.address)
    killer.join()
    same_bits(plain, disturbed)
    assert killer.killed >= 8  # one that comes while all actors are being replaced finds nobody
    assert losses >= 1  # two kills may hit one worker before it is missed


def test_a_node_killed(cluster: Any, shared_data: Any) -> None:
    lost = []

    def disturb(record: RoundRecord) -> None:
        if record.round == 3:
            victim = max(cluster.worker_nodes, key=lambda node: len(clusters.actors_below(node)))
            on_it = clusters.actors_below(victim)
            lost.append(len(on_it))
            cluster.remove_node(victim, allow_graceful=False)
            for process in on_it:
                clusters.kill(process)

    plain, disturbed, losses = runs(mds_shaped(shared_data), 10, disturb, cluster.address)
    same_bits(plain, disturbed)
    assert losses >= lost[0] > 0  # a replacement may be sent to the dead node as well, while nobody knows
