"""dmtrl predict: words to a PredictRequest.

Room: commands. Rows are read and written in predicting.py.
"""

import json
import sys
from pathlib import Path

import click

from dmtrl.cli.display import display
from dmtrl.cli.errors import INTERRUPTED, printable, told_in_sentences
from dmtrl.tables.discovery import find_files, is_model
from dmtrl.tables.output import check_output, check_table_name


@click.command(name="predict")
@click.argument("model", type=click.Path())
@click.argument("data", nargs=-1, required=True, type=click.Path(), metavar="DATA...")
@click.option("--out", "-o", type=click.Path(), help="CSV, Parquet or Arrow file.  [default: CSV on stdout]")
@click.option("--unknown", type=click.Choice(["raise", "common", "skip"]), default="raise", show_default=True,
              help="Tasks that fit never saw: stop, predict from what all tasks share, or leave empty.")  # fmt: skip
@click.option("--keep", metavar="COL", multiple=True, help="Copy a column to the output; '*' for all.")
@click.option("--fill", is_flag=True, help="A column that is not there counts as missing.")
@click.option("--force", is_flag=True, help="Replace the output that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document about the outcome; needs --out.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@click.pass_context
def command(
    ctx: click.Context, model: str, data: tuple[str, ...], out: str | None, unknown: str, keep: tuple[str, ...],
    fill: bool, force: bool, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Predict the rows of data files with a saved model.

    The files need the columns the model was fitted on; they may be larger than memory. The output has the task, the
    prediction, and for classes their probabilities.

    \b
    Examples:
      dmtrl predict model.dmtrl new.csv -o predictions.csv
      dmtrl predict model.dmtrl new/ -o all.parquet --keep id --unknown skip
    """
    if as_json and out is None:
        raise click.UsageError("--json prints to standard output, so the predictions need a file: give --out")
    path = None if out is None else Path(out)
    with told_in_sentences():  # what is cheap to see is said before the numerical libraries are loaded
        if not Path(model).exists():
            raise FileNotFoundError(f"there is no model file {model}")
        if not is_model(Path(model)):
            raise ValueError(f"{model} is not a dmtrl model; predict takes the model first, then the data")
        find_files(data)
        if path is not None:
            check_table_name(path)
            check_output(path, force, [model, *data])
    from dmtrl.workflows.predict import PredictRequest, predict

    try:
        with told_in_sentences(), display(quiet or (out is None and sys.stdout.isatty())) as watcher:
            found = predict(PredictRequest(model, data, path, unknown, keep, fill), watcher)
    except KeyboardInterrupt:
        click.echo("stopped; nothing was written", err=True)
        ctx.exit(INTERRUPTED)
    if as_json:
        click.echo(json.dumps({**found, "out": out}))
    elif not quiet:
        for note in found["notes"]:
            click.echo(printable(f"- {note}"), err=True)
        if out is not None:
            columns = ", ".join(found["columns"])
            click.echo(printable(f"{found['rows']:,} rows: {columns} in {out}"), err=True)
