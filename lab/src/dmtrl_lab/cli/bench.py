"""The command `dmtrl-lab bench`."""

from pathlib import Path

import click

CHOICES = (
    *("all", "fit", "cv", "grouped", "zoo", "startup", "memory", "scale", "stragglers", "cluster", "federation"),
    "privacy",
)


@click.command(name="bench")
@click.argument("which", type=click.Choice(CHOICES), default="all")
@click.option("--quick", is_flag=True, help="Use smaller problems: a smoke test.")
@click.option("--full", is_flag=True, help="Add the largest problem of grouped: 100,000 groups.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Output folder for records, page, plots and tables [benchmarks]."
)
@click.option(
    "--only",
    metavar="TEXT",
    help="Only runs whose parameters, as the progress display shows them, contain this. For zoo: the seed of one "
    "problem; nothing is stored.",
)
def command(which: str, quick: bool, full: bool, out: Path | None, only: str | None) -> None:
    """Measure time, rounds and bytes, and compare with other solvers.

    The solvers run in turn, without compile time. Close other programs first.
    Default estimators: fit and cv (against scikit-learn task by task), grouped
    (against mixed models), zoo (random problems), startup (imports and first
    fits), memory (large fits).
    The solver: scale (time and memory), stragglers (a slow worker), cluster
    (Ray compared with threads), federation (a study over NVIDIA FLARE compared
    with one process), privacy (error over epsilon). dmtrl-lab reproduce convergence
    has the paper's preset and other methods for its problem.

    \b
    Examples:
      dmtrl-lab bench fit --quick
      dmtrl-lab bench fit --only "mnist, hinge"
      dmtrl-lab bench zoo --only 17
      dmtrl-lab bench all --out results
    """
    from dmtrl_lab.bench.suite import BENCHMARKS, FULL_BENCHMARKS
    from dmtrl_lab.cli.collection import print_tables, run

    if which == "zoo" and only is not None:
        from dmtrl.report.files import markdown_text
        from dmtrl_lab.bench.zoo import one_problem

        if not only.isdecimal():
            raise click.UsageError(f"--only of dmtrl-lab bench zoo is the seed of a problem, got {only!r}.")
        click.echo(markdown_text(one_problem(int(only))))
        return
    if full and quick:
        raise click.UsageError("--full and --quick exclude each other.")
    chosen = FULL_BENCHMARKS if full else BENCHMARKS
    benchmarks = chosen if only is None else chosen.only(which, only)
    folder = out or Path("benchmarks-quick" if quick else "benchmarks")
    if only is not None and not benchmarks.plan(which, quick, folder).runs:
        raise click.UsageError(f"No run of dmtrl-lab bench {which} contains {only!r}.")
    print_tables(run(benchmarks, which, quick, folder).sections)
