"""Run the experiments of `dmtrl-lab reproduce` and `dmtrl-lab bench` with a progress display."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dmtrl.cli.display import display
from dmtrl.cli.errors import exit_on_interrupt

if TYPE_CHECKING:
    from dmtrl.report.content import Section
    from dmtrl_lab.experiments.collection import Collection, Output
    from dmtrl_lab.experiments.experiment import Experiment, Run


def run(collection: "Collection", which: str, quick: bool, folder: Path) -> "Output":
    """Run and return the results. Raises SystemExit(1) at the end if data was missing."""
    with exit_on_interrupt("run the command again to continue"):
        plan = collection.plan(which, quick, folder)
        if plan.pending:
            done = plan.runs - len(plan.pending)
            what = f"{done} of {plan.runs} runs are stored; the rest" if done else f"{plan.runs} runs"
            minutes = _duration(plan.seconds)
            click.echo(f"{what} will take about {minutes} on 2 cores. Records: {folder}/records.jsonl", err=True)
        passed = 0.0
        with display() as progress:
            progress.stage(f"running {which}")

            def on_start(experiment: "Experiment", run: "Run") -> None:
                nonlocal passed
                progress.update(min(passed / max(plan.seconds, 1e-9), 0.999), f"{experiment.name}: {run.in_words()}")
                passed += run.seconds

            result = collection.run(which, quick, folder, on_start)
    for name, reason in result.missing.items():
        click.echo(f"Left out: {name}. {reason}", err=True)
    if result.page is not None:
        click.echo(f"Page:    {result.page}")
        click.echo(f"Plots:   {folder / 'files'} ({len(result.files)} files)")
        click.echo(f"Records: {folder / 'records.jsonl'}")
    if result.missing:
        raise SystemExit(1)
    return result


def print_tables(sections: "Sequence[Section]") -> None:
    """Print the tables of some sections of the page as Markdown."""
    from dmtrl.report.content import Table
    from dmtrl.report.files import markdown_text

    for table in (item for section in sections for item in section.items if isinstance(item, Table)):
        click.echo(f"\n{markdown_text(table)}")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
