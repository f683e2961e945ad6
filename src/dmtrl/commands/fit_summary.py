"""What dmtrl fit prints: the columns and what became of them, then the outcome on one screen.

Room: commands. Draws the plain values of findings.document and computes nothing.
"""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

MOST_LINES = 20  # of the table of columns
_MEASURES = {"squared_error": "mean squared error", "wrong": "share of wrong answers", "loss": "mean loss"}


def print_columns(lines: Sequence[tuple[str, str, str, int]], notes: Sequence[str]) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("column", "kind", "what was done"):
        table.add_column(heading, overflow="fold")
    table.add_column("features", justify="right")
    alike: dict[tuple[str, str], list[tuple[str, int]]] = {}  # columns of one treatment share a line
    for name, kind, done, count in lines:
        alike.setdefault((kind, done), []).append((name, count))
    for (kind, done), columns in list(alike.items())[:MOST_LINES]:
        style = "dim" if kind == "left out" else ""
        table.add_row(Text(_few(columns)), kind, Text(done), str(sum(count for _, count in columns)), style=style)
    rest = [column for columns in list(alike.values())[MOST_LINES:] for column in columns]
    if rest:
        features = str(sum(count for _, count in rest))
        table.add_row(f"and {len(rest)} more", "", "see --json for all", features, style="dim")
    console.print(Padding(table, (0, 2), expand=False))
    _print_notes(console, notes)


def _few(columns: list[tuple[str, int]]) -> str:
    names = [name for name, _ in columns]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} more"


def print_summary(found: dict[str, Any]) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    _print_notes(console, found["notes"][found["notes_before_fit"] :])
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    facts.add_row(
        "rows", f"{found['rows']:,} of {found['tasks']:,} tasks ({found['task']}), {found['features']:,} features"
    )
    facts.add_row("target", f"{found['target']}: {found['kind']}, {found['loss']} loss")
    facts.add_row("lambda", _strengths(found))
    if found["held_out"] is not None:
        by = found["chosen"]["by"]
        value = found["held_out"][by]
        facts.add_row(
            "held out", f"{_MEASURES[by]} {f'{value:.2%}' if by == 'wrong' else f'{value:.4g}'} over all rows"
        )
    certificate = found["certificate"]
    proven = f"proven within {max(certificate['relative_gap'], 0):.2%} of the best possible"
    short = "" if certificate["converged"] else f", which is not the {certificate['tol']:.2%} asked for"
    facts.add_row("certificate", f"{proven} ({found['rounds']} rounds, {found['seconds']['total']:.1f} s){short}")
    for word in ("alike", "opposed"):
        pairs = found["relations"][word]
        if pairs:
            facts.add_row(word, Text(", ".join(f"{a} and {b} ({value:+.2f})" for a, b, value in pairs)))
    if found["compared"]:
        facts.add_row("compared", found["compared"])
    facts.add_row("model", Text(found["model"]))
    if found["report"]:
        facts.add_row("page", Text(found["report"]))
    console.print()
    console.print(Padding(facts, (0, 2), expand=False))
    console.print(f"\n  next: dmtrl predict {found['model']} NEW.csv -o predictions.csv", soft_wrap=True)


def _strengths(found: dict[str, Any]) -> str:
    common = f", common part {found['common']:g}" if found["common"] else ", no common part"
    chosen = found["chosen"]
    how = f"; best of {chosen['fits'] // chosen['folds']} on {chosen['folds']} folds" if chosen else "; as given"
    return f"{found['lambda']:.3g}{common}{how}"


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(Padding(Text(f"- {note}"), (0, 2), expand=False))
