"""The command `dmtrl report`."""

from pathlib import Path

import click

from dmtrl.cli.display import display
from dmtrl.cli.errors import INTERRUPTED, exit_on_error, printable


@click.command(name="report")
@click.argument("model", type=click.Path())
@click.argument("data", nargs=-1, type=click.Path(), metavar="[DATA]...")
@click.option("--out", "-o", type=click.Path(), help="Output file.  [default: the model's name with .html]")
@click.option("--force", is_flag=True, help="Overwrite an existing page.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@click.pass_context
def command(ctx: click.Context, model: str, data: tuple[str, ...], out: str | None, force: bool, quiet: bool) -> None:
    """Write a page about a saved model.

    The page is one HTML file that needs no network. It shows the accuracy and the certificate, which tasks are related,
    which features matter, and the training. With DATA, the files of the fit, it also shows where sharing helps: each
    task is then fitted together with the others, alone, and pooled.

    \b
    Examples:
      dmtrl report model.dmtrl
      dmtrl report model.dmtrl marks.csv -o marks.html
    """
    from dmtrl.tables.output import check_output
    from dmtrl.workflows.report import report

    path = Path(model).with_suffix(".html") if out is None else Path(out)
    try:
        with exit_on_error(), display(quiet) as progress:
            check_output(path, force, [model, *data])
            written, notes = report(model, data, path, progress)
    except KeyboardInterrupt:
        click.echo("interrupted; nothing was written", err=True)
        ctx.exit(INTERRUPTED)
    if not quiet:
        for note in notes:
            click.echo(printable(f"- {note}"), err=True)
        click.echo(f"page: {written}")
