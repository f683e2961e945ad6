"""The command `dmtrl study simulate`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dmtrl.cli.display import display
from dmtrl.cli.errors import exit_on_error, printable

if TYPE_CHECKING:
    from dmtrl.federation.results import StudyResult


class SiteFile(click.ParamType):
    name = "SITE=FILE"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        site, sign, path = str(value).partition("=")
        if not (site and sign and path):
            self.fail(f"{value!r} is not of the form SITE=FILE, such as cleveland=cleveland.csv", param, ctx)
        return site, path


@click.command(name="simulate", options_metavar="--out DIR [OPTIONS]")
@click.argument("study", type=click.Path(), metavar="STUDY.toml")
@click.argument("files", nargs=-1, required=True, type=SiteFile(), metavar="SITE=FILE...")
@click.option("--out", "-o", required=True, type=click.Path(), help="Folder for models, ledgers and the page.")
@click.option("--force", is_flag=True, help="Write into a folder that is not empty.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
def command(study: str, files: tuple[tuple[str, str], ...], out: str, force: bool, as_json: bool, quiet: bool) -> None:
    """Run a whole study in one process.

    The same sites, messages and bits as over a network. DIR gets the coordinator's model, and in sites/NAME each
    site's policy, ledger and model.

    \b
    Example: dmtrl study simulate heart.toml cleveland=cleveland.csv \\
               hungarian=hungarian.csv --out trial
    """
    with exit_on_error():
        if len(dict(files)) < len(files):
            raise ValueError("a site is named twice; give each file its own site")
        from dmtrl.workflows.study import simulate_study

        with display(quiet or as_json) as progress:
            simulation = simulate_study(study, dict(files), out, progress, force)
    if as_json:
        click.echo(json.dumps(simulation.result.as_dict()))
    elif not quiet:
        print_result(simulation.result)
        for note in simulation.notes:
            click.echo(printable(f"- {note}"))
        click.echo(printable(f"folder: {Path(out)}"))
        if simulation.page is not None:
            click.echo(printable(f"page: {simulation.page}"))


def print_result(result: "StudyResult") -> None:
    """Print a table of the tasks, and the certificate."""
    width = max(len(task.name) for task in result.tasks)
    click.echo(printable(f"{'task':<{width}}  rows (rounded down)  error (CV)  error (held out)"))
    for task in result.tasks:
        errors = ["-" if error is None else f"{error:.4g}" for error in (task.cv_error, task.error)]
        click.echo(printable(f"{task.name:<{width}}  {task.rows:>19}  {errors[0]:>10}  {errors[1]:>16}"))
    for site in result.lost:
        click.echo(printable(f"left out, because it stayed away: {site}"))
    gap = f"within {result.relative_gap:.2g} of the optimum"
    if result.noisy:
        gap = "no certificate" if result.relative_gap == float("inf") else f"{gap} of the noisy problem"
    if result.noisy:
        click.echo(result.privacy)
    click.echo(f"lambda {result.reg_lambda:.4g}, common {result.tau:g}; {result.rounds} rounds, {gap}")
