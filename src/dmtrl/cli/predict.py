"""The command `dmtrl predict`."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from dmtrl.cli.display import display
from dmtrl.cli.errors import exit_on_interrupt, note_text, printable
from dmtrl.workflows.requests import PredictRequest


@click.command(name="predict")
@click.argument("model", type=click.Path())
@click.argument("data", nargs=-1, required=True, type=click.Path(), metavar="DATA...")
@click.option("--out", "-o", type=click.Path(), help="Output file: CSV, Parquet or Arrow.  [default: CSV on stdout]")
@click.option(
    "--unknown",
    type=click.Choice(["raise", "shared", "skip"]),
    default="raise",
    show_default=True,
    help="Tasks not in the fit: fail, predict from what all tasks share, or leave empty.",
)
@click.option("--keep", metavar="COL", multiple=True, help="Copy a column to the output; '*' copies all.")
@click.option("--fill", is_flag=True, help="Treat columns that the data does not have as missing.")
@click.option("--encoding", metavar="NAME", help="Encoding of CSV files, such as cp1252.  [default: UTF-8]")
@click.option("--force", is_flag=True, help="Overwrite an existing output file.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON; requires --out.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
def command(model: str, data: tuple[str, ...], out: str | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Predict the rows of data files with a saved model.

    The files need the columns that the model was fitted on, and may be larger than memory. The output has the task,
    the prediction, and for classes their probabilities.

    \b
    Examples:
      dmtrl predict model.dmtrl new.csv -o predictions.csv
      dmtrl predict model.dmtrl new/ -o all.parquet --keep id --unknown skip
    """
    if as_json and out is None:
        raise click.UsageError("--json prints to standard output; write the predictions to a file with --out")
    request = PredictRequest(model, data, None if out is None else Path(out), **options)
    request.check()  # before the numerical libraries are imported
    from dmtrl.workflows.predict import predict

    hidden = quiet or (out is None and sys.stdout.isatty())
    with exit_on_interrupt("nothing was written"), display(hidden) as progress:
        result = predict(request, progress)
    notes = [note_text(note) for note in result.notes]
    if as_json:
        click.echo(json.dumps(result.as_dict() | {"notes": notes}))
    elif not quiet:
        for note in notes:
            click.echo(f"- {note}", err=True)
        if out is not None:
            click.echo(printable(f"{result.rows:,} rows: {', '.join(result.columns)} in {out}"), err=True)
