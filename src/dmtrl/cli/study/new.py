"""The command `dmtrl study new`."""

from typing import Any

import click

from dmtrl.cli.errors import exit_on_error, note_text, printable


@click.command(name="new", options_metavar="--like FILE --target COL [OPTIONS]")
@click.argument("study", type=click.Path(), metavar="STUDY.toml")
@click.option("--like", required=True, type=click.Path(), metavar="FILE", help="A data file with the study's columns.")
@click.option("--target", required=True, metavar="COL", help="Column to predict.")
@click.option("--task", metavar="COL", help="Column whose values are the tasks [each site is a task].")
@click.option(
    "--kind",
    type=click.Choice(("regression", "classification")),
    metavar="KIND",
    help="regression or classification [inferred].",
)
@click.option("--positive", metavar="VALUE", multiple=True, help="Value of the target in the positive class.")
@click.option("--drop", metavar="COL", multiple=True, help="Column to ignore.")
@click.option("--category", metavar="COL", multiple=True, help="Column to use as categories.")
@click.option("--number", metavar="COL", multiple=True, help="Column to use as numbers.")
@click.option("--missing", metavar="TEXT", multiple=True, help="Text that means a missing value.")
@click.option("--held-out", metavar="COL", help="Column that is 1 in rows that no fit uses.")
@click.option("--force", is_flag=True, help="Overwrite an existing study file.")
def command(study: str, force: bool, **options: Any) -> None:
    """Draft a study file from one data file.

    Read the draft and correct it before you send it to the sites: they approve exactly its bytes.

    \b
    Example: dmtrl study new heart.toml --like cleveland.csv --target num \\
               --drop slope --drop ca --drop thal
    """
    with exit_on_error():
        from dmtrl.workflows.study import DraftRequest, new_study

        made, notes = new_study(study, DraftRequest(**options), force)
    for note in notes:
        click.echo(f"- {note_text(note)}")
    kinds = [f"{len([c for c in made.columns if c.kind == kind])} {kind}" for kind in ("number", "category", "date")]
    click.echo(printable(f"{study}: {', '.join(kinds)} columns, hash {made.hash[:16]}"))
