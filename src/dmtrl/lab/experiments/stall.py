"""Where the paper's alternation stalls: three methods on School, split 1, with the joint certificate.

Both alternations solve each local problem exactly, so the remaining gap is due to the alternation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dmtrl.lab.experiments.curves import history_curves
from dmtrl.lab.experiments.early_stop import may_stop_early
from dmtrl.lab.experiments.problems import load_problem
from dmtrl.lab.experiments.records import Record
from dmtrl.lab.experiments.runner import Experiment, Run
from dmtrl.report.content import ChartGrid, LineChart, Section, Series, Table, Text
from dmtrl.solver.api import solve
from dmtrl.solver.settings import Settings

LAMBDAS = (1e-3, 1e-2, 1e-1, 1.0)
PAPER, SHRINKING, SPLITTING = "paper, tiny epsilon", "shrinking epsilon", "joint splitting (default)"


def settings(method: str, quick: bool) -> Settings:
    omega_steps = 6 if quick else 60
    if method == PAPER:
        return Settings.paper(T=10, P=omega_steps, local_solver="gram", rho="spectral")
    return Settings(method="dual", w_rounds=10, max_rounds=10 * omega_steps) if method == SHRINKING else Settings()


def runs(quick: bool) -> list[Run]:
    return [
        Run({"reg_lambda": lam, "method": method, "quick": quick}, 0.3 if quick else 2)
        for lam in (LAMBDAS[2:3] if quick else LAMBDAS)
        for method in (PAPER, SHRINKING, SPLITTING)
    ]


def measure(reg_lambda: float, method: str, quick: bool) -> Mapping[str, Any]:
    task = load_problem("school", quick=quick)
    with may_stop_early():
        outcome = solve(task.train, loss="squared", reg_lambda=reg_lambda, settings=settings(method, quick))
    certificate = outcome.certificate
    return {
        **history_curves(outcome.history, before=method != SPLITTING),
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
                Series(r.params["method"], r.figures["round"], r.figures["gap"])
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
            r.params["method"],
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
                "The paper certifies each W-step, not W **and** Sigma together. The joint certificate shows that, with "
                "a tiny epsilon in the Omega-step, the alternation stops short of the optimum, because the row space "
                "of W hardly changes any more. The default preset solves the joint problem directly and is certified "
                "after a few rounds. A gap is an upper bound, and the alternation's dual bound is loose. The column "
                "'above the best bound' compares each objective with the best dual bound of the three methods."
            ),
            ChartGrid(
                "Joint relative gap of three methods",
                charts,
                "One chart per lambda of the joint relative gap over rounds for three methods; only joint splitting "
                "reaches 0.001 quickly.",
                caption="School, published split 1, squared loss. The alternations use the spectral rho and "
                "exact local solves, which make them faster than the paper's settings.",
            ),
            Table(
                "Three methods on the same joint problem",
                [
                    *("lambda", "method", "rounds", "objective", "dual bound", "relative gap"),
                    *("above the best bound", "test RMSE", "seconds"),
                ],
                rows,
            ),
        ],
    )


SETTINGS = {"loss": "squared", "split": 1, "w_rounds": 10, "solver_seed": 0}
STALL = Experiment("stall", runs, measure, section, SETTINGS)
