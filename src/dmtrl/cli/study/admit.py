"""The command `dmtrl study admit`."""

from pathlib import Path

import click

from dmtrl.cli.errors import exit_on_error
from dmtrl.cli.network import echo_commands, folder_option, verbose_option


@click.command(name="admit")
@click.argument("request", type=click.Path(path_type=Path))
@folder_option
@verbose_option
def command(request: Path, folder: Path, verbose: bool) -> None:
    """Sign the request of an invited site. Check with the site that the file is theirs.

    \b
    Example: dmtrl study admit cleveland.request.zip -C study
    """
    with exit_on_error():
        from dmtrl.federation.flare import coordinator as flare

        path = flare.admit(flare.Coordinator.open(folder), request, echo_commands(verbose))
        click.echo(f"Send {path} back to the site. Its people run:")
        click.echo(f"  dmtrl site join {path.name} --site {path.name.removesuffix('.signed.zip')}")
