"""The `dmtrl` command. Each subcommand is one module of this folder, imported when it is used.

Exit codes: 0 success, 1 failure (a message on stderr gives the reason), 2 usage error, 130 interrupted with Ctrl-C.
"""

import importlib
from typing import Any

import click

import dmtrl
from dmtrl.cli.errors import exit_on_error, exit_on_interrupt

COMMANDS = ("demo", "fit", "predict", "report", "export", "study", "site")


class LazyGroup(click.Group):
    """Imports each command when it is used, and turns its errors into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return importlib.import_module(f"dmtrl.cli.{name}").command if name in COMMANDS else None

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        typed = list(args)  # for the command that resumes an interrupted fit
        context = super().make_context(info_name, args, parent, **extra)
        context.obj = typed
        return context

    def invoke(self, ctx: click.Context) -> Any:
        with exit_on_interrupt(), exit_on_error():
            return super().invoke(ctx)


@click.group(name="dmtrl", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
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
