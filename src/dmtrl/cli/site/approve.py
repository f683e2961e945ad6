"""The command `dmtrl site approve`."""

import click

from dmtrl.cli.errors import exit_on_error, printable


@click.command(name="approve")
@click.argument("study", type=click.Path(), metavar="STUDY.toml")
@click.option("--site", "folder", type=click.Path(), default=".", help="Folder of the site [.].")
@click.option("--data", type=click.Path(), metavar="FILE", help="Data file, for a new site.")
@click.option("--name", metavar="SITE", help="Name of the site, for a new site.")
@click.option("--yes", "-y", is_flag=True, help="Approve without asking.")
def command(study: str, folder: str, data: str | None, name: str | None, yes: bool) -> None:
    """Show what would leave this site, and approve the study.

    The approval is for exactly the bytes of the study file: after any change the site refuses to take part.

    \b
    Example: dmtrl site approve heart.toml --site cleveland \\
               --data cleveland.csv --name cleveland
    """
    with exit_on_error():
        from dmtrl.workflows.site import propose

        proposal = propose(study, folder, data, name)
    from dmtrl.cli.site.check import misfit, print_check

    click.echo(printable(proposal.text, "\n"))
    click.echo()
    print_check(proposal.check)
    if proposal.check.data is None:
        file = str(proposal.folder / proposal.policy.data)
        raise click.ClickException(f"not approved: {misfit(file, proposal.check)}")
    if not yes and not click.confirm("Approve this study?"):
        raise click.ClickException("not approved; nothing was written")
    with exit_on_error():
        proposal.approve()
    click.echo(f"Approved: {proposal.study.hash}")
