"""The command `dmtrl reproduce`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dmtrl.report.content import Section

CHOICES = ("all", "synthetic", "convergence", "school", "mnist", "mds", "heart", "accuracy", "intervals")


@click.command(name="reproduce")
@click.argument("which", type=click.Choice(CHOICES), default="all")
@click.option("--quick", is_flag=True, help="Use less data: a smoke test of one or two minutes.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Output folder for records, page, plots and tables [reproduced]."
)
def command(which: str, quick: bool, out: Path | None) -> None:
    """Run the paper's experiments and draw its tables and figures.

    Each result is stored as soon as it is computed; to continue an interrupted
    run, run the same command again. Data sets come from the folder DMTRL_DATA,
    else from the cache, else they are downloaded.

    \b
    Examples:
      dmtrl reproduce --quick
      dmtrl reproduce school --out results
    """
    from dmtrl.cli.collection import run
    from dmtrl.lab.experiments import accuracy, heart, intervals
    from dmtrl.lab.experiments.reproduce import REPRODUCTION

    result = run(REPRODUCTION, which, quick, out or Path("reproduced-quick" if quick else "reproduced"))
    printed = {"heart": heart.TITLE, "accuracy": accuracy.TITLE, "intervals": intervals.TITLE}.get(which)
    print_tables([section for section in result.sections if section.title == printed])


def print_tables(sections: "Sequence[Section]") -> None:
    """Print the tables of some sections of the page."""
    from dmtrl.report.content import Table

    for table in (item for section in sections for item in section.items if isinstance(item, Table)):
        cells = [list(table.columns), *([str(cell) for cell in row] for row in table.rows)]
        widths = [max(len(row[j]) for row in cells) for j in range(len(table.columns))]
        click.echo(f"\n{table.title}")
        for row in cells:
            click.echo("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
