"""Unbalanced tasks, an open question of the paper: one H for all tasks or H per task, at the same work per round.

Synthetic 1 with tasks cut to very different sizes, paper preset, one W-step with the learned Sigma, so that only H
differs.
"""

from dataclasses import replace

import numpy as np

from dmtrl.data.task_data import TaskData
from dmtrl.engines import LocalOptions
from dmtrl.relationship import Fixed, TaskCovariance
from dmtrl.report.content import Item, LineChart, Series, Text
from dmtrl.solver.api import solve
from dmtrl.solver.execution import Execution
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings
from dmtrl_lab.experiments.curves import history_curves, rounds_to
from dmtrl_lab.experiments.experiment import Experiment, Figures, Records, Run, grid, table
from dmtrl_lab.experiments.problems import first_rows, load_problem, tasks_of
from dmtrl_lab.theory import TaskFacts, steps_per_task

LOSS = "logistic"  # smooth, so that the bound on H needs no gap
LAMBDA = 1e-4
THETA = 0.5
TARGETS = (1e-1, 1e-2, 1e-3)
ONE_H, BY_ROWS, BY_THEORY = "one H for all tasks", "H proportional to rows", "H for equal Theta"


def unbalanced(data: TaskData) -> TaskData:
    """Return the tasks with sizes between all rows and one in forty, geometrically spaced, in random order."""
    share = np.geomspace(1.0, 1 / 40, data.m)[np.random.default_rng(0).permutation(data.m)]
    sizes = np.maximum((np.diff(data.starts) * share).astype(int), 10)
    return first_rows(data, sizes)


def runs(quick: bool) -> list[Run]:
    return grid(quick, 1 if quick else 6, allocation=(ONE_H, BY_ROWS, BY_THEORY))


def measure(allocation: str, quick: bool) -> Figures:
    data = unbalanced(load_problem("synthetic 1", quick=quick).train)
    problem = Problem.of(data, loss=LOSS, reg_lambda=LAMBDA)
    learned = solve(problem, Execution(LocalOptions(n_jobs=-1))).covariance
    steps = allocate_steps(allocation, data, learned)
    settings = Settings.paper(T=100 if quick else 400, P=1, H=tuple(int(h) for h in steps))
    outcome = solve(
        replace(problem, relationship=Fixed(learned)),
        Execution(LocalOptions(workers=data.m, n_jobs=-1), settings=settings),
    )
    return {
        **history_curves(outcome.history, before=True),
        "rows": np.diff(data.starts),
        "steps": steps,
        "busiest": int(steps.max()),
        "total": int(steps.sum()),
    }


def allocate_steps(allocation: str, data: TaskData, sigma: TaskCovariance) -> np.ndarray:
    """Return H of each task. Over all tasks, every allocation has one step per row."""
    rows = np.diff(data.starts)
    if allocation == ONE_H:
        weight = np.ones(data.m)
    elif allocation == BY_ROWS:
        weight = rows.astype(float)
    else:
        facts = [TaskFacts.of(LOSS, X, y) for X, y in tasks_of(data)]
        step = sigma.paper_rho() * sigma.diagonal() / LAMBDA
        weight = steps_per_task(facts, THETA, step).astype(float)
    return np.maximum(np.round(rows.sum() * weight / weight.sum()), 1).astype(int)


def items(records: Records) -> list[Item]:
    rows: list[dict[str, object]] = []
    for record in records:
        f = record.figures
        reached = {target: rounds_to(f, "w_gap", target) for target in TARGETS}
        last = reached[TARGETS[-1]]
        rows.append(
            {
                "allocation": record.params["allocation"],
                "steps per round": f["total"],
                "steps of the busiest task": f["busiest"],
                **{f"rounds to {target:g}": rounds for target, rounds in reached.items()},
                "busiest x rounds": f["busiest"] * last if isinstance(last, int) else "",
            }
        )
    sizes = records[0].figures["rows"]
    return [
        Text(
            "The paper leaves open how to choose H for tasks of unequal size. By the bound on local steps, equal Theta "
            "needs steps that grow with a task's rows and with the condition number of its local problem. Whether that "
            "pays depends on the cost of a round. With several tasks per worker the total counts, and H for equal "
            "Theta needs the fewest rounds. With one worker per task the busiest one counts, and one H for all is hard "
            "to beat."
        ),
        LineChart(
            "Unbalanced tasks: gap over rounds at the same work per round",
            "round",
            "relative W-step gap",
            [Series(r.params["allocation"], r.figures["round"], r.figures["w_gap"]) for r in records],
            "The gap over rounds for three allocations of the same number of steps to tasks of very different size.",
            log_y=True,
            caption=f"Synthetic 1 cut to {min(sizes)} to {max(sizes)} rows per task, {LOSS} loss, lambda {LAMBDA:g}, "
            "paper preset.",
        ),
        table(
            "Rounds by allocation of steps",
            rows,
            "All allocations take the same number of coordinate steps per round over all tasks. With one worker per "
            "task, the busiest task determines the time of a round; with several tasks per worker, the total does.",
        ),
    ]


SETTINGS = {"loss": LOSS, "reg_lambda": LAMBDA, "theta": THETA, "eta": 1.0, "rho": "paper", "solver_seed": 0}
UNBALANCED = Experiment("unbalanced", "Unbalanced tasks", runs, measure, items, SETTINGS)
