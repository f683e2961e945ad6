"""The command `dmtrl site start`."""

from pathlib import Path

import click

from dmtrl.cli.errors import exit_on_error
from dmtrl.cli.network import echo_commands, site_option, verbose_option


@click.command(name="start")
@site_option
@click.option("--foreground", is_flag=True, help="Run the site in this process, for systemd and containers.")
@click.option("--service", is_flag=True, help="Print a systemd unit and a docker compose file, and start nothing.")
@verbose_option
def command(folder: Path, foreground: bool, service: bool, verbose: bool) -> None:
    """Connect the site to the server, and keep it connected until `dmtrl site stop`.

    \b
    Example: dmtrl site start --site cleveland
    """
    with exit_on_error():
        from dmtrl.federation.approval import read_approval
        from dmtrl.federation.flare import services
        from dmtrl.federation.flare.member import Member
        from dmtrl.federation.policy import read_policy

        site = Member.open(folder)
        name, port = site.invitation.site, site.invitation.port
        if service:
            data = (folder / read_policy(folder).data).resolve()
            click.echo(services.systemd_unit("site", name, folder))
            click.echo(services.compose_file("site", name, folder, port, data), nl=False)
            return
        if read_approval(folder) is None:
            click.echo("No study was approved here yet: the site will refuse to answer.", err=True)
        click.echo("Compiling the kernels, if that was not done before ...", err=True)
        if foreground:
            site.run(echo_commands(verbose))
        if not site.start(echo_commands(verbose)):
            click.echo(f"{name} already runs.")
        elif site.wait_for_server():
            click.echo(f"{name} is connected to {site.invitation.host}:{port}.")
        else:
            click.echo(
                f"{name} runs, but does not reach the server yet; it keeps trying. Check: {site.firewall_rule()}."
            )
