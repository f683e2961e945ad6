"""The group `dmtrl site`: the commands of a site's data manager, in the order in which they are used."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dmtrl.cli.errors import printable
from dmtrl.cli.options import OrderedGroup, echo_commands, site_option, verbose_option

if TYPE_CHECKING:
    from dmtrl.federation.site.data_check import SiteCheck


@click.group(name="site", cls=OrderedGroup)
def command() -> None:
    """Take part in a study with the rows of one site.

    \b
    Examples:
      dmtrl site check cleveland.csv --study heart.toml
      dmtrl site join va.invitation.json --data va.csv --site va
      dmtrl site approve heart.toml --site cleveland
      dmtrl site start --site cleveland
      dmtrl site log --site cleveland --verify
    """


@command.command(options_metavar="--study STUDY.toml")
@click.argument("file", type=click.Path())
@click.option("--study", required=True, type=click.Path(), metavar="STUDY.toml", help="The study file.")
def check(file: str, study: str) -> None:
    """Compare a site's file with a study. Nothing leaves the site.

    Looks at columns, levels, ranges, missing cells, rows per task and codes that may be flipped. The findings are
    printed to stdout. Exit code 1 if the file does not fit.

    \b
    Example: dmtrl site check cleveland.csv --study heart.toml
    """
    from dmtrl.workflows.site import check_site_file

    _print_check(check_site_file(file, study), file)


def _print_check(check: "SiteCheck", file: str | Path, consequence: str = "") -> None:
    """Print the findings, the worst first, and how many rows would be used. Fails if the file cannot be used."""
    for level in ("error", "warning", "note"):
        for finding in check.findings:
            if finding.level == level:
                click.echo(printable(f"{level}: {finding.text}"))
    if check.data is None:
        count = "1 error" if len(check.errors) == 1 else f"{len(check.errors)} errors"
        problem = f"{consequence}{file} does not fit the study; correct the {count} listed above"
        raise click.ClickException(printable(problem))
    used = int(check.data.rows_per_task.sum())
    click.echo(f"The file fits the study: {used:,} of {check.rows:,} rows would be used.")


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path, exists=True), help="The site's data file. It is not copied.")
@site_option
@verbose_option
def join(file: Path, data: Path | None, folder: Path, verbose: bool) -> None:
    """Join a study, in two steps: with the invitation, then with what the coordinator sends back.

    The first step makes the site's key, which never leaves the folder, and a request to send to the coordinator.

    \b
    Examples:
      dmtrl site join cleveland.invitation.json --data cleveland.csv \\
        --site cleveland
      dmtrl site join cleveland.signed.zip --site cleveland
    """
    from dmtrl.workflows import site_member

    done = site_member.join(folder, file, data, echo_commands(verbose))
    if isinstance(done, site_member.Joined):
        click.echo(f"{done.site} has joined the study {done.project!r}.")
        click.echo(f"Firewall: {done.firewall_rule}.")
        click.echo(f"Next: dmtrl site approve {done.study_file} --site {folder}")
        click.echo(f"      dmtrl site start --site {folder}")
        return
    click.echo(f"Fingerprint of the study's authority: {done.fingerprint}")
    click.echo("Compare it with the one that the coordinator tells you by telephone.")
    click.echo(f"Send {done.request} to the coordinator. It holds no secret; the key stays in {done.request.parent}.")
    click.echo(f"What leaves the site is decided in {done.policy}.")


@command.command()
@click.argument("study", type=click.Path(), metavar="STUDY.toml")
@site_option
@click.option("--data", type=click.Path(), metavar="FILE", help="Data file, for a new site.")
@click.option("--name", metavar="SITE", help="Name of the site, for a new site.")
@click.option("--yes", "-y", is_flag=True, help="Approve without asking.")
def approve(study: str, folder: Path, data: str | None, name: str | None, yes: bool) -> None:
    """Show what would leave this site, and approve the study.

    The approval is for exactly the bytes of the study file: after any change the site refuses to take part.

    \b
    Example: dmtrl site approve heart.toml --site cleveland \\
               --data cleveland.csv --name cleveland
    """
    from dmtrl.workflows.site import propose

    proposal = propose(study, folder, data, name)
    click.echo(printable(f"{proposal.text}\n", "\n"))
    _print_check(proposal.check, proposal.folder / proposal.policy.data, "not approved: ")
    if not yes and not click.confirm("Approve this study?"):
        raise click.ClickException("not approved; nothing was written")
    proposal.approve()
    click.echo(f"Approved: {proposal.study.hash}")


@command.command()
@site_option
def withdraw(folder: Path) -> None:
    """Withdraw the approval of a study. A running study ends at its next message.

    What has left stays with the coordinator; `dmtrl site log` shows it.

    \b
    Example: dmtrl site withdraw --site cleveland
    """
    from dmtrl.workflows.site import withdraw_approval

    given = withdraw_approval(folder)
    click.echo(f"Withdrawn: {given.study} {given.hash[:16]}, approved on {given.time}")


@command.command()
@site_option
@click.option("--foreground", is_flag=True, help="Run the site in this process, for systemd and containers.")
@click.option("--service", is_flag=True, help="Print a systemd unit and a docker compose file, and start nothing.")
@verbose_option
def start(folder: Path, foreground: bool, service: bool, verbose: bool) -> None:
    """Connect the site to the server, and keep it connected until `dmtrl site stop`.

    \b
    Example: dmtrl site start --site cleveland
    """
    from dmtrl.workflows import site_member

    if service:
        unit, compose = site_member.service_files(folder)
        click.echo(unit)
        click.echo(compose, nl=False)
        return
    if not site_member.has_approved(folder):
        click.echo("No study was approved here yet: the site will refuse to answer.", err=True)
    click.echo("Compiling the kernels, if necessary ...", err=True)
    if foreground:
        site_member.serve(folder, echo_commands(verbose))
    begun = site_member.start(folder, echo_commands(verbose))
    if not begun.started:
        click.echo(f"{begun.site} is already running.")
    elif begun.connected:
        click.echo(f"{begun.site} is connected to {begun.address}.")
    else:
        click.echo(f"{begun.site} is running, but cannot reach the server yet; it keeps trying.")
        click.echo(f"Check the firewall: {begun.firewall_rule}.")


@command.command()
@site_option
def status(folder: Path) -> None:
    """Show whether the site runs, is connected, which study it approved, and what is left of its privacy budget.

    \b
    Example: dmtrl site status --site cleveland
    """
    from dmtrl.workflows import site_member

    found = site_member.status(folder)
    given = found.approval
    click.echo(f"{found.site}: {found.state}")
    click.echo(f"server: {found.address}")
    click.echo(f"approved: {given.study} {given.hash[:16]} on {given.time}" if given else "approved: nothing yet")
    click.echo(f"taking part in a run: {'yes' if found.in_run else 'no'}")
    click.echo(f"privacy budget: {found.budget()}")


@command.command()
@site_option
@click.option("--verify", is_flag=True, help="Check that no line was changed or removed.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the last N messages.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
def log(folder: Path, verify: bool, last: int | None, as_json: bool) -> None:
    """Show every message that left this site.

    \b
    Examples:
      dmtrl site log --site cleveland --last 20
      dmtrl site log --site cleveland --verify
    """
    from dmtrl.workflows.site import ledger_entries, verify_ledger

    if verify:
        lines, last_hash = verify_ledger(folder)
        if lines == 0:
            click.echo("There is no ledger yet: no message of this site was recorded.")
            return
        click.echo(f"The ledger is intact: {lines:,} lines.")
        click.echo(f"Last hash: {last_hash}")
        click.echo("Copy it to another place; compare it later with the hash of the same line.")
        return
    entries = ledger_entries(folder)
    for entry in entries[-last:] if last else entries:
        if as_json:
            click.echo(json.dumps(asdict(entry)))
            continue
        shapes = ", ".join(f"{name} {'x'.join(map(str, shape)) or '1'}" for name, shape in entry.shapes.items())
        what = entry.text or f"numbers: {entry.numbers:,}, bytes: {entry.bytes:,}" + (f" ({shapes})" if shapes else "")
        again = ", sent before" if entry.repeated else ""
        click.echo(printable(f"{entry.number:>6}  {entry.time[:19]}  {entry.name:<13} {what}{again}"))
    if not as_json:
        numbers = sum(entry.numbers for entry in entries if not entry.repeated)
        size = sum(entry.bytes for entry in entries)
        click.echo(f"{len(entries):,} messages, {size:,} bytes, {numbers:,} different numbers")


@command.command()
@site_option
def stop(folder: Path) -> None:
    """Disconnect the site and stop its processes.

    \b
    Example: dmtrl site stop --site cleveland
    """
    from dmtrl.workflows import site_member

    name, was_running = site_member.stop(folder)
    click.echo(f"{name} was stopped." if was_running else f"{name} was not running.")
