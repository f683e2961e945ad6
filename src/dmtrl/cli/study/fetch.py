"""The command `dmtrl study fetch`."""

import shutil
from pathlib import Path

import click

from dmtrl.cli.errors import exit_on_error
from dmtrl.cli.network import folder_option
from dmtrl.exceptions import FederationError, OutputExistsError


@click.command(name="fetch")
@folder_option
@click.option("--out", "-o", required=True, type=click.Path(path_type=Path), help="The model file to write.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def command(folder: Path, out: Path, force: bool) -> None:
    """Copy the model of the last finished run.

    \b
    Example: dmtrl study fetch -o model.dmtrl -C study
    """
    with exit_on_error():
        from dmtrl.federation.flare.coordinator import Coordinator
        from dmtrl.federation.flare.runs import FINISHED, runs
        from dmtrl.federation.results import MODEL

        Coordinator.open(folder)
        finished = [one for one in runs(folder) if (state := one.state()) is not None and state.state == FINISHED]
        if not finished:
            raise FederationError("no run has finished yet; see 'dmtrl study status'")
        model = finished[-1].folder / MODEL
        if not model.exists():
            raise FederationError("the study gives the coordinator a summary only, no model; see 'dmtrl study log'")
        if out.exists() and not force:
            raise OutputExistsError(out)
        shutil.copyfile(model, out)
        click.echo(f"Wrote {out}.")
