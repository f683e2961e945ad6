"""Ray: the speed-up from a second actor, and the overhead over threads with the same partition.

The problem is compute-bound: many passes per round over tasks that fit in cache, for a fixed number of rounds, so that
all engines do exactly the same work. Loading rows into the workers is timed separately.
"""

import time
from contextlib import ExitStack

import numpy as np

from dmtrl.data.task_data import TaskData
from dmtrl.engines import LocalEngine, RayEngine, RayOptions
from dmtrl.engines.base import Engine
from dmtrl.engines.ray import cluster
from dmtrl.losses import get_loss
from dmtrl.report.content import Item, Text
from dmtrl.solver.api import solve
from dmtrl.solver.execution import Execution
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings
from dmtrl_lab.bench.timing import interleaved, ratio
from dmtrl_lab.experiments.early_stop import may_stop_early
from dmtrl_lab.experiments.experiment import Experiment, Figures, Records, Run, table

ONE, TWO, THREADS = "Ray, one actor", "Ray, two actors", "two threads, no Ray"
TASKS, FEATURES, PASSES, REG_LAMBDA = 64, 100, 200, 1e-4


def runs(quick: bool) -> list[Run]:
    return [Run({"rows": 50 if quick else 500, "rounds": 5 if quick else 60}, 20 if quick else 270)]


def low_rank_tasks(rows: int) -> TaskData:
    """Return float32 tasks whose true weights have rank three, with noisy labels."""
    rng, m, d = np.random.default_rng(0), TASKS, FEATURES
    W = rng.standard_normal((m, 3)) @ rng.standard_normal((3, d))
    X = rng.standard_normal((m * rows, d), dtype=np.float32) / np.float32(np.sqrt(d))
    task = np.repeat(np.arange(m), rows)
    score = np.einsum("ij,ij->i", X, W[task])
    return TaskData.from_long(X, np.where(score + rng.standard_normal(len(score)) > 0, 1.0, -1.0), task)


def measure(rows: int, rounds: int) -> Figures:
    data = low_rank_tasks(rows)
    settings = Settings(tol=0.0, max_rounds=rounds, local_solver="sdca", steps=PASSES * rows)
    seconds: dict[str, float] = {}
    with ExitStack() as stack:
        stack.enter_context(may_stop_early())
        began = time.perf_counter()
        stack.enter_context(cluster(RayOptions()))
        seconds["start a local cluster"] = time.perf_counter() - began
        engines: dict[str, Engine] = {}
        for name, actors in ((ONE, 1), (TWO, 2)):
            began = time.perf_counter()
            # reserves half a core per actor, so that both engines fit at the same time
            engine = RayEngine(data.sources(actors), get_loss("hinge"), RayOptions(cpus=0.5))
            engines[name] = stack.enter_context(engine)
            seconds[f"start workers, {name}"] = time.perf_counter() - began
        engines[THREADS] = stack.enter_context(LocalEngine(data.sources(2), get_loss("hinge"), threads=2))
        problem = Problem.of(data, loss="hinge", reg_lambda=REG_LAMBDA)
        competitors = {
            name: lambda engine=engine: solve(problem, Execution(engine, settings)) for name, engine in engines.items()
        }
        timed = interleaved(competitors, 3)
    return {
        "seconds": timed.seconds,
        "start": seconds,
        "same bits": len({outcome.W.tobytes() for outcome in timed.results.values()}) == 1,
        "gap": timed.results[THREADS].certificate.relative_gap,
        "round": {name: float(np.median([r.seconds for r in o.history])) for name, o in timed.results.items()},
    }


def items(records: Records) -> list[Item]:
    figures, params = records[0].figures, records[0].params
    seconds = figures["seconds"]
    ratios = {
        ONE: f"{ratio(seconds[ONE], seconds[TWO]):.2f} times longer than two actors",
        TWO: f"{ratio(seconds[TWO], seconds[THREADS]):.2f} times longer than threads",
    }
    rows = [
        {
            "engine": name,
            "seconds": f"{np.median(seconds[name]):.3g}",
            "ms per round": f"{1e3 * figures['round'][name]:.0f}",
            "ratio": ratios.get(name, ""),
        }
        for name in (ONE, TWO, THREADS)
    ]
    return [
        Text(
            f"{TASKS} tasks of {params['rows']} rows and {FEATURES} features, hinge loss, {PASSES} passes per "
            f"round, {params['rounds']} rounds, on one machine."
        ),
        table(
            "Time for the same work",
            rows,
            "Medians of three interleaved repeats; the range of ratios in brackets. "
            + ("All results have the same bits." if figures["same bits"] else "The results differ in their bits!"),
        ),
        table(
            "Before the first round",
            [{"step": what, "seconds": f"{value:.2g}"} for what, value in figures["start"].items()],
        ),
    ]


SETTINGS = {"tasks": TASKS, "features": FEATURES, "passes": PASSES, "reg_lambda": REG_LAMBDA, "solver_seed": 0}
CLUSTER = Experiment("bench cluster", "Ray actors", runs, measure, items, SETTINGS)
