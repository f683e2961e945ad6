"""Print what `dmtrl fit` did with the columns, and the summary of the fit."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

import click
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dmtrl.cli.errors import note_text, printable
from dmtrl.estimators.held_out import TITLES
from dmtrl.tables.names import listed

if TYPE_CHECKING:
    from dmtrl.workflows.fit import FitResult
    from dmtrl.workflows.summary import Measured, ModelFigures, TaskFigures

MAX_LINES = 20  # of the table of columns
MAX_NAME = 40  # characters of a task name
_MEASURES = {  # each with its baseline
    "squared_error": ("mean squared error", "each task's mean"),
    "wrong": ("error rate", "each task's most frequent class"),
    "loss": ("mean loss", "each task's best constant"),
}


def print_columns(lines: Sequence[tuple[str, str, str, int]], notes: Sequence[str], file: TextIO | None = None) -> None:
    """Print what was done with each column, and notes, to a file or stdout."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("column", "kind", "what was done"):
        table.add_column(heading, overflow="fold")
    table.add_column("features", justify="right")
    alike: dict[tuple[str, str], list[tuple[str, int]]] = {}  # columns that were treated alike share a line
    for name, kind, done, count in lines:
        alike.setdefault((kind, done), []).append((name, count))
    for (kind, done), columns in list(alike.items())[:MAX_LINES]:
        style = "dim" if kind == "left out" else ""
        table.add_row(_text(_few(columns)), kind, _text(done), str(sum(count for _, count in columns)), style=style)
    rest = [column for columns in list(alike.values())[MAX_LINES:] for column in columns]
    if rest:
        features = str(sum(count for _, count in rest))
        table.add_row(f"and {len(rest)} more", "", "see --json for all", features, style="dim")
    _print(table, *_as_lines(notes), file=file)


def _few(columns: list[tuple[str, int]]) -> str:
    names = [name for name, _ in columns]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} more"


def print_summary(result: "FitResult") -> None:
    summary, seconds = result.summary, result.seconds
    figures = summary.model
    certificate = figures.certificate
    shares = ", ".join(f"{share:.0%} {part}" for part, share in figures.shares.items())
    proven = f"proven within {max(certificate.relative_gap, 0):.2%} of the optimum ({figures.rounds} rounds)"
    missed = "" if certificate.converged else f"; the requested {certificate.tol:.2%} was not reached"
    choosing = "" if seconds.choosing is None else f", of which {seconds.choosing:.1f} s choosing lambda"
    tasks = f"{figures.tasks:,} tasks ({summary.task})"
    lines = {
        "rows": f"{summary.rows:,} in {tasks}, {summary.features:,} features",
        "per task": _rows_per_task(figures.per_task),
        "target": f"{summary.target}: {figures.kind}, {figures.loss} loss",
        "lambda": _strengths(figures),
        "shares": f"{shares} (mean over tasks)" if figures.tasks > 1 else None,
        "held out": _held_out(figures),
        "metrics": _metrics(figures.metrics or {}),
        "certificate": f"{proven}{missed}",
        "time": f"{seconds.total:.1f} s{choosing}",
        "alike": _pairs(figures.relations.alike),
        "opposed": _pairs(figures.relations.opposed),
        "compared": figures.compared,
        "model": str(result.out),
        "page": None if result.page is None else str(result.page),
    }
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, line in lines.items():
        if line:
            table.add_row(name, _text(line))
    _print(*_as_lines(result.fit_notes))
    click.echo()
    _print(table)
    click.echo(printable(f"\n  next: dmtrl predict {shlex.quote(str(result.out))} NEW.csv -o predictions.csv", "\n"))


def _rows_per_task(per_task: Sequence["TaskFigures"]) -> str:
    counts = sorted(task.rows for task in per_task if task.rows is not None)
    few = [str(task.task) for task in per_task if task.few_rows]
    if counts[0] == counts[-1]:
        return f"{counts[0]:,} rows each"
    text = f"{counts[0]:,} to {counts[-1]:,} rows, median {counts[len(counts) // 2]:,}"
    if not few:
        return text
    return f"{text}; very few: {listed([_shortened(name) for name in few], 3)} (left out below)"


def _held_out(figures: "ModelFigures") -> str | None:
    if figures.held_out is None or figures.chosen is None:
        return None
    by, baseline = figures.chosen.by, figures.baseline
    (measure, name), form = _MEASURES[by], ".2%" if by == "wrong" else ".4g"
    compared = "" if baseline is None else f" (baseline, {name}: {baseline:{form}})"
    return f"{measure} {figures.held_out[by]:{form}} over all rows{compared}"


def _metrics(metrics: Mapping[str, "Measured"]) -> str:
    """Metrics over all held-out rows, each with its baseline."""

    def shown(value: float | None) -> str:
        return "undefined" if value is None else f"{value:.3g}"

    return ", ".join(
        f"{TITLES[name]} {shown(measured.model)} ({shown(measured.baseline)})" for name, measured in metrics.items()
    )


def _pairs(pairs: Sequence[tuple[object, object, float]]) -> str:
    """Pairs of tasks, with quotes if a name could be confused with the text around it."""
    names = [str(name) for first, second, _ in pairs for name in (first, second)]
    quoted = any(name != name.strip() or not name or "," in name or " and " in name or "'" in name for name in names)

    def quote(name: object) -> str:
        short = _shortened(str(name))
        return repr(short) if quoted else short

    return ", ".join(f"{quote(a)} and {quote(b)} ({value:+.2f})" for a, b, value in pairs)


def _shortened(name: str) -> str:
    """A long name without its middle: long names often differ at their ends."""
    if len(name) <= MAX_NAME:
        return name
    half = (MAX_NAME - 3) // 2
    return f"{name[:half]}...{name[-half:]}"


def _strengths(figures: "ModelFigures") -> str:
    common = f", common component {figures.common:g}" if figures.common else ", no common component"
    own = f", own parts {figures.own:g}" if figures.own else ""
    chosen = figures.chosen
    how = f"; best of {chosen.candidates} in {chosen.folds} folds" if chosen else "; as given"
    strength = f"{figures.reg_lambda:.3g}" if math.isfinite(figures.reg_lambda) else "infinite (no deviations)"
    return f"{strength}{common}{own}{how}"


def _as_lines(notes: Sequence[str]) -> list[Text]:
    return [_text(f"- {note_text(note)}") for note in notes]


def _text(words: str) -> Text:
    return Text(printable(words))


def _print(*things: RenderableType, file: TextIO | None = None) -> None:
    """Print with an indent of two and without trailing blanks."""
    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        for thing in things:
            console.print(Padding(thing, (0, 2), expand=False))
    for line in capture.get().splitlines():
        click.echo(line.rstrip(), file)
