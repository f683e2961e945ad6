"""The shell: where commands are registered. Each is one file in `commands`, loaded when it is needed.

Room: the top. A command asks functions of the library and prints what came back. Exit codes: 0 done, 1 the work could
not be done (one sentence on stderr says why), 2 the command was misspelt, 130 interrupted with Ctrl-C.
"""

import importlib
from typing import Any

import click

import dmtrl

COMMANDS = ("demo", "fit", "predict", "report", "reproduce", "bench")  # commands/NAME.py holds each as `command`


class Shell(click.Group):
    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        words = list(args)  # as typed: an interrupted command says how to go on
        context = super().make_context(info_name, args, parent, **extra)
        context.obj = words
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
    """One linear model per task, the relations between tasks, and a certificate.

    \b
    Start with:
      dmtrl demo
      dmtrl fit marks.csv --task school --target score
    Exit codes: 0 done, 1 not possible (a sentence says why), 2 misspelt,
    130 interrupted. Completion: eval "$(_DMTRL_COMPLETE=bash_source dmtrl)"
    """


if __name__ == "__main__":
    main()
