"""dmtrl fit --by-task: the rows stay in the files, and the model is the one of the rows in memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dmtrl
from dmtrl.tables import TableFiles
from support.shell_data import run, shops, write

SALES = ("--task", "shop", "--target", "sales", "--drop", "verdict", "--no-page")
VERDICT = ("--task", "shop", "--target", "verdict", "--drop", "sales", "--no-page")


def fitted(folder: Path, name: str, data: object, *words: object) -> tuple[Any, dict[str, Any]]:
    result = run("fit", data, *words, "-o", folder / name, "--json")
    assert result.exit_code == 0, result.output
    return dmtrl.load(folder / name), json.loads(result.stdout)


@pytest.mark.parametrize("words", [SALES, VERDICT])
@pytest.mark.parametrize("kind", ["csv", "hive"])
def test_by_task_gives_the_same_model_as_rows_in_memory(tmp_path: Path, words: tuple[str, ...], kind: str) -> None:
    """With a table that is smaller than the sample, the columns are prepared alike."""
    table, data = shops(m=4, rows=60, shuffled=False), tmp_path / "data"
    if kind == "csv":
        data = write(table, tmp_path / "a.csv")
    else:
        for i in range(4):
            write(table.drop_columns("shop").slice(60 * i, 60), data / f"shop={i + 1:03d}" / "part.parquet")
    strict = (*words, "--lambda", "0.1", "--tol", "1e-8")
    whole, _ = fitted(tmp_path, "whole", data, *strict)
    parts, outcome = fitted(tmp_path, "parts", data, *strict, "--by-task")
    assert parts.preparation_ == whole.preparation_
    assert parts.tasks_.tolist() == whole.tasks_.tolist()
    np.testing.assert_allclose(parts.coef_, whole.coef_, atol=1e-6)
    np.testing.assert_allclose(parts.intercept_, whole.intercept_, atol=1e-6)
    assert outcome["rows"] == 240
    assert [row["rows"] for row in outcome["per_task"]] == [60] * 4
    predictions = []
    for name in ("whole", "parts"):
        done = run("predict", tmp_path / name, data, "-q", "-o", tmp_path / f"{name}.csv")
        assert done.exit_code == 0, done.output
        predictions.append((tmp_path / f"{name}.csv").read_text(encoding="utf-8").splitlines())
    assert len(predictions[0]) == len(predictions[1]) == 241


def test_task_names_keep_the_type_of_their_column(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=60)
    text = pa.table({"t": ["10", "9"] * 30, "x": x, "y": np.where(x > 0, "10", "9")})
    long = pa.table({"t": [2**60, 9] * 30, "x": x, "y": np.where(x > 0, 2**60, 9)})  # 19 digits
    for table, name, kind in ((text, "a.parquet", "U"), (text, "a.csv", "i"), (long, "b.parquet", "i")):
        words = (
            write(table, tmp_path / name),
            "--task",
            "t",
            "--target",
            "y",
            "--lambda",
            "0.1",
            "--no-page",
            "--force",
        )
        whole, parts = (fitted(tmp_path, "m", *words, *more)[0] for more in ((), ("--by-task",)))
        assert (parts.tasks_.dtype.kind, parts.classes_.dtype.kind) == (kind, kind)
        assert parts.tasks_.tolist() == whole.tasks_.tolist()
        assert parts.classes_.tolist() == whole.classes_.tolist()
        assert np.array_equal(np.sign(parts.coef_), np.sign(whole.coef_))


def test_cross_validation_by_task_chooses_the_same_lambda(tmp_path: Path) -> None:
    data = write(shops(m=3), tmp_path / "a.parquet")
    whole, _ = fitted(tmp_path, "whole", data, *SALES)
    parts, outcome = fitted(tmp_path, "parts", data, *SALES, "--by-task", "--jobs", 2)
    assert outcome["chosen"]["folds"] == 5
    assert outcome["held_out"]["squared_error"] > 0
    assert parts.reg_lambda_ == pytest.approx(whole.reg_lambda_, rel=1e-6)
    np.testing.assert_allclose(parts.coef_, whole.coef_, atol=0.05 * np.abs(whole.coef_).max())


def test_by_task_never_reads_the_whole_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preparation comes from the sample; rows with holes and tasks with one class are as in memory."""
    table = shops(m=5, rows=100)
    verdict = table.column("verdict").to_pylist()
    shop = table.column("shop").to_pylist()
    verdict = [
        "good" if name == "003" else None if i < 7 else word
        for i, (name, word) in enumerate(zip(shop, verdict, strict=True))
    ]
    table = table.set_column(table.column_names.index("verdict"), "verdict", pa.array(verdict))
    data = write(table, tmp_path / "a.csv")

    def refuse(*_: object) -> None:
        raise AssertionError("all rows were read at once")

    monkeypatch.setattr(TableFiles, "read", refuse)
    _, outcome = fitted(tmp_path, "m", data, *VERDICT, "--lambda", "0.05", "--by-task", "--sample", 150)
    known = sum(word is not None for word in verdict)
    assert outcome["rows"] == known
    assert outcome["rows_read"] == 500
    assert any(f"{500 - known} rows without a task, a target or a weight" in note for note in outcome["notes"])
    done = run("predict", tmp_path / "m", data, "-q")
    rows = [line.split(",") for line in done.stdout.splitlines()[1:]]
    assert all(row[1] == '"good"' for row in rows if row[0] == '"003"'), "always its only class"
    right = [row[1].strip('"') == word for row, word in zip(rows, verdict, strict=True) if word is not None]
    assert np.mean(right) > 0.8


def test_by_task_refuses_options_that_need_all_rows(tmp_path: Path) -> None:
    data = write(shops(m=3), tmp_path / "a.csv")
    result = run("fit", data, *SALES, "--by-task", "--compare", "-o", tmp_path / "m")
    assert result.exit_code == 1
    assert "--compare needs all rows in memory; leave out --by-task" in result.stderr
    words = ("--task", "shop", "--target", "colour", "--by-task", "--no-page", "-o", tmp_path / "m")
    result = run("fit", data, *words)
    assert result.exit_code == 1
    assert "--by-task is for numbers and two classes; the target has " in result.stderr
    assert not (tmp_path / "m").exists()
