"""The Ray engine from the outside: options, sources that only actors read, and error messages."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dmtrl import (
    Execution,
    LocalOptions,
    MTRLClassifierCV,
    MTRLRegressor,
    Problem,
    RayOptions,
    RoundRecord,
    Settings,
    SourcePlan,
    TaskData,
    solve,
)
from dmtrl.engines import LocalEngine, RayEngine, choose_engine
from dmtrl.engines.ray import cpu_share
from dmtrl.losses import get_loss
from dmtrl.solver.grid import Grid
from dmtrl.solver.search import search
from support import clusters
from support.checkpoints import CVCallback
from support.problems import random_problem
from support.shell_data import run
from support.solving import solve_data
from support.waiting import CEILING

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with clusters.of_nodes(1, cpus=2) as cluster:
        yield cluster


# The driver of a cluster, in a process of its own, so that its memory can be measured.
DRIVER = """
import json, pickle, sys
from dmtrl import Execution, Problem, RayOptions, Settings, SourcePlan, solve
from dmtrl_lab.bench.scale_run import memory
from dmtrl.engines.ray import cluster

folder, address = sys.argv[1:]
options = RayOptions(address)

with cluster(options):
    small = SourcePlan.from_files(folder + "/small", target="y", task="t")
    quick = Execution(RayOptions(address, 1), Settings(max_rounds=2, tol=0.5))
    solve(Problem.of(small, loss="squared", reg_lambda=0.1), quick)
    before = memory()[1]
    plan = SourcePlan.from_files(folder + "/large", target="y", task="t")
    how = Execution(RayOptions(address, 2), Settings(tol=0.1))
    outcome = solve(Problem.of(plan, loss="squared", reg_lambda=0.1), how)
    print(json.dumps({
        "memory": memory()[1] - before,
        "messages": [[record.bytes_sent, record.bytes_received] for record in outcome.history],
        "sources": sum(len(pickle.dumps(source)) for source in plan.sources(2)),
        "W": outcome.W.tolist(),
        "names": plan.names.tolist(),
    }))
"""


def _parquet(folder: Path, rows: int, d: int, tasks: int) -> tuple[int, TaskData]:
    """A folder with a file for each task; its size, and the same rows as arrays."""
    import pyarrow as pa
    from pyarrow import parquet

    rng, parts = np.random.default_rng(0), []
    for task in range(tasks):
        X, y = rng.normal(size=(rows, d)), rng.normal(size=rows)
        (folder / f"t={task}").mkdir(parents=True)
        columns = {f"x{j}": X[:, j] for j in range(d)} | {"y": y}
        parquet.write_table(pa.table(columns), folder / f"t={task}" / "rows.parquet", row_group_size=5000)
        parts.append((X, y))
    return sum(file.stat().st_size for file in folder.rglob("*.parquet")), TaskData.from_list(parts)


def test_rows_pass_through_neither_driver_nor_coordinator(cluster: Any, tmp_path: Path) -> None:
    _parquet(tmp_path / "small", 20, 40, 2)
    size, data = _parquet(tmp_path / "large", 12_000, 40, 8)
    assert size > 30e6
    command = [sys.executable, "-c", DRIVER, str(tmp_path), cluster.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CEILING, check=False)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed["memory"] < size / 4
    assert printed["sources"] < 1e5
    for sent, received in printed["messages"]:  # d numbers a task down, d up, and sums
        assert sent < 8 * 8 * 40 + 2000
        assert received < 8 * 8 * 40 + 4000
    plain = solve(
        Problem.of(data, loss="squared", reg_lambda=0.1), Execution(LocalOptions(workers=2), settings=Settings(tol=0.1))
    )
    assert np.array(printed["W"]).tobytes() == plain.W.tobytes()


def test_one_task_per_actor_and_one_task_over_several(cluster: Any) -> None:
    data = random_problem("squared", m=3)
    options = RayOptions(cluster.address)
    common: dict[str, Any] = {"loss": "squared", "reg_lambda": 0.1, "settings": Settings(tol=1e-4)}
    for layout in ({"workers": data.m}, {"workers": 2, "shards": [2, 1, 1]}):
        assert clusters.no_actors()
        counted: list[int] = []
        count = [lambda _, counted=counted: counted.append(len(clusters.actors()))]
        there = solve_data(data, engine=options, callbacks=count, **layout, **common)
        here = solve_data(data, **layout, **common)
        assert there.W.tobytes() == here.W.tobytes()
        assert set(counted) == {layout["workers"]}
    assert clusters.no_actors()


@pytest.mark.parametrize("multi_class", ["softmax", "ovr"])
def test_several_classes_and_own_parts(cluster: Any, multi_class: str) -> None:
    rng = np.random.default_rng(0)
    tasks, X = np.repeat(np.arange(4), 40), rng.normal(size=(160, 5))
    y = np.argmax(X[:, :3] + 0.5 * rng.normal(size=(160, 3)), axis=1)
    options: dict[str, Any] = {"multi_class": multi_class, "lambdas": [0.1, 0.01], "owns": (0.0, 2.0), "cv": 3}
    here = MTRLClassifierCV(**options, engine=LocalOptions(workers=2)).fit(X, y, tasks=tasks)
    there = MTRLClassifierCV(**options, engine=RayOptions(cluster.address, workers=2)).fit(X, y, tasks=tasks)
    assert there.coef_.tobytes() == here.coef_.tobytes()
    assert there.weight_shares_.tobytes() == here.weight_shares_.tobytes()
    assert (there.predict(X, tasks) == y).mean() > 0.7


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_folds_run_at_the_same_time_on_the_same_actors(cluster: Any, killed: bool) -> None:
    """With the bits of the local engine, also if an actor that all paths use is killed. The engine itself, which had a
    run of its own before, continues it on the new actor."""
    data, loss = random_problem("logistic", m=4, d=4, rows=15), get_loss("logistic")
    problem, settings = Problem.of(data, loss=loss, reg_lambda=0.1), Settings(tol=1e-4)
    grid = Grid((1.0, 0.1, 0.01), (0.0, 0.5), folds=4)
    seen: set[str] = set()
    left = [clusters.kill] if killed else []

    def watch(record: RoundRecord) -> None:
        seen.add(threading.current_thread().name)
        if len(seen) > 1 and left:
            left.pop()(clusters.actors()[0])

    with LocalEngine(data.sources(1), loss) as engine:
        here = search(problem, grid, Execution(engine, settings)).results
        alone = solve(problem, Execution(engine, settings))
    with RayEngine(data.sources(2), loss, RayOptions(cluster.address)) as engine:
        solve(problem, Execution(engine, settings))
        there = search(problem, grid, Execution(engine, settings, callbacks=[CVCallback(on_round=watch)])).results
        again = solve(problem, Execution(engine, settings))
        assert len(clusters.actors()) == 2
    assert engine.paths == 3
    assert len(seen) > 1
    assert not left
    assert engine.losses == killed
    for name, values in vars(here).items():
        assert values.tobytes() == getattr(there, name).tobytes(), name
    assert again.W.tobytes() == alone.W.tobytes()
    assert clusters.no_actors()


def test_one_path_at_a_time_where_answers_may_not_wait(cluster: Any) -> None:
    data, loss = random_problem("squared", m=2), get_loss("squared")
    with RayEngine(data.sources(1), loss, RayOptions(cluster.address, answer_timeout=CEILING)) as engine:
        assert engine.paths == 1
        assert engine.sibling(0) is None


def test_an_error_in_an_actor_comes_back_with_its_message(cluster: Any, tmp_path: Path) -> None:
    data = random_problem("squared", m=2)
    invalid = TaskData.from_list([(data.X[:5], data.y[:5]), (data.X[5:9] * np.nan, data.y[5:9])], ["north", "south"])
    options = RayOptions(cluster.address)
    with pytest.raises(ValueError, match="task 'south', row 0, column 0: X holds NaN"):
        solve(Problem.of(invalid, loss="squared", reg_lambda=1.0), Execution(options))
    plan = SourcePlan.from_callable("no.such.module:load", ["a"])
    with pytest.raises(ModuleNotFoundError, match=r"a machine of the Ray cluster lacks a package: .*'no'"):
        solve(Problem.of(plan, loss="squared", reg_lambda=1.0), Execution(options))
    (tmp_path / "a.csv").write_text("t,y,x\nn,1,2\nn,2,two\n")
    plan = SourcePlan.from_files(tmp_path / "a.csv", "y", "t")
    with pytest.raises(ValueError, match=r"column 'x' holds 'two' \(line 3\), which is not a number"):
        solve(Problem.of(plan, loss="squared", reg_lambda=1.0), Execution(options))
    assert clusters.no_actors()


def test_resources_that_no_node_has(cluster: Any) -> None:
    data = random_problem("squared", m=2)
    options = RayOptions(cluster.address, resources={"harp": 1}, recovery_timeout=1.0)
    with pytest.raises(RuntimeError, match=r"worker 0 could not be started within 1 seconds; give the cluster room"):
        solve(Problem.of(data, loss="squared", reg_lambda=1.0), Execution(options))


def test_no_cluster_at_the_address() -> None:
    data = random_problem("squared", m=2)
    with pytest.raises(ConnectionError, match=r"no Ray cluster at '127.0.0.1:9'"):
        solve(Problem.of(data, loss="squared", reg_lambda=1.0), Execution(RayOptions("127.0.0.1:9")))


def test_a_source_that_cannot_be_pickled_is_refused_before_anything_starts() -> None:
    lock = threading.Lock()
    plan = SourcePlan.from_callable(lambda task: (lock, task), ["a"])
    with pytest.raises(TypeError, match="the source of worker 0 cannot be pickled: cannot pickle"):
        RayEngine(plan.sources(1), get_loss("squared"))


def test_a_cluster_of_its_own_from_the_shell(tmp_path: Path) -> None:
    """Started when no address is given, and stopped afterwards; the model is the same as without it."""
    rng = np.random.default_rng(0)
    rows = ["school,score,age"]
    rows += [f"{i % 3},{x + 0.1 * rng.normal():.4f},{x:.4f}" for i, x in enumerate(rng.normal(size=60))]
    (tmp_path / "marks.csv").write_text("\n".join(rows))
    common = ["fit", str(tmp_path / "marks.csv"), "--task", "school", "--target", "score", "--lambda", "0.1", "--json"]
    found, before = [], clusters.running()
    for more in ([], ["--engine", "ray", "--workers", "2"]):
        result = run(*common, "--no-page", "--out", str(tmp_path / f"{len(more)}.dmtrl"), *more)
        assert result.exit_code == 0, result.output
        found.append(json.loads(result.stdout))
    assert found[0]["certificate"] == found[1]["certificate"]
    assert clusters.all_ended(besides=before)


def test_options_of_the_shell_that_need_ray(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,y,x\n1,2,3\n1,3,5\n2,2,1\n2,1,1\n")
    common = ["fit", str(tmp_path / "a.csv"), "--task", "t", "--target", "y", "--out", str(tmp_path / "m.dmtrl")]
    result = run(*common, "--workers", "2")
    assert result.exit_code == 1
    assert "--workers requires --engine ray" in result.output


def test_invalid_engines_are_refused() -> None:
    with pytest.raises(ValueError, match=r"engine must be 'local', 'ray', LocalOptions.* got 'spark'"):
        MTRLRegressor(engine="spark").fit(np.ones((3, 1)), np.arange(3.0))
    for wrong in (None, 3, RayOptions, LocalEngine):
        with pytest.raises(ValueError, match="engine must be"):
            choose_engine(wrong)
    with pytest.raises(ValueError, match="at least one source"):
        RayEngine([], get_loss("squared"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 0},
        {"cpus": -1.0},
        {"recovery_timeout": 0.0},
        {"answer_timeout": 0},
        {"answer_timeout": -1.0},
        {"answer_timeout": np.inf},
        {"answer_timeout": np.nan},
        {"answer_timeout": "5"},
        {"answer_timeout": True},
    ],
)
def test_invalid_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        RayOptions(**wrong)


def test_answer_timeout_is_off_by_default() -> None:
    assert RayOptions().answer_timeout is None
    assert RayOptions(answer_timeout=np.int64(9)).answer_timeout == 9  # type: ignore[arg-type]


# A process that holds a file open, and whose parent is gone.
ORPHAN = """
import subprocess, sys
hold = "import time; file = open('log', 'w'); print('ready', flush=True); time.sleep(600)"
pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
child = subprocess.Popen([sys.executable, "-c", hold], **pipes)
child.stdout.readline()
print(child.pid)
"""


def test_a_leftover_process_is_found_without_its_parent(tmp_path: Path) -> None:
    """By the file it holds open; its command line does not name the folder."""
    command = [sys.executable, "-c", ORPHAN]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    orphan = psutil.Process(int(printed.stdout))

    def seen() -> list[str]:  # beside the cluster of other tests
        return [title for title in clusters.running(str(tmp_path)) if "file = open" in title]

    try:
        assert orphan not in psutil.Process().children(recursive=True)
        assert len(seen()) == 1
    finally:
        orphan.kill()
        orphan.wait(CEILING)
    assert seen() == []


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'the Ray engine needs Ray: pip install "dmtrl\[ray\]"'):
        MTRLRegressor(engine="ray").fit(np.ones((3, 1)), np.arange(3.0))


@pytest.mark.parametrize(
    ("processors", "actors", "expected"),
    [([2.0], 2, 1.0), ([2.0], 3, 0.666), ([1.0, 1.0, 1.0], 4, 0.5), ([16.0, 16.0], 10, 1.0), ([0.0, 1.0], 5, 0.2)],
)
def test_actors_share_the_processors(processors: list[float], actors: int, expected: float) -> None:
    assert cpu_share(processors, actors) == expected
    assert sum(int(c / expected + 1e-6) for c in processors) >= actors
