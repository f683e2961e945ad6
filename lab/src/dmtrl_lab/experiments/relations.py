"""Learned and true task correlations on Synthetic 1 and 2.

Recovery is the Pearson correlation between learned and true correlations over all pairs of tasks.
"""

import numpy as np

from dmtrl.datasets import make_synthetic
from dmtrl.engines import LocalOptions
from dmtrl.report.content import HeatMap, Item, Text
from dmtrl.solver.api import solve
from dmtrl.solver.execution import Execution
from dmtrl.solver.problem import Problem
from dmtrl_lab.experiments import paper
from dmtrl_lab.experiments.curves import Spread
from dmtrl_lab.experiments.experiment import Experiment, Figures, Records, Run, grid, select, table
from dmtrl_lab.experiments.problems import QUICK_SYNTHETIC, TITLES

LAMBDA = 1e-4
SEEDS = 10


def runs(quick: bool) -> list[Run]:
    return grid(quick, 0.3 if quick else 3, kind=(1, 2), seed=range(2 if quick else SEEDS))


def measure(kind: int, seed: int, quick: bool) -> Figures:
    tasks = make_synthetic(kind, seed, **(QUICK_SYNTHETIC if quick else {}))
    outcome = solve(Problem.of(tasks.train, loss="hinge", reg_lambda=LAMBDA), Execution(LocalOptions(n_jobs=-1)))
    learned = outcome.covariance.correlation()
    return {
        "recovery": tasks.recovery(learned),
        "learned": np.round(learned, 3),
        "true": np.round(tasks.correlation, 3),
        "rho_paper": outcome.covariance.paper_rho(),
        "rho_spectral": outcome.covariance.spectral_rho(),
        "gap": outcome.certificate.relative_gap,
        "rounds": len(outcome.history),
    }


def items(records: Records) -> list[Item]:
    rows: list[dict[str, object]] = []
    maps = []
    for kind in (1, 2):
        name = f"synthetic {kind}"
        mine = [record.figures for record in select(records, kind=kind)]
        first, m = mine[0], len(mine[0]["true"])
        recovery = [figures["recovery"] for figures in mine]
        rows.append(
            {
                "data": TITLES[name],
                "seeds": len(mine),
                "recovery, mean": f"{np.mean(recovery):.3f}",
                "recovery, lowest": f"{np.min(recovery):.3f}",
                "rho, paper": f"{paper.RHO[name]:.2f}",
                "rho, ours": f"{Spread([figures['rho_paper'] for figures in mine]):.2f}",
                "rho, spectral": f"{np.mean([figures['rho_spectral'] for figures in mine]):.2f}",
            }
        )
        maps.append(
            HeatMap(
                f"{TITLES[name]}: true and learned task correlation",
                [(which, np.array(first[which])) for which in ("true", "learned")],
                [f"task {i + 1}" for i in range(m)],
                f"Two {m} by {m} matrices side by side, the true and the learned correlations of the tasks of {name}. "
                f"Their Pearson correlation over all pairs is {recovery[0]:.3f}.",
                f"Seed 0, hinge loss, lambda {LAMBDA:g}. Recovery: {recovery[0]:.3f}.",
            )
        )
    return [
        Text(
            "The paper's first figure. Every task copies one of three parents or its opposite, and the learned "
            "correlation should show the three groups with their signs."
        ),
        *maps,
        table(
            "Recovery of the task correlations, and rho",
            rows,
            "Recovery: Pearson correlation between learned and true off-diagonal correlations. rho: the paper's "
            "figure, its bound for our learned covariance, and the exact value, which is smaller. The paper does not "
            "give the scales of the synthetic data; ours were chosen so that rho is close to the paper's.",
        ),
    ]


SETTINGS = {"loss": "hinge", "reg_lambda": LAMBDA, "solver_seed": 0}
RELATIONS = Experiment("relations", "Recovery of task relations", runs, measure, items, SETTINGS)
