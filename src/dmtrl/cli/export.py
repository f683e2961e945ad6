"""The command `dmtrl export`."""

import json
from pathlib import Path

import click

from dmtrl.cli.errors import printable
from dmtrl.tables.discovery import check_model
from dmtrl.tables.output import check_output


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
    path = Path(out)
    # quick checks, before the numerical libraries are imported
    check_model(Path(model))
    check_output(path, force, [model])
    from dmtrl.workflows.export import export_file

    summary = export_file(model, path, task, force)
    if as_json:
        click.echo(json.dumps(summary))
    elif not quiet:
        tasks = "1 task" if summary["tasks"] == 1 else f"{summary['tasks']:,} tasks"
        click.echo(printable(f"{tasks}, {summary['coefficients']:,} coefficients each, in {out}"), err=True)
