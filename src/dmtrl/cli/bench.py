"""The command `dmtrl bench`."""

from pathlib import Path

import click

CHOICES = ("all", "kernels", "solve", "rounds", "scale", "startup", "stragglers", "cluster")


@click.command(name="bench")
@click.argument("which", type=click.Choice(CHOICES), default="all")
@click.option("--quick", is_flag=True, help="Use smaller problems: a smoke test.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Output folder for records, page, plots and tables [benchmarks]."
)
def command(which: str, quick: bool, out: Path | None) -> None:
    """Measure time, rounds and bytes, and compare with other solvers.

    The solvers run in turn, without compile time. Close other programs first.
    One thread: kernels (one task), solve (the whole fit), rounds (messages).
    Several threads: scale (time and memory), startup (imports and first fits),
    stragglers (a slow worker), cluster (Ray compared with threads).

    \b
    Examples:
      dmtrl bench rounds --quick
      dmtrl bench all --out results
    """
    from dmtrl.cli.collection import run
    from dmtrl.lab.bench.suite import BENCHMARKS
    from dmtrl.report.content import Table
    from dmtrl.report.files import markdown_text

    folder = out or Path("benchmarks-quick" if quick else "benchmarks")
    result = run(BENCHMARKS, which, quick, folder)
    for section in result.sections:
        for item in section.items:
            if isinstance(item, Table):
                click.echo(f"\n{markdown_text(item)}")
