"""Options and types that several commands share."""

from collections.abc import Callable
from pathlib import Path

import click

from dmtrl.cli.errors import printable

KINDS = ("regression", "classification")
folder_option = click.option(
    "--folder", "-C", type=click.Path(path_type=Path), default=".", help="The coordinator's folder [.]."
)
site_option = click.option(
    "--site", "folder", type=click.Path(path_type=Path), default=".", help="Folder of the site [.]."
)
verbose_option = click.option("--verbose", "-v", is_flag=True, help="Print every command of NVIDIA FLARE that is run.")


class OrderedGroup(click.Group):
    """A group that lists its commands in the order of their definition, not of their names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def echo_commands(verbose: bool) -> Callable[[str], None]:
    """Prints wrapped commands if asked to."""
    return (lambda text: click.echo(f"+ {printable(text)}", err=True)) if verbose else (lambda text: None)
