"""The command `dmtrl site join`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dmtrl.cli.errors import exit_on_error
from dmtrl.cli.network import echo_commands, site_option, verbose_option

if TYPE_CHECKING:
    from dmtrl.federation.policy import Policy


@click.command(name="join")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path, exists=True), help="The site's data file. It is not copied.")
@site_option
@verbose_option
def command(file: Path, data: Path | None, folder: Path, verbose: bool) -> None:
    """Join a study, in two steps: with the invitation, then with what the coordinator sends back.

    The first step makes the site's key, which never leaves the folder, and a request to send to the coordinator.

    \b
    Examples:
      dmtrl site join cleveland.invitation.json --data cleveland.csv \\
        --site cleveland
      dmtrl site join cleveland.signed.zip --site cleveland
    """
    with exit_on_error():
        from dmtrl.federation import policy
        from dmtrl.federation.approval import create_site
        from dmtrl.federation.flare import member as flare
        from dmtrl.federation.flare.coordinator import Invitation

        if flare.is_signed(file):
            done = flare.complete(folder, file, echo_commands(verbose))
            click.echo(f"{done.invitation.site} has joined the study {done.invitation.project!r}.")
            click.echo(f"Firewall: {done.firewall_rule()}.")
            click.echo(f"Next: dmtrl site approve {done.study_file} --site {folder}")
            click.echo(f"      dmtrl site start --site {folder}")
            return
        invitation = Invitation.read(file)
        flare.require_new(folder)
        if (folder / policy.FILE).exists():
            _check_policy(folder / policy.FILE, policy.read_policy(folder), invitation.site, data)
        elif data is None:
            raise click.UsageError("the first step needs the site's data file: --data FILE")
        else:
            create_site(folder, invitation.site, data)
        request = flare.ask(folder, file, echo_commands(verbose))
        click.echo(f"Fingerprint of the study's authority: {invitation.fingerprint}")
        click.echo("Compare it with the one that the coordinator tells you by telephone.")
        click.echo(f"Send {request} to the coordinator. It holds no secret; the key stays in {request.parent}.")
        click.echo(f"What leaves the site is decided in {folder / policy.FILE}.")


def _check_policy(path: Path, policy: "Policy", invited: str, data: Path | None) -> None:
    """The folder is that of a site already: its policy must be for the invited site and for the same data file."""
    if policy.site != invited:
        raise ValueError(f"the invitation is for the site {invited!r}, but {path} names the site {policy.site!r}")
    if data is not None and data.resolve() != (path.parent / policy.data).resolve():
        raise ValueError(f"{path} already names the data file {policy.data}; change it there, without --data")
