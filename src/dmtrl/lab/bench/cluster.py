"""Ray: what a second actor brings, and what the engine costs against threads at the same partition.

Room: bench. The problem is bound by computing: many passes a round over dense rows, of tasks so small that all passes
but the first find them in a processor's cache; and a fixed number of rounds, so that every contender does the same
work to the bit. Workers hold their rows before a timing begins; how long it takes
until they do is told beside it.
"""

import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from dmtrl.data.task_data import TaskData
from dmtrl.engines import LocalEngine, RayEngine, RayOptions
from dmtrl.engines.base import Engine
from dmtrl.engines.ray import cluster
from dmtrl.exceptions import NotConvergedWarning
from dmtrl.lab.bench.timing import interleaved, ratio
from dmtrl.lab.experiments.records import Record
from dmtrl.lab.experiments.runner import Experiment, Run
from dmtrl.losses.builtin import get_loss
from dmtrl.report.content import Section, Table, Text
from dmtrl.solver.api import solve
from dmtrl.solver.settings import Settings

ONE, TWO, HERE = "Ray, one actor", "Ray, two actors", "two threads, no Ray"
TASKS, FEATURES, PASSES, REG_LAMBDA = 64, 100, 200, 1e-4


def runs(quick: bool) -> list[Run]:
    return [Run({"rows": 50 if quick else 500, "rounds": 5 if quick else 60}, 20 if quick else 270)]


def measure(rows: int, rounds: int) -> Mapping[str, Any]:
    data = _problem(rows)
    settings = Settings(tol=0.0, max_rounds=rounds, local_solver="sdca", steps=PASSES * rows)
    seconds: dict[str, float] = {}
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", NotConvergedWarning)
        began = time.perf_counter()
        stack.enter_context(cluster(RayOptions()))
        seconds["a cluster on this machine"] = time.perf_counter() - began
        engines: dict[str, Engine] = {}
        for name, actors in ((ONE, 1), (TWO, 2)):
            began = time.perf_counter()
            # what they reserve is not what they use: both engines have to fit at the same time
            engine = RayEngine(data.sources(actors), get_loss("hinge"), RayOptions(cpus=0.5))
            engines[name] = stack.enter_context(engine)
            seconds[f"workers, {name}"] = time.perf_counter() - began
        engines[HERE] = stack.enter_context(LocalEngine(data.sources(2), get_loss("hinge"), threads=2))
        common: dict[str, Any] = {"loss": "hinge", "reg_lambda": REG_LAMBDA, "settings": settings}
        contenders = {
            name: lambda engine=engine: solve(data, engine=engine, **common) for name, engine in engines.items()
        }
        timed = interleaved(contenders, 3)
    bits = {name: outcome.W.tobytes() for name, outcome in timed.answers.items()}
    return {
        "seconds": timed.seconds,
        "start": seconds,
        "same bits": len(set(bits.values())) == 1,
        "gap": timed.answers[HERE].certificate.relative_gap,
        "round": {name: float(np.median([r.seconds for r in o.history])) for name, o in timed.answers.items()},
    }


def _problem(rows: int) -> TaskData:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=FEATURES)
    parts = []
    for _ in range(TASKS):
        X = rng.normal(size=(rows, FEATURES)) / np.sqrt(FEATURES)
        z = X @ (shared + rng.normal(size=FEATURES)) + 0.5 * rng.normal(size=rows)
        parts.append((X, np.where(z > 0, 1.0, -1.0)))
    return TaskData.from_list(parts)


def section(records: Sequence[Record]) -> Section:
    figures = records[0].figures
    seconds = figures["seconds"]
    rows = []
    for name, told in ((ONE, "times longer than two actors"), (TWO, "times longer than threads"), (HERE, "")):
        other = {ONE: TWO, TWO: HERE}.get(name)
        times = "" if other is None else "{:.2f} ({:.2f} to {:.2f})".format(*ratio(seconds[name], seconds[other]))
        milli = 1e3 * figures["round"][name]
        rows.append([name, f"{np.median(seconds[name]):.3g}", f"{milli:.0f}", f"{times} {told}".strip()])
    params = records[0].params
    return Section(
        "Actors of a Ray cluster",
        [
            Text(
                f"{TASKS} tasks of {params['rows']} rows and {FEATURES} features, hinge loss, {PASSES} passes a round, "
                f"{params['rounds']} rounds whatever the gap, on one machine."
            ),
            Table(
                "Time for the same work",
                ["engine", "seconds", "ms a round", "ratio"],
                rows,
                "Medians of three interleaved repeats, least and greatest ratio of one repeat in brackets. "
                + ("All ended with the same bits." if figures["same bits"] else "They did not end with the same bits!"),
            ),
            Table(
                "Before the first round",
                ["what starts", "seconds"],
                [[what, f"{value:.2g}"] for what, value in figures["start"].items()],
            ),
        ],
    )


CLUSTER = Experiment(
    "bench cluster",
    runs,
    measure,
    section,
    {"tasks": TASKS, "features": FEATURES, "passes": PASSES, "reg_lambda": REG_LAMBDA, "solver_seed": 0},
)
