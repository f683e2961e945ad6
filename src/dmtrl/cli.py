"""The shell: words to calls, no logic.

Room: the top. Each command asks one function of the library and prints what came back. Exit codes: 0 done, 1 the work
could not be done (one sentence on stderr says why), 2 the command was misspelt.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console

import dmtrl
from dmtrl.coordinator import RoundRecord
from dmtrl.progress import describe
from dmtrl.settings import Settings


@click.group(name="dmtrl", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(dmtrl.__version__, prog_name="dmtrl")
def main() -> None:
    """One linear model per task, the relations between tasks, and a certificate.

    Start with: dmtrl demo
    """


@main.command()
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Which random tasks to draw.")
@click.option("--quick", is_flag=True, help="A smaller problem: seconds instead of a quarter of a minute.")
def demo(seed: int, quick: bool) -> None:
    """Learn 16 made-up tasks together and compare.

    The tasks are those of the paper's Synthetic 1, so the true relations are known. They are fitted together, each
    alone, and as one; the summary says what each costs in test error, and how far the fit can be from the best.

    \b
    Examples:
      dmtrl demo
      dmtrl demo --quick --seed 3
    """
    from dmtrl.demo import render, run_demo

    with _told_in_sentences(), _progress() as (tell, on_round):
        result = run_demo(seed, quick, tell, [on_round])
    render(result, Console(highlight=False))


@contextmanager
def _progress() -> Iterator[tuple[Callable[[str], object], Callable[[RoundRecord], object]]]:
    """What to call at each stage and each round: one live line on a terminal, a plain line a stage elsewhere."""
    if not sys.stderr.isatty():
        yield (lambda text: click.echo(text, err=True)), (lambda record: None)
        return
    tol, stage = Settings().tol, ["starting"]
    with Console(stderr=True, highlight=False).status(stage[0]) as status:

        def tell(text: str) -> None:
            stage[0] = text
            status.update(text)

        yield tell, (lambda record: status.update(f"{stage[0]}; {describe(record, tol)}"))


@contextmanager
def _told_in_sentences() -> Iterator[None]:
    """Errors that are the data's or the user's become one sentence and exit code 1; a bug keeps its traceback."""
    try:
        yield
    except (ValueError, OSError, FloatingPointError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
