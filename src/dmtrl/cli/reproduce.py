"""dmtrl reproduce.

Room: commands.
"""

from pathlib import Path

import click

CHOICES = ("all", "synthetic", "convergence", "school", "mnist", "mds")


@click.command(name="reproduce")
@click.argument("which", type=click.Choice(CHOICES), default="all")
@click.option("--quick", is_flag=True, help="Less data, a minute or two: only to see that everything runs.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for records, page, plots and tables [reproduced].")
def command(which: str, quick: bool, out: Path | None) -> None:
    """Run the paper's experiments and draw its tables and figures.

    Each result is stored when it is there, so an interrupted run goes on where
    it stopped: give the same command again. Data sets are found in the folder
    named by DMTRL_DATA, else in the cache, else downloaded.

    \b
    Examples:
      dmtrl reproduce --quick
      dmtrl reproduce school --out results
    """
    from dmtrl.cli.collection import run
    from dmtrl.lab.experiments.reproduce import REPRODUCTION

    run(REPRODUCTION, which, quick, out or Path("reproduced-quick" if quick else "reproduced"))
