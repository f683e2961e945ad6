"""The command `dmtrl study invite`."""

from pathlib import Path

import click

from dmtrl.cli.errors import exit_on_error
from dmtrl.cli.network import folder_option


@click.command(name="invite")
@click.argument("site")
@folder_option
def command(site: str, folder: Path) -> None:
    """Write the invitation of a site. It holds the study and the address of the server, and no secret.

    \b
    Example: dmtrl study invite cleveland -C study
    """
    with exit_on_error():
        from dmtrl.federation.flare import coordinator as flare

        path = flare.invite(flare.Coordinator.open(folder), site)
        click.echo(f"Send {path} to the site. Its people run:")
        click.echo(f"  dmtrl site join {path.name} --data FILE --site {site}")
