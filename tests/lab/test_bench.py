"""`dmtrl bench`: fair timing, peers that reach the same quality, tables that say what was measured.

Here: what the benchmarks share, `solve` and `rounds` (run with --quick), and `stragglers`. The others are tested in
test_bench_kernels, test_bench_network, test_bench_startup, test_scale (run with --quick) and test_engines (`cluster`).
"""

import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dmtrl.cli.bench import CHOICES
from dmtrl.cli.main import main
from dmtrl.lab.bench import rounds, stragglers
from dmtrl.lab.bench import solve as whole_job
from dmtrl.lab.bench.suite import BENCHMARKS
from dmtrl.lab.bench.timing import Clock, interleaved, ratio
from dmtrl.lab.experiments.early_stop import StopRun
from dmtrl.lab.experiments.problems import load_problem
from dmtrl.lab.experiments.records import Record, Store
from dmtrl.report.content import Table
from dmtrl.solver.outcome import RoundRecord


def test_competitors_run_in_turn_after_a_warm_up() -> None:
    calls: list[str] = []
    timed = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b") or 7}, repeats=3)
    assert "".join(calls) == "abababab"
    assert {name: len(seconds) for name, seconds in timed.seconds.items()} == {"a": 3, "b": 3}
    assert timed.results["b"] == 7


def test_ratios_by_hand() -> None:
    assert ratio([2.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == (2.0, 2.0, 3.0)


def test_the_command_knows_every_benchmark() -> None:
    assert ("all", *BENCHMARKS.groups) == CHOICES
    names = [experiment.name for experiment in BENCHMARKS.experiments("all")]
    assert len(set(names)) == len(names) == len(BENCHMARKS.groups)
    for experiment in BENCHMARKS.experiments("all"):
        for quick in (True, False):
            keys = [experiment.key(run) for run in experiment.runs(quick)]
            assert keys, experiment.name
            assert len(set(keys)) == len(keys), experiment.name


def _record(gap: float) -> RoundRecord:
    return RoundRecord(4, gap, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, "sdca", 1.0, False, 10, 5, 0.1)


def test_the_clock_stops_at_the_gap_or_at_the_limit() -> None:
    clock = Clock(gap=0.1, limit=60.0)
    clock(_record(0.5))
    with pytest.raises(StopRun):
        clock(_record(0.05))
    assert (clock.rounds, clock.reached, clock.bytes) == (5, 0.05, 30)
    impatient = Clock(gap=0.0, limit=0.0)
    time.sleep(0.001)
    with pytest.raises(StopRun):
        impatient(_record(0.5))


@pytest.mark.parametrize("problem", ["synthetic 1"])
def test_scikit_learn_is_held_to_its_own_optimum(problem: str) -> None:
    task = load_problem(problem, quick=True)
    fit, accuracy = whole_job.task_by_task(task, 1e-3)
    assert 0 <= accuracy + 1e-6 <= whole_job.GAP + 1e-6
    best = whole_job.solve(
        task.train, loss="hinge", reg_lambda=1e-3, relationship="independent", settings=whole_job.Settings(tol=1e-5)
    )
    np.testing.assert_allclose(fit(), best.W, atol=0.05 * np.abs(best.W).max())


@pytest.mark.data
def test_ridge_is_held_to_its_own_optimum(shared_data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMTRL_DATA", str((shared_data / "school.npz").parent))
    task = load_problem("school", quick=True)
    fit, accuracy = whole_job.task_by_task(task, 0.1)
    assert abs(accuracy) <= whole_job.GAP
    best = whole_job.solve(
        task.train, loss="squared", reg_lambda=0.1, relationship="independent", settings=whole_job.Settings(tol=1e-8)
    )
    np.testing.assert_allclose(fit(), best.W, atol=1e-3 * np.abs(best.W).max())


def test_a_slow_worker_gives_the_same_answer() -> None:
    """A slow worker changes the time only: synchronous rounds have the same bits."""
    task = load_problem("synthetic 1", quick=True)
    settings = whole_job.Settings(tol=stragglers.GAP)
    slowed = stragglers.timed(task, 1e-3, (1.0, 3.0), settings, stretch=0.5)
    plain = whole_job.solve(task.train, loss=task.loss, reg_lambda=1e-3, workers=2, settings=settings)
    np.testing.assert_array_equal(slowed.outcome.W, plain.W)
    assert slowed.rounds == len(plain.history)
    assert 0 < slowed.idle < 1


@pytest.mark.parametrize(
    ("problem", "workers", "variants"),
    [
        ("synthetic 1", 16, [stragglers.SYNCHRONOUS, stragglers.ASYNCHRONOUS]),
        ("512 tasks, logistic", 64, [stragglers.SYNCHRONOUS, stragglers.ASYNCHRONOUS]),
    ],
)
def test_stragglers_reach_the_gap_with_certificates_that_hold(problem: str, workers: int, variants: list[str]) -> None:
    params = {"problem": problem, "reg_lambda": 1e-4, "workers": workers, "quick": True}
    figures = stragglers.measure(**params)
    assert list(figures) == variants
    for variant in variants:
        assert figures[variant]["gap"] <= stragglers.GAP
        assert figures[variant]["valid"]
        assert np.isfinite(figures[variant]["seconds"]).all()
    items = stragglers.section([Record("bench stragglers", params, {}, figures, 1.0)]).items
    rows = [row for table in items if isinstance(table, Table) for row in table.rows]
    assert [row[3] for row in rows] == variants
    assert [row[-1] for row in rows] == ["yes", "yes"]


def test_the_table_of_stragglers_by_hand() -> None:
    slow = {"seconds": [4.0, 6.0, 9.0], "idle": 0.5, "rounds": 10.0, "gap": 0.01, "valid": True}
    slow |= {"answers": 10.0}
    fast = {"seconds": [2.0, 2.0, 3.0], "idle": 0.25, "rounds": 12.0, "gap": 0.01, "valid": False}
    fast |= {"answers": 2.0}
    params = {"problem": "synthetic 1", "reg_lambda": 1e-4, "workers": 16, "quick": False}
    figures = {stragglers.SYNCHRONOUS: slow, stragglers.ASYNCHRONOUS: fast}
    _, table = stragglers.section([Record("bench stragglers", params, {}, figures, 1.0)]).items
    assert isinstance(table, Table)
    assert [row[4:] for row in table.rows] == [
        ["6", "1", "50%", "10", "10", "yes"],
        ["2", "3 (2 to 3)", "25%", "12", "2", "NO"],
    ]


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory, shared_data) -> tuple[Path, str]:
    for name in ("school.npz", "mnist.npz", "mds.npz"):
        shared_data / name
    out = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMTRL_DATA", str(shared_data.folder))
        for which in ("solve", "rounds"):
            result = CliRunner().invoke(main, ["bench", which, "--quick", "--out", str(out)])
            assert result.exit_code == 0, result.output
    return out, result.stdout


@pytest.mark.slow
@pytest.mark.data
class TestQuick:
    def test_every_fit_is_certified(self, quick_run) -> None:
        records = Store(quick_run[0]).read().values()
        solved = [record.figures for record in records if record.experiment == "bench solve"]
        assert len(solved) == len(whole_job.LAMBDAS)
        for figures in solved:
            assert figures["gap"] <= whole_job.GAP
            assert figures["scikit-learn"]["accuracy"] <= whole_job.GAP

    def test_fewer_rounds_than_the_paper_preset(self, quick_run) -> None:
        records = [record for record in Store(quick_run[0]).read().values() if record.experiment == "bench rounds"]
        for record in records:
            assert record.figures["default"]["gap"] <= rounds.GAP
            assert record.figures["default"]["rounds"] < record.figures["paper"]["rounds"]

    def test_the_tables_are_printed(self, quick_run) -> None:
        assert "| Synthetic 1 | scikit-learn, task by task |" in quick_run[1]
        assert "times fewer" in quick_run[1]
