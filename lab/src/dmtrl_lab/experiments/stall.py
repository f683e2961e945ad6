"""Where the paper's alternation stalls: three methods on School, split 1, with the joint certificate.

Both alternations solve each local problem exactly, so the remaining gap is due to the alternation.
"""

from dmtrl.report.content import ChartGrid, Item, LineChart, Series, Text
from dmtrl.solver.api import solve
from dmtrl.solver.execution import Execution
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings
from dmtrl_lab.experiments.curves import history_curves
from dmtrl_lab.experiments.early_stop import may_stop_early
from dmtrl_lab.experiments.experiment import Experiment, Figures, Records, Run, grid, select, table
from dmtrl_lab.experiments.problems import load_problem

LAMBDAS = (1e-3, 1e-2, 1e-1, 1.0)
PAPER, SHRINKING, SPLITTING = "paper, tiny epsilon", "shrinking epsilon", "joint splitting (default)"


def settings(method: str, quick: bool) -> Settings:
    omega_steps = 6 if quick else 60
    if method == PAPER:
        return Settings.paper(T=10, P=omega_steps, local_solver="gram", rho="spectral")
    return Settings(method="dual", w_rounds=10, max_rounds=10 * omega_steps) if method == SHRINKING else Settings()


def runs(quick: bool) -> list[Run]:
    lambdas, seconds = (LAMBDAS[2:3], 0.3) if quick else (LAMBDAS, 2.0)
    return grid(quick, seconds, reg_lambda=lambdas, method=(PAPER, SHRINKING, SPLITTING))


def measure(reg_lambda: float, method: str, quick: bool) -> Figures:
    task = load_problem("school", quick=quick)
    with may_stop_early():
        outcome = solve(
            Problem.of(task.train, loss="squared", reg_lambda=reg_lambda), Execution(settings=settings(method, quick))
        )
    certificate = outcome.certificate
    return {
        **history_curves(outcome.history, before=method != SPLITTING),
        "rounds": len(outcome.history),
        "primal": certificate.primal,
        "dual": certificate.dual,
        "relative_gap": certificate.relative_gap,
        "rmse": task.error(outcome.W),
    }


def items(records: Records) -> list[Item]:
    by_lambda = {lam: select(records, reg_lambda=lam) for lam in sorted({r.params["reg_lambda"] for r in records})}
    charts = [
        LineChart(
            f"lambda {lam:g}",
            "round",
            "relative gap over W and Sigma",
            [Series(r.params["method"], r.figures["round"], r.figures["gap"]) for r in mine],
            f"lambda {lam:g}: the joint gap of the alternation levels off, that of joint splitting falls below 0.001 "
            "within a few rounds.",
            log_x=True,
            log_y=True,
        )
        for lam, mine in by_lambda.items()
    ]
    best = {lam: max(r.figures["dual"] for r in mine) for lam, mine in by_lambda.items()}
    rows = [
        {
            "lambda": f"{r.params['reg_lambda']:g}",
            "method": r.params["method"],
            "rounds": r.figures["rounds"],
            "objective": f"{r.figures['primal']:.1f}",
            "dual bound": f"{r.figures['dual']:.1f}",
            "relative gap": f"{r.figures['relative_gap']:.1e}",
            "above the best bound": f"{r.figures['primal'] / best[r.params['reg_lambda']] - 1:.1e}",
            "test RMSE": f"{r.figures['rmse']:.3f}",
            "seconds": f"{r.figures['seconds'][-1]:.2f}",
        }
        for r in records
    ]
    return [
        Text(
            "The paper certifies each W-step, not W **and** Sigma together. The joint certificate shows that, with a "
            "tiny epsilon in the Omega-step, the alternation stops short of the optimum, because the row space of W "
            "hardly changes any more. The default preset solves the joint problem directly and is certified after a "
            "few rounds. A gap is an upper bound, and the alternation's dual bound is loose. The column 'above the "
            "best bound' compares each objective with the best dual bound of the three methods."
        ),
        ChartGrid(
            "Joint relative gap of three methods",
            charts,
            "One chart per lambda of the joint relative gap over rounds for three methods; only joint splitting "
            "reaches 0.001 quickly.",
            caption="School, published split 1, squared loss. The alternations use the spectral rho and "
            "exact local solves, which make them faster than the paper's settings.",
        ),
        table("Three methods on the same joint problem", rows),
    ]


TITLE = "Beyond the paper: where its alternation stalls"
SETTINGS = {"loss": "squared", "split": 1, "w_rounds": 10, "solver_seed": 0}
STALL = Experiment("stall", TITLE, runs, measure, items, SETTINGS)
