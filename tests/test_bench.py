"""`dmtrl bench`: fair timing, peers that reach the same quality, tables that say what was measured."""

import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dmtrl.bench import rounds
from dmtrl.bench import solve as whole_job
from dmtrl.bench.suite import BENCHMARKS
from dmtrl.bench.timing import Clock, TimeIsUp, interleaved, ratio
from dmtrl.cli import main
from dmtrl.commands.bench import CHOICES
from dmtrl.coordinator import RoundRecord
from dmtrl.experiments.problems import posed
from dmtrl.experiments.records import Store


def test_contenders_run_in_turn_after_a_warm_up() -> None:
    calls: list[str] = []
    timed = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b") or 7}, repeats=3)
    assert "".join(calls) == "abababab"
    assert {name: len(seconds) for name, seconds in timed.seconds.items()} == {"a": 3, "b": 3}
    assert timed.answers["b"] == 7


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
    with pytest.raises(TimeIsUp):
        clock(_record(0.05))
    assert (clock.rounds, clock.reached, clock.bytes) == (5, 0.05, 30)
    impatient = Clock(gap=0.0, limit=0.0)
    time.sleep(0.001)
    with pytest.raises(TimeIsUp):
        impatient(_record(0.5))


@pytest.mark.parametrize("problem", ["synthetic 1"])
def test_scikit_learn_is_held_to_its_own_optimum(problem: str) -> None:
    task = posed(problem, quick=True)
    fit, accuracy = whole_job.one_by_one(task, 1e-3)
    assert 0 <= accuracy + 1e-6 <= whole_job.GAP + 1e-6
    best = whole_job.solve(
        task.train, loss="hinge", reg_lambda=1e-3, relationship="independent", settings=whole_job.Settings(tol=1e-5)
    )
    np.testing.assert_allclose(fit(), best.W, atol=0.05 * np.abs(best.W).max())


@pytest.mark.data
def test_ridge_is_held_to_its_own_optimum(shared_data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMTRL_DATA", str((shared_data / "school.npz").parent))
    task = posed("school", quick=True)
    fit, accuracy = whole_job.one_by_one(task, 0.1)
    assert abs(accuracy) <= whole_job.GAP
    best = whole_job.solve(
        task.train, loss="squared", reg_lambda=0.1, relationship="independent", settings=whole_job.Settings(tol=1e-8)
    )
    np.testing.assert_allclose(fit(), best.W, atol=1e-3 * np.abs(best.W).max())


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory, shared_data) -> tuple[Path, str]:
    for name in ("school.npz", "mnist.npz", "mds.npz"):
        shared_data / name
    out = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMTRL_DATA", str(shared_data.folder))
        for which in ("solve", "rounds"):  # the others have tests of their own
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
