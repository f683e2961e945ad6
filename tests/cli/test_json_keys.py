"""docs/command-line.md lists exactly the keys that --json prints."""

import json
import re
from pathlib import Path

from support.shell_data import run, shops, write

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def test_keys_of_json_are_those_of_the_page(tmp_path: Path) -> None:
    data = write(shops(m=3, rows=20), tmp_path / "a.csv")
    model, words = tmp_path / "m", ("--task", "shop", "--target", "sales", "--drop", "verdict", "--lambda", "0.1")
    commands = {
        "fit": ("fit", data, *words, "--no-page", "-o", model),
        "predict": ("predict", model, data, "-o", tmp_path / "p.csv"),
        "report": ("report", model, "-o", tmp_path / "page.html"),
        "export": ("export", model, "-o", tmp_path / "m.json"),
    }
    printed = {name: set(json.loads(run(*command, "--json").stdout)) for name, command in commands.items()}
    documented: dict[str, set[str]] = {"fit": set(), "report": set()}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and set(cells[1:3]) <= {"yes", ""}:
            keys = set(re.findall(r"`(\w+)`", cells[0]))
            documented["fit"] |= keys if cells[1] else set()
            documented["report"] |= keys if cells[2] else set()
        elif len(cells) == 2 and cells[0] in ("`predict`", "`export`"):
            documented[cells[0].strip("`")] = set(re.findall(r"`(\w+)`", cells[1]))
    assert documented == printed
