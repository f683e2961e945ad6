"""The `dmtrl` command. Each subcommand is one module of this folder, imported when it is used.

Exit codes: 0 success, 1 failure (a message on stderr gives the reason), 2 usage error, 130 interrupted with Ctrl-C.
"""

from typing import Any

import click

import dmtrl
from dmtrl.cli.groups import LazyGroup

COMMANDS = (
    "demo",
    "fit",
    "predict",
    "report",
    "export",
    "study",
    "site",
    "reproduce",
    "bench",
)  # cli/NAME defines each as `command`


class Shell(LazyGroup):
    """Keeps the arguments as typed in `context.obj`."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        typed = list(args)  # for the command that resumes an interrupted fit
        context = super().make_context(info_name, args, parent, **extra)
        context.obj = typed
        return context


@click.group(
    name="dmtrl",
    cls=Shell,
    package="dmtrl.cli",
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
