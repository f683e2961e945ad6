"""The command `dmtrl report`."""

import json
from pathlib import Path

import click

from dmtrl.cli.display import display
from dmtrl.cli.errors import exit_on_interrupt, note_text
from dmtrl.workflows.requests import ReportRequest


@click.command(name="report")
@click.argument("model", type=click.Path())
@click.argument("data", nargs=-1, type=click.Path(), metavar="[DATA]...")
@click.option("--out", "-o", type=click.Path(), help="Output file.  [default: the model's name with .html]")
@click.option("--encoding", metavar="NAME", help="Encoding of CSV files, such as cp1252.  [default: UTF-8]")
@click.option("--force", is_flag=True, help="Overwrite an existing page.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures of the page as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
def command(
    model: str, data: tuple[str, ...], out: str | None, encoding: str | None, force: bool, as_json: bool, quiet: bool
) -> None:
    """Write a page about a saved model.

    The page is one HTML file that needs no network. It shows the accuracy and the certificate, which tasks are related,
    which features matter, and the training. With DATA, the files of the fit, it also shows where sharing helps: each
    task is then fitted together with the others, alone, and pooled.

    \b
    Examples:
      dmtrl report model.dmtrl
      dmtrl report model.dmtrl marks.csv -o marks.html
    """
    path = Path(model).with_suffix(".html") if out is None else Path(out)
    request = ReportRequest(model, path, data, encoding, force)
    request.check()  # before the numerical libraries are imported
    from dmtrl.workflows.report import report

    with exit_on_interrupt("nothing was written"), display(quiet) as progress:
        result = report(request, progress)
    notes = [note_text(note) for note in result.notes]
    if as_json:
        click.echo(json.dumps(result.as_dict() | {"notes": notes}, allow_nan=False))
    elif not quiet:
        for note in notes:
            click.echo(f"- {note}", err=True)
        click.echo(f"page: {result.page}")
