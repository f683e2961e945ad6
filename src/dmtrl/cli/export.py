"""The command `dmtrl export`."""

import json
from pathlib import Path

import click

from dmtrl.cli.errors import printable
from dmtrl.workflows.requests import ExportRequest


@click.command(name="export")
@click.argument("model", type=click.Path())
@click.option("--out", "-o", type=click.Path(), required=True, help="Output file: .csv, .json or .onnx.")
@click.option("--task", metavar="NAME", help="The task to export.  [default: all; .onnx holds one]")
@click.option("--force", is_flag=True, help="Overwrite an existing output file.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
def command(model: str, out: str, task: str | None, force: bool, as_json: bool, quiet: bool) -> None:
    """Write a saved model as plain coefficients, for use without dmtrl.

    CSV and JSON say what each coefficient multiplies: a column in its own units, a level of a category, a part of a
    date. Scaling and missing values are included. ONNX is a graph for other runtimes, with an input per column.

    \b
    Examples:
      dmtrl export model.dmtrl -o coefficients.csv
      dmtrl export model.dmtrl --task north -o north.onnx
    """
    request = ExportRequest(model, Path(out), task, force)
    request.check()  # before the numerical libraries are imported
    from dmtrl.workflows.export import export

    result = export(request)
    if as_json:
        click.echo(json.dumps(result.as_dict()))
    elif not quiet:
        tasks = "1 task" if result.tasks == 1 else f"{result.tasks:,} tasks"
        click.echo(printable(f"{tasks}, {result.coefficients:,} coefficients each, in {out}"), err=True)
