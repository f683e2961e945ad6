"""Files as people have them, through the shell: dates, encodings, ragged lines, texts, samples, a file per task."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.preprocessing import StandardScaler

import dmtrl
from dmtrl.cli.errors import one_line
from dmtrl.exceptions import InputError
from dmtrl.tables.dates import FORMATS, DateFormat
from dmtrl.tables.learning import Choices, learn
from dmtrl.workflows.prepare import prepare
from dmtrl.workflows.requests import FitRequest
from support.shell_data import bad_cell, run, shops, write

N = 120
WORDS = ("--task", "t", "--target", "y", "--lambda", "0.1", "--no-page")


def frame(**columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    base = {"t": np.resize(["u", "v", "w"], N), "x": rng.normal(size=N).round(4), "y": rng.normal(size=N).round(4)}
    return pd.DataFrame(base | columns)


def days(seed: int = 1) -> pd.Series:
    return pd.Series(
        pd.to_datetime("2022-01-01") + pd.to_timedelta(np.random.default_rng(seed).integers(0, 800, N), "D")
    )


def save(table: pd.DataFrame, path: Path, **options: Any) -> Path:
    table.to_csv(path, index=False, **options)
    return path


def found(*words: object) -> dict[str, Any]:
    result = run("fit", *words, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def refusal(*words: object) -> str:
    result = run(*words)
    assert result.exit_code == 1, result.output
    return str(result.stderr.splitlines()[-1])


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_of_dates_gives_the_features_of_iso_dates(tmp_path: Path, format: str) -> None:
    """Oracle: strftime writes, and the ISO file gives the features."""
    moments = days()
    expected = prepare(FitRequest([save(frame(d=moments.dt.strftime("%Y-%m-%d")), tmp_path / "iso.csv")], "t", "y"))
    prepared = prepare(FitRequest([save(frame(d=moments.dt.strftime(format)), tmp_path / "a.csv")], "t", "y"))
    assert prepared.preparation.feature_names == expected.preparation.feature_names
    np.testing.assert_array_equal(prepared.X, expected.X)
    assert prepared.notes == expected.notes


@pytest.mark.parametrize(
    "format", ["%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p", "%Y-%m-%dT%H:%M:%S.%f", "%d/%m/%Y, %H:%M:%S"]
)
def test_times_of_day_are_read_with_the_date(format: str) -> None:
    moments = days() + pd.to_timedelta(np.random.default_rng(2).integers(0, 1440, N), "min")
    parsed = DateFormat(format).parse(pa.array(moments.dt.strftime(format)))
    np.testing.assert_array_equal(parsed, moments.to_numpy().astype("datetime64[us]"))
    untimed = DateFormat(format.split("%H")[0].split("%I")[0].rstrip("T, ")).parse(
        pa.array(moments.dt.strftime(format))
    )
    np.testing.assert_array_equal(untimed, parsed)


def test_time_zones_become_utc() -> None:
    texts = ["2024-06-01T12:00:00+02:00", "2024-06-01 10:00Z", "2024-06-01T05:30:00-0430", "2024-06-01T10:00:00"]
    assert set(DateFormat("%Y-%m-%d").parse(pa.array(texts)).tolist()) == {
        pd.Timestamp("2024-06-01 10:00").to_pydatetime()
    }


def test_ambiguous_dates_are_noted_and_the_format_can_be_given(tmp_path: Path) -> None:
    early = pd.Series(pd.to_datetime([f"2024-{1 + i % 12:02}-{1 + i % 11:02}" for i in range(N)]))
    data = save(frame(d=early.dt.strftime("%m/%d/%Y")), tmp_path / "a.csv")
    outcome = found(data, *WORDS, "-o", tmp_path / "m")
    assert any(
        "column 'd': dates such as '01/01/2024' are ambiguous and are read with the day first; if that is wrong, pass "
        "--date d=%m/%d/%Y" in note
        for note in outcome["notes"]
    )
    outcome = found(data, *WORDS, "--date", "d=%m/%d/%Y", "-o", tmp_path / "n")
    assert not any("ambiguous" in note for note in outcome["notes"])
    X = [
        dmtrl.load(tmp_path / name).preparation_.transform(pd.DataFrame({"d": early, "x": 0.0}))[:, 1] for name in "mn"
    ]
    assert not np.array_equal(*X)
    # a column of the same file whose dates are clear settles it
    other = days().dt.strftime("%m/%d/%Y")
    outcome = found(
        save(frame(d=early.dt.strftime("%m/%d/%Y"), e=other), tmp_path / "b.csv"), *WORDS, "-o", tmp_path / "o"
    )
    assert not any("ambiguous" in note for note in outcome["notes"])
    assert {line["column"]: "%m/%d" in line["done"] for line in outcome["columns"]}["d"]


def test_dates_that_look_like_numbers_need_the_option(tmp_path: Path) -> None:
    compact = save(frame(d=days().dt.strftime("%Y%m%d")), tmp_path / "a.csv")
    kinds = {line["column"]: line["kind"] for line in found(compact, *WORDS, "-o", tmp_path / "m")["columns"]}
    assert kinds["d"] == "number"
    outcome = found(compact, *WORDS, "--date", "d=%Y%m%d", "-o", tmp_path / "n")
    assert {line["column"]: line["kind"] for line in outcome["columns"]}["d"] == "date"
    predicted = run("predict", tmp_path / "n", compact, "-q")
    assert predicted.exit_code == 0, predicted.output
    sentence = refusal("fit", compact, *WORDS, "--date", "x=%Y%m%d", "-o", tmp_path / "o")
    assert "column 'x' holds" in sentence
    assert "(line 2), which is not a date like 20240131" in sentence
    assert "unknown directive; known are %Y" in refusal("fit", compact, *WORDS, "--date", "d=%Q", "-o", tmp_path / "o")
    words = ("--date", "d", "--number", "d", "-o", tmp_path / "o")
    assert "column 'd' is in both --number and --date" in refusal("fit", compact, *WORDS, *words)


def test_error_about_a_mistyped_date_has_its_line(tmp_path: Path) -> None:
    dates = days().dt.strftime("%d.%m.%Y").tolist()
    dates[7] = "31.02.2024"
    data = save(frame(d=dates), tmp_path / "a.csv")
    assert bad_cell("fit", data, *WORDS, "-o", tmp_path / "m") == ("31.02.2024", "line 9")


def test_unknown_levels_are_counted_even_beside_rare_ones(tmp_path: Path) -> None:
    table = frame(c=["rare1", "rare2", *np.resize(["red", "green", "blue"], N - 2)])
    assert run("fit", save(table, tmp_path / "a.csv"), *WORDS, "-q", "-o", tmp_path / "m").exit_code == 0
    new = table.assign(c=["rare1", *["teal"] * 5, *["red"] * (N - 6)])
    words = ("predict", tmp_path / "m", save(new, tmp_path / "new.csv"), "-o", tmp_path / "p.csv", "--force", "--json")
    outcome = json.loads(run(*words).stdout)
    assert outcome["unknown_levels"] == {"c": {"teal": 5}}
    assert outcome["notes"] == [
        "column 'c': 5 of 120 cells hold levels that were not in the fit: 'teal'; they count as rare ones"
    ]
    save(table.assign(c=[f"colour {i % 7}" for i in range(N)]), tmp_path / "new.csv")
    (loud,) = json.loads(run(*words).stdout)["notes"]
    assert "column 'c': most cells (120 of 120) hold levels that were not in the fit: " in loud
    assert "'colour 2' and 4 more" in loud, "a list is never cut silently"
    assert "check that this is the same column" in loud


@pytest.mark.parametrize("kind", ["tfidf", "hash"])
def test_text_features_match_scikit_learn(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    vocabulary = np.array(["apple", "pear", "plum", "rotten", "fresh", "sweet", "sour", "late"])
    texts = [" ".join(rng.choice(vocabulary, rng.integers(1, 7))) for _ in range(N)]
    sold = [3.0 * ("fresh" in text) - 2.0 * ("rotten" in text) + 0.1 * rng.normal() for text in texts]
    data = save(frame(note=texts, y=np.round(sold, 3)), tmp_path / "a.csv")
    outcome = found(data, *WORDS[:4], "--lambda", "0.001", "--no-page", "--text", f"note={kind}", "-o", tmp_path / "m")
    assert {line["column"]: line["kind"] for line in outcome["columns"]}["note"] == "text"
    model = dmtrl.load(tmp_path / "m")
    X = model.preparation_.transform(pd.read_csv(data))
    oracle = TfidfVectorizer(min_df=2) if kind == "tfidf" else HashingVectorizer(n_features=1024)
    np.testing.assert_allclose(X[:, 1:].toarray(), oracle.fit_transform(texts).toarray(), atol=1e-12)
    if kind == "tfidf":
        weights = dict(zip(model.preparation_.feature_names, model.coef_.mean(axis=0), strict=True))
        assert max(weights, key=weights.__getitem__) == "note: fresh"
        assert min(weights, key=weights.__getitem__) == "note: rotten"
    assert run("predict", tmp_path / "m", data, "-q", "-o", tmp_path / "p.csv").exit_code == 0
    assert np.corrcoef(pd.read_csv(tmp_path / "p.csv")["prediction"], sold)[0, 1] > 0.8


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    table = frame(größe=np.resize(["groß", "klein", "mäßig"], N))
    data = save(table, tmp_path / "a.csv", encoding=encoding)
    utf8 = save(table, tmp_path / "b.csv")
    sentence = refusal("fit", data, *WORDS, "-o", tmp_path / "m")
    assert "--encoding" in sentence
    for path, words in ((data, ("--encoding", encoding)), (utf8, ())):
        assert run("fit", path, *WORDS, *words, "-q", "-o", tmp_path / path.stem).exit_code == 0
        assert run("predict", tmp_path / path.stem, path, *words, "-q", "-o", tmp_path / f"p{path.name}").exit_code == 0
    models = [dmtrl.load(tmp_path / name) for name in "ab"]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    assert models[0].preparation_ == models[1].preparation_
    assert (tmp_path / "pa.csv").read_bytes() == (tmp_path / "pb.csv").read_bytes()
    assert "there is no text encoding 'klingon'" in refusal("fit", utf8, *WORDS, "--encoding", "klingon", "-o", "m")


def test_error_about_a_ragged_line_has_its_number(tmp_path: Path) -> None:
    lines = save(frame(), tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()
    lines[1] = '"two\nlines",1,2'
    lines[60] += ",surplus"
    (tmp_path / "a.csv").write_text("\n\n" + "\n".join(lines), encoding="utf-8")
    assert refusal("fit", tmp_path / "a.csv", *WORDS, "-o", tmp_path / "m").endswith(
        "a.csv cannot be read as csv: line 64 has 4 cells, but the first line has 3 columns; put text that holds the "
        "delimiter in quotes"
    )


def test_each_file_is_a_task_without_a_task_column(tmp_path: Path) -> None:
    table = frame()
    north, south = (
        save(table[i::2].drop(columns="t"), tmp_path / f"{name}.csv") for i, name in enumerate(("north", "south"))
    )
    outcome = found(north, south, "--target", "y", "--lambda", "0.1", "--no-page", "-o", tmp_path / "m")
    assert [(row["task"], row["rows"]) for row in outcome["per_task"]] == [("north", 60), ("south", 60)]
    assert "each of the 2 files is a task: 'north', 'south'" in outcome["notes"]
    predicted = run("predict", tmp_path / "m", south, "-q").stdout.splitlines()
    assert predicted[1].startswith('"south",')
    (tmp_path / "other").mkdir()
    again = save(table.drop(columns="t"), tmp_path / "other" / "north.csv")
    outcome = found(north, again, "--target", "y", "--lambda", "0.1", "--no-page", "-o", tmp_path / "n")
    assert outcome["tasks"] == 2, "two files of one name are two tasks"
    for option in ("--drop", "--weights"):
        sentence = refusal("fit", north, south, "--target", "y", option, "file", "-o", tmp_path / "o")
        assert "there is no column 'file'" in sentence
        assert "--task" not in sentence
    assert "was passed twice" in refusal("fit", north, north, "--target", "y", "-o", tmp_path / "o")


def test_a_wrong_task_column_is_an_error_even_with_several_files(tmp_path: Path) -> None:
    first, second = (save(frame(), tmp_path / f"{name}.csv") for name in "ab")
    sentence = refusal("fit", first, second, "--task", "region", "--target", "y", "-o", tmp_path / "m")
    assert (
        "there is no column 'region'; the columns are t, x, y; to make each file a task, leave out --task" in sentence
    )


def test_columns_that_some_files_lack_are_all_counted(tmp_path: Path) -> None:
    save(frame(**{f"c{i}": 1.5 * np.arange(N) for i in range(20)}), tmp_path / "a.csv")
    save(frame(), tmp_path / "b.csv")
    notes = found(tmp_path / "a.csv", tmp_path / "b.csv", *WORDS, "-o", tmp_path / "m")["notes"]
    assert "17 more columns are not in every file: c3, c4, c5, c6, c7, c8, c9, c10 and 9 more" in notes


def test_a_sample_is_a_random_part_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = shops(m=4, rows=500)
    data = write(table, tmp_path / "a.csv")
    sizes = []
    for block in (1 << 20, 3000):  # the sample does not depend on how the file is read
        monkeypatch.setattr("dmtrl.tables.readers.BLOCK", block)
        prepared = prepare(FitRequest([data], "shop", "sales", drop=["verdict"], sample=300, seed=3))
        assert prepared.rows_read == 2000
        assert "a random sample of 300 of 2,000 rows is used" in prepared.notes
        sizes.append(prepared.y)
    np.testing.assert_array_equal(*sizes)
    sales = table.column("sales").to_numpy()
    assert len(sizes[0]) == 300
    assert set(sizes[0]) <= set(sales)
    assert abs(sizes[0].mean() - sales.mean()) < 5 * sales.std() / np.sqrt(300)
    whole = prepare(FitRequest([data], "shop", "sales", drop=["verdict"], sample=5000))
    np.testing.assert_array_equal(whole.y, sales)
    broken = table.to_pandas().assign(sales=lambda t: t["sales"].astype(str))
    broken.loc[1234, "sales"] = "oops"
    save(broken, tmp_path / "b.csv")
    words = ("--task", "shop", "--target", "sales", "--sample", "1900", "--seed", "1")
    assert bad_cell("fit", tmp_path / "b.csv", *words, "-o", tmp_path / "m") == ("oops", "line 1236")


def test_wide_tables(tmp_path: Path) -> None:
    """Twenty thousand columns: with a step that is quadratic in their number this takes ten minutes."""
    rng = np.random.default_rng(0)
    X = rng.normal(3, 2, size=(12, 20_000))
    np.savez(tmp_path / "a.npz", X=X, y=rng.normal(size=12), task=np.resize([1, 2], 12))
    prepared = prepare(FitRequest([tmp_path / "a.npz"]))
    np.testing.assert_allclose(prepared.X, StandardScaler().fit_transform(X), atol=1e-12)


def test_skewed_counts_suggest_the_poisson_loss(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = save(frame(y=rng.negative_binomial(1, 0.1, N)), tmp_path / "a.csv")
    notes = found(data, *WORDS, "-o", tmp_path / "m")["notes"]
    assert any("most of them small" in note and note.endswith("pass --loss poisson") for note in notes)
    outcome = found(data, *WORDS[:4], "--no-page", "--loss", "poisson", "-o", tmp_path / "n")
    assert outcome["baseline"] is not None
    assert not any("Poisson" in note for note in outcome["notes"])
    even = save(frame(y=rng.integers(0, 60, N)), tmp_path / "b.csv")
    assert not any("Poisson" in note for note in found(even, *WORDS, "-o", tmp_path / "o")["notes"])


def test_compared_errors_are_in_the_json_of_each_task(tmp_path: Path) -> None:
    data = save(frame(), tmp_path / "a.csv")
    outcome = found(data, *WORDS, "--compare", "-o", tmp_path / "m")
    assert all({"task", "rows", "together", "alone", "pooled"} <= row.keys() for row in outcome["per_task"])
    result = run("report", tmp_path / "m", data, "--json")
    assert result.exit_code == 0, result.output
    reported = json.loads(result.stdout)
    assert reported["per_task"] == outcome["per_task"]
    assert {"certificate", "lambda", "common", "relations", "report", "notes"} <= reported.keys()


def test_messages_of_several_lines_become_one_sentence() -> None:
    assert one_line("the loss is wrong:\n  slope at 0\n\n  value at 1\nsee\tthe docs") == (
        "the loss is wrong: slope at 0; value at 1; see the docs"
    )


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither limits of file sizes nor such locks")
FULL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from dmtrl.cli.main import main
import dmtrl.workflows.predict  # compiled before the limit
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
main(sys.argv[2:], prog_name="dmtrl")
"""


@POSIX
@pytest.mark.parametrize("out", ["p.csv", "p.parquet"])
@pytest.mark.subprocess
def test_a_full_disk_names_the_file(tmp_path: Path, out: str) -> None:
    """A limit on the size of files fails in the same place as a full disk."""
    data = save(pd.concat([frame()] * 20), tmp_path / "a.csv")
    assert run("fit", data, *WORDS, "-q", "-o", tmp_path / "m").exit_code == 0
    (tmp_path / out).write_text("precious", encoding="utf-8")
    code = [
        sys.executable,
        "-c",
        FULL_DISK,
        "500",
        "predict",
        tmp_path / "m",
        data,
        "-q",
        "--force",
        "-o",
        tmp_path / out,
    ]
    done = subprocess.run(list(map(str, code)), capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr == f"Error: {tmp_path / out}: File too large; nothing was written\n"
    assert (tmp_path / out).read_text(encoding="utf-8") == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "m", out}


@POSIX
@pytest.mark.subprocess
def test_temporary_files_of_killed_runs_are_removed(tmp_path: Path) -> None:
    """But not the file of a run that is still writing, nor one that was just opened."""
    old, busy, young = (tmp_path / f".dmtrl-{name}.tmp" for name in ("old", "busy", "young"))
    for path in (old, busy, young):
        path.write_bytes(b"half of a model")
    for path in (old, busy):
        os.utime(path, (time.time() - 3600,) * 2)
    lock = "fcntl.flock(file, fcntl.LOCK_EX); print(1, flush=True); time.sleep(60)"
    code = f"import fcntl, time; file = open({str(busy)!r}, 'rb+'); {lock}"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        try:
            dmtrl.MTRLRegressor().fit(np.eye(4), np.arange(4.0)).save(tmp_path / "model")
        finally:
            writer.kill()
    assert {path.name for path in tmp_path.iterdir()} == {"model", busy.name, young.name}


def test_one_column_with_two_roles_is_refused_in_python_too() -> None:
    with pytest.raises(InputError, match="column 'x' is in both drop and number"):
        learn({"t": ["a", "b"], "x": [1, 2], "y": [1, 2]}, "t", "y", choices=Choices(drop=["x"], number=["x"]))
