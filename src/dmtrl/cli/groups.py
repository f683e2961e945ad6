"""Groups of commands whose modules are imported when they are used."""

import importlib
from collections.abc import Sequence
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands are modules of one package; each defines `command`."""

    def __init__(self, *args: Any, package: str = "", commands: Sequence[str] = (), **extra: Any):
        super().__init__(*args, **extra)
        self._package, self._names = package, list(commands)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._names

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._names:
            return None
        command: click.Command = importlib.import_module(f"{self._package}.{name}").command
        return command
