"""The command `dmtrl site log`."""

import json
from dataclasses import asdict

import click

from dmtrl.cli.errors import exit_on_error, printable


@click.command(name="log")
@click.option("--site", "folder", type=click.Path(), default=".", help="Folder of the site [.].")
@click.option("--verify", is_flag=True, help="Check that no line was changed or removed.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the last N messages.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
def command(folder: str, verify: bool, last: int | None, as_json: bool) -> None:
    """Show every message that left this site.

    \b
    Examples:
      dmtrl site log --site cleveland --last 20
      dmtrl site log --site cleveland --verify
    """
    with exit_on_error():
        from dmtrl.workflows.site import ledger_entries, verify_ledger

        if verify:
            lines, last_hash = verify_ledger(folder)
            if lines == 0:
                click.echo("There is no ledger yet: no message of this site was recorded.")
                return
            click.echo(f"The ledger is intact: {lines:,} lines.")
            click.echo(f"Last hash: {last_hash}")
            click.echo("Copy it to another place; compare it later with the hash of the same line.")
            return
        entries = ledger_entries(folder)
    for entry in entries[-last:] if last else entries:
        if as_json:
            click.echo(json.dumps(asdict(entry)))
            continue
        shapes = ", ".join(f"{name} {'x'.join(map(str, shape)) or '1'}" for name, shape in entry.shapes.items())
        what = entry.text or f"numbers: {entry.numbers:,}, bytes: {entry.bytes:,}" + (f" ({shapes})" if shapes else "")
        again = ", sent before" if entry.repeated else ""
        click.echo(printable(f"{entry.number:>6}  {entry.time[:19]}  {entry.name:<13} {what}{again}"))
    new = [entry for entry in entries if not entry.repeated]
    if not as_json:
        numbers, size = sum(entry.numbers for entry in new), sum(entry.bytes for entry in entries)
        click.echo(f"{len(entries):,} messages, {size:,} bytes, {numbers:,} different numbers")
