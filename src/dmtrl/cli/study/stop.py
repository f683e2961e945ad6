"""The command `dmtrl study stop`."""

from pathlib import Path

import click

from dmtrl.cli.errors import exit_on_error
from dmtrl.cli.network import folder_option


@click.command(name="stop")
@folder_option
def command(folder: Path) -> None:
    """Stop the run, if there is one, and the server.

    \b
    Example: dmtrl study stop -C study
    """
    with exit_on_error():
        from dmtrl.federation.flare.coordinator import Coordinator
        from dmtrl.federation.flare.supervisor import stop_run

        coordinator = Coordinator.open(folder)
        if stop_run(coordinator):
            click.echo(f"The run was stopped. Continue it with: dmtrl study run --resume -C {folder}")
        click.echo("The server was stopped." if coordinator.stop() else "The server was not running.")
