"""Stragglers: synchronous and asynchronous rounds with one slow worker.

Every worker has its own thread and delays its answers to a multiple of their processor time. So a few cores emulate as
many machines as there are workers, and one of them is slow.
"""

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dmtrl.datasets import make_synthetic
from dmtrl.engines.local import LocalEngine
from dmtrl.engines.warm_up import warm_up
from dmtrl.losses import get_loss
from dmtrl.protocol.message import Message
from dmtrl.report.content import Item, Text
from dmtrl.solver.api import solve
from dmtrl.solver.execution import Execution
from dmtrl.solver.outcome import Outcome
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings
from dmtrl.worker.worker import Worker
from dmtrl_lab.bench.timing import ratio
from dmtrl_lab.experiments.early_stop import may_stop_early
from dmtrl_lab.experiments.experiment import Experiment, Figures, Records, Run, table
from dmtrl_lab.experiments.problems import TITLES, PaperProblem, load_problem

GAP = 1e-2
SLOWER = 10.0
STRETCH = 2.0  # times the number of workers: keeps the cores mostly idle, so that no worker waits for one
STALENESS = 8
FLEET, FLEETS = 512, ("512 tasks, hinge", "512 tasks, logistic")
CASES = (  # data, lambda, workers
    ("synthetic 1", 1e-5, 16),
    ("synthetic 1", 1e-4, 16),
    ("synthetic 1", 1e-3, 16),
    ("school", 1e-2, 32),
    ("school", 1e-1, 32),
    ("school", 1.0, 32),
    ("mds", 1e-3, 22),
    *((fleet, lam, workers) for workers in (16, 64) for fleet in FLEETS for lam in (1e-4, 1e-3, 1e-2)),
)
SYNCHRONOUS, ASYNCHRONOUS = "synchronous", "asynchronous"


def runs(quick: bool) -> list[Run]:
    seconds = 3 if quick else 60
    names = ("problem", "reg_lambda", "workers")
    return [Run({**dict(zip(names, case, strict=True)), "quick": quick}, seconds) for case in CASES]


def _problem(problem: str, quick: bool) -> PaperProblem:
    if problem not in FLEETS:
        return load_problem(problem, quick=quick)
    rows, d = (100, 20) if quick else (500, 100)
    tasks = make_synthetic(1, m=64 if quick else FLEET, rows_per_task=rows, d=d)
    return PaperProblem(tasks.train, tasks.test, problem.split()[-1])


class PacedWorker:
    """A worker whose answers take `pace` times their processor time."""

    def __init__(self, worker: Worker, pace: float):
        self._worker, self._pace = worker, pace
        self._busy, self._since = 0.0, np.inf  # seconds of past answers, and the start of the current one
        self.rounds = 0  # answered rounds

    def sibling(self, number: int) -> "PacedWorker":
        return PacedWorker(self._worker.sibling(number), self._pace)

    def answer(self, message: Message) -> Message:
        began, processor = time.perf_counter(), time.thread_time()
        if message.name == "round":
            self._since = began
        answer = self._worker.answer(message)
        time.sleep(max(self._pace * (time.thread_time() - processor) - (time.perf_counter() - began), 0.0))
        self._busy, self._since = self.busy(), np.inf
        self.rounds += message.name == "round"
        return answer

    def busy(self) -> float:
        """Return the seconds spent on answers so far."""
        return self._busy + max(time.perf_counter() - self._since, 0.0)


class PacedEngine(LocalEngine):
    """Workers as machines of different speed. `slowness` is 1 for a normal worker."""

    def __init__(self, task: PaperProblem, slowness: Sequence[float], stretch: float):
        k = len(slowness)
        workers = [Worker(source, get_loss(task.loss)) for source in task.train.sources(k)]
        self.paced = [PacedWorker(one, stretch * k * slow) for one, slow in zip(workers, slowness, strict=True)]
        super().__init__((), (), threads=k, workers=self.paced)


@dataclass(frozen=True)
class Timing:
    seconds: float
    idle: float  # share of the workers' total time
    answers: int  # rounds that the slowest worker answered
    outcome: Outcome


def timed(
    task: PaperProblem, lam: float, slowness: Sequence[float], max_staleness: int = 0, stretch: float = STRETCH
) -> Timing:
    with PacedEngine(task, slowness, stretch) as engine:
        engine.max_staleness = max_staleness
        gc.collect()
        gc.disable()  # it would slow down a random worker
        try:
            with may_stop_early():
                began = time.perf_counter()
                outcome = solve(
                    Problem.of(task.train, loss=task.loss, reg_lambda=lam),
                    Execution(engine, settings=Settings(tol=GAP)),
                )
                wall = time.perf_counter() - began
        finally:
            gc.enable()
        idle = 1.0 - sum(worker.busy() for worker in engine.paced) / (wall * len(slowness))
        answers = engine.paced[int(np.argmax(slowness))].rounds
    return Timing(wall if outcome.converged else np.inf, idle, answers, outcome)


def measure(problem: str, reg_lambda: float, workers: int, quick: bool) -> Figures:
    task, lam, repeats = _problem(problem, quick), reg_lambda, 1 if quick else 3
    workers = min(workers, task.train.m)
    variants = {SYNCHRONOUS: 0, ASYNCHRONOUS: STALENESS}
    slowness = [SLOWER if k == workers // 2 else 1.0 for k in range(workers)]
    warm_up(task.train.sources(1), get_loss(task.loss))  # compile before slow workers take part
    best = solve(
        Problem.of(task.train, loss=task.loss, reg_lambda=lam), Execution(settings=Settings(tol=GAP / 1000))
    ).certificate
    found: dict[str, list[Timing]] = {variant: [] for variant in variants}
    for _ in range(repeats + 1):
        for variant, staleness in variants.items():
            found[variant].append(timed(task, lam, slowness, staleness, 0.1 if quick else STRETCH))
    # the first warms up
    return {variant: _figures(timings[1:], best.primal, best.dual) for variant, timings in found.items()}


def _figures(timings: Sequence[Timing], above: float, below: float) -> Figures:
    """`valid`: whether every certificate is correct, given that the optimum is between `below` and `above`."""
    records = [record for timing in timings for record in timing.outcome.history]
    return {
        "seconds": [timing.seconds for timing in timings],
        "idle": float(np.median([timing.idle for timing in timings])),
        "rounds": float(np.median([len(timing.outcome.history) for timing in timings])),
        "answers": float(np.median([timing.answers for timing in timings])),
        "gap": max(timing.outcome.certificate.relative_gap for timing in timings),
        "valid": all(record.primal >= below and record.dual <= above for record in records),
    }


def items(records: Records) -> list[Item]:
    rows: list[dict[str, object]] = []
    for record in records:
        params, figures = record.params, record.figures
        faster = ratio(figures[SYNCHRONOUS]["seconds"], figures[ASYNCHRONOUS]["seconds"])
        for variant in (SYNCHRONOUS, ASYNCHRONOUS):
            f = figures[variant]
            rows.append(
                {
                    "data": TITLES.get(params["problem"], params["problem"]),
                    "lambda": f"{params['reg_lambda']:g}",
                    "workers": params["workers"],
                    "rounds are": variant,
                    "seconds": f"{float(np.median(f['seconds'])):.3g}",
                    "times faster": "1" if variant == SYNCHRONOUS else f"{faster:.2g}",
                    "idle": f"{f['idle']:.0%}",
                    "rounds": f"{f['rounds']:g}",
                    "answers of the slowest": f"{f['answers']:g}",
                    "certificates valid": "yes" if f["valid"] else "NO",
                }
            )
    return [
        Text(
            "Each worker has its own thread and is slowed to a multiple of its processor time, as if it were a "
            "machine. An asynchronous round is as many answers as there are workers."
        ),
        table(
            f"One worker {SLOWER:g} times slower: seconds to a joint gap of {GAP:g}",
            rows,
            f"max_staleness={STALENESS}. Seconds from the first message to the end of the run, without loading data. "
            "Medians of interleaved repeats; the range of ratios is in brackets. Both variants need the slow worker: "
            "the fewer of its answers are needed, the larger the gain. Certificates are valid if no objective is "
            "below, and no bound above, an optimum known a thousand times more accurately.",
        ),
    ]


SETTINGS = {"gap": GAP, "slower": SLOWER, "stretch": STRETCH, "max_staleness": STALENESS, "until": "end"}
STRAGGLERS = Experiment("bench stragglers", "Stragglers", runs, measure, items, SETTINGS)
