"""Unbalanced tasks, the paper's open question: one H for all against H per task, at the same work a round.

Room: experiments. Synthetic 1 with tasks cut to very different sizes, paper mode, one W-step with Sigma as learned, so
that nothing but H differs. Three ways to share the same number of coordinate steps a round among the tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dmtrl.data.task_data import TaskData
from dmtrl.lab.experiments.curves import history_curves, rounds_to
from dmtrl.lab.experiments.problems import posed
from dmtrl.lab.experiments.records import Record
from dmtrl.lab.experiments.runner import Experiment, Run
from dmtrl.lab.theory import TaskFacts, rho, steps_per_task
from dmtrl.relationship import Fixed
from dmtrl.report.content import LineChart, Section, Series, Table, Text
from dmtrl.solver.api import solve
from dmtrl.solver.settings import Settings

LOSS = "logistic"  # smooth, so that the bound on H needs no gap
LAMBDA = 1e-4
THETA = 0.5
TARGETS = (1e-1, 1e-2, 1e-3)
ONE_H, BY_ROWS, BY_THEORY = "one H for all tasks", "H in proportion to rows", "H for the same Theta"


def unbalanced(data: TaskData) -> TaskData:
    """The same tasks with sizes that fall geometrically from all rows to one in forty, in mixed order."""
    share = np.geomspace(1.0, 1 / 40, data.m)[np.random.default_rng(0).permutation(data.m)]
    sizes = np.maximum((np.diff(data.starts) * share).astype(int), 10)
    rows = np.concatenate([start + np.arange(size) for start, size in zip(data.starts[:-1], sizes, strict=True)])
    return replace(data, X=data.X[rows], y=data.y[rows], starts=np.concatenate([[0], np.cumsum(sizes)]))


def runs(quick: bool) -> list[Run]:
    return [Run({"way": way, "quick": quick}, 1 if quick else 6) for way in (ONE_H, BY_ROWS, BY_THEORY)]


def measure(way: str, quick: bool) -> Mapping[str, Any]:
    data = unbalanced(posed("synthetic 1", quick=quick).train)
    learned = solve(data, loss=LOSS, reg_lambda=LAMBDA, n_jobs=-1).covariance
    steps = shared_out(way, data, learned)
    settings = Settings.paper(T=100 if quick else 400, P=1, H=tuple(int(h) for h in steps))
    outcome = solve(
        data, loss=LOSS, reg_lambda=LAMBDA, relationship=Fixed(learned), workers=data.m, n_jobs=-1, settings=settings
    )
    return {
        **history_curves(outcome.history, before=True),
        "rows": np.diff(data.starts),
        "steps": steps,
        "busiest": int(steps.max()),
        "total": int(steps.sum()),
    }


def shared_out(way: str, data: TaskData, sigma: Any) -> np.ndarray:
    """H of each task; over all tasks one step per row, whichever way."""
    rows = np.diff(data.starts)
    if way == ONE_H:
        wish = np.ones(data.m)
    elif way == BY_ROWS:
        wish = rows.astype(float)
    else:
        parts = zip(data.starts[:-1], data.starts[1:], strict=True)
        facts = [TaskFacts.of(LOSS, data.X[a:b], data.y[a:b]) for a, b in parts]
        step = rho(sigma, "paper") * sigma.diagonal() / LAMBDA
        wish = steps_per_task(facts, THETA, step).astype(float)
    return np.maximum(np.round(rows.sum() * wish / wish.sum()), 1).astype(int)


def section(records: Sequence[Record]) -> Section:
    rows = []
    for record in records:
        figures = record.figures
        reached = [rounds_to(figures, "w_gap", target) for target in TARGETS]
        path = figures["busiest"] * reached[-1] if isinstance(reached[-1], int) else ""
        rows.append([record.params["way"], figures["total"], figures["busiest"], *reached, path])
    sizes = records[0].figures["rows"]
    chart = LineChart(
        "Unbalanced tasks: gap over rounds at the same work a round",
        "round",
        "relative W-step gap",
        [Series(r.params["way"], r.figures["round"], r.figures["w_gap"]) for r in records],
        "The gap over rounds for three ways to share the same number of steps among tasks of very different size.",
        log_y=True,
        caption=f"Synthetic 1 cut to {min(sizes)} to {max(sizes)} rows a task, {LOSS} loss, lambda {LAMBDA:g}, paper "
        "mode.",
    )
    table = Table(
        "Rounds by the way steps are shared out",
        [
            *("way", "steps a round", "steps of the busiest task"),
            *(f"rounds to {target:g}" for target in TARGETS),
            "busiest x rounds",
        ],
        rows,
        "All ways spend the same number of coordinate steps a round over all tasks. The busiest task's steps are how "
        "long a round lasts when every task has a worker of its own; where a worker holds several tasks, the total "
        "counts.",
    )
    return Section(
        "Unbalanced tasks",
        [
            Text(
                "The paper leaves open how H should follow from unequal task sizes. By the bound on local steps, "
                "equal Theta needs steps that grow with a task's rows and with how stiff its local problem is. "
                "Whether that pays depends on what a round costs: where workers hold several tasks the total counts, "
                "and H for the same Theta needs the fewest rounds; where every task has a worker of its own the "
                "busiest one counts, and there one H for all is hard to beat."
            ),
            chart,
            table,
        ],
    )


SETTINGS = {"loss": LOSS, "reg_lambda": LAMBDA, "theta": THETA, "eta": 1.0, "rho": "paper", "solver_seed": 0}
UNBALANCED = Experiment("unbalanced", runs, measure, section, SETTINGS)
