"""dmtrl demo and the top level: what is printed is what the library computed; errors have an exit code."""

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import dmtrl
from dmtrl import Settings, TaskData
from dmtrl.cli import demo_summary
from dmtrl.cli.main import main
from dmtrl.datasets import SyntheticTasks, make_synthetic
from dmtrl.workflows import demo

WIDE = {"COLUMNS": "200", "TERM": "dumb"}


def run(*words: str, columns: str = "200") -> Result:
    return CliRunner(env=WIDE | {"COLUMNS": columns}).invoke(main, list(words))


TINY = {"rows_per_task": 80, "d": 6}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "QUICK", TINY)


@pytest.fixture(scope="module")
def tiny_demo() -> demo.DemoResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "QUICK", TINY)
        return demo.run_demo(quick=True)


def test_version() -> None:
    assert run("--version").output.split()[-1] == dmtrl.__version__


@pytest.mark.parametrize("words", [("--help",), ("demo", "--help")])
def test_help_fits_a_terminal(words: tuple[str, ...]) -> None:
    result = run(*words, columns="80")
    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_quick_demo_prints_a_certificate_that_holds_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("demo", "--quick")
    assert result.exit_code == 0, result.output
    found = re.search(r"objective ([\d.]+), proven lower bound ([\d.]+)", result.stdout)
    assert found, result.stdout
    primal, dual = map(float, found.groups())
    assert dual <= primal <= dual * (1 + 1.1 * Settings().tol)
    for words in (
        demo.TOGETHER,
        demo.ALONE,
        demo.POOLED,
        demo.BOOSTED,
        "rounds",
        "MB in messages",
        "local solver",
        "held-out",
    ):
        assert words in result.stdout
    assert "choosing lambda" in result.stderr, "progress in a pipe is plain, and not on stdout"
    assert "choosing lambda" not in result.stdout
    assert result.stdout.rstrip().endswith("dmtrl-demo.html")
    page = (tmp_path / "dmtrl-demo.html").read_text(encoding="utf-8")
    assert f"model is {found[1]}, and the optimum is at least {found[2]}" in page


@pytest.mark.usefixtures("tiny")
def test_demo_fits_do_not_depend_on_test_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    straight = demo.run_demo(seed=1, quick=True)

    def flipped(**size: int) -> SyntheticTasks:
        problem = make_synthetic(**size)
        test = problem.test
        opposite = TaskData(test.X, -test.y, None, test.starts, test.names)
        return SyntheticTasks(problem.train, opposite, problem.W, problem.correlation)

    monkeypatch.setattr(demo, "make_synthetic", flipped)
    other = demo.run_demo(seed=1, quick=True)
    for name, fit in straight.fits.items():
        if name != demo.BOOSTED:
            assert other.fits[name].model.reg_lambda_ == fit.model.reg_lambda_
            assert np.array_equal(other.fits[name].model.coef_, fit.model.coef_)
        assert other.fits[name].error == pytest.approx(1 - fit.error)


def test_demo_page_shows_learned_and_true_correlations_and_task_errors(tiny_demo: demo.DemoResult) -> None:
    from dmtrl.report.content import HeatMap, KeyFigures, Table
    from dmtrl.report.content import Text as TextItem

    result = tiny_demo
    items = [item for section in demo.demo_page(result).sections for item in section.items]
    heat = next(item for item in items if isinstance(item, HeatMap))
    assert [name for name, _ in heat.panels] == ["learned", "true"]
    order = [int(label.split()[1]) - 1 for label in heat.labels]
    assert np.array_equal(heat.panels[1][1], result.problem.correlation[np.ix_(order, order)])
    errors = next(item for item in items if isinstance(item, Table) and item.title == "Errors and gains")
    sizes = np.diff(result.problem.test.starts)
    for column, fit in enumerate([result.fits[name] for name in (demo.TOGETHER, demo.ALONE, demo.POOLED)], start=1):
        by_task = {row[0]: row[column] for row in errors.rows}
        mean = np.average([by_task[f"task {i + 1}"] for i in range(len(sizes))], weights=sizes)
        assert mean == pytest.approx(fit.error)
    figures = dict(next(item for item in items if isinstance(item, KeyFigures)).entries)
    assert figures["test error rate, together"] == f"{result.learned.error:.2%}"[:-1] + " %"
    over_tasks = np.mean([row[1] for row in errors.rows])  # type: ignore[call-overload]
    said = next(
        item.text for item in items if isinstance(item, TextItem) and "over tasks with equal weight" in item.text
    )
    assert f"**{100 * over_tasks:.2f} %** together" in said


def test_the_demo_shows_a_gain_that_is_not_chance() -> None:
    result = demo.run_demo(quick=True)
    for other in (demo.ALONE, demo.POOLED, demo.BOOSTED):
        points, error = result.advantage(other)
        assert points > 3 * error, other


@pytest.mark.usefixtures("tiny")
def test_demo_paper_keeps_all_training_rows(tiny_demo: demo.DemoResult) -> None:
    paper = demo.run_demo(quick=True, paper=True)
    assert np.diff(tiny_demo.problem.train.starts).max() <= demo.TRAIN_ROWS
    assert np.diff(paper.problem.train.starts).max() > demo.TRAIN_ROWS
    assert demo.BOOSTED not in paper.fits
    assert "The paper's Synthetic 1" in demo.demo_page(paper).footer


@pytest.mark.usefixtures("tiny")
def test_demo_out_and_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("demo", "--quick", "--no-page").exit_code == 0
    assert list(tmp_path.iterdir()) == []
    assert run("demo", "--quick", "--out", "here.html").stdout.rstrip().endswith("here.html")
    assert [path.name for path in tmp_path.iterdir()] == ["here.html"]
    refused = run("demo", "--quick", "--out", "nowhere/here.html")
    assert refused.exit_code == 1
    assert refused.stdout == ""
    assert "there is no folder nowhere" in refused.stderr


@pytest.mark.usefixtures("tiny")
def test_demo_without_plotly_names_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    result = run("demo", "--quick")
    assert result.exit_code == 0, result.output
    assert 'pip install "dmtrl[report]"' in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_heat_maps_are_left_out_on_narrow_terminals(tiny_demo: demo.DemoResult) -> None:
    wide, narrow = io.StringIO(), io.StringIO()
    demo_summary.print_demo(tiny_demo, Console(file=wide, width=100))
    demo_summary.print_demo(tiny_demo, Console(file=narrow, width=60))
    assert "true correlation  " in wide.getvalue() + "  "
    assert demo_summary.HEAT_KEY in wide.getvalue()
    assert demo_summary.HEAT_KEY not in narrow.getvalue()
    assert max(map(len, narrow.getvalue().splitlines())) <= 60


def test_heat_map_shows_sign_and_size_without_colour() -> None:
    rows = demo_summary.heat_map(np.array([[1.0, -0.5, 0.1], [-0.5, 1.0, -0.9], [0.1, -0.9, 1.0]])).plain.split("\n")
    assert rows == ["++- . ", "- ++--", ". --++"]


@pytest.mark.parametrize("words", [("demo", "--seed", "-1"), ("demo", "--seed", "x"), ("dmo",), ("demo", "--fast")])
def test_usage_errors_exit_with_2(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_expected_error_prints_one_line_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("the data is no good")

    monkeypatch.setattr(demo, "run_demo", fails)
    result = run("demo")
    assert result.exit_code == 1
    assert result.stderr == "Error: the data is no good\n"
    assert result.stdout == ""
