"""The demo: Synthetic 1 of the paper, fitted together, each task alone, and pooled.

`run_demo` computes a result, `render` prints it, and `demo_page` makes a page of it. All three methods have the same
loss, the same lambdas and the same held-out rows.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dmtrl.data.task_data import TaskData
from dmtrl.datasets import SyntheticTasks, make_synthetic
from dmtrl.estimators.diagnostics import Comparison
from dmtrl.report.content import Page
from dmtrl.report.model_page import ModelFacts, page_from_facts
from dmtrl.report.model_page.held_out import ERROR_RATE, format_error
from dmtrl.solver.api import solve
from dmtrl.solver.outcome import Callback, Outcome
from dmtrl.solver.settings import Settings
from dmtrl.worker import kernels

LOSS = "logistic"  # the labels are drawn from the logistic model
LAMBDAS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
HELD_OUT = 0.25  # share of each task's training rows, for the choice of lambda
QUICK = {"rows_per_task": 400, "d": 40}
TOGETHER, ALONE, POOLED = "together, relations learned", "each task alone", "one model for all tasks"

OnStage = Callable[[str], object]


@dataclass(frozen=True)
class Fit:
    name: str
    reg_lambda: float
    outcome: Outcome
    wrong: np.ndarray  # for each test row, whether the prediction is wrong
    seconds: float

    @property
    def error(self) -> float:
        return float(self.wrong.mean())


@dataclass(frozen=True)
class DemoResult:
    seed: int
    problem: SyntheticTasks
    fits: dict[str, Fit]
    floor: float  # test error of the true weights
    recovery: float  # Pearson correlation between learned and true task correlations, over pairs of tasks
    compile_seconds: float | None  # None if the compiled code came from the cache

    @property
    def learned(self) -> Fit:
        return self.fits[TOGETHER]

    def advantage(self, other: str) -> tuple[float, float]:
        """Return the error rate of `other` minus that of the joint fit, and the paired standard error."""
        difference = self.fits[other].wrong.astype(float) - self.learned.wrong
        return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))


def run_demo(
    seed: int = 0, quick: bool = False, on_stage: OnStage = lambda text: None, callbacks: Sequence[Callback] = ()
) -> DemoResult:
    """Generate the tasks, choose lambda for each method, fit on all training rows, and compare with the truth.

    on_stage: called with a sentence at each stage. callbacks: called with the round records of every fit.
    """
    compile_seconds = _warm_up(on_stage)
    problem = make_synthetic(kind=1, seed=seed, **(QUICK if quick else {}))
    fits = {}
    for name, pool, relationship in (
        (TOGETHER, False, "learned"),
        (ALONE, False, "independent"),
        (POOLED, True, "independent"),
    ):
        fits[name] = _choose_and_fit(name, problem, pool, relationship, on_stage, callbacks)
    recovery = off_diagonal_pearson(fits[TOGETHER].outcome.covariance.correlation(), problem.correlation)
    floor = float(_wrong(problem.W, problem.test).mean())
    return DemoResult(seed, problem, fits, floor, recovery, compile_seconds)


def off_diagonal_pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Return the Pearson correlation of two symmetric matrices over the pairs above the diagonal."""
    above = np.triu_indices(len(a), 1)
    return float(np.corrcoef(a[above], b[above])[0, 1])


def _choose_and_fit(
    name: str,
    problem: SyntheticTasks,
    pool: bool,
    relationship: str,
    on_stage: OnStage,
    callbacks: Sequence[Callback],
) -> Fit:
    fit_rows, held_out = _hold_out(problem.train)

    def fit(data: TaskData, reg_lambda: float) -> Outcome:
        data = TaskData.from_long(data.X, data.y) if pool else data
        return solve(data, loss=LOSS, reg_lambda=reg_lambda, relationship=relationship, n_jobs=-1, callbacks=callbacks)

    on_stage(f"{name}: choosing lambda on held-out rows")
    errors = [_wrong(fit(fit_rows, reg_lambda).W, held_out).mean() for reg_lambda in LAMBDAS]
    best = LAMBDAS[int(np.argmin(errors))]  # the largest of equals, as the grid descends
    on_stage(f"{name}: fitting all training rows")
    began = time.perf_counter()
    outcome = fit(problem.train, best)
    return Fit(name, best, outcome, _wrong(outcome.W, problem.test), time.perf_counter() - began)


def _rows(data: TaskData) -> Iterator[slice]:
    for start, stop in itertools.pairwise(data.starts.tolist()):
        yield slice(start, stop)


def _hold_out(data: TaskData) -> tuple[TaskData, TaskData]:
    """Split off the last rows of each task for the choice of lambda. The rows are in random order."""
    fit, held_out = [], []
    for rows in _rows(data):
        cut = rows.stop - max(round(HELD_OUT * (rows.stop - rows.start)), 1)
        fit.append((data.X[rows.start : cut], data.y[rows.start : cut]))
        held_out.append((data.X[cut : rows.stop], data.y[cut : rows.stop]))
    return TaskData.from_list(fit), TaskData.from_list(held_out)


def _wrong(W: np.ndarray, data: TaskData) -> np.ndarray:
    """Return, for each row, whether the prediction is wrong. A W with one row is used for all tasks."""
    weights = np.broadcast_to(W, (data.m, W.shape[1]))
    return np.concatenate(
        [(data.X[rows] @ w > 0) != (data.y[rows] > 0) for w, rows in zip(weights, _rows(data), strict=True)]
    )


def _warm_up(on_stage: OnStage) -> float | None:
    """Load or compile the kernels before anything is timed. Return the seconds if they were compiled."""
    cold = not _compiled_before()
    on_stage("compiling (only the first time)" if cold else "loading the compiled code")
    began = time.perf_counter()
    tiny = make_synthetic(rows_per_task=10, m=2, d=3).train
    for relationship in ("learned", "independent"):
        solve(tiny, loss=LOSS, reg_lambda=0.1, relationship=relationship)
    return time.perf_counter() - began if cold else None


def _compiled_before() -> bool:
    """Return whether numba's cache has an up-to-date main kernel."""
    written = Path(kernels.__file__).stat().st_mtime
    folder = Path(kernels.local_round.stats.cache_path or ".")
    return any(index.stat().st_mtime >= written for index in folder.glob("kernels.local_round-*.nbi"))


def demo_page(result: DemoResult) -> Page:
    """Return a page about the joint fit, with true and learned relations."""
    fit, problem = result.learned, result.problem
    m, d = problem.W.shape
    errors = [
        (f"test error rate, {words}", format_error(result.fits[name].error, ERROR_RATE))
        for name, words in _SHORT.items()
    ]
    facts = ModelFacts(
        names=[f"task {i + 1}" for i in range(m)],
        tasks=m,
        covariance=fit.outcome.covariance,
        relations_learned=True,
        certificate=fit.outcome.certificate,
        tol=Settings().tol,
        loss=LOSS,
        reg_lambda=fit.reg_lambda,
        tau=0.0,
        features=d,
        feature_names=[f"feature {j + 1}" for j in range(d)],
        coef=fit.outcome.W,
        scaled=True,
        history=[record.as_dict() for record in fit.outcome.history],
        rows=len(problem.train.y),
        classes=["−1", "+1"],
        comparison=_comparison(result),
        truth=problem.correlation,
        record=f"Made by dmtrl demo with seed {result.seed}: Synthetic 1, {m} tasks that copy one of three parents or "
        f"its opposite. Each method chose one of {len(LAMBDAS)} lambdas on held-out training rows; error rates are on "
        f"{len(problem.test.y):,} test rows.",
        more=[
            *errors,
            ("test error rate, true weights", format_error(result.floor, ERROR_RATE)),
            ("correlation of learned and true relations", f"{result.recovery:.3f}"),
        ],
    )
    return page_from_facts(facts, f"dmtrl demo: {m} synthetic tasks")


_SHORT = {TOGETHER: "together", ALONE: "alone", POOLED: "pooled"}


def _comparison(result: DemoResult) -> Comparison:
    """Test error rates of each task. Harmed: worse together than alone in a paired one-sided test at 1 %."""
    rows = list(_rows(result.problem.test))
    together, alone, pooled = (np.array([fit.wrong[r].mean() for r in rows]) for fit in result.fits.values())
    change = [(result.learned.wrong[r].astype(float) - result.fits[ALONE].wrong[r]) for r in rows]
    harmed = [bool(c.mean() > 2.326 * c.std(ddof=1) / np.sqrt(len(c)) and c.mean() > 0) for c in change]
    names = np.array([f"task {i + 1}" for i in range(len(rows))])
    return Comparison(names, together, alone, pooled, np.array(harmed), ERROR_RATE)


def render(result: DemoResult, console: Console) -> None:
    """Print a summary, with two heat maps if they fit side by side."""
    problem = result.problem
    m, d = problem.W.shape
    console.print()
    console.print(
        f"[bold]Synthetic 1[/bold], seed {result.seed}: {m} tasks, d = {d}, "
        f"{len(problem.train.y):,} training and {len(problem.test.y):,} test rows"
    )
    console.print(Padding(_error_table(result), (1, 2), expand=False))
    console.print(Padding(_facts(result), (0, 2), expand=False))
    if console.width >= 4 * m + 10:
        console.print(Padding(_heat_maps(result), (1, 2), expand=False))
        console.print(Text(f"  {HEAT_KEY}", style="dim"))
    if result.compile_seconds is not None:
        console.print(Text(f"  Compiled in {result.compile_seconds:.0f} s; the next start is faster.", style="dim"))


def _error_table(result: DemoResult) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for heading, justify in (("fit", "left"), ("test error rate", "right"), ("lambda", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for name, fit in result.fits.items():
        style = "bold" if name == TOGETHER else ""
        table.add_row(name, f"{fit.error:.2%}", f"{fit.reg_lambda:.0e}", style=style)
    table.add_row("(the true weights)", f"{result.floor:.2%}", "", style="dim")
    return table


def _facts(result: DemoResult) -> Table:
    fit = result.learned
    history, certificate = fit.outcome.history, fit.outcome.certificate
    points, error = (100 * value for value in result.advantage(ALONE))
    size = sum(record.bytes_sent + record.bytes_received for record in history)
    pairs = len(result.problem.W) * (len(result.problem.W) - 1) // 2
    solvers = sorted({solver for record in history for solver in record.solver.split("+")})
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    # two standard errors, about the 5 % level
    verdict = "" if abs(points) > 2 * error else "; not significant"
    table.add_row("gain", f"{points:.2f} percentage points over each task alone (standard error {error:.2f}{verdict})")
    table.add_row(
        "certificate",
        f"objective {certificate.primal:.6g}, proven lower bound {certificate.dual:.6g}: within "
        f"{max(certificate.relative_gap, 0.0):.2%} of the optimum",
    )
    table.add_row(
        "relations",
        f"Pearson correlation of learned and true values, {pairs} pairs of tasks: {result.recovery:.3f}",
    )
    table.add_row(
        "work",
        f"{len(history)} rounds, {fit.seconds:.1f} s, {size / 1e6:.2g} MB in messages, "
        f"local solver {' and '.join(solvers)}",
    )
    table.add_row("lambda", f"the best of {len(LAMBDAS)} on held-out training rows ({HELD_OUT:.0%}), for each fit")
    return table


def _heat_maps(result: DemoResult) -> RenderableType:
    table = Table.grid(padding=(0, 4, 0, 0))
    table.add_row(Text("learned correlation", style="dim"), Text("true correlation", style="dim"))
    table.add_row(heat_map(result.learned.outcome.covariance.correlation()), heat_map(result.problem.correlation))
    return table


HEAT_KEY = "++ above 0.75   + above 0.25   . near zero   - below -0.25   -- below -0.75"


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
