"""The command `dmtrl study status`."""

from pathlib import Path

import click

from dmtrl.cli.errors import exit_on_error
from dmtrl.cli.network import folder_option


@click.command(name="status")
@folder_option
def command(folder: Path) -> None:
    """Show the server, the sites and the last run.

    \b
    Example: dmtrl study status -C study
    """
    with exit_on_error():
        from dmtrl.federation.flare import processes
        from dmtrl.federation.flare.coordinator import Coordinator
        from dmtrl.federation.flare.runs import runs
        from dmtrl.federation.flare.supervisor import connected_sites, session

        coordinator = Coordinator.open(folder)
        process = processes.running(coordinator.kit)
        present: list[str] = []
        if process is None:
            click.echo("server: stopped")
        else:
            click.echo(f"server: running on {coordinator.host}:{coordinator.port} (process {process.pid})")
            with session(coordinator) as opened:
                present = connected_sites(opened)
        for site in coordinator.admitted:
            click.echo(f"site {site}: {'connected' if site in present else 'not connected'}")
        for last in runs(folder)[-1:]:
            state = last.state()
            text = "not begun" if state is None else state.state + (f": {state.reason}" if state.reason else "")
            click.echo(f"run {last.number}: {text}")
