"""What dmtrl fit prints: names on a terminal, relations, baselines, and path errors before anything slow is loaded."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dmtrl.cli.errors import printable
from dmtrl.cli.fit_summary import MAX_NAME
from support.cell_tables import WORDS, N, columns, found, save
from support.shell_data import run, write


def test_names_cannot_control_the_terminal(tmp_path: Path) -> None:
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


def test_weak_relations_are_not_printed(tmp_path: Path) -> None:
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


def test_summary_has_no_trailing_blanks_and_separate_times(tmp_path: Path) -> None:
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


def test_printed_baseline_is_the_error_of_the_constant_prediction(tmp_path: Path) -> None:
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
def test_path_errors_are_printed_before_numerical_libraries_are_imported(tmp_path: Path) -> None:
    there = save(tmp_path / "a.csv", columns())
    cases: list[tuple[str, ...]] = [
        ("fit", "none.csv", *WORDS),
        ("fit", str(there), *WORDS, "-o", "no/m"),
        ("predict", "none", str(there)),
        ("predict", str(there), str(there)),
        ("report", "none"),
        ("export", str(there), "-o", "c.csv"),
    ]
    code = (
        "import sys\nfrom dmtrl.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(sorted({'sklearn', 'scipy', 'numba', 'pyarrow'} & set(sys.modules)))"
    )
    for words in cases:
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith("Error: ")
        assert done.stdout == "[]\n"
