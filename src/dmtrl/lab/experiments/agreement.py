"""DMTRL and centralised MTRL are the same method: after the same Omega-steps they stand at the same objective.

Room: experiments. Both alternate from the same start, with W-steps solved tightly; one moves d numbers per task and
round, the other all rows to one machine and a matrix of all rows by all rows.
"""

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dmtrl.exceptions import NotConvergedWarning
from dmtrl.lab.baselines import Fitted, centralised_mtrl
from dmtrl.lab.experiments.problems import TITLES, Posed, posed
from dmtrl.lab.experiments.records import Record
from dmtrl.lab.experiments.runner import Experiment, Run
from dmtrl.report.content import Section, Table, Text
from dmtrl.solver.api import solve
from dmtrl.solver.outcome import Outcome, RoundRecord, Watch
from dmtrl.solver.settings import Settings

DMTRL, CENTRAL, DEFAULT = "DMTRL, alternation", "centralised MTRL", "DMTRL, default preset"
OMEGA_STEPS = 3
W_TOL = 2e-5
LAMBDAS = {"synthetic 1": 1e-4, "school": 1e-1}


def runs(quick: bool) -> list[Run]:
    seconds = {"synthetic 1": 60, "school": 120}
    return [Run({"problem": name, "quick": quick}, 3 if quick else seconds[name]) for name in LAMBDAS]


def measure(problem: str, quick: bool) -> Mapping[str, Any]:
    return ends(posed(problem, quick=quick), LAMBDAS[problem])


def ends(task: Posed, reg_lambda: float) -> dict[str, dict[str, float]]:
    """Where each way stands after the last Omega-step, and the default beside them."""
    tight = Settings.paper(
        T=3000,
        P=OMEGA_STEPS,
        local_solver="auto",
        sampling="shuffled",
        max_passes=100,
        rho="spectral",
        momentum=True,
        w_tol=W_TOL,
    )
    how: dict[str, Any] = {"loss": task.loss, "reg_lambda": reg_lambda, "workers": task.train.m, "n_jobs": -1}
    last: deque[tuple[RoundRecord, np.ndarray]] = deque(maxlen=1)
    ways: dict[str, Callable[[Watch], Outcome | Fitted]] = {
        DMTRL: lambda watch: solve(task.train, settings=tight, watch=watch, **how),
        CENTRAL: lambda watch: centralised_mtrl(
            task.train, task.loss, reg_lambda, omega_steps=OMEGA_STEPS, w_tol=W_TOL, watch=watch
        ),
        DEFAULT: lambda watch: solve(task.train, watch=watch, **how),
    }
    figures = {}
    for name, run in ways.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConvergedWarning)  # the alternation ends where it ends
            fit = run(lambda record, W: last.append((record, W)))
        record, W = last.pop()
        figures[name] = {
            "objective": record.objective,
            "w_gap": record.w_gap,
            "gap": fit.certificate.relative_gap,
            "error": task.error(W),
            "seconds": sum(r.seconds for r in fit.history),
            "rounds": len(fit.history),
            "megabytes": sum(r.bytes_sent + r.bytes_received for r in fit.history) / 1e6,
        }
    return figures


def apart(figures: Mapping[str, Mapping[str, float]]) -> float:
    """By how much of it the two objectives differ."""
    return abs(figures[DMTRL]["objective"] / figures[CENTRAL]["objective"] - 1.0)


def section(records: Sequence[Record]) -> Section:
    rows = []
    for record in records:
        problem = record.params["problem"]
        for name in (DMTRL, CENTRAL, DEFAULT):
            f = record.figures[name]
            error = f"{f['error']:.3f}" if problem == "school" else f"{f['error']:.2%}"
            rows.append(
                [
                    TITLES[problem],
                    f"{LAMBDAS[problem]:g}",
                    name,
                    f"{f['objective']:.6g}",
                    f"{f['gap']:.1e}",
                    error,
                    int(f["rounds"]),
                    f"{f['seconds']:.1f}",
                    f"{f['megabytes']:.1f}",
                ]
            )
    far = "; ".join(f"{record.params['problem']}: {apart(record.figures):.1e}" for record in records)
    return Section(
        "Distributed and centralised end at the same point",
        [
            Text(
                f"After {OMEGA_STEPS} Omega-steps the objectives of DMTRL and centralised MTRL differ by this share "
                f"of them: {far}. The default preset ends lower than both, because it does not stall."
            ),
            Table(
                "DMTRL and centralised MTRL",
                [
                    "data",
                    "lambda",
                    "method",
                    "objective",
                    "joint gap",
                    "test error",
                    "rounds",
                    "seconds",
                    "MB in messages",
                ],
                rows,
                "Objective over W and Sigma together, at the last weights; joint gap: how far it can be from the "
                f"best. W-steps of both alternations are solved to a relative gap of {W_TOL:g}. Centralised MTRL "
                "sends no messages; its rounds are solves or groups of passes on one machine. School: RMSE.",
            ),
        ],
    )


SETTINGS = {"lambdas": LAMBDAS, "omega_steps": OMEGA_STEPS, "w_tol": W_TOL, "seed": 0, "solver_seed": 0}
AGREEMENT = Experiment("agreement", runs, measure, section, SETTINGS)
