"""Actors and nodes of a real cluster of three nodes are killed: the weights must have the same bits."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl import Execution, LocalOptions, Problem, RoundRecord, Settings, SourcePlan, TasksLeftOutWarning, solve
from dmtrl.engines import RayEngine, RayOptions
from dmtrl.engines.ray import cluster as connection
from dmtrl.losses import get_loss
from support import clusters
from support.problems import random_problem
from support.ray_faults import Killer, MakeProblem, mds_shaped, runs, same_bits, school, synthetic
from support.solving import solve_data
from support.waiting import CEILING, wait_for

pytestmark = [
    pytest.mark.faults,
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::dmtrl.NotConvergedWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """With a connection that all tests share."""
    with clusters.of_nodes(3, resources={"harp": 2}) as cluster, connection(RayOptions(cluster.address)):
        yield cluster


@pytest.mark.parametrize(("problem", "times", "rounds"), [(school, 6, 20), (synthetic, 3, 10)])
def test_actors_killed_in_one_run(
    problem: MakeProblem, times: int, rounds: int, cluster: Any, shared_data: Any
) -> None:
    killer = Killer(times, rounds)
    plain, disturbed, losses = runs(problem(shared_data), rounds, killer, cluster.address)
    killer.join()
    same_bits(plain, disturbed)
    assert killer.killed == times
    assert losses >= times  # each was another process


def once_at_round(number: int, act: Callable[[], object]) -> Callable[[RoundRecord], object]:
    """A callback; once also if the fit starts again."""
    left = [act]
    return lambda record: left.pop()() if left and record.round == number else None


def test_an_actor_that_hangs_and_rows_that_cannot_be_read_for_a_while(cluster: Any, tmp_path: Path) -> None:
    """An actor is alive and does not answer; its replacement is on a machine that mounts the file system late."""
    rng = np.random.default_rng(0)
    lines = [f"{i % 4},{x:.3f},{rng.normal() + x:.3f}" for i, x in enumerate(rng.normal(size=80))]
    rows, away = tmp_path / "rows.csv", tmp_path / "away.csv"
    rows.write_text("\n".join(["task,x,y", *lines]))
    plan = SourcePlan.from_files(rows, "y", "task")

    def come_back() -> None:
        wait_for(lambda: engine.losses >= 1, "the loss of the actor that hangs")
        engine._answer_timeout = None  # the others, and the replacement, may take their time
        wait_for(lambda: engine.losses >= 2, "a replacement that cannot read its rows")
        away.rename(rows)

    back = threading.Thread(target=come_back, daemon=True)

    def disturb() -> None:
        rows.rename(away)
        clusters.stop(clusters.actors()[0])
        engine._answer_timeout = 3.0
        back.start()

    common: dict[str, Any] = {"loss": "squared", "reg_lambda": 0.1, "settings": Settings(tol=0.0, max_rounds=6)}
    plain = solve_data(plan, workers=2, **common)
    options = RayOptions(cluster.address, recovery_timeout=CEILING)
    with RayEngine(plan.sources(2), get_loss("squared"), options) as engine:
        same_bits(plain, solve_data(plan, engine=engine, callbacks=[once_at_round(2, disturb)], **common))
    assert not back.is_alive(), "no worker was lost twice"
    assert clusters.no_actors()


def test_asynchronous_rounds(cluster: Any, shared_data: Any) -> None:
    """Two actors are killed in the middle, and another program takes the CPU of one. The certificates hold against a
    more accurate optimum."""
    ray = pytest.importorskip("ray")
    data, loss, lam = synthetic(shared_data)
    best = solve(Problem.of(data, loss=loss, reg_lambda=lam), Execution(settings=Settings(tol=1e-6))).certificate
    seen, squatters = [], []

    class Squatter:
        def sits(self) -> bool:
            return True

    def watch(record: RoundRecord) -> None:
        seen.append(record.gap)
        assert record.primal >= best.dual
        assert record.dual <= best.primal
        if record.round == 2:
            for process in clusters.actors()[:2]:
                clusters.kill(process)
            squatters.append(ray.remote(num_cpus=1)(Squatter).remote())
            ray.get(squatters[0].sits.remote())

    options, ray_options = Settings(tol=1e-4), RayOptions(cluster.address, recovery_timeout=CEILING, max_staleness=8)
    nodes = len(cluster.list_all_nodes())  # each has one processor: all are taken
    with RayEngine(data.sources(nodes), get_loss(loss), ray_options) as engine:
        outcome = solve(
            Problem.of(data, loss=loss, reg_lambda=lam), Execution(engine, settings=options, callbacks=[watch])
        )
        assert engine.losses >= 2
    ray.kill(squatters[0])
    assert outcome.converged
    assert seen[2] > 10 * options.tol, "the run ended before an actor was killed"


def test_actors_run_where_the_options_say(cluster: Any) -> None:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    data, nodes = random_problem("squared", m=4), cluster.list_all_nodes()
    there = NodeAffinitySchedulingStrategy(nodes[0].node_id, soft=False)
    harps = [2 * (node.get_resource_and_label_spec().resources.get("harp", 0) > 0) for node in nodes]
    assert sum(harps) == 2
    for options, expected in (
        (RayOptions(cluster.address, workers=2, cpus=0.5, resources={"harp": 1}), harps),
        (RayOptions(cluster.address, workers=2, cpus=0.5, strategy=there), [2, 0, 0]),
    ):
        assert clusters.no_actors()
        found: list[list[int]] = []
        count = [lambda _, found=found: found.append([len(clusters.actors_below(node)) for node in nodes])]
        plain = solve(Problem.of(data, loss="squared", reg_lambda=0.1), Execution(LocalOptions(workers=2)))
        same_bits(plain, solve(Problem.of(data, loss="squared", reg_lambda=0.1), Execution(options, callbacks=count)))
        assert found
        assert all(counts == expected for counts in found)


# The tests from here on lose nodes. The nodes that are left are enough.


def fullest(cluster: Any) -> Any:
    return max(cluster.worker_nodes, key=lambda node: len(clusters.actors_below(node)))


def test_a_node_killed(cluster: Any, shared_data: Any) -> None:
    lost = []
    disturb = once_at_round(3, lambda: lost.append(clusters.lose(cluster, fullest(cluster))))
    plain, disturbed, losses = runs(mds_shaped(shared_data), 10, disturb, cluster.address)
    same_bits(plain, disturbed)
    assert losses >= lost[0] > 0  # a replacement may be sent to the dead node too, until Ray detects the loss


class Hasty(RayOptions):
    """A long recovery_timeout while actors are started, and a short one afterwards."""

    def start(self, *given: Any) -> Any:
        engine: Any = super().start(*given)
        engine._recovery_timeout = 2.0
        return engine


def test_a_run_continues_with_one_node_less(cluster: Any) -> None:
    """Every actor reserves a CPU and every node has one, so the remaining nodes have room for one actor less."""
    workers = len(cluster.list_all_nodes())
    data = random_problem("squared", m=2 * workers)
    lose = once_at_round(1, lambda: clusters.lose(cluster, fullest(cluster)))
    common: dict[str, Any] = {"loss": "squared", "reg_lambda": 0.1}
    engine = Hasty(cluster.address, workers, on_lost="go_on", cpus=1.0)
    assert clusters.no_actors()
    with pytest.warns(TasksLeftOutWarning, match=f"with workers={workers - 1}"):
        rest = solve_data(data, engine=engine, callbacks=[lose], **common)
    assert rest.tasks is not None
    assert len(rest.tasks) == data.m - 2
    same_bits(rest, solve_data(data.only(rest.tasks), workers=workers - 1, **common))
