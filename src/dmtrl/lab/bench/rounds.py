"""Communication: rounds and bytes to a joint gap, one task per worker, default preset against paper preset.

Rounds and bytes do not depend on the machine, except for runs that are stopped after a minute.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dmtrl.lab.bench.timing import Clock
from dmtrl.lab.experiments.early_stop import may_stop_early
from dmtrl.lab.experiments.problems import TITLES, load_problem
from dmtrl.lab.experiments.records import Record
from dmtrl.lab.experiments.runner import Experiment, Run
from dmtrl.report.content import LineChart, Section, Series, Table, Text
from dmtrl.solver.api import solve
from dmtrl.solver.settings import Settings

LAMBDAS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
GAP = 1e-3
DATA = ("synthetic 1", "school")


def runs(quick: bool) -> list[Run]:
    lambdas = LAMBDAS[2:4] if quick else LAMBDAS
    return [Run({"problem": p, "reg_lambda": lam, "quick": quick}, 2 if quick else 20) for p in DATA for lam in lambdas]


def measure(problem: str, reg_lambda: float, quick: bool) -> Mapping[str, Any]:
    task, most = load_problem(problem, quick=quick), 60 if quick else 400
    presets = {"default": Settings(tol=GAP), "paper": Settings.paper(T=10, P=most // 10, tol=GAP)}
    figures = {}
    for name, settings in presets.items():
        clock = Clock(GAP, limit=60.0)
        with may_stop_early():
            solve(
                task.train,
                loss=task.loss,
                reg_lambda=reg_lambda,
                settings=settings,
                workers=task.train.m,
                n_jobs=-1,
                watch=clock,
            )
        figures[name] = {"rounds": clock.rounds, "gap": clock.reached, "bytes": clock.bytes}
    return figures


def section(records: Sequence[Record]) -> Section:
    rows, lines = [], []
    for record in records:
        ours, theirs = record.figures["default"], record.figures["paper"]
        more = "" if theirs["gap"] <= GAP else "> "
        rows.append(
            [
                TITLES[record.params["problem"]],
                f"{record.params['reg_lambda']:g}",
                ours["rounds"] if ours["gap"] <= GAP else f"> {ours['rounds']}",
                f"{ours['gap']:.1e}",
                f"{more}{theirs['rounds']}",
                f"{theirs['gap']:.1e}",
                f"{more}{theirs['rounds'] / ours['rounds']:.1f}",
                f"{ours['bytes'] / 1e6:.2f}",
                f"{more}{theirs['bytes'] / 1e6:.2f}",
            ]
        )
    for problem in DATA:
        mine = [record for record in records if record.params["problem"] == problem]
        x = [record.params["reg_lambda"] for record in mine]
        lines += [
            Series(f"{problem}, {name}", x, [record.figures[name]["rounds"] for record in mine], style, group)
            for group, (name, style) in enumerate((("default", "line"), ("paper", "dashes")), 2 * DATA.index(problem))
        ]
    return Section(
        "Rounds and bytes",
        [
            Text("One task per worker; a round sends d numbers to each worker and d back."),
            LineChart(
                f"Rounds to a joint gap of {GAP:g}",
                "lambda",
                "rounds",
                lines,
                "Rounds over lambda; the default preset needs far fewer than the paper preset, which often does not "
                "reach the gap.",
                log_x=True,
                log_y=True,
                caption="The paper preset was stopped after 400 rounds (quick: 60) or a minute.",
            ),
            Table(
                "Default against paper preset",
                ["data", "lambda", "rounds", "gap", "rounds, paper", "gap, paper", "times fewer", "MB", "MB, paper"],
                rows,
            ),
        ],
    )


ROUNDS = Experiment("bench rounds", runs, measure, section, {"gap": GAP, "solver_seed": 0})
