"""Errors and notes of the shell are in its own terms: options, files and lines, never parameters of Python."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from dmtrl import MTRLRegressor
from dmtrl.exceptions import NotConvergedWarning
from dmtrl.solver.checkpoint import Checkpoint
from support.shell_data import run, shops, write

WORDS = ("--task", "shop", "--target", "sales", "--no-page")


def _few_rows(path: Path, rows: int) -> Path:
    return write(shops(m=6, rows=rows), path)


def _last_line(*words: object, code: int = 1) -> str:
    result = run(*words)
    assert result.exit_code == code, result.output
    return result.stderr.splitlines()[-1]


def _table(path: Path, **columns: list[object]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    n = 40
    y = rng.integers(0, 6, n)
    y[17] = -3
    return _table(
        tmp_path / "counts.csv", shop=["a", "b"] * 20, price=rng.normal(size=n).round(3).tolist(), n=y.tolist()
    )


def test_tasks_with_few_rows_get_fewer_folds(tmp_path: Path) -> None:
    data = _few_rows(tmp_path / "few.csv", 3)
    result = run("fit", data, *WORDS, "--compare", "--json", "-o", tmp_path / "m.dmtrl")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["chosen"]["folds"] == 3
    assert "no task has more than 3 rows: lambda is chosen with 3 folds" in found["notes"]
    assert found["compared"] is not None
    report = run("report", tmp_path / "m.dmtrl", data, "-o", tmp_path / "page.html")
    assert report.exit_code == 0, report.output


@pytest.mark.parametrize("more", [(), ("--by-task",)])
def test_tasks_with_one_row_need_a_lambda(tmp_path: Path, more: tuple[str, ...]) -> None:
    data = _few_rows(tmp_path / "one.csv", 1)
    line = _last_line("fit", data, *WORDS, *more, "-o", tmp_path / "m.dmtrl")
    assert line.endswith("nothing can be held out to choose lambda; pass --lambda with a number")
    if not more:
        line = _last_line("fit", data, *WORDS, "--lambda", "1", "--compare", "-o", tmp_path / "m.dmtrl")
        assert line.endswith("nothing can be held out for a comparison; leave out --compare")
    assert not (tmp_path / "m.dmtrl").exists()


@pytest.mark.parametrize("option", ["--own", "--tol", "--lambda", "--task-weight"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_options_refuse_numbers_that_are_not_finite(tmp_path: Path, option: str, value: str) -> None:
    data = _few_rows(tmp_path / "few.csv", 5)
    assert f"Invalid value for '{option}': " in _last_line("fit", data, *WORDS, option, value, code=2)


@pytest.mark.parametrize("more", [(), ("--by-task",), ("--by-task", "--sample", "20")])
def test_error_about_a_negative_count_has_its_line(tmp_path: Path, counts: Path, more: tuple[str, ...]) -> None:
    words = ("--task", "shop", "--target", "n", "--loss", "poisson", "--lambda", "1", "-o", tmp_path / "m.dmtrl")
    assert _last_line("fit", counts, *words, *more) == (
        "Error: the target 'n' holds '-3' (line 19), but the poisson loss needs non-negative counts; correct it, or "
        "choose another --loss"
    )


@pytest.mark.parametrize("more", [(), ("--by-task",), ("--by-task", "--sample", "20")])
def test_error_about_a_negative_weight_has_its_line(tmp_path: Path, counts: Path, more: tuple[str, ...]) -> None:
    words = ("--task", "shop", "--target", "price", "--weights", "n", "--lambda", "1", "-o", tmp_path / "m.dmtrl")
    assert _last_line("fit", counts, *words, *more) == (
        "Error: the column of weights 'n' holds '-3' (line 19), but a weight must not be negative; correct it, or "
        "choose another column"
    )


def test_note_about_whole_numbers_names_the_kind_option(tmp_path: Path) -> None:
    prices = np.random.default_rng(0).normal(size=60).round(3).tolist()
    rows = {"shop": ["a", "b"] * 30, "price": prices, "grade": [1, 2, 3] * 20, "colour": ["red", "blue"] * 30}
    data = _table(tmp_path / "grades.csv", **rows)
    out = ("--lambda", "1", "--no-page", "-o", tmp_path / "m.dmtrl")
    result = run("fit", data, "--task", "shop", "--target", "grade", *out, "--json")
    assert result.exit_code == 0, result.output
    note = next(note for note in json.loads(result.stdout)["notes"] if "3 whole numbers" in note)
    assert note.endswith("if they are classes, pass --kind classification")
    line = _last_line("fit", data, "--task", "shop", "--target", "colour", "--kind", "regression", *out, "--force")
    assert line.endswith("regression needs numbers; for classes, pass --kind classification")


def test_error_about_a_foreign_checkpoint_names_the_resume_option(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    place = tmp_path / "checkpoint"
    with pytest.warns(NotConvergedWarning):
        MTRLRegressor(tol=1e-9, max_rounds=3).fit(
            X, X[:, 0], tasks=np.arange(40) % 2, checkpoint=Checkpoint(place, every_rounds=1)
        )
    data = _few_rows(tmp_path / "few.csv", 5)
    line = _last_line("fit", data, *WORDS, "--lambda", "1", "--resume", place, "-o", tmp_path / "m.dmtrl")
    assert line.endswith("repeat exactly what was stopped, or leave out --resume to start again")


@pytest.mark.parametrize("command", ["export", "report", "predict"])
def test_error_when_the_model_is_a_table_or_missing(tmp_path: Path, command: str) -> None:
    table = _few_rows(tmp_path / "few.csv", 5)
    more = (table,) if command == "predict" else ()
    out = ("-o", tmp_path / ("out.html" if command == "report" else "out.csv"))
    assert _last_line(command, table, *more, *out) == (
        f"Error: {table} is not a dmtrl model; the first argument must be a model file, which 'dmtrl fit' writes"
    )
    missing = tmp_path / "none.dmtrl"
    assert (
        _last_line(command, missing, *more, *out) == f"Error: there is no model file {missing}; 'dmtrl fit' writes one"
    )


def test_errors_about_missing_files_and_invalid_study_files(tmp_path: Path) -> None:
    table, missing = _few_rows(tmp_path / "few.csv", 5), tmp_path / "none.toml"
    advice = "check its name and folder, or draft one with 'dmtrl study new'"
    for words in (("site", "check", table, "--study"), ("site", "approve"), ("study", "simulate")):
        more = (f"a={table}", "-o", tmp_path / "trial") if words[-1] == "simulate" else ()
        assert _last_line(*words, missing, *more) == f"Error: there is no study file {missing}; {advice}"
        line = _last_line(*words, table, *more)
        assert line.startswith(f"Error: {table}, line 1: this is not TOML, which has lines such as [target]")
        folder = _last_line(*words, tmp_path, *more)
        assert folder == f"Error: {tmp_path} is a folder; pass the name of a file"
    assert _last_line("fit", tmp_path / "none.csv", *WORDS).endswith("none.csv; check its name and folder")
    twice = tmp_path / "twice.toml"
    twice.write_text("[study]\n[study]\n")
    line = _last_line("site", "approve", twice)
    assert line == f"Error: {twice}, line 2: this key or table is defined twice; remove one of them"


def test_error_about_invalid_policy_toml_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('site = "north"\ndata = north.csv\n')
    line = _last_line("site", "log", "--site", tmp_path)
    assert line.startswith(f"Error: {tmp_path / 'policy.toml'}, line 2: this is not TOML")
