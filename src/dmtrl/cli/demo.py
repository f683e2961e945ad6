"""The command `dmtrl demo`."""

from pathlib import Path

import click

from dmtrl.cli.display import display


@click.command(name="demo")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the random tasks.")
@click.option("--paper", is_flag=True, help="Use the paper's Synthetic 1, with 1,894 training rows per task.")
@click.option("--quick", is_flag=True, help="Use a smaller problem, which takes a few seconds.")
@click.option(
    "--out", "-o", type=click.Path(), default="dmtrl-demo.html", show_default=True, help="Output file of the page."
)
@click.option("--no-page", is_flag=True, help="Do not write a page.")
def command(seed: int, paper: bool, quick: bool, out: str, no_page: bool) -> None:
    """Fit 16 synthetic tasks and compare the errors.

    The tasks have few rows and known relations. They are fitted together, each alone, pooled, and by boosted trees.
    The summary shows the test errors and how close the fit is to the optimum.

    \b
    Examples:
      dmtrl demo
      dmtrl demo --quick --seed 3
    """
    from rich.console import Console

    from dmtrl.cli.demo_summary import print_demo
    from dmtrl.workflows import demo

    with display() as progress:
        done = demo.demo(seed, quick, paper, None if no_page else Path(out), progress)
    print_demo(done.result, Console(highlight=False))
    for note in done.notes:
        click.echo(f"\n  {note}")
    if done.page is not None:
        click.echo(f"\n  page: {done.page}")
