"""The paper's convergence figures: gap over time, gap over rounds and test error over rounds.

DMTRL with several H, single-task learning, SSDCA, centralised MTRL and, beyond the paper, the default preset, on four
data sets and two lambdas. One task per worker, as in the paper. H is a multiple of the mean number of rows per task.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dmtrl.engines import LocalOptions
from dmtrl.report.content import ChartGrid, Item, LineChart, Series, Table, Text
from dmtrl.solver.api import solve
from dmtrl.solver.execution import Execution
from dmtrl.solver.outcome import RoundRecord, Watch
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings
from dmtrl_lab.baselines import NotEnoughMemoryError, centralised_mtrl, ssdca
from dmtrl_lab.experiments import paper
from dmtrl_lab.experiments.curves import history_curves, rounds_to
from dmtrl_lab.experiments.early_stop import StopRun, may_stop_early
from dmtrl_lab.experiments.experiment import Experiment, Figures, Record, Records, Run, select, table
from dmtrl_lab.experiments.problems import TITLES, PaperProblem, error_text, first_rows, load_problem

DATA = ("synthetic 1", "school", "mnist", "mds")
# H divided by the mean number of rows per task
SHARES = {f"DMTRL, H = {share:g} n": share for share in (0.1, 1.0, 10.0)}
OMEGA_STEPS, W_ROUNDS = 5, 20  # P and T
PASSES = 1.01 * OMEGA_STEPS * W_ROUNDS * max(SHARES.values())  # the limit for all methods: that of the longest run
DEFAULT, ALONE, SSDCA, CENTRAL = "default preset", "single-task", "SSDCA", "centralised MTRL"
SECONDS = {"synthetic 1": 8, "school": 4, "mnist": 45, "mds": 8}  # of an average run
CENTRAL_SECONDS = {"synthetic 1": 120, "school": 60, "mnist": 1, "mds": 60}


def runs(problem: str, quick: bool) -> list[Run]:
    methods = [*SHARES, DEFAULT, ALONE, SSDCA, CENTRAL]
    return [
        Run(
            {"problem": problem, "reg_lambda": reg_lambda, "method": method, "quick": quick},
            1.0 if quick else CENTRAL_SECONDS[problem] if method == CENTRAL else SECONDS[problem],
        )
        for reg_lambda in paper.LAMBDAS
        for method in methods
    ]


def measure(problem: str, reg_lambda: float, method: str, quick: bool) -> Figures:
    task = load_problem(problem, quick=quick)
    history: list[RoundRecord] = []
    errors: list[float] = []

    def watch(record: RoundRecord, W: np.ndarray) -> None:
        history.append(record)
        errors.append(task.error(W))
        if sum(one.passes for one in history) > PASSES:
            raise StopRun

    try:
        with may_stop_early():
            small = replace(task, train=first_rows(task.train, 2))
            _fit(method, small, reg_lambda, True, lambda record, W: None)  # compiles
            _fit(method, task, reg_lambda, quick, watch)
    except NotEnoughMemoryError as error:
        return {"out_of_memory": str(error)}
    return history_curves(history, errors, before=method == ALONE or method in SHARES)


def _fit(method: str, task: PaperProblem, reg_lambda: float, quick: bool, watch: Watch) -> None:
    data = task.train
    omega_steps, rounds = (3, 4) if quick else (OMEGA_STEPS, W_ROUNDS)
    if method == SSDCA:
        ssdca(data, task.loss, reg_lambda, omega_steps=omega_steps, passes=rounds, watch=watch)
        return
    if method == CENTRAL:
        omega_steps, passes, w_tol = (2, 20, 1e-2) if quick else (OMEGA_STEPS, 200, 1e-3)
        limits: dict[str, Any] = {"omega_steps": omega_steps, "max_passes": passes, "w_tol": w_tol}
        centralised_mtrl(data, task.loss, reg_lambda, watch=watch, **limits)
        return
    if method == DEFAULT:
        settings = Settings(max_rounds=20 if quick else OMEGA_STEPS * W_ROUNDS)
    elif method == ALONE:
        settings = Settings.paper(T=omega_steps * rounds, P=1)
    else:
        steps = max(round(SHARES[method] * len(data.y) / data.m), 1)
        settings = Settings.paper(T=rounds, P=omega_steps, H=steps)
    relationship = "independent" if method == ALONE else "learned"
    solve(
        Problem.of(data, loss=task.loss, reg_lambda=reg_lambda, relationship=relationship),
        Execution(LocalOptions(workers=data.m, n_jobs=-1), settings, watch=watch),
    )


STYLES = {ALONE: "dots", SSDCA: "dashes", CENTRAL: "dashes"}
INTRODUCTION = (
    f"The paper's convergence figures with the paper preset: uniform sampling, its rho, eta = 1, {OMEGA_STEPS} "
    f"Omega-steps with {W_ROUNDS} rounds before each, one task per worker, hinge loss (squared on School). Single-task "
    "learning takes one step per row and round. The gap is that of the W-step, as in the paper; it rises after each "
    "Omega-step, because Sigma changes. **The default preset has no W-step: its curve is the gap over W and Sigma "
    "together**, and it stops at 0.001. No method gets more passes over the rows than the longest of the paper's runs. "
    "At these weak lambdas coordinate ascent is slow with any relationship. Seconds are of one run each, on two "
    "threads (SSDCA: one), without loading the data."
)


def items(problem: str, records: Records) -> list[Item]:
    introduction = [Text(INTRODUCTION)] if problem == DATA[0] else []
    charts = [_grid(problem, lam, select(records, reg_lambda=lam)) for lam in paper.LAMBDAS]
    return [*introduction, *charts, _table(problem, records)]


def gap_of(method: str) -> str:
    """Return which of the recorded gaps to plot for a method."""
    return "gap" if method == DEFAULT else "w_gap"


def _grid(problem: str, reg_lambda: float, records: Records) -> ChartGrid:
    runs = {record.params["method"]: record.figures for record in records}
    complete = {name: figures for name, figures in runs.items() if "out_of_memory" not in figures}
    shown = f"{TITLES[problem]}, lambda {reg_lambda:g}"
    measure = "test RMSE" if problem == "school" else "test error"

    def chart(title: str, x: str, y: str, x_label: str, y_label: str) -> LineChart:
        lines = [
            Series(name, figures[x], figures[gap_of(name) if y == "gap" else y], STYLES.get(name, "line"))
            for name, figures in complete.items()
            if x == "seconds" or name not in (SSDCA, CENTRAL)
        ]
        alt = f"{shown}: {y_label} over {x_label}."
        return LineChart(title, x_label, y_label, lines, alt, log_x=x == "seconds", log_y=y == "gap")

    charts = [
        chart("Gap over time", "seconds", "gap", "seconds", "relative gap"),
        chart("Gap over rounds", "round", "gap", "rounds", "relative gap"),
        chart("Error over rounds", "round", "error", "rounds", measure),
    ]
    failed = [f"{name}: {figures['out_of_memory']}." for name, figures in runs.items() if "out_of_memory" in figures]
    return ChartGrid(
        f"Convergence on {shown}",
        charts,
        f"Three charts for {shown}: relative gap over seconds, relative gap over rounds, {measure} over rounds, for "
        f"{', '.join(complete)}.",
        columns=3,
        caption=" ".join(failed),
    )


def _row(record: Record) -> Mapping[str, object]:
    f, method = record.figures, record.params["method"]
    problem, failed, gap = record.params["problem"], "out_of_memory" in f, gap_of(method)
    return {
        "lambda": f"{record.params['reg_lambda']:g}",
        "method": method,
        "final gap": "out of memory" if failed else f"{f[gap][-1]:.1e}",
        "seconds": "" if failed else f"{f['seconds'][-1]:.1f}",
        "rounds to a gap of 0.1": "" if failed else rounds_to(f, gap, 0.1),
        "final error": "" if failed else error_text(problem, f["error"][-1]),
        "lowest error": "" if failed else error_text(problem, min(f["error"])),
    }


def _table(problem: str, records: Records) -> Table:
    return table(
        f"Final values on {TITLES[problem]}",
        [_row(record) for record in records],
        "Rounds until the gap stays below 0.1. For SSDCA and centralised MTRL, rounds are passes over the rows on one "
        "machine." + (" Error: RMSE." if problem == "school" else ""),
    )


SETTINGS = {"omega_steps": OMEGA_STEPS, "w_rounds": W_ROUNDS, "passes": PASSES, "seed": 0, "solver_seed": 0}
CONVERGENCE = [
    Experiment(
        f"convergence {problem}",
        f"Convergence on {TITLES[problem]}",
        partial(runs, problem),
        measure,
        partial(items, problem),
        SETTINGS,
    )
    for problem in DATA
]
