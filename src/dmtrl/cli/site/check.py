"""The command `dmtrl site check`."""

from typing import TYPE_CHECKING

import click

from dmtrl.cli.errors import exit_on_error, printable

if TYPE_CHECKING:
    from dmtrl.federation.site_data import SiteCheck


@click.command(name="check", options_metavar="--study STUDY.toml")
@click.argument("file", type=click.Path())
@click.option("--study", required=True, type=click.Path(), metavar="STUDY.toml", help="The study file.")
def command(file: str, study: str) -> None:
    """Compare a site's file with a study. Nothing leaves the site.

    Looks at columns, levels, ranges, missing cells, rows per task and codes that may be flipped. The findings are
    printed to stdout. Exit code 1 if the file does not fit.

    \b
    Example: dmtrl site check cleveland.csv --study heart.toml
    """
    with exit_on_error():
        from dmtrl.workflows.site import check_site_file

        check = check_site_file(file, study)
    print_check(check)
    if check.data is None:
        raise click.ClickException(misfit(file, check))


def misfit(file: str, check: "SiteCheck") -> str:
    """The sentence about a file that cannot be used."""
    count = "1 error" if len(check.errors) == 1 else f"{len(check.errors)} errors"
    return printable(f"{file} does not fit the study; correct the {count} listed above")


def print_check(check: "SiteCheck") -> None:
    """Print the findings, the worst first, and how many rows would be used."""
    for level in ("error", "warning", "note"):
        for finding in check.findings:
            if finding.level == level:
                click.echo(printable(f"{level}: {finding.text}"))
    if check.data is not None:
        used = int(check.data.rows_per_task.sum())
        click.echo(f"The file fits the study: {used:,} of {check.rows:,} rows would be used.")
