"""A whole fit: all tasks and their relations to a certified joint gap, against alternatives, on one thread.

scikit-learn fits each task alone with the same ridge penalty and the loosest tolerance that reaches the same relative
accuracy of its own objective. The others solve the same joint problem within a time limit, because the paper's
alternation may never reach the gap.
"""

import itertools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from dmtrl.data.task_data import TaskData
from dmtrl.lab.baselines import NotEnoughMemoryError, centralised_mtrl, ssdca
from dmtrl.lab.bench.timing import Clock, interleaved, ratio
from dmtrl.lab.experiments.early_stop import StopRun, may_stop_early
from dmtrl.lab.experiments.problems import TITLES, PaperProblem, load_problem
from dmtrl.lab.experiments.records import Record
from dmtrl.lab.experiments.runner import Experiment, Run
from dmtrl.report.content import Section, Table, Text
from dmtrl.solver.api import solve
from dmtrl.solver.settings import Settings

LAMBDAS = {"synthetic 1": 1e-4, "school": 1e-1, "mnist": 3e-4, "mds": 1e-4}
GAP = 1e-3
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
PAPER, SSDCA, CENTRAL = "paper preset", "SSDCA", "centralised MTRL"


def runs(quick: bool) -> list[Run]:
    seconds = {"synthetic 1": 60, "school": 90, "mnist": 240, "mds": 90}
    return [Run({"problem": name, "quick": quick}, 6 if quick else seconds[name]) for name in LAMBDAS]


def measure(problem: str, quick: bool) -> Mapping[str, Any]:
    with threadpool_limits(1):  # also in linear algebra
        return _measure(load_problem(problem, quick=quick), LAMBDAS[problem], quick)


def _measure(task: PaperProblem, lam: float, quick: bool) -> Mapping[str, Any]:
    repeats = 3 if quick else 5
    fit, accuracy = task_by_task(task, lam)
    ours = lambda: solve(task.train, loss=task.loss, reg_lambda=lam, settings=Settings(tol=GAP))  # noqa: E731
    timed = interleaved({"dmtrl": ours, "scikit-learn": fit}, repeats)
    outcome, median = timed.results["dmtrl"], float(np.median(timed.seconds["dmtrl"]))
    figures: dict[str, Any] = {
        "seconds": timed.seconds,
        "gap": outcome.certificate.relative_gap,
        "rounds": len(outcome.history),
        "error": task.error(outcome.W),
        "scikit-learn": {"accuracy": accuracy, "error": task.error(timed.results["scikit-learn"])},
    }
    for name, run in _others(task, lam).items():
        figures[name] = _limited(run, limit=max((20 if quick else 50) * median, 1.0))
    return figures


def task_by_task(task: PaperProblem, lam: float) -> tuple[Callable[[], np.ndarray], float]:
    """Return a fit of every task alone by scikit-learn with ridge lambda m, and the relative accuracy it reaches."""
    data = task.train
    best = solve(data, loss=task.loss, reg_lambda=lam, relationship="independent", settings=Settings(tol=GAP / 100))
    reached = np.inf
    for tol in TOLERANCES:
        W = _fit_tasks(data, task.loss, lam * data.m, tol)
        reached = _objective(data, task.loss, lam * data.m, W) / best.certificate.dual - 1.0
        if reached <= GAP:
            break
    return lambda: _fit_tasks(data, task.loss, lam * data.m, tol), float(reached)


def _fit_tasks(data: TaskData, loss: str, ridge: float, tol: float) -> np.ndarray:
    W = np.empty((data.m, data.X.shape[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the accuracy is measured
        for i, (a, b) in enumerate(itertools.pairwise(data.starts)):
            X, y, n = data.X[a:b], data.y[a:b], int(b - a)
            if loss == "squared":
                W[i] = Ridge(alpha=ridge * n, fit_intercept=False, tol=tol).fit(X, y).coef_
            else:
                how = {"loss": "hinge", "fit_intercept": False, "max_iter": 2000, "random_state": 0}
                W[i] = LinearSVC(C=1 / (ridge * n), tol=tol, **how).fit(X, y).coef_[0]
    return W


def _objective(data: TaskData, loss: str, ridge: float, W: np.ndarray) -> float:
    total = 0.5 * ridge * float((W**2).sum())
    for (a, b), w in zip(itertools.pairwise(data.starts), W, strict=True):
        z = data.X[a:b] @ w
        value = 0.5 * (z - data.y[a:b]) ** 2 if loss == "squared" else np.maximum(0.0, 1.0 - data.y[a:b] * z)
        total += float(value.mean())
    return total


def _others(task: PaperProblem, lam: float) -> dict[str, Callable[[Clock], Any]]:
    data, many = task.train, 10**6
    paper = Settings.paper(T=10, P=many, tol=GAP)
    return {
        PAPER: lambda clock: solve(data, loss=task.loss, reg_lambda=lam, settings=paper, workers=data.m, watch=clock),
        SSDCA: lambda clock: ssdca(data, task.loss, lam, omega_steps=many, passes=10, watch=clock),
        CENTRAL: lambda clock: centralised_mtrl(data, task.loss, lam, omega_steps=many, w_tol=GAP, watch=clock),
    }


def _limited(run: Callable[[Clock], Any], limit: float) -> Mapping[str, Any]:
    with suppress(StopRun, NotEnoughMemoryError):
        run(Clock(gap=np.inf, limit=0.0))  # compiles
    clock, began = Clock(GAP, limit), time.perf_counter()
    try:
        with may_stop_early():
            run(clock)
    except NotEnoughMemoryError as error:
        return {"out_of_memory": str(error)}
    return {"seconds": time.perf_counter() - began, "gap": clock.reached, "rounds": clock.rounds}


def section(records: Sequence[Record]) -> Section:
    rows = []
    for record in records:
        f, name = record.figures, TITLES[record.params["problem"]]
        ours = float(np.median(f["seconds"]["dmtrl"]))
        rows.append([name, "dmtrl", f"{ours:.3g}", "1", f"joint gap {f['gap']:.1e}"])
        times, low, high = ratio(f["seconds"]["scikit-learn"], f["seconds"]["dmtrl"])
        theirs = float(np.median(f["seconds"]["scikit-learn"]))
        accuracy = f"own accuracy {f['scikit-learn']['accuracy']:.1e}, no relations"
        rows.append(
            [name, "scikit-learn, task by task", f"{theirs:.3g}", f"{times:.2g} ({low:.2g} to {high:.2g})", accuracy]
        )
        for other in (PAPER, SSDCA, CENTRAL):
            g = f[other]
            if "out_of_memory" in g:
                rows.append([name, other, "out of memory", "", ""])
                continue
            done = g["gap"] <= GAP
            more = "" if done else "> "
            reached = f"joint gap {g['gap']:.1e}" + ("" if done else " when stopped")
            rows.append([name, other, f"{more}{g['seconds']:.3g}", f"{more}{g['seconds'] / ours:.2g}", reached])
    return Section(
        "A whole fit",
        [
            Text(
                "All tasks and their relations, from data in memory to a certified result, on one thread. A ratio is "
                "the time of another method over that of dmtrl; above one, dmtrl is faster."
            ),
            Table(
                f"Time to a joint relative gap of {GAP:g}",
                ["data", "method", "seconds", "times dmtrl", "reached"],
                rows,
                "dmtrl and scikit-learn: median of interleaved repeats, the range of ratios in brackets. The others: "
                "one run each. Compile time excluded. scikit-learn fits each task alone with the same ridge penalty "
                "and the loosest tolerance within 0.1 % of its own optimum, and learns no relations. The others solve "
                "the same joint problem and stop after 50 times dmtrl's time (quick: 20) or one second, whichever is "
                "longer.",
            ),
        ],
    )


SOLVE = Experiment("bench solve", runs, measure, section, {"lambdas": LAMBDAS, "gap": GAP, "solver_seed": 0})
