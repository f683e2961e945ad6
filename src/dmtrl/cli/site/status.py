"""The command `dmtrl site status`."""

from pathlib import Path

import click

from dmtrl.cli.errors import exit_on_error
from dmtrl.cli.network import site_option


@click.command(name="status")
@site_option
def command(folder: Path) -> None:
    """Show whether the site runs, is connected, which study it approved, and what is left of its privacy budget.

    \b
    Example: dmtrl site status --site cleveland
    """
    with exit_on_error():
        from dmtrl.federation.approval import read_approval
        from dmtrl.federation.flare import processes
        from dmtrl.federation.flare.member import Member
        from dmtrl.federation.policy import read_policy
        from dmtrl.federation.privacy.budget import Budget

        site, given = Member.open(folder), read_approval(folder)
        click.echo(f"{site.invitation.site}: {site.state() if site.admitted else 'not admitted yet'}")
        click.echo(f"server: {site.invitation.host}:{site.invitation.port}")
        click.echo(f"approved: {given.study} {given.hash[:16]} on {given.time}" if given else "approved: nothing yet")
        click.echo(f"taking part in a run: {'yes' if processes.job_processes(site.kit) else 'no'}")
        policy = read_policy(folder)
        click.echo(f"privacy budget: {Budget(folder, policy.epsilon, policy.delta).describe()}")
