"""The group `dmtrl study`: the commands of the coordinator, in the order in which they are used."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dmtrl.cli.display import display
from dmtrl.cli.errors import exit_on_interrupt, note_text, printable
from dmtrl.cli.options import KINDS, OrderedGroup, echo_commands, folder_option, verbose_option

if TYPE_CHECKING:
    from dmtrl.federation.coordinator.results import StudyResult


@click.group(name="study", cls=OrderedGroup)
def command() -> None:
    """Coordinate a study between sites that may not exchange rows.

    \b
    Examples:
      dmtrl study new heart.toml --like cleveland.csv --target num
      dmtrl study simulate heart.toml a=a.csv b=b.csv --out trial
      dmtrl study provision heart.toml --host study.example.org -C study
      dmtrl study run -C study
    """


class SiteFile(click.ParamType):
    name = "SITE=FILE"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        site, sign, path = str(value).partition("=")
        if not (site and sign and path):
            self.fail(f"{value!r} is not of the form SITE=FILE, such as cleveland=cleveland.csv", param, ctx)
        return site, path


@command.command(options_metavar="--like FILE --target COL [OPTIONS]")
@click.argument("study", type=click.Path(), metavar="STUDY.toml")
@click.option("--like", required=True, type=click.Path(), metavar="FILE", help="A data file with the study's columns.")
@click.option("--target", required=True, metavar="COL", help="Column to predict.")
@click.option("--task", metavar="COL", help="Column whose values are the tasks [each site is a task].")
@click.option("--kind", type=click.Choice(KINDS), metavar="KIND", help=f"{' or '.join(KINDS)} [inferred].")
@click.option("--positive", metavar="VALUE", multiple=True, help="Value of the target in the positive class.")
@click.option("--drop", metavar="COL", multiple=True, help="Column to ignore.")
@click.option("--category", metavar="COL", multiple=True, help="Column to use as categories.")
@click.option("--number", metavar="COL", multiple=True, help="Column to use as numbers.")
@click.option("--missing", metavar="TEXT", multiple=True, help="Text that means a missing value.")
@click.option("--held-out", metavar="COL", help="Column that is 1 in rows that no fit uses.")
@click.option("--force", is_flag=True, help="Overwrite an existing study file.")
def new(study: str, force: bool, **options: Any) -> None:
    """Draft a study file from one data file.

    Read the draft and correct it before you send it to the sites: they approve exactly its bytes.

    \b
    Example: dmtrl study new heart.toml --like cleveland.csv --target num \\
               --drop slope --drop ca --drop thal
    """
    from dmtrl.workflows.study import DraftRequest, new_study

    made = new_study(study, DraftRequest(**options), force)
    for note in made.notes:
        click.echo(f"- {note_text(note)}")
    kinds = [f"{count} {kind}" for kind, count in made.columns.items()]
    click.echo(printable(f"{study}: {', '.join(kinds)} columns, hash {made.study.hash[:16]}"))


@command.command(options_metavar="--out DIR [OPTIONS]")
@click.argument("study", type=click.Path(), metavar="STUDY.toml")
@click.argument("files", nargs=-1, required=True, type=SiteFile(), metavar="SITE=FILE...")
@click.option("--out", "-o", required=True, type=click.Path(), help="Folder for models, ledgers and the page.")
@click.option("--force", is_flag=True, help="Write into a folder that is not empty.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
def simulate(study: str, files: tuple[tuple[str, str], ...], out: str, force: bool, as_json: bool, quiet: bool) -> None:
    """Run a whole study in one process.

    The same sites, messages and bits as over a network. DIR gets the coordinator's model, and in sites/NAME each
    site's policy, ledger and model.

    \b
    Example: dmtrl study simulate heart.toml cleveland=cleveland.csv \\
               hungarian=hungarian.csv --out trial
    """
    from dmtrl.workflows.study import simulate_study

    with display(quiet or as_json) as progress:
        simulation = simulate_study(study, files, out, progress, force)
    if as_json:
        click.echo(json.dumps(simulation.result.as_dict()))
    elif not quiet:
        _print_result(simulation.result)
        for note in simulation.notes:
            click.echo(printable(f"- {note}"))
        click.echo(printable(f"folder: {Path(out)}"))
        if simulation.page is not None:
            click.echo(printable(f"page: {simulation.page}"))


def _print_result(result: "StudyResult") -> None:
    """Print a table of the tasks, and the certificate."""
    width = max(len(task.name) for task in result.tasks)
    click.echo(printable(f"{'task':<{width}}  rows (rounded down)  error (CV)  error (held out)"))
    for task in result.tasks:
        errors = ["-" if error is None else f"{error:.4g}" for error in (task.cv_error, task.error)]
        click.echo(printable(f"{task.name:<{width}}  {task.rows:>19}  {errors[0]:>10}  {errors[1]:>16}"))
    for site in result.lost:
        click.echo(printable(f"left out, because it did not respond: {site}"))
    gap = f"within {result.relative_gap:.2g} of the optimum"
    if result.noisy:
        gap = "no certificate" if result.relative_gap == float("inf") else f"{gap} of the noisy problem"
        click.echo(result.privacy)
    click.echo(f"lambda {result.reg_lambda:.4g}, common {result.common:g}; {result.rounds} rounds, {gap}")


@command.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--host", default="localhost", show_default=True, help="The name under which sites reach the server.")
@click.option("--port", default=8102, show_default=True, type=click.IntRange(1, 65535), help="The server's port.")
@folder_option
@verbose_option
def provision(study: Path, host: str, port: int, folder: Path, verbose: bool) -> None:
    """Set up a study: its authority, and the certificates of the server and of the coordinator.

    \b
    Example: dmtrl study provision heart.toml --host study.example.org -C study
    """
    from dmtrl.workflows import study_server

    made = study_server.provision(study, folder, host, port, echo_commands(verbose))
    click.echo(f"The coordinator's folder is {folder}. Keep {made.authority} secret.")
    click.echo(f"Fingerprint of the authority: {made.fingerprint}")
    click.echo("Give it to the sites over another channel than the invitations, such as the telephone.")
    click.echo(f"Firewall: {made.firewall_rule}.")
    click.echo(f"Next: dmtrl study invite SITE -C {folder}")


@command.command()
@click.argument("site")
@folder_option
def invite(site: str, folder: Path) -> None:
    """Write the invitation of a site. It holds the study and the address of the server, and no secret.

    \b
    Example: dmtrl study invite cleveland -C study
    """
    from dmtrl.workflows import study_server

    path = study_server.invite(folder, site)
    click.echo(f"Send {path} to the site. Its staff run:")
    click.echo(f"  dmtrl site join {path.name} --data FILE --site {site}")


@command.command()
@click.argument("request", type=click.Path(path_type=Path))
@folder_option
@verbose_option
def admit(request: Path, folder: Path, verbose: bool) -> None:
    """Sign the request of an invited site. Check with the site that the file is theirs.

    \b
    Example: dmtrl study admit cleveland.request.zip -C study
    """
    from dmtrl.workflows import study_server

    path = study_server.admit(folder, request, echo_commands(verbose))
    click.echo(f"Send {path} back to the site. Its staff run:")
    click.echo(f"  dmtrl site join {path.name} --site {path.name.removesuffix('.signed.zip')}")


@command.command()
@folder_option
@click.option("--foreground", is_flag=True, help="Run the server in this process, for systemd and containers.")
@click.option("--service", is_flag=True, help="Print a systemd unit and a docker compose file, and start nothing.")
@verbose_option
def start(folder: Path, foreground: bool, service: bool, verbose: bool) -> None:
    """Start the server of a study.

    \b
    Example: dmtrl study start -C study
    """
    from dmtrl.workflows import study_server

    if service:
        unit, compose = study_server.service_files(folder)
        click.echo(unit)
        click.echo(compose, nl=False)
        return
    if foreground:
        study_server.serve(folder, echo_commands(verbose))
    server = study_server.start(folder, echo_commands(verbose))
    running = "listens" if server.started else "is already running"
    click.echo(f"The server {running} on {server.address}.")


@command.command()
@folder_option
@click.option("--resume", is_flag=True, help="Continue the last run from its checkpoint.")
@click.option("--wait", default=60.0, show_default=True, help="Seconds to wait for sites before the run begins.")
@click.option("--patience", default=120.0, show_default=True, help="Seconds within which a lost site must come back.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@verbose_option
def run(folder: Path, resume: bool, wait: float, patience: float, quiet: bool, verbose: bool) -> None:
    """Run a study to its end: choose lambda, fit, and send every site its model.

    Starts the server if it is not running. If the server crashes, it is started again and the run continues.

    \b
    Example: dmtrl study run -C study
    """
    from dmtrl.workflows import study_server

    advice = f"continue with: dmtrl study run --resume -C {folder}"
    with exit_on_interrupt(advice), display(quiet) as progress:
        result = study_server.run(folder, progress, resume, wait, patience, echo_commands(verbose))
    if not quiet:
        _print_result(result)
        click.echo(f"Next: dmtrl study fetch -o model.dmtrl -C {folder}")


@command.command()
@folder_option
def status(folder: Path) -> None:
    """Show the server, the sites and the last run.

    \b
    Example: dmtrl study status -C study
    """
    from dmtrl.workflows import study_server

    found = study_server.status(folder)
    server = "stopped" if found.address is None else f"running on {found.address} (process {found.pid})"
    click.echo(f"server: {server}")
    for site, connected in found.connected.items():
        click.echo(f"site {site}: {'connected' if connected else 'not connected'}")
    last = found.last_run
    if last is not None:
        click.echo(f"run {last.number}: {last.state}{f': {last.reason}' if last.reason else ''}")


@command.command()
@folder_option
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON lines.")
def log(folder: Path, as_json: bool) -> None:
    """Show the record of the last run.

    \b
    Example: dmtrl study log -C study
    """
    from dmtrl.federation.flare.server.runs import describe
    from dmtrl.workflows import study_server

    for entry in study_server.record_of_last_run(folder):
        if as_json:
            click.echo(json.dumps(entry))
            continue
        text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.get("time", 0)))
        if "job" in entry:
            text += f"  job {entry['job']} with {', '.join(entry['sites'])}"
        elif "stage" in entry:  # else a line that a killed process left
            text += f"  {entry['stage']}: {describe(entry)}"
        click.echo(printable(text))


@command.command()
@folder_option
def stop(folder: Path) -> None:
    """Stop the run, if there is one, and the server.

    \b
    Example: dmtrl study stop -C study
    """
    from dmtrl.workflows import study_server

    stopped = study_server.stop(folder)
    if stopped.run:
        click.echo(f"The run was stopped. Continue it with: dmtrl study run --resume -C {folder}")
    click.echo("The server was stopped." if stopped.server else "The server was not running.")


@command.command()
@folder_option
@click.option("--out", "-o", required=True, type=click.Path(path_type=Path), help="The model file to write.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def fetch(folder: Path, out: Path, force: bool) -> None:
    """Copy the model of the last finished run.

    \b
    Example: dmtrl study fetch -o model.dmtrl -C study
    """
    from dmtrl.workflows import study_server

    study_server.fetch(folder, out, force)
    click.echo(f"Wrote {out}.")
