"""The `dmtrl` command. Each subcommand is one module of this folder, imported when it is used.

Exit codes: 0 success, 1 failure (a message on stderr gives the reason), 2 usage error, 130 interrupted with Ctrl-C.
"""

import importlib
from typing import Any

import click

import dmtrl

COMMANDS = ("demo", "fit", "predict", "report", "reproduce", "bench")  # cli/NAME.py defines each as `command`


class Shell(click.Group):
    """Imports subcommands lazily and keeps the arguments as typed in `context.obj`."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        typed = list(args)  # for the command that resumes an interrupted fit
        context = super().make_context(info_name, args, parent, **extra)
        context.obj = typed
        return context

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"dmtrl.cli.{name}").command
        return command


@click.group(name="dmtrl", cls=Shell, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(dmtrl.__version__, prog_name="dmtrl")
def main() -> None:
    """Fit one linear model per task and learn how the tasks are related.

    \b
    Start with:
      dmtrl demo
      dmtrl fit marks.csv --task school --target score
    Exit codes: 0 success, 1 failure (with a message), 2 usage error,
    130 interrupted. Completion: eval "$(_DMTRL_COMPLETE=bash_source dmtrl)"
    """


if __name__ == "__main__":
    main()
