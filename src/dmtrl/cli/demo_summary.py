"""Print the result of `dmtrl demo`."""

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dmtrl.workflows.demo import ALONE, BOOSTED, FOLDS, LAMBDAS, TOGETHER, DemoResult

HEAT_KEY = "++ above 0.75   + above 0.25   . near zero   - below -0.25   -- below -0.75"


def print_demo(result: DemoResult, console: Console) -> None:
    """Print a summary, with two heat maps if they fit side by side."""
    problem = result.problem
    m, d = problem.W.shape
    console.print()
    console.print(
        f"[bold]{result.description}[/bold], seed {result.seed}: d = {d}, "
        f"{len(problem.train.y):,} training and {len(problem.test.y):,} test rows"
    )
    console.print(Padding(_error_table(result), (1, 2), expand=False))
    console.print(Padding(_facts(result), (0, 2), expand=False))
    if console.width >= 4 * m + 10:
        maps = Table.grid(padding=(0, 4, 0, 0))
        maps.add_row(Text("learned correlation", style="dim"), Text("true correlation", style="dim"))
        maps.add_row(heat_map(result.learned.model.covariance_.correlation()), heat_map(problem.correlation))
        console.print(Padding(maps, (1, 2), expand=False))
        console.print(Text(f"  {HEAT_KEY}", style="dim"))


def _error_table(result: DemoResult) -> Table:
    table = Table("fit", box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("test error rate", justify="right")
    table.add_column("lambda", justify="right")
    for name, fit in result.fits.items():
        chosen = "" if name == BOOSTED else f"{fit.model.reg_lambda_:.0e}"
        table.add_row(name, f"{fit.error:.2%}", chosen, style="bold" if name == TOGETHER else "")
    table.add_row("(the true weights)", f"{result.floor:.2%}", "", style="dim")
    return table


def _facts(result: DemoResult) -> Table:
    fit = result.learned
    history, certificate = fit.model.history_, fit.model.certificate_
    points, error = (100 * value for value in result.advantage(ALONE))
    size = sum(record["bytes_sent"] + record["bytes_received"] for record in history)
    pairs = len(result.problem.W) * (len(result.problem.W) - 1) // 2
    solvers = sorted({solver for record in history for solver in record["solver"].split("+")})
    # two standard errors, about the 5 % level
    verdict = "" if abs(points) > 2 * error else "; not significant"
    facts = {
        "gain": f"{points:.2f} percentage points over each task alone (standard error {error:.2f}{verdict})",
        "certificate": f"objective {certificate.primal:.6g}, proven lower bound {certificate.dual:.6g}: within "
        f"{max(certificate.relative_gap, 0.0):.2%} of the optimum",
        "relations": f"Pearson correlation of learned and true values, {pairs} pairs of tasks: {result.recovery:.3f}",
        "work": f"{len(history)} rounds, {size / 1e6:.2g} MB in messages; {fit.seconds:.1f} s with the choice of "
        f"lambda; local solver {' and '.join(solvers)}",
        "lambda": f"the best of {len(LAMBDAS)} on held-out training rows ({FOLDS} folds), for each fit",
    }
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    for name, fact in facts.items():
        table.add_row(name, fact)
    return table


def heat_map(correlation: np.ndarray) -> Text:
    """Two characters per cell, readable without colour. Red is positive, blue negative."""
    text = Text()
    for i, row in enumerate(correlation):
        text.append("\n" if i else "")
        for value in row:
            size = abs(value)
            fade = int(255 * (1 - size))
            colour = f"rgb(255,{fade},{fade})" if value > 0 else f"rgb({fade},{fade},255)"
            sign = "+" if value > 0 else "-"
            cell = sign * 2 if size > 0.75 else f"{sign} " if size > 0.25 else ". "
            text.append(cell, style=f"black on {colour}")
    return text
