"""The command `dmtrl study provision`."""

from pathlib import Path

import click

from dmtrl.cli.errors import exit_on_error
from dmtrl.cli.network import echo_commands, folder_option, verbose_option


@click.command(name="provision")
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--host", default="localhost", show_default=True, help="The name under which sites reach the server.")
@click.option("--port", default=8102, show_default=True, type=click.IntRange(1, 65535), help="The server's port.")
@folder_option
@verbose_option
def command(study: Path, host: str, port: int, folder: Path, verbose: bool) -> None:
    """Set up a study: its authority, and the certificates of the server and of the coordinator.

    \b
    Example: dmtrl study provision heart.toml --host study.example.org -C study
    """
    with exit_on_error():
        from dmtrl.federation.flare import coordinator as flare
        from dmtrl.federation.flare import kits

        made = flare.provision(study, folder, host, port, echo_commands(verbose))
        click.echo(f"The coordinator's folder is {folder}. Keep {folder / 'authority'} secret.")
        click.echo(f"Fingerprint of the authority: {kits.fingerprint(folder)}")
        click.echo("Give it to the sites by another way than the invitations, such as the telephone.")
        click.echo(f"Firewall: {made.firewall_rule()}.")
        click.echo(f"Next: dmtrl study invite SITE -C {folder}")
