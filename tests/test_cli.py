"""The shell: what is printed is what the library computed, and mistakes end in a sentence and an exit code."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import dmtrl
from dmtrl import Settings, TaskData, demo
from dmtrl.cli import main
from dmtrl.datasets import SyntheticTasks, make_synthetic

README = Path(__file__).resolve().parents[1] / "README.md"
WIDE = {"COLUMNS": "200", "TERM": "dumb"}


def run(*words: str, columns: str = "200") -> Result:
    return CliRunner(env=WIDE | {"COLUMNS": columns}).invoke(main, list(words))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "QUICK", {"rows_per_task": 80, "d": 6})


def test_version() -> None:
    assert run("--version").output.split()[-1] == dmtrl.__version__


@pytest.mark.parametrize("words", [("--help",), ("demo", "--help")])
def test_help_fits_a_terminal(words: tuple[str, ...]) -> None:
    result = run(*words, columns="80")
    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_quick_demo_prints_a_certificate_that_holds() -> None:
    result = run("demo", "--quick")
    assert result.exit_code == 0, result.output
    found = re.search(r"objective ([\d.]+); no weights and no task covariance can go below ([\d.]+)", result.stdout)
    assert found, result.stdout
    primal, dual = map(float, found.groups())
    assert dual <= primal <= dual * (1 + 1.1 * Settings().tol)
    for words in (*(demo.TOGETHER, demo.ALONE, demo.POOLED), "rounds", "MB in messages", "local solver", "held-out"):
        assert words in result.stdout
    assert "choosing lambda" in result.stderr, "progress in a pipe is plain, and not on stdout"
    assert "choosing lambda" not in result.stdout


@pytest.mark.usefixtures("tiny")
def test_test_labels_play_no_part_in_the_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    straight = demo.run_demo(seed=1, quick=True)

    def flipped(**size: int) -> SyntheticTasks:
        problem = make_synthetic(**size)
        test = problem.test
        opposite = TaskData(test.X, -test.y, None, test.starts, test.names)
        return SyntheticTasks(problem.train, opposite, problem.W, problem.correlation)

    monkeypatch.setattr(demo, "make_synthetic", flipped)
    other = demo.run_demo(seed=1, quick=True)
    for name, fit in straight.fits.items():
        assert other.fits[name].reg_lambda == fit.reg_lambda
        assert np.array_equal(other.fits[name].outcome.W, fit.outcome.W)
        assert other.fits[name].error == pytest.approx(1 - fit.error)


@pytest.mark.usefixtures("tiny")
def test_heat_maps_only_where_they_fit() -> None:
    result = demo.run_demo(quick=True)
    wide, narrow = io.StringIO(), io.StringIO()
    demo.render(result, Console(file=wide, width=100))
    demo.render(result, Console(file=narrow, width=60))
    assert "true correlation  " in wide.getvalue() + "  "
    assert demo.HEAT_KEY in wide.getvalue()
    assert demo.HEAT_KEY not in narrow.getvalue()
    assert max(map(len, narrow.getvalue().splitlines())) <= 60


def test_heat_map_shows_sign_and_size_without_colour() -> None:
    rows = demo.heat_map(np.array([[1.0, -0.5, 0.1], [-0.5, 1.0, -0.9], [0.1, -0.9, 1.0]])).plain.split("\n")
    assert rows == ["++- . ", "- ++--", ". --++"]


@pytest.mark.parametrize("words", [("demo", "--seed", "-1"), ("demo", "--seed", "x"), ("dmo",), ("demo", "--fast")])
def test_misspelt_commands_exit_with_2(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_an_error_is_one_sentence_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("the data is no good")

    monkeypatch.setattr(demo, "run_demo", fails)
    result = run("demo")
    assert result.exit_code == 1
    assert result.stderr == "Error: the data is no good\n"
    assert result.stdout == ""


def test_the_readmes_python_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 2
    for code, printed in blocks:
        exec(compile(code, str(README), "exec"), {})
        assert capsys.readouterr().out == printed
