"""dmtrl demo.

Room: commands.
"""

import click

from dmtrl.commands.display import status
from dmtrl.commands.errors import told_in_sentences


@click.command(name="demo")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Which random tasks to draw.")
@click.option("--quick", is_flag=True, help="A smaller problem: seconds instead of a quarter of a minute.")
def command(seed: int, quick: bool) -> None:
    """Learn 16 made-up tasks together and compare.

    The tasks are those of the paper's Synthetic 1, so the true relations are known. They are fitted together, each
    alone, and as one; the summary says what each costs in test error, and how far the fit can be from the best.

    \b
    Examples:
      dmtrl demo
      dmtrl demo --quick --seed 3
    """
    from rich.console import Console

    from dmtrl.demo import render, run_demo

    with told_in_sentences(), status() as (tell, on_round):
        result = run_demo(seed, quick, tell, [on_round])
    render(result, Console(highlight=False))
