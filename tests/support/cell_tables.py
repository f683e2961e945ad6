"""Tables of text cells with three tasks, and fits of them by the command."""

import json
from pathlib import Path

import numpy as np

from support.shell_data import run

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
