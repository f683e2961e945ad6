"""The command `dmtrl site check`."""

from typing import TYPE_CHECKING

import click

from dmtrl.cli.errors import exit_on_error, printable

if TYPE_CHECKING:
    from dmtrl.federation.site_data import SiteCheck


@click.command(name="check", options_metavar="--study STUDY.toml")
@click.argument("file", type=click.Path())
@click.option("--study", required=True, type=click.Path(), metavar="STUDY.toml", help="The study file.")
@click.pass_context
def command(ctx: click.Context, file: str, study: str) -> None:
    """Compare a site's file with a study. Nothing leaves the site.

    Looks at columns, levels, ranges, missing cells, rows per task and codes that may be flipped. Exit code 1 if the
    file does not fit.

    \b
    Example: dmtrl site check cleveland.csv --study heart.toml
    """
    with exit_on_error():
        from dmtrl.workflows.site import check_site_file

        check = check_site_file(file, study)
    print_check(check)
    if check.data is None:
        ctx.exit(1)


def print_check(check: "SiteCheck") -> None:
    """Print the findings, the worst first."""
    for level in ("error", "warning", "note"):
        for finding in check.findings:
            if finding.level == level:
                click.echo(printable(f"{level}: {finding.text}"))
    if check.data is None:
        click.echo("The file does not fit the study.")
    else:
        used = int(check.data.rows_per_task.sum())
        click.echo(f"The file fits the study: {used:,} of {check.rows:,} rows would be used.")
