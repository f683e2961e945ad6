"""The group `dmtrl study`: the coordinator's commands, one per module of this folder."""

import click

from dmtrl.cli.groups import LazyGroup

COMMANDS = ("new", "simulate", "provision", "invite", "admit", "start", "run", "status", "log", "stop", "fetch")


@click.group(name="study", cls=LazyGroup, package="dmtrl.cli.study", commands=COMMANDS)
def command() -> None:
    """Coordinate a study between sites that may not exchange rows.

    \b
    Examples:
      dmtrl study new heart.toml --like cleveland.csv --target num
      dmtrl study simulate heart.toml a=a.csv b=b.csv --out trial
      dmtrl study provision heart.toml --host study.example.org -C study
      dmtrl study run -C study
    """
