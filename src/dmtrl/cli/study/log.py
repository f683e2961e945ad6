"""The command `dmtrl study log`."""

import json
import time
from pathlib import Path
from typing import Any

import click

from dmtrl.cli.errors import exit_on_error, printable
from dmtrl.cli.network import folder_option


@click.command(name="log")
@folder_option
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON lines.")
def command(folder: Path, as_json: bool) -> None:
    """Show the record of the last run.

    \b
    Example: dmtrl study log -C study
    """
    with exit_on_error():
        from dmtrl.federation.flare.coordinator import Coordinator
        from dmtrl.federation.flare.runs import runs

        Coordinator.open(folder)
        for last in runs(folder)[-1:]:
            for entry in last.progress():
                click.echo(json.dumps(entry) if as_json else printable(_line(entry)))


def _line(entry: dict[str, Any]) -> str:
    from dmtrl.federation.flare.runs import describe

    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.get("time", 0)))
    if "job" in entry:
        return f"{when}  job {entry['job']} with {', '.join(entry['sites'])}"
    if "stage" not in entry:  # a line that a killed process left
        return when
    return f"{when}  {entry['stage']}: {describe(entry)}"
