"""The `dmtrl-lab` command. Exit codes are those of `dmtrl`: 0 success, 1 failure, 2 usage error, 130 interrupted."""

from typing import Any

import click

import dmtrl
from dmtrl.cli.errors import exit_on_error, exit_on_interrupt
from dmtrl_lab.cli import bench, reproduce


class LabGroup(click.Group):
    """Turns the errors of its commands into messages and exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        with exit_on_interrupt(), exit_on_error():
            return super().invoke(ctx)


@click.group(
    name="dmtrl-lab",
    cls=LabGroup,
    commands=[bench.command, reproduce.command],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(dmtrl.__version__, prog_name="dmtrl-lab")
def main() -> None:
    """Measure dmtrl, and repeat the experiments of the paper.

    \b
    Start with:
      dmtrl-lab bench fit --quick
      dmtrl-lab reproduce --quick
    """


if __name__ == "__main__":
    main()
