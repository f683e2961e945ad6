"""The command `dmtrl site withdraw`."""

import click

from dmtrl.cli.errors import exit_on_error


@click.command(name="withdraw")
@click.option("--site", "folder", type=click.Path(), default=".", help="Folder of the site [.].")
def command(folder: str) -> None:
    """Withdraw the approval of a study. A run under way ends at its next message.

    What has left stays with the coordinator; `dmtrl site log` shows it.

    \b
    Example: dmtrl site withdraw --site cleveland
    """
    with exit_on_error():
        from dmtrl.workflows.site import withdraw_approval

        given = withdraw_approval(folder)
    click.echo(f"Withdrawn: {given.study} {given.hash[:16]}, approved on {given.time}")
