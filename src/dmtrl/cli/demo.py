"""dmtrl demo.

Room: commands.
"""

from pathlib import Path

import click

from dmtrl.cli.display import status
from dmtrl.cli.errors import told_in_sentences


@click.command(name="demo")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Which random tasks to draw.")
@click.option("--quick", is_flag=True, help="A smaller problem: seconds instead of a quarter of a minute.")
@click.option("--out", "-o", type=click.Path(), default="dmtrl-demo.html", show_default=True, help="The page's file.")
@click.option("--no-page", is_flag=True, help="Print only, write nothing.")
def command(seed: int, quick: bool, out: str, no_page: bool) -> None:
    """Learn 16 made-up tasks together and compare.

    The tasks are those of the paper's Synthetic 1, so the true relations are known. They are fitted together, each
    alone, and as one; the summary says what each costs in test error, and how far the fit can be from the best.

    \b
    Examples:
      dmtrl demo
      dmtrl demo --quick --seed 3
    """
    from rich.console import Console

    from dmtrl.lab.demo import demo_page, render, run_demo
    from dmtrl.report.page import require_packages, write_page
    from dmtrl.tables.output import check_output

    with told_in_sentences():
        if not no_page:
            check_output(Path(out), force=True)
        with status() as (tell, on_round):
            result = run_demo(seed, quick, tell, [on_round])
    render(result, Console(highlight=False))
    if no_page:
        return
    try:
        require_packages()
    except ImportError as missing:  # the demonstration has been given; the page is a bonus
        click.echo(f"\n  No page: {missing}")
        return
    with told_in_sentences():
        written = write_page(demo_page(result), out)
    click.echo(f"\n  The page about all this: {written}")
