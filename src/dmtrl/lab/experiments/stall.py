"""Where the paper's alternation stalls: School, split 1, squared loss, three ways to the same joint problem, with the
certificate over W and Sigma together.

Room: experiments. Both alternations solve each local problem exactly, so that what is left is the alternation's own
doing.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from dmtrl.exceptions import NotConvergedWarning
from dmtrl.lab.experiments.curves import history_curves
from dmtrl.lab.experiments.problems import posed
from dmtrl.lab.experiments.records import Record
from dmtrl.lab.experiments.runner import Experiment, Run
from dmtrl.report.content import ChartGrid, LineChart, Section, Series, Table, Text
from dmtrl.solver.api import solve
from dmtrl.solver.settings import Settings

LAMBDAS = (1e-3, 1e-2, 1e-1, 1.0)
PAPER, SHRINKING, SPLITTING = "paper, tiny epsilon", "shrinking epsilon", "joint splitting (default)"


def settings(way: str, quick: bool) -> Settings:
    omega_steps = 6 if quick else 60
    if way == PAPER:
        return Settings.paper(T=10, P=omega_steps, local_solver="gram", rho="spectral", momentum=True)
    return Settings(method="dual", w_rounds=10, max_rounds=10 * omega_steps) if way == SHRINKING else Settings()


def runs(quick: bool) -> list[Run]:
    return [
        Run({"reg_lambda": lam, "way": way, "quick": quick}, 0.3 if quick else 2)
        for lam in (LAMBDAS[2:3] if quick else LAMBDAS)
        for way in (PAPER, SHRINKING, SPLITTING)
    ]


def measure(reg_lambda: float, way: str, quick: bool) -> Mapping[str, Any]:
    task = posed("school", quick=quick)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)  # that it does not get there is what is shown
        outcome = solve(task.train, loss="squared", reg_lambda=reg_lambda, settings=settings(way, quick))
    certificate = outcome.certificate
    return {
        **history_curves(outcome.history, before=way != SPLITTING),
        "rounds": len(outcome.history),
        "primal": certificate.primal,
        "dual": certificate.dual,
        "relative_gap": certificate.relative_gap,
        "rmse": task.error(outcome.W),
    }


def section(records: Sequence[Record]) -> Section:
    lambdas = sorted({record.params["reg_lambda"] for record in records})
    charts = [
        LineChart(
            f"lambda {lam:g}",
            "round",
            "relative gap over W and Sigma",
            [
                Series(r.params["way"], r.figures["round"], r.figures["gap"])
                for r in records
                if r.params["reg_lambda"] == lam
            ],
            f"lambda {lam:g}: the joint gap of the alternation levels off, that of joint splitting falls below 0.001 "
            "within a few rounds.",
            log_x=True,
            log_y=True,
        )
        for lam in lambdas
    ]
    best = {lam: max(r.figures["dual"] for r in records if r.params["reg_lambda"] == lam) for lam in lambdas}
    rows = [
        [
            f"{r.params['reg_lambda']:g}",
            r.params["way"],
            r.figures["rounds"],
            f"{r.figures['primal']:.1f}",
            f"{r.figures['dual']:.1f}",
            f"{r.figures['relative_gap']:.1e}",
            f"{r.figures['primal'] / best[r.params['reg_lambda']] - 1:.1e}",
            f"{r.figures['rmse']:.3f}",
            f"{r.figures['seconds'][-1]:.2f}",
        ]
        for r in records
    ]
    return Section(
        "Beyond the paper: where its alternation stalls",
        [
            Text(
                "The paper certifies each W-step, which says nothing about W **and** Sigma. The joint certificate "
                "does: with a tiny epsilon in the Omega-step the alternation stops short of the optimum, because the "
                "row space of W hardly turns any more. The default preset solves the joint problem directly and is "
                "certified after a few rounds. A gap is an upper bound of what is missing, and the alternation's own "
                "dual bound is loose; the last but two column says how far each objective lies above the best bound "
                "that any of the three ways found."
            ),
            ChartGrid(
                "The stall, seen by the joint certificate",
                charts,
                "One chart per lambda of the joint relative gap over rounds for three ways; only joint splitting "
                "reaches 0.001 quickly.",
                caption="School, published split 1, squared loss. The alternations use the spectral rho, momentum and "
                "exact local solves, which make them faster than the paper's own setting.",
            ),
            Table(
                "Three ways to the same joint problem",
                [
                    *("lambda", "way", "rounds", "objective", "nothing below", "relative gap"),
                    *("above the best bound", "test RMSE", "seconds"),
                ],
                rows,
            ),
        ],
    )


SETTINGS = {"loss": "squared", "split": 1, "w_rounds": 10, "solver_seed": 0}
STALL = Experiment("stall", runs, measure, section, SETTINGS)
