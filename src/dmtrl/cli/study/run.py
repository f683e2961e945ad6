"""The command `dmtrl study run`."""

from pathlib import Path

import click

from dmtrl.cli.display import display
from dmtrl.cli.errors import INTERRUPTED, exit_on_error
from dmtrl.cli.network import echo_commands, folder_option, verbose_option
from dmtrl.cli.study.simulate import print_result


@click.command(name="run")
@folder_option
@click.option("--resume", is_flag=True, help="Continue the last run from its checkpoint.")
@click.option("--wait", default=60.0, show_default=True, help="Seconds to wait for sites before the run begins.")
@click.option("--patience", default=120.0, show_default=True, help="Seconds within which a lost site must come back.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@verbose_option
@click.pass_context
def command(
    ctx: click.Context, folder: Path, resume: bool, wait: float, patience: float, quiet: bool, verbose: bool
) -> None:
    """Run a study to its end: choose lambda, fit, and send every site its model.

    Starts the server if it does not run. If the server crashes, it is started again and the run continues.

    \b
    Example: dmtrl study run -C study
    """
    try:
        with exit_on_error():
            from dmtrl.federation.flare.coordinator import Coordinator
            from dmtrl.federation.flare.supervisor import run_study_job

            coordinator = Coordinator.open(folder)
            with display(quiet) as progress:
                done = run_study_job(coordinator, progress, resume, wait, patience, echo_commands(verbose))
            if not quiet:
                print_result(done.result())
                click.echo(f"Next: dmtrl study fetch -o model.dmtrl -C {folder}")
    except KeyboardInterrupt:
        click.echo(f"interrupted; continue with: dmtrl study run --resume -C {folder}", err=True)
        ctx.exit(INTERRUPTED)
