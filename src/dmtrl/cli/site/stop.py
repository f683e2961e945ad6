"""The command `dmtrl site stop`."""

from pathlib import Path

import click

from dmtrl.cli.errors import exit_on_error
from dmtrl.cli.network import site_option


@click.command(name="stop")
@site_option
def command(folder: Path) -> None:
    """Disconnect the site and stop its processes.

    \b
    Example: dmtrl site stop --site cleveland
    """
    with exit_on_error():
        from dmtrl.federation.flare.member import Member

        site = Member.open(folder)
        name = site.invitation.site
        click.echo(f"{name} was stopped." if site.stop() else f"{name} was not running.")
