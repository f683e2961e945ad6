"""The default estimators against scikit-learn task by task, at the same accuracy.

Each competitor reaches a relative gap of its own objective: the estimators certify theirs; scikit-learn's models get
the loosest tolerance that reaches it. They learn no relations and prove nothing, so they do less. One more column times
`solve` with special settings: no intercept and no common component.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dmtrl.data.task_data import TaskData
from dmtrl.report.content import Item, Text
from dmtrl.solver.api import solve
from dmtrl.solver.execution import Execution
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings
from dmtrl_lab.bench.peers import fit_tasks, load_rows, settle
from dmtrl_lab.bench.timing import interleaved, ratio
from dmtrl_lab.bench.zoo import estimator
from dmtrl_lab.experiments.early_stop import may_stop_early
from dmtrl_lab.experiments.experiment import Experiment, Figures, Record, Records, Run, grid, machines, table
from dmtrl_lab.experiments.problems import TITLES, labels, tasks_of

GAP, MAX_ROUNDS = 1e-3, 500
CLASSIFICATION = ("hinge", "squared_hinge", "logistic")
CASES: dict[str, Sequence[str]] = {
    "school": ("squared", "epsilon_insensitive"),
    "synthetic 1": CLASSIFICATION,
    "mnist": CLASSIFICATION,
    "mds": CLASSIFICATION,
    "190 x 10 x 500": ("squared", "logistic"),
    "36 x 75 x 300": ("logistic",),
    "100 x 50 x 20": ("squared", "epsilon_insensitive", "poisson"),
    "1 x 60,000 x 200": ("hinge", "logistic"),
    "1 x 35,000 x 10,000": ("hinge", "logistic"),
}
QUICK = ("synthetic 1", "36 x 75 x 300", "100 x 50 x 20")
CHOSEN = "cv"  # in place of a lambda: the choice of cross-validation
SECONDS = {"mnist": 300, "mds": 60, "1 x 60,000 x 200": 60, "1 x 35,000 x 10,000": 60}
DEFAULT, THREADS, SPECIAL = "default", "two threads", "special settings"


def runs(quick: bool) -> list[Run]:
    found = []
    for problem in QUICK if quick else CASES:
        more = [0.1] if problem == "36 x 75 x 300" else []
        lambdas = [1e-3] if quick else [1e-4, 1e-3, *more, CHOSEN]
        seconds = 1 if quick else SECONDS.get(problem, 20)
        found += grid(quick, seconds, problem=[problem], loss=CASES[problem], reg_lambda=lambdas)
    return found


def measure(problem: str, loss: str, reg_lambda: float | str, quick: bool) -> Figures:
    data = load_rows(problem, loss, quick).train
    tasks = labels(data)
    with threadpool_limits(1):  # also in linear algebra
        lam = chosen_lambda(data, tasks, loss) if isinstance(reg_lambda, str) else reg_lambda
        model = partial(estimator, loss, reg_lambda=lam, max_rounds=MAX_ROUNDS)
        settled = settle(data, loss, lam, GAP)
        competitors: dict[str, Any] = {
            DEFAULT: lambda: model().fit(data.X, data.y, tasks=tasks),
            THREADS: lambda: model(n_jobs=2).fit(data.X, data.y, tasks=tasks),
            SPECIAL: lambda: solve(
                Problem.of(data, loss=loss, reg_lambda=lam),
                Execution(settings=Settings(tol=GAP, max_rounds=MAX_ROUNDS)),
            ),
        }
        separate = tasks_of(data)
        for one in settled:
            competitors[one.peer.name] = partial(fit_tasks, one.peer, separate, lam * data.m, one.tol)
        with may_stop_early():
            timed = interleaved(competitors, 2 if quick else 3, limit=120)
    fitted, two, special = (timed.results[name] for name in (DEFAULT, THREADS, SPECIAL))
    return {
        "lambda": lam,
        "seconds": timed.seconds,
        "processor": timed.processor,
        "first": timed.first,
        "rounds": fitted.n_rounds_,
        "gap": fitted.certificate_.relative_gap,
        "same_bits": bool(np.array_equal(fitted.coef_, two.coef_)),
        "special_gap": special.certificate.relative_gap,
        "peers": {one.peer.name: {"tol": one.tol, "gap": one.gap} for one in settled},
    }


def chosen_lambda(data: TaskData, tasks: np.ndarray, loss: str) -> float:
    """Return the choice of a coarse cross-validation: six lambdas, three folds, the default common component."""
    options: dict[str, Any] = {"lambdas": np.logspace(0, -5, 6), "commons": (1.0,), "owns": (0.0,), "cv": 3}
    with may_stop_early():
        model = estimator(loss, search=True, n_jobs=-1, max_rounds=MAX_ROUNDS, **options)
        return float(model.fit(data.X, data.y, tasks=tasks).reg_lambda_)


def fastest_peer(figures: Figures) -> str:
    """Return the peer that reached the gap in the shortest time, or the most accurate one if none did."""
    reached = [name for name, one in figures["peers"].items() if one["gap"] <= GAP]
    if reached:
        return min(reached, key=lambda name: float(np.median(figures["processor"][name])))
    return min(figures["peers"], key=lambda name: float(figures["peers"][name]["gap"]))


def table_row(record: Record) -> dict[str, object]:
    params, figures = record.params, record.figures
    seconds, processor, peer = figures["seconds"], figures["processor"], fastest_peer(figures)
    middle = {name: float(np.median(values)) for name, values in processor.items()}
    gap, own, special = figures["gap"], figures["peers"][peer]["gap"], figures["special_gap"]
    bound = ("" if own <= GAP else "> ") + ("" if gap <= GAP else "< ")
    same = "" if figures["same_bits"] else ", DIFFERENT BITS"
    return {
        "data": TITLES.get(params["problem"], params["problem"]),
        "loss": params["loss"],
        "lambda": f"{figures['lambda']:.2g}" + (" (CV)" if params["reg_lambda"] == CHOSEN else ""),
        "default, s": f"{middle[DEFAULT]:.3g}",
        "rounds": figures["rounds"] if gap <= GAP else f"{figures['rounds']}, gap {gap:.1e}",
        "scikit-learn, s": f"{middle[peer]:.3g}",
        "ratio": f"{bound}{ratio(processor[peer], processor[DEFAULT]):.2g}",
        "scikit-learn's model": peer + ("" if own <= GAP else f", gap {own:.1e} only"),
        "speed-up of two threads": f"{ratio(seconds[DEFAULT], seconds[THREADS]):.2f}{same}",
        "special settings, s": f"{middle[SPECIAL]:.3g}" + ("" if special <= GAP else f", gap {special:.1e}"),
        "first fit over the later ones, s": f"{figures['first'][DEFAULT] - float(np.median(seconds[DEFAULT])):.2f}",
    }


def items(records: Records) -> list[Item]:
    return [
        Text(
            "MTRLRegressor and MTRLClassifier with default parameters, except for loss and lambda, against "
            f"scikit-learn's models task by task, to a relative gap of {GAP:g} of the own objective. One thread, "
            f"except where two are named. Machine: {machines(records)}."
        ),
        table(
            "Default estimators and scikit-learn task by task",
            [table_row(record) for record in records],
            "Processor seconds, except for two threads and the first fit, which are elapsed time; medians of "
            "interleaved repeats. The ratio is scikit-learn's time over that of dmtrl, its range over repeats in "
            "brackets; above one, dmtrl is faster. A gap is shown if it was not reached. Random data is tasks x rows x "
            "features. Special settings: solve without intercept and common component. Compile time is excluded; the "
            "last column has what the first fit in the process took in addition.",
        ),
    ]


TITLE = "Fits with the default estimators"
FIT = Experiment("bench fit", TITLE, runs, measure, items, {"gap": GAP, "max_rounds": MAX_ROUNDS, "seed": 0})
