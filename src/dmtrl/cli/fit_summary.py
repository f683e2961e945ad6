"""What dmtrl fit prints: the columns and what became of them, then the outcome on one screen.

Room: commands. Draws the plain values of findings.document and computes nothing.
"""

import shlex
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dmtrl.cli.errors import printable

MOST_LINES = 20  # of the table of columns
LONGEST = 40  # characters of a task's name
_MEASURES = {"squared_error": "mean squared error", "wrong": "share of wrong answers", "loss": "mean loss"}
_GUESSES = {"squared_error": "predicting each task's mean", "wrong": "each task's most frequent class"}


def print_columns(lines: Sequence[tuple[str, str, str, int]], notes: Sequence[str]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("column", "kind", "what was done"):
        table.add_column(heading, overflow="fold")
    table.add_column("features", justify="right")
    alike: dict[tuple[str, str], list[tuple[str, int]]] = {}  # columns of one treatment share a line
    for name, kind, done, count in lines:
        alike.setdefault((kind, done), []).append((name, count))
    for (kind, done), columns in list(alike.items())[:MOST_LINES]:
        style = "dim" if kind == "left out" else ""
        table.add_row(_text(_few(columns)), kind, _text(done), str(sum(count for _, count in columns)), style=style)
    rest = [column for columns in list(alike.values())[MOST_LINES:] for column in columns]
    if rest:
        features = str(sum(count for _, count in rest))
        table.add_row(f"and {len(rest)} more", "", "see --json for all", features, style="dim")
    _print(table, *_as_lines(notes))


def _few(columns: list[tuple[str, int]]) -> str:
    names = [name for name, _ in columns]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} more"


def print_summary(found: dict[str, Any]) -> None:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    facts.add_row(
        "rows",
        _text(f"{found['rows']:,} of {found['tasks']:,} tasks ({found['task']}), {found['features']:,} features"),
    )
    facts.add_row("target", _text(f"{found['target']}: {found['kind']}, {found['loss']} loss"))
    facts.add_row("lambda", _strengths(found))
    if found["held_out"] is not None:
        facts.add_row("held out", _held_out(found))
    certificate = found["certificate"]
    proven = f"proven within {max(certificate['relative_gap'], 0):.2%} of the best possible"
    short = "" if certificate["converged"] else f", which is not the {certificate['tol']:.2%} asked for"
    facts.add_row("certificate", f"{proven} ({found['rounds']} rounds){short}")
    facts.add_row("time", _time(found["seconds"]))
    for word in ("alike", "opposed"):
        if found["relations"][word]:
            facts.add_row(word, _text(_pairs(found["relations"][word])))
    if found["compared"]:
        facts.add_row("compared", _text(found["compared"]))
    facts.add_row("model", _text(found["model"]))
    if found["report"]:
        facts.add_row("page", _text(found["report"]))
    _print(*_as_lines(found["notes"][found["notes_before_fit"] :]))
    click.echo()
    _print(facts)
    click.echo(printable(f"\n  next: dmtrl predict {shlex.quote(found['model'])} NEW.csv -o predictions.csv", "\n"))


def _held_out(found: dict[str, Any]) -> str:
    by, guessing = found["chosen"]["by"], found["guessing"]

    def written(value: float) -> str:
        return f"{value:.2%}" if by == "wrong" else f"{value:.4g}"

    beside = "" if guessing is None else f" ({_GUESSES[by]}: {written(guessing)})"
    return f"{_MEASURES[by]} {written(found['held_out'][by])} over all rows{beside}"


def _time(seconds: dict[str, float]) -> str:
    choosing = f", of which {seconds['choosing']:.1f} s choosing lambda" if "choosing" in seconds else ""
    return f"{seconds['total']:.1f} s{choosing}"


def _pairs(pairs: Sequence[tuple[Any, Any, float]]) -> str:
    """In quotes where a name would otherwise not be told from what stands around it."""
    names = [str(name) for first, second, _ in pairs for name in (first, second)]
    quoted = any(name != name.strip() or not name or "," in name or " and " in name or "'" in name for name in names)

    def written(name: Any) -> str:
        short = _shortened(str(name))
        return repr(short) if quoted else short

    return ", ".join(f"{written(a)} and {written(b)} ({value:+.2f})" for a, b, value in pairs)


def _shortened(name: str) -> str:
    """Without its middle: names that are long often differ at their ends."""
    if len(name) <= LONGEST:
        return name
    half = (LONGEST - 3) // 2
    return f"{name[:half]}...{name[-half:]}"


def _strengths(found: dict[str, Any]) -> str:
    common = f", common part {found['common']:g}" if found["common"] else ", no common part"
    chosen = found["chosen"]
    how = f"; best of {chosen['fits'] // chosen['folds']} on {chosen['folds']} folds" if chosen else "; as given"
    return f"{found['lambda']:.3g}{common}{how}"


def _as_lines(notes: Sequence[str]) -> list[Text]:
    return [_text(f"- {note}") for note in notes]


def _text(words: str) -> Text:
    return Text(printable(words))


def _print(*things: RenderableType) -> None:
    """Two columns from the left, and without the blanks that would fill every line up to the right."""
    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        for thing in things:
            console.print(Padding(thing, (0, 2), expand=False))
    for line in capture.get().splitlines():
        click.echo(line.rstrip())
