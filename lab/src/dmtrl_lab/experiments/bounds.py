"""Predicted and measured rounds: the paper's bounds for smooth and Lipschitz losses, on one W-step of Synthetic 1.

Sigma is fixed at the learned one. The theory gives enough local steps and rounds; the paper preset with these local
steps gives the rounds that were needed.
"""

from dataclasses import replace

import numpy as np

from dmtrl.engines import LocalOptions
from dmtrl.losses import get_loss, scalar
from dmtrl.relationship import Fixed
from dmtrl.report.content import Item, LineChart, Series, Text
from dmtrl.solver.api import solve
from dmtrl.solver.execution import Execution
from dmtrl.solver.outcome import RoundRecord
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings
from dmtrl_lab.experiments.early_stop import StopRun, may_stop_early
from dmtrl_lab.experiments.experiment import Experiment, Figures, Records, Run, grid, select, table
from dmtrl_lab.experiments.problems import load_problem, tasks_of
from dmtrl_lab.theory import TaskFacts, rounds, steps_per_task

REGIMES = {"hinge": "Lipschitz", "logistic": "smooth"}
LAMBDAS = {"hinge": (1.0, 0.3, 0.1, 0.03), "logistic": (1e-1, 1e-2, 1e-3, 1e-4)}
THETA = 0.5
RELATIVE_GAPS = {"hinge": 0.1, "logistic": 1e-3}  # below this, the Lipschitz bound needs too many local steps
MAX_ROUNDS = 5000


def runs(quick: bool) -> list[Run]:
    seconds, most = (0.5, 2) if quick else (6, None)
    return [run for loss in REGIMES for run in grid(quick, seconds, loss=[loss], reg_lambda=LAMBDAS[loss][:most])]


def measure(loss: str, reg_lambda: float, quick: bool) -> Figures:
    """Return the predicted and the measured rounds to the relative gap, with H from the theory for Theta."""
    data = load_problem("synthetic 1", quick=quick).train
    one_task_each = LocalOptions(workers=data.m, n_jobs=-1)
    learned = Problem.of(data, loss=loss, reg_lambda=reg_lambda)
    sigma = solve(learned, Execution(one_task_each)).covariance
    fixed = replace(learned, relationship=Fixed(sigma))
    facts = [TaskFacts.of(loss, X, y) for X, y in tasks_of(data)]
    rho = sigma.paper_rho()
    step = rho * sigma.diagonal() / reg_lambda
    at_zero = float(scalar.loss_value(get_loss(loss).id, 0.0, 0.0, 1.0))
    start = data.m * at_zero  # the gap at alpha = 0 and W = 0 is the sum of the tasks' losses
    # A Lipschitz loss needs more steps the smaller a task's gap is: use an even share of the target gap.
    relative = RELATIVE_GAPS[loss]
    best = solve(fixed, Execution(one_task_each, settings=Settings(tol=relative / 10))).certificate.primal
    gaps = [relative * best / data.m] * data.m if loss == "hinge" else None
    H = steps_per_task(facts, THETA, step, gaps)
    settings = Settings.paper(T=MAX_ROUNDS, P=1, H=tuple(int(h) for h in H))
    reached: list[RoundRecord] = []

    def watch(record: RoundRecord, W: np.ndarray) -> None:
        if record.w_gap <= relative:
            reached.append(record)
            raise StopRun

    with may_stop_early():
        solve(fixed, Execution(one_task_each, settings=settings, watch=watch))
    if not reached:
        raise RuntimeError(f"no relative gap of {relative:g} within {MAX_ROUNDS} rounds")
    gap = relative * best
    # a record has the gap at the start of its round, so record k took k rounds
    return {
        "predicted": rounds(facts, step, gap=gap, start=start, theta=THETA).total,
        "measured": reached[0].round,
        "steps_per_row": float(H.sum() / len(data.y)),
        "rho": rho,
        "gap": gap,
    }


def items(records: Records) -> list[Item]:
    lines = [
        Series(f"{loss}, {what}", [r.params["reg_lambda"] for r in mine], [r.figures[what] for r in mine], style, group)
        for group, (loss, mine) in enumerate((loss, select(records, loss=loss)) for loss in REGIMES)
        for what, style in (("measured", "line"), ("predicted", "dashes"))
    ]
    rows = [
        {
            "loss": f"{r.params['loss']} ({REGIMES[r.params['loss']]})",
            "lambda": f"{r.params['reg_lambda']:g}",
            "relative gap": f"{RELATIVE_GAPS[r.params['loss']]:g}",
            "rho": f"{r.figures['rho']:.2f}",
            "steps per row and round": f"{r.figures['steps_per_row']:.1f}",
            "rounds, predicted": r.figures["predicted"],
            "rounds, measured": r.figures["measured"],
        }
        for r in records
    ]
    return [
        Text("Both regimes of the paper's convergence theorems, computed from the data (`dmtrl_lab.theory`)."),
        LineChart(
            "Rounds: predicted and measured",
            "lambda",
            "rounds",
            lines,
            "Predicted rounds exceed measured rounds at every lambda, most at weak lambdas.",
            log_x=True,
            log_y=True,
        ),
        table(
            "Predicted and measured rounds",
            rows,
            "Rounds of one W-step to the relative gap. Each task takes the steps per round that the theory requires "
            f"for a local accuracy Theta of {THETA:g}. A prediction is a worst-case bound, so it must not be below the "
            "measurement; the distance shows how conservative the theory is.",
        ),
    ]


SETTINGS = {"theta": THETA, "relative_gaps": RELATIVE_GAPS, "eta": 1.0, "rho": "paper", "solver_seed": 0}
BOUNDS = Experiment("bounds", "Theory and measurement", runs, measure, items, SETTINGS)
