"""Cells of text files: mistyped numbers, decimal commas, words for missing values, names on a terminal."""

import gzip
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dmtrl
from dmtrl.tables.cells import summarize_cells
from support.cell_tables import WORDS, N, columns, found, refusal, save
from support.shell_data import bad_cell, run, write


def test_error_about_a_mistyped_cell_has_its_line(tmp_path: Path) -> None:
    table = columns()
    table["x1"][40] = "n/k"
    sentence = refusal(save(tmp_path / "a.csv", table), *WORDS, "-o", tmp_path / "m")
    assert "column 'x1' holds numbers, except for 1 of 120 cells: 'n/k' (line 42)" in sentence
    for way in ("--missing n/k", "--drop x1", "--category x1"):
        assert way in sentence
    table["x1"][50] = "two"
    table["t"][3] = ""  # this row is left out, and the lines are still those of the file
    data = save(tmp_path / "a.csv", table)
    assert bad_cell("fit", data, *WORDS, "-o", tmp_path / "m") == ("n/k", "line 42")


def test_line_numbers_match_an_editor(tmp_path: Path) -> None:
    table = columns()
    table["x1"][40] = "n/k"
    table["note"] = ["plain"] * 10 + ['"two\nlines"'] + ["plain"] * (N - 11)
    lines = save(tmp_path / "a.csv", table).read_text(encoding="utf-8").split("\n")
    lines = ["", "  ", *lines[:20], "", *lines[20:]]
    line = next(i for i, text in enumerate(lines, 1) if "n/k" in text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    assert bad_cell("fit", tmp_path / "a.csv.gz", *WORDS, "-o", tmp_path / "m") == ("n/k", f"line {line}")


def test_error_names_the_file_of_the_cell(tmp_path: Path) -> None:
    good, bad = columns(), columns(1)
    bad["x2"][7] = "oops"
    first, second = save(tmp_path / "1.csv", good), save(tmp_path / "2.csv", bad)
    assert bad_cell("fit", first, second, *WORDS, "-o", tmp_path / "m") == ("oops", f"line 9 of {second}")


def test_missing_texts_are_saved_with_the_model(tmp_path: Path) -> None:
    """As if the cells were empty, in fit and in predict."""
    marked, empty = columns(), columns()
    for name, rows in (("x1", (3, 40, 50)), ("x2", (8,)), ("y", (9,)), ("t", (11,))):
        for row in rows:
            marked[name][row], empty[name][row] = "n/k" if row != 50 else "-999", ""
    save(tmp_path / "marked.csv", marked)
    save(tmp_path / "empty.csv", empty)
    said = ("--missing", "n/k", "--missing", "-999")
    assert run("fit", tmp_path / "marked.csv", *WORDS, *said, "-q", "-o", tmp_path / "a").exit_code == 0
    assert run("fit", tmp_path / "empty.csv", *WORDS, "-q", "-o", tmp_path / "b").exit_code == 0
    models = [dmtrl.load(tmp_path / name) for name in "ab"]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    assert models[0].tasks_.tolist() == ["u", "v", "w"]
    outputs = [
        run("predict", tmp_path / m, tmp_path / f"{data}.csv", "-q", "--unknown", "skip").stdout
        for m, data in (("a", "marked"), ("b", "empty"))
    ]
    answers = [pd.read_csv(io.StringIO(text))["prediction"].tolist() for text in outputs]
    np.testing.assert_array_equal(answers[0], answers[1])


def test_missing_numbers_of_a_typed_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=N)
    holes = np.arange(N) % 10 == 0
    table = {"t": ["u", "v"] * (N // 2), "y": x + rng.normal(size=N)}
    write(pa.table(table | {"x": np.where(holes, -999.0, x)}), tmp_path / "a.parquet")
    write(pa.table(table | {"x": pa.array(x, mask=holes)}), tmp_path / "b.parquet")
    for name, words in (("a", ("--missing", "-999")), ("b", ())):
        assert run("fit", tmp_path / f"{name}.parquet", *WORDS, *words, "-q", "-o", tmp_path / name).exit_code == 0
    np.testing.assert_array_equal(dmtrl.load(tmp_path / "a").coef_, dmtrl.load(tmp_path / "b").coef_)


def test_common_missing_marks_in_number_columns_are_noted(tmp_path: Path) -> None:
    table, empty = columns(), columns()
    for row, mark in enumerate(("-", "?", "n.a.", "#DIV/0!", "Unknown")):
        table["x1"][row], empty["x1"][row] = mark, ""
    outcome = found(save(tmp_path / "a.csv", table), *WORDS, "-o", tmp_path / "a")
    assert any("column 'x1': 5 cells with '-', '?', 'n.a.' and 2 more count as missing" in n for n in outcome["notes"])
    assert run("fit", save(tmp_path / "b.csv", empty), *WORDS, "-q", "-o", tmp_path / "b").exit_code == 0
    np.testing.assert_array_equal(dmtrl.load(tmp_path / "a").coef_, dmtrl.load(tmp_path / "b").coef_)
    predicted = [run("predict", tmp_path / "a", tmp_path / f"{name}.csv", "-q").stdout for name in "ab"]
    assert predicted[0] == predicted[1]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_decimal_commas_are_decimal_points(tmp_path: Path, separator: str) -> None:
    points, commas = columns(), columns()
    for name in ("x1", "x2", "y"):
        commas[name] = [text.replace(".", ",") for text in commas[name]]
    ending = "csv" if separator == ";" else "tsv"
    with_points = save(tmp_path / f"points.{ending}", points, separator)
    with_commas = save(tmp_path / f"commas.{ending}", commas, separator)
    assert run("fit", with_points, *WORDS, "-q", "-o", tmp_path / "points").exit_code == 0
    outcome = found(with_commas, *WORDS, "-o", tmp_path / "commas")
    assert any(
        f"decimal commas, as in {commas['x1'][0]!r}, are read as decimal points: 'x1', 'x2'" in n
        for n in outcome["notes"]
    )
    np.testing.assert_array_equal(dmtrl.load(tmp_path / "points").coef_, dmtrl.load(tmp_path / "commas").coef_)
    predicted = {
        run("predict", tmp_path / model, data, "-q").stdout
        for model in ("points", "commas")
        for data in (with_points, with_commas)
    }
    assert len(predicted) == 1


@pytest.mark.parametrize(
    ("cells", "semicolons", "kind", "mostly"),
    [
        (["0,5", "1,25", "7"], False, "number", None),
        (["1,234", "5,678"], True, "number", None),
        (["1,234", "5,678"], False, "text", "number"),  # thousands, or three decimals: nobody can know
        (["1.234,5", "2,5", "3,5", "4,5", "6,5"], True, "text", "number"),
        (["0,5", "1,5", "2,5", "3,5", "1.5"], True, "text", "number"),
        (["1", "2", "3", "4", "x"], False, "text", "number"),
        (["1", "2", "3", "x"], False, "text", None),
        (["2021-01-01", "2021-01-02", "2021-01-03", "2021-01-04", "soon"], False, "text", "date"),
        (["007", "012", "1", "2", "x"], False, "text", None),
        (["-", "?"], False, "text", None),
        (["-", "1"], False, "number", None),
    ],
)
def test_kind_of_cells(cells: Sequence[str], semicolons: bool, kind: str, mostly: str | None) -> None:
    summary = summarize_cells(pa.chunked_array([list(cells)]), semicolons)
    assert (summary.kind, summary.mostly) == (kind, mostly)


def test_error_about_a_target_names_the_cell_that_is_not_a_number(tmp_path: Path) -> None:
    table = columns()
    table["y"][60] = "1.5.2"
    data = save(tmp_path / "a.csv", table)
    for words in ((), ("--kind", "regression"), ("--loss", "huber")):
        sentence = refusal(data, *WORDS, *words, "-o", tmp_path / "m")
        assert "the target 'y' holds numbers, except for 1 of 120 cells: '1.5.2' (line 62)" in sentence
        assert "--missing 1.5.2" in sentence
        assert "--kind classification" in sentence
    for row in range(50, 90):
        table["y"][row] = f"word {row}"
    save(data, table)
    sentence = refusal(data, *WORDS, "--kind", "regression", "-o", tmp_path / "m")
    assert "the target 'y' holds 'word 50' (line 52), which is not a number (like 40 of 120 cells)" in sentence
    sentence = refusal(data, *WORDS, "-o", tmp_path / "m")
    assert "too many for classes" in sentence
    assert "40 of its 120 cells are not numbers; the first is 'word 50' (line 52)" in sentence


def test_predict_error_has_the_line_of_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = columns()
    assert run("fit", save(tmp_path / "a.csv", table), *WORDS, "-q", "-o", tmp_path / "m").exit_code == 0
    table["x2"][100] = "oops"
    save(tmp_path / "a.csv", table)
    monkeypatch.setattr("dmtrl.tables.readers.BLOCK", 500)
    words = (tmp_path / "m", tmp_path / "a.csv", "-o", tmp_path / "p.csv")
    assert bad_cell("predict", *words) == ("oops", "line 102")


def test_notes_say_how_to_keep_free_text_and_identifiers(tmp_path: Path) -> None:
    table = columns()
    table["remark"] = [f"all is well {i % 40}" if i % 2 else f"the roof leaks {i}" for i in range(N)]
    table["invoice"] = [f"INV-{i:05}" for i in range(N)]
    table["number"] = [str(7 * i + 1000) for i in range(N)]
    table["row_id"] = [str(7 * i + 1000) for i in range(N)]
    data = save(tmp_path / "a.csv", table)
    outcome = found(data, *WORDS, "-o", tmp_path / "m")
    kinds = {line["column"]: line["kind"] for line in outcome["columns"]}
    assert {name for name, kind in kinds.items() if kind == "left out"} == {"remark", "invoice", "row_id"}
    notes = [note for note in outcome["notes"] if note.startswith("left out")]
    assert notes == [
        "left out, free text: 'remark'; to use its words, pass --text remark, and to use its values as they are, "
        "--category remark",
        "left out, identifiers: 'row_id'; to use one anyway, pass --number row_id",
        "left out, identifiers: 'invoice'; to use one anyway, pass --category invoice",
    ]
    kept = ("--text", "remark", "--number", "row_id", "--drop", "invoice", "-o", tmp_path / "n")
    kinds = {line["column"]: line["kind"] for line in found(data, *WORDS, *kept)["columns"]}
    assert kinds["remark"] == "text"
    assert kinds["row_id"] == "number"


def test_models_and_utf16_files_are_refused_as_data(tmp_path: Path) -> None:
    data = save(tmp_path / "a.csv", columns())
    assert run("fit", data, *WORDS, "-q", "-o", tmp_path / "good.dmtrl").exit_code == 0
    sentence = refusal(tmp_path / "good.dmtrl", *WORDS, "-o", tmp_path / "m")
    assert "is a dmtrl model, not data; pass data files" in sentence
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        (tmp_path / "b.csv").write_bytes(data.read_text(encoding="utf-8").encode(encoding))
        assert "UTF-16" in (sentence := refusal(tmp_path / "b.csv", *WORDS, "-o", tmp_path / "m"))
        assert "save it as UTF-8" in sentence
