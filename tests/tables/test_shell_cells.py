"""Cells of text files: mistyped numbers, decimal commas, words for missing values, names on a terminal."""

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dmtrl
from dmtrl.cli.errors import printable
from dmtrl.cli.fit_summary import MAX_NAME
from dmtrl.tables.cells import summarize_cells
from support.shell_data import run, write

N = 120
WORDS = ("--task", "t", "--target", "y", "--lambda", "0.1")


def columns(seed: int = 0) -> dict[str, list[str]]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 2)).round(4)
    y = (x @ [1.0, -2.0] + 0.1 * rng.normal(size=N)).round(3)
    numbers = {"x1": x[:, 0], "x2": x[:, 1], "y": y}
    return {"t": ["u", "v", "w"] * (N // 3)} | {name: [str(v) for v in values] for name, values in numbers.items()}


def save(path: Path, table: dict[str, list[str]], separator: str = ",") -> Path:
    rows = [list(table), *zip(*table.values(), strict=True)]
    path.write_text("".join(separator.join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def refusal(*words: object) -> str:
    result = run("fit", *words)
    assert result.exit_code == 1, result.output
    last = str(result.stderr.splitlines()[-1])
    assert last.startswith("Error: ")
    return last


def found(*words: object) -> dict[str, object]:
    result = run("fit", *words, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_a_mistyped_cell_is_named_with_its_line(tmp_path: Path) -> None:
    table = columns()
    table["x1"][40] = "n/k"
    sentence = refusal(save(tmp_path / "a.csv", table), *WORDS, "-o", tmp_path / "m")
    assert "column 'x1' holds numbers, except for 1 of 120 cells: 'n/k' (line 42)" in sentence
    for way in ("--missing n/k", "--drop x1", "--category x1"):
        assert way in sentence
    table["x1"][50] = "two"
    table["t"][3] = ""  # this row is left out, and the lines are still those of the file
    sentence = refusal(save(tmp_path / "a.csv", table), *WORDS, "-o", tmp_path / "m")
    assert "except for 2 of 119 cells; the first is 'n/k' (line 42)" in sentence


def test_lines_are_those_an_editor_shows(tmp_path: Path) -> None:
    table = columns()
    table["x1"][40] = "n/k"
    table["note"] = ["plain"] * 10 + ['"two\nlines"'] + ["plain"] * (N - 11)
    lines = save(tmp_path / "a.csv", table).read_text(encoding="utf-8").split("\n")
    lines = ["", "  ", *lines[:20], "", *lines[20:]]
    line = next(i for i, text in enumerate(lines, 1) if "n/k" in text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    assert f"'n/k' (line {line})" in refusal(tmp_path / "a.csv.gz", *WORDS, "-o", tmp_path / "m")


def test_of_several_files_the_one_with_the_cell_is_named(tmp_path: Path) -> None:
    good, bad = columns(), columns(1)
    bad["x2"][7] = "oops"
    first, second = save(tmp_path / "1.csv", good), save(tmp_path / "2.csv", bad)
    sentence = refusal(first, second, *WORDS, "-o", tmp_path / "m")
    assert f"except for 1 of 240 cells: 'oops' (line 9 of {second})" in sentence


def test_missing_texts_are_kept_with_the_model(tmp_path: Path) -> None:
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


def test_common_marks_count_as_missing_among_numbers_and_are_said(tmp_path: Path) -> None:
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


def test_a_target_is_refused_by_the_cell_that_is_no_number(tmp_path: Path) -> None:
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


def test_predict_names_the_line_of_a_cell_that_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = columns()
    assert run("fit", save(tmp_path / "a.csv", table), *WORDS, "-q", "-o", tmp_path / "m").exit_code == 0
    table["x2"][100] = "oops"
    save(tmp_path / "a.csv", table)
    monkeypatch.setattr("dmtrl.tables.readers.BLOCK", 500)
    result = run("predict", tmp_path / "m", tmp_path / "a.csv", "-o", tmp_path / "p.csv")
    assert "column 'x2' holds 'oops' (line 102), which is not a number" in result.stderr


def test_free_text_and_identifiers_are_left_out_with_a_way_to_keep_them(tmp_path: Path) -> None:
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


def test_names_cannot_command_the_terminal(tmp_path: Path) -> None:
    table = columns()
    table["t"] = [f"\x1b[31m{name}" for name in table["t"]]
    table["x\x1b[2J"] = table.pop("x1")
    data = save(tmp_path / "a.csv", table)
    result = run("fit", data, *WORDS, "-o", tmp_path / "m")
    assert result.exit_code == 0, result.output
    assert "u and" in result.stdout
    assert "\x1b" not in result.output
    result = run("fit", data, "--task", "x\x1b", "--target", "y", "-o", tmp_path / "n")
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    result = run("predict", tmp_path / "m", data, "--keep", "x\x1b[2J", "-o", tmp_path / "p.csv")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert printable("caf\u00e9 \u65e5\u672c\x07\u202e") == "caf\u00e9 \u65e5\u672c\ufffd\ufffd"


def test_long_names_and_names_with_commas_stay_readable(tmp_path: Path) -> None:
    table = columns()
    names = {"u": "x" * 60 + "1", "v": "x" * 60 + "2", "w": "third"}
    table["t"] = [names[name] for name in table["t"]]
    result = run("fit", save(tmp_path / "a.csv", table), *WORDS, "-o", tmp_path / "m", columns="200")
    alike = next(line for line in result.stdout.splitlines() if line.strip().startswith("alike"))
    assert "xx1" in alike
    assert "xx2" in alike
    assert "'" not in alike
    assert max(map(len, alike.split())) <= MAX_NAME
    table["t"] = ['"Smith, John"' if name == "third" else name for name in table["t"]]
    result = run("fit", save(tmp_path / "a.csv", table), *WORDS, "-o", tmp_path / "n", columns="200")
    assert "'Smith, John' and " in result.stdout or " and 'Smith, John'" in result.stdout


def test_relations_near_zero_are_not_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    task = np.arange(400) % 4
    slope = np.array([[1, 0], [1, 0], [0, 1], [0, 1]])[task]  # two and two alike, and nobody opposed
    y = (x * slope).sum(axis=1)
    data = pa.table({"t": [f"t{i}" for i in task], "x1": x[:, 0], "x2": x[:, 1], "y": y})
    outcome = found(write(data, tmp_path / "a.parquet"), *WORDS, "--no-common", "-o", tmp_path / "m")
    relations = outcome["relations"]
    assert {tuple(pair[:2]) for pair in relations["alike"]} == {("t0", "t1"), ("t2", "t3")}
    assert relations["opposed"] == []


def test_the_summary_has_no_blanks_at_the_right_and_tells_times_apart(tmp_path: Path) -> None:
    table = columns()
    result = run("fit", save(tmp_path / "a.csv", table), *WORDS[:4], "-o", tmp_path / "m", columns="80")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    certificate = next(line for line in lines if "certificate" in line)
    assert certificate.endswith(" rounds)")
    time = next(line for line in lines if line.strip().startswith("time"))
    assert time.endswith("s choosing lambda")
    assert "baseline, each task's mean" in " ".join(result.stdout.split())


def test_what_guessing_would_give(tmp_path: Path) -> None:
    table = columns()
    outcome = found(save(tmp_path / "a.csv", table), *WORDS[:4], "-o", tmp_path / "m")
    y, t = np.array(table["y"], dtype=float), np.array(table["t"])
    errors = [y[i] - np.mean([y[j] for j in range(N) if j != i and t[j] == t[i]]) for i in range(N)]
    assert outcome["baseline"] == pytest.approx(np.mean(np.square(errors)), rel=0.1)  # folds leave out a fifth
    assert outcome["baseline"] == pytest.approx(outcome["metrics"]["rmse"]["baseline"] ** 2)
    assert outcome["held_out"]["squared_error"] < outcome["baseline"]
    table["y"] = ["yes" if value > 0.5 else "no" for value in y]
    outcome = found(save(tmp_path / "a.csv", table), *WORDS[:4], "-o", tmp_path / "n")
    usual = [max((np.array(table["y"])[t == name] == word).sum() for word in ("yes", "no")) for name in "uvw"]
    assert outcome["baseline"] == pytest.approx(1 - sum(usual) / N)


@pytest.mark.subprocess
def test_what_is_cheap_to_see_is_said_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    there = save(tmp_path / "a.csv", columns())
    cases = {
        ("fit", "none.csv", *WORDS): "there is no file",
        ("fit", str(there), *WORDS, "-o", "no/m"): "there is no folder",
        ("predict", "none", str(there)): "there is no model file",
        ("predict", str(there), str(there)): "the first argument must be a model file",
    }
    code = (
        "import sys\nfrom dmtrl.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(sorted({'sklearn', 'scipy', 'numba', 'pyarrow'} & set(sys.modules)))"
    )
    for words, sentence in cases.items():
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert done.stdout == "[]\n"


def test_models_and_utf16_given_as_data(tmp_path: Path) -> None:
    data = save(tmp_path / "a.csv", columns())
    assert run("fit", data, *WORDS, "-q", "-o", tmp_path / "good.dmtrl").exit_code == 0
    sentence = refusal(tmp_path / "good.dmtrl", *WORDS, "-o", tmp_path / "m")
    assert "is a dmtrl model, not data; pass data files" in sentence
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        (tmp_path / "b.csv").write_bytes(data.read_text(encoding="utf-8").encode(encoding))
        assert "UTF-16" in (sentence := refusal(tmp_path / "b.csv", *WORDS, "-o", tmp_path / "m"))
        assert "save it as UTF-8" in sentence
