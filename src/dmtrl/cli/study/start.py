"""The command `dmtrl study start`."""

from pathlib import Path

import click

from dmtrl.cli.errors import exit_on_error
from dmtrl.cli.network import echo_commands, folder_option, verbose_option


@click.command(name="start")
@folder_option
@click.option("--foreground", is_flag=True, help="Run the server in this process, for systemd and containers.")
@click.option("--service", is_flag=True, help="Print a systemd unit and a docker compose file, and start nothing.")
@verbose_option
def command(folder: Path, foreground: bool, service: bool, verbose: bool) -> None:
    """Start the server of a study.

    \b
    Example: dmtrl study start -C study
    """
    with exit_on_error():
        from dmtrl.federation.flare import services
        from dmtrl.federation.flare.coordinator import Coordinator

        coordinator = Coordinator.open(folder)
        if service:
            click.echo(services.systemd_unit("study", coordinator.project, folder))
            click.echo(services.compose_file("study", coordinator.project, folder, coordinator.port), nl=False)
            return
        if foreground:
            coordinator.run(echo_commands(verbose))
        begun = coordinator.start(echo_commands(verbose))
        where = f"{coordinator.host}:{coordinator.port}"
        click.echo(f"The server listens on {where}." if begun else f"The server already runs on {where}.")
