"""The command `dmtrl bench`."""

from pathlib import Path

import click

CHOICES = ("all", "kernels", "solve", "rounds", "scale", "startup", "network", "stragglers", "cluster")


@click.command(name="bench")
@click.argument("which", type=click.Choice(CHOICES), default="all")
@click.option("--quick", is_flag=True, help="Use smaller problems: a smoke test.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Output folder for records, page, plots and tables [benchmarks]."
)
@click.option("--latency", type=click.FloatRange(min=0), help="network: latency in milliseconds, one way.")
@click.option(
    "--bandwidth", type=click.FloatRange(min=0, min_open=True), help="network: bandwidth of the server in Mbit/s."
)
@click.option("--per-message", type=click.FloatRange(min=0), help="network: engine time per message in milliseconds.")
def command(
    which: str, quick: bool, out: Path | None, latency: float | None, bandwidth: float | None, per_message: float | None
) -> None:
    """Measure time, rounds and bytes, and compare with other solvers.

    The solvers run in turn, without compile time. Close other programs first.
    One thread: kernels (one task), solve (the whole fit), rounds (messages).
    Several threads: scale (time and memory), startup (imports and first fits),
    stragglers (a slow worker), cluster (Ray compared with threads). network:
    times over a network, computed from measured costs.

    \b
    Examples:
      dmtrl bench rounds --quick
      dmtrl bench network --latency 20 --bandwidth 100
      dmtrl bench all --out results
    """
    own_network = any(given is not None for given in (latency, bandwidth, per_message))
    if which != "network" and own_network:
        raise click.UsageError("--latency, --bandwidth and --per-message are options of `dmtrl bench network`")

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
    if own_network:
        from dmtrl.lab.bench.network import sizing_over

        click.echo(f"\n{markdown_text(sizing_over(folder, quick, latency, bandwidth, per_message))}")
