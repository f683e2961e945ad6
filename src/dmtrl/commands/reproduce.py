"""dmtrl reproduce.

Room: commands.
"""

from pathlib import Path

import click

from dmtrl.commands.display import display
from dmtrl.commands.errors import told_in_sentences

CHOICES = ("all", "synthetic", "convergence", "school", "mnist", "mds")


@click.command(name="reproduce")
@click.argument("which", type=click.Choice(CHOICES), default="all")
@click.option("--quick", is_flag=True, help="Less data, a minute or two: only to see that everything runs.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder for records, page, plots and tables.  [default: reproduced]",
)
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
    from dmtrl.experiments.reproduce import reproduce, work

    folder = out or Path("reproduced-quick" if quick else "reproduced")
    with told_in_sentences():
        plan = work(which, quick, folder)
        done = plan.runs - len(plan.todo)
        went = f"{done} of {plan.runs} runs are there already; the rest" if done else f"{plan.runs} runs"
        if plan.todo:
            click.echo(
                f"{went} will take about {_duration(plan.seconds)} on 2 cores. Records: {folder}/records.jsonl",
                err=True,
            )
        passed = 0.0
        with display() as shown:
            shown.stage(f"reproducing {which}")

            def tell(experiment: object, run: object) -> None:
                nonlocal passed
                words = ", ".join(str(value) for key, value in run.params.items() if key != "quick")  # type: ignore[attr-defined]
                shown.share(min(passed / max(plan.seconds, 1e-9), 0.999), f"{experiment.name}: {words}")  # type: ignore[attr-defined]
                passed += run.seconds  # type: ignore[attr-defined]

            result = reproduce(which, quick, folder, tell)
    for one in result.missing:
        click.echo(f"Left out: {one.experiment}. {one.reason}", err=True)
    if result.page is not None:
        click.echo(f"Page:    {result.page}")
        click.echo(f"Plots:   {folder / 'files'} ({len(result.files)} files)")
        click.echo(f"Records: {folder / 'records.jsonl'}")
    if result.missing:
        raise SystemExit(1)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
