"""`dmtrl-lab bench`: fair timing, and tables that say what was measured.

Here: what the benchmarks share, and `stragglers`. The others are tested in test_bench_fit (also `cv`), test_bench_zoo,
test_bench_startup, test_scale (run with --quick) and test_engines (`cluster`).
"""

import numpy as np
import pytest

from dmtrl.engines import LocalOptions
from dmtrl.report.content import Table
from dmtrl.solver.api import solve
from dmtrl.solver.execution import Execution
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings
from dmtrl_lab.bench import stragglers
from dmtrl_lab.bench.suite import BENCHMARKS
from dmtrl_lab.bench.timing import interleaved, ratio
from dmtrl_lab.cli.bench import CHOICES
from dmtrl_lab.experiments.experiment import Record
from dmtrl_lab.experiments.problems import load_problem


def test_competitors_run_in_turn_after_a_warm_up() -> None:
    calls: list[str] = []
    timed = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b") or 7}, repeats=3)
    assert "".join(calls) == "abababab"
    assert {name: len(seconds) for name, seconds in timed.seconds.items()} == {"a": 3, "b": 3}
    assert timed.results["b"] == 7


def test_repeats_end_at_the_limit_but_not_before_two() -> None:
    calls: list[int] = []
    timed = interleaved({"a": lambda: calls.append(1)}, 50, warm_up=False, limit=0.0)
    assert len(timed.seconds["a"]) == len(calls) == 2


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


def test_a_slow_worker_gives_the_same_answer() -> None:
    """A slow worker changes the time only: synchronous rounds have the same bits."""
    task = load_problem("synthetic 1", quick=True)
    settings = Settings(tol=stragglers.GAP)
    slowed = stragglers.timed(task, 1e-3, (1.0, 3.0), stretch=0.5)
    plain = solve(
        Problem.of(task.train, loss=task.loss, reg_lambda=1e-3), Execution(LocalOptions(workers=2), settings=settings)
    )
    np.testing.assert_array_equal(slowed.outcome.W, plain.W)
    assert len(slowed.outcome.history) == slowed.answers == len(plain.history)
    assert 0 < slowed.idle < 1


@pytest.mark.parametrize(("problem", "workers"), [("synthetic 1", 16), ("512 tasks, logistic", 64)])
def test_stragglers_reach_the_gap_with_certificates_that_hold(problem: str, workers: int) -> None:
    params = {"problem": problem, "reg_lambda": 1e-4, "workers": workers, "quick": True}
    variants = [stragglers.SYNCHRONOUS, stragglers.ASYNCHRONOUS]
    figures = stragglers.measure(**params)
    assert list(figures) == variants
    for variant in variants:
        assert figures[variant]["gap"] <= stragglers.GAP
        assert figures[variant]["valid"]
        assert np.isfinite(figures[variant]["seconds"]).all()
    items = stragglers.items([Record("bench stragglers", params, {}, figures, 1.0)])
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
    _, table = stragglers.items([Record("bench stragglers", params, {}, figures, 1.0)])
    assert isinstance(table, Table)
    assert [row[4:] for row in table.rows] == [
        ["6", "1", "50%", "10", "10", "yes"],
        ["2", "3 (2 to 3)", "25%", "12", "2", "NO"],
    ]
