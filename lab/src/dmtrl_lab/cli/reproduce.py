"""The command `dmtrl-lab reproduce`."""

from pathlib import Path

import click

CHOICES = ("all", "synthetic", "convergence", "school", "mnist", "mds", "heart", "accuracy", "grouped", "intervals")


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
      dmtrl-lab reproduce --quick
      dmtrl-lab reproduce school --out results
    """
    from dmtrl_lab.cli.collection import print_tables, run
    from dmtrl_lab.experiments.reproduce import REPRODUCTION

    result = run(REPRODUCTION, which, quick, out or Path("reproduced-quick" if quick else "reproduced"))
    if which in ("heart", "accuracy", "grouped", "intervals"):
        titles = [experiment.title for experiment in REPRODUCTION.experiments(which)]
        print_tables([section for section in result.sections if section.title in titles])
