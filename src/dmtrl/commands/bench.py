"""dmtrl bench.

Room: commands.
"""

from pathlib import Path

import click

CHOICES = ("all", "solve", "rounds")


@click.command(name="bench")
@click.argument("which", type=click.Choice(CHOICES), default="all")
@click.option("--quick", is_flag=True, help="Smaller problems: only to see that everything runs.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for records, page, plots and tables [benchmarks].")
def command(which: str, quick: bool, out: Path | None) -> None:
    """Measure time, rounds and bytes against others.

    All contenders run in one process, in turn, one thread each, compile time
    excluded. Close other programs first.

    \b
    Examples:
      dmtrl bench rounds --quick
      dmtrl bench all --out results
    """
    from dmtrl.bench.suite import BENCHMARKS
    from dmtrl.commands.collection import run
    from dmtrl.report.content import Table
    from dmtrl.report.files import markdown_text

    result = run(BENCHMARKS, which, quick, out or Path("benchmarks-quick" if quick else "benchmarks"))
    for section in result.sections:
        for item in section.items:
            if isinstance(item, Table):
                click.echo(f"\n{markdown_text(item)}")
