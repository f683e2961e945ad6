"""The group `dmtrl site`: the commands of a site's data manager, one per module of this folder."""

import click

from dmtrl.cli.groups import LazyGroup

COMMANDS = ("check", "join", "approve", "withdraw", "start", "status", "log", "stop")


@click.group(name="site", cls=LazyGroup, package="dmtrl.cli.site", commands=COMMANDS)
def command() -> None:
    """Take part in a study with the rows of one site.

    \b
    Examples:
      dmtrl site check cleveland.csv --study heart.toml
      dmtrl site join va.invitation.json --data va.csv --site va
      dmtrl site approve heart.toml --site cleveland
      dmtrl site start --site cleveland
      dmtrl site log --site cleveland --verify
    """
