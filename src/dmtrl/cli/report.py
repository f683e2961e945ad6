"""dmtrl report: words to a page about a model.

Room: commands. Rows are read in reporting.py.
"""

from pathlib import Path

import click

from dmtrl.cli.display import display
from dmtrl.cli.errors import INTERRUPTED, told_in_sentences


@click.command(name="report")
@click.argument("model", type=click.Path())
@click.argument("data", nargs=-1, type=click.Path(), metavar="[DATA]...")
@click.option("--out", "-o", type=click.Path(), help="The page's file.  [default: the model's name with .html]")
@click.option("--force", is_flag=True, help="Replace the page that is there.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@click.pass_context
def command(ctx: click.Context, model: str, data: tuple[str, ...], out: str | None, force: bool, quiet: bool) -> None:
    """Write a page about a saved model.

    One HTML file that opens without a network: what was learned and how sure it is, which tasks belong together, what
    the models look at, and how the training went. With DATA, the files of the fit, also whom sharing helps or hurts:
    every task is then fitted together, alone and pooled.

    \b
    Examples:
      dmtrl report model.dmtrl
      dmtrl report model.dmtrl marks.csv -o marks.html
    """
    from dmtrl.tables.output import check_output
    from dmtrl.workflows.report import report

    path = Path(model).with_suffix(".html") if out is None else Path(out)
    try:
        with told_in_sentences(), display(quiet) as watcher:
            check_output(path, force, [model, *data])
            written, notes = report(model, data, path, watcher)
    except KeyboardInterrupt:
        click.echo("stopped; nothing was written", err=True)
        ctx.exit(INTERRUPTED)
    if not quiet:
        for note in notes:
            click.echo(f"- {note}", err=True)
        click.echo(f"page: {written}")
