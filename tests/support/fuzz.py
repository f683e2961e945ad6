"""Random damage to what people hand to the shell: files, options, models. Each case comes from a seed.

`case(seed, folder)` runs one command in this process and returns what is wrong with its answer, or None. A command may
succeed or refuse: a refusal is one sentence on stderr with exit code 1 (or a usage error with 2), leaves nothing behind
and no input changed. `python tests/support/fuzz.py --minutes 5` runs as many cases as fit into that time.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
from click.testing import Result

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.shell_data import run, write

WORDS = (
    "", "NA", "-", "1,5", "1e999", "-inf", "nan", "0x1F", "007", "2024-02-30", "31.12.2024", "12/31/2024", "'", '"',
    ";", ",", "\t", "\n", "\r", "\r\n", "\x00", "\ufeff", "ü", "日本", "\u202e", "=1+1", "True", "1" * 400,
    "a b c d", "1e-320", "9" * 30, "{}", "<b>", "%d", "\x1b[31m",
)  # fmt: skip
OPTIONS = (
    "--task", "--target", "--kind", "--loss", "--lambda", "--weights", "--drop", "--category", "--number", "--date",
    "--text", "--missing", "--encoding", "--sample", "--tol", "--seed", "--jobs", "--workers", "--address",
    "--max-staleness",
)  # fmt: skip
VALUES = (
    "t", "y", "x", "c", "d", "nowhere", "", "0", "-1", "1", "0.5", "1e999", "nan", "auto", "regression",
    "classification", "poisson", "huber=2", "huber=x", "quantile=2", "hinge", "d=%d.%m.%Y", "d=%Q", "=", "c=hash",
    "c=tfidf", "x=hash", "utf-16", "latin-1", "nosuch", "rot13", "7", "10000000000000000000000", "ü", "\x1b[2J",
)  # fmt: skip


def table(rng: np.random.Generator, n: int = 36) -> pa.Table:
    x = rng.normal(size=n).round(3)
    return pa.table({
        "t": np.resize(["u", "v", "w"], n),
        "x": x,
        "c": rng.choice(["red", "green", "blue"], n),
        "d": (np.datetime64("2024-01-01") + rng.integers(0, 300, n)).astype("datetime64[D]"),
        "y": (x + 0.1 * rng.normal(size=n)).round(3),
    })  # fmt: skip


def prepare(folder: Path) -> None:
    """The undamaged files, and a model of each kind."""
    rng = np.random.default_rng(0)
    whole = table(rng)
    for name in ("a.csv", "a.csv.gz", "a.tsv", "a.parquet", "a.arrow"):
        write(whole, folder / name)
    np.savez(folder / "a.npz", X=rng.normal(size=(36, 2)), y=rng.normal(size=36), task=np.resize([1, 2, 3], 36))
    lines = [f"{y:.3f} qid:{i % 3} 1:{x:.3f} 3:1" for i, (x, y) in enumerate(rng.normal(size=(36, 2)))]
    (folder / "a.svm").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ("--task", "t", "--target", "y", "--lambda", "0.1", "--no-page", "-q")
    assert run("fit", folder / "a.csv", *words, "-o", folder / "model.dmtrl").exit_code == 0
    assert run("fit", folder / "a.csv", *words, "--kind", "classification", "--target", "c", "-o",
               folder / "classes.dmtrl").exit_code == 0  # fmt: skip


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Bytes with a few random changes."""
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, len(data) + 1))
        to = min(len(data), at + int(rng.integers(1, 30)))
        word = str(rng.choice(WORDS)).encode()
        change = rng.integers(0, 7)
        if change == 0:
            data = data[:at] + word + data[at:]
        elif change == 1:
            data = data[:at] + data[to:]
        elif change == 2:
            data = data[:at] + rng.bytes(to - at) + data[to:]
        elif change == 3:
            data = data[:at] + data[at:to] * int(rng.integers(2, 5)) + data[to:]
        elif change == 4:
            data = data[:at]
        elif change == 5 and data:
            flipped = bytearray(data)
            flipped[min(at, len(data) - 1)] ^= 1 << int(rng.integers(0, 8))
            data = bytes(flipped)
        else:
            data = data[:at] + word + data[to:]
    return data


def damaged_cells(text: str, rng: np.random.Generator) -> str:
    """A CSV file in which some cells, or a whole column, hold something else."""
    rows = [line.split(",") for line in text.splitlines()]
    column = int(rng.integers(0, len(rows[0])))
    for row in rows[int(rng.integers(0, 2)) :]:
        if rng.random() < (0.03, 0.3, 1.0)[rng.integers(0, 3)] and column < len(row):
            row[column] = str(rng.choice(WORDS)) if rng.random() < 0.5 else row[int(rng.integers(0, len(row)))]
    return "\n".join(",".join(row) for row in rows) + "\n"


def command(rng: np.random.Generator, folder: Path) -> list[str]:
    """One command on damaged files, in the folder."""
    kind = rng.integers(0, 10)
    fit = ["--task", "t", "--target", "y", "--lambda", "0.1", "--no-page"]
    if kind < 3:  # cells
        path = folder / "a.csv"
        path.write_text(damaged_cells(path.read_text(encoding="utf-8"), rng), encoding="utf-8", newline="")
        return ["fit", str(path), *fit]
    if kind < 5:  # bytes of any format
        name = str(rng.choice(["a.csv", "a.csv.gz", "a.tsv", "a.parquet", "a.arrow", "a.npz", "a.svm"]))
        path = folder / name
        path.write_bytes(damaged(path.read_bytes(), rng))
        own = fit if name not in ("a.npz", "a.svm") else fit[4:]
        return ["fit", str(path), *own]
    if kind < 7:  # options
        words = [str(word) for _ in range(rng.integers(1, 4)) for word in (rng.choice(OPTIONS), rng.choice(VALUES))]
        files = [str(folder / name) for name in rng.choice(["a.csv", "a.tsv", "a.npz", "no.csv"], rng.integers(1, 3))]
        return ["fit", *files, *fit, *words]
    model = folder / str(rng.choice(["model.dmtrl", "classes.dmtrl"]))
    if kind < 8:
        model.write_bytes(damaged(model.read_bytes(), rng))
    else:
        path = folder / "a.csv"
        path.write_text(damaged_cells(path.read_text(encoding="utf-8"), rng), encoding="utf-8", newline="")
    words = [str(word) for word in rng.choice(["--fill", "--unknown=skip", "--unknown=shared", "--keep=*", "--keep=q"],
                                              rng.integers(0, 3))]  # fmt: skip
    return ["predict", str(model), str(folder / "a.csv"), *words]


def case(seed: int, clean: Path) -> str | None:
    """What is wrong with the answer to one command; None if nothing is."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        shutil.copytree(clean, folder)
        words = command(rng, folder)
        before = {path: path.read_bytes() for path in folder.iterdir()}
        out = Path(name) / ("p.csv" if words[0] == "predict" else "m.dmtrl")
        result = run(*words, "-o", out)
        left = {path.name for path in Path(name).iterdir()} - {"data", out.name}
        wrong = judge(result, out, left)
        if {path: path.read_bytes() for path in folder.iterdir()} != before:
            wrong = "an input was changed"
        return None if wrong is None else f"seed {seed}: {wrong}\n{words}\n{result.output[-2000:]}"


def judge(result: Result, out: Path, left: set[str]) -> str | None:
    """What is wrong with a result. left: what lies beside the output."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return "".join(traceback.format_exception(result.exception))
    if left:
        return f"left behind: {sorted(left)}"
    if result.exit_code == 0:
        return None if out.exists() else "success without an output"
    if out.exists():
        return "a failure with an output"
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    if result.exit_code not in (1, 2) or len(errors) != 1 or result.stderr.splitlines()[-1] != errors[0]:
        return f"exit code {result.exit_code} and not one sentence at the end"
    return "an empty sentence" if len(errors[0]) < 15 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed; the tests use those from 0")
    options = parser.parse_args()
    warnings.simplefilter("error")
    clean, wrong, seed = Path(tempfile.mkdtemp()), 0, options.first
    try:
        prepare(clean)
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end:
            found = case(seed, clean)
            if found is not None:
                wrong += 1
                print(found, flush=True)
            seed += 1
    finally:
        shutil.rmtree(clean)
    print(f"{seed - options.first:,} cases, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
