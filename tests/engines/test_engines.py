"""Fits on every engine: the same seed and the same partition give the same bits.

Every task has another loss, so that one engine covers them all. See test_conformance.py for the contract of engines.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest

from dmtrl import Execution, MTRLRegressorCV, Problem, Settings, TaskData, solve
from dmtrl.engines import LocalEngine, RayEngine, RayOptions
from dmtrl.engines.base import Engine
from dmtrl.engines.conformance import check_engine
from dmtrl.losses import BUILTIN, AnyLoss, get_loss
from dmtrl.protocol.codec import encode
from dmtrl.protocol.rounds import Describe, Description, HoldOut, Prepare, Round, Score
from dmtrl.report.files import markdown_text
from dmtrl.solver.outcome import Outcome
from dmtrl_lab.bench.cluster import items, measure
from dmtrl_lab.experiments.experiment import Record
from support import clusters
from support.losses_by_hand import halved_absolute
from support.problems import random_problem
from support.solving import solve_data
from support.waiting import CEILING

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::dmtrl.NotConvergedWarning")]
PRESETS = {"default": Settings(tol=1e-4, max_rounds=40), "paper": Settings.paper(T=4, P=3)}
ENGINES = ("threads", "ray")
LOSSES = [get_loss(name) for name in sorted(BUILTIN)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with clusters.alone():
        yield


def every_loss(csr: bool, dtype: type, seed: int = 0) -> TaskData:
    """A task for each loss, with labels that suit it."""
    parts = []
    for i, loss in enumerate(LOSSES):
        one = random_problem(loss, m=1, d=6, rows=10 + 3 * i, seed=seed + i, csr=csr, dtype=dtype, weighted=True)
        parts.append((one.X, one.y, one.sample_weight))
    return TaskData.from_list(parts, [loss.name for loss in LOSSES])


@contextlib.contextmanager
def started(kind: str, data: TaskData, losses: list[AnyLoss], workers: int, shards: int = 1) -> Iterator[Engine]:
    sources = data.sources(workers, shards)
    few = RayOptions(cpus=0.25)  # so that several engines find room at the same time
    with LocalEngine(sources, losses, 2) if kind == "threads" else RayEngine(sources, losses, few) as engine:
        yield engine


@pytest.fixture(scope="module", params=ENGINES)
def pair(request: pytest.FixtureRequest, cluster: None) -> Iterator[Engine]:
    """Two workers over dense rows of every loss, which several tests share."""
    with started(request.param, every_loss(False, np.float64), LOSSES, 2) as engine:
        yield engine


def test_ray_passes_the_conformance_suite() -> None:
    check_engine(lambda sources, loss: RayEngine(sources, loss, RayOptions(cpus=0.25)))


def same_bits(a: Outcome, b: Outcome) -> None:
    assert a.W.tobytes() == b.W.tobytes()
    assert a.dual.B.tobytes() == b.dual.B.tobytes()
    assert a.certificate == b.certificate
    for mine, theirs in zip(a.history, b.history, strict=True):
        assert repr(replace(mine, seconds=0.0)) == repr(replace(theirs, seconds=0.0))


def compare_with_one_process(engine: Engine, data: TaskData, workers: int, shards: int = 1) -> None:
    for settings in PRESETS.values():
        common = {"loss": LOSSES, "reg_lambda": 0.01, "settings": settings}
        plain = solve_data(data, workers=workers, shards=shards, **common)
        same_bits(solve_data(data, engine=engine, **common), plain)
        assert np.isfinite(plain.certificate.gap)


def test_same_bits_of_dense_rows(pair: Engine) -> None:
    compare_with_one_process(pair, every_loss(False, np.float64), 2)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize(
    ("dtype", "workers", "shards"),
    [(np.float64, 4, 2), (np.float32, 2, 1)],
    ids=["split tasks", "single precision"],
)
def test_same_bits_of_sparse_rows(kind: str, dtype: type, workers: int, shards: int) -> None:
    data = every_loss(True, dtype)
    with started(kind, data, LOSSES, workers, shards) as engine:
        compare_with_one_process(engine, data, workers, shards)


def test_held_out_rows_and_scores_are_the_same(pair: Engine) -> None:
    data = every_loss(False, np.float64)
    scores = []
    with LocalEngine(data.sources(2), LOSSES) as alone:
        for engine in (alone, pair):
            described = engine.broadcast(HoldOut(fold=1, folds=3, seed=4))
            solve(Problem.of(data, loss=LOSSES, reg_lambda=0.1), Execution(engine, settings=Settings(max_rounds=2)))
            requests = {k: Score(w=np.ones((len(one.tasks), 6))) for k, one in described.items()}
            answers = dict(engine.exchange(requests))
            scores.append([array.tobytes() for k in sorted(answers) for array in vars(answers[k]).values()])
    pair.broadcast(HoldOut(fold=-1, folds=3, seed=4))
    assert scores[0] == scores[1]


@contextlib.contextmanager
def first_worker_held(engine: Any) -> Iterator[None]:
    """Inside, worker 0 does not answer: its thread waits, or the process of its actor is suspended."""
    if isinstance(engine, RayEngine):
        ray = pytest.importorskip("ray")
        actor = psutil.Process(ray.get(engine._carrier._actors[0].__ray_call__.remote(lambda host: os.getpid())))
        actor.suspend()
        try:
            yield
        finally:
            actor.resume()
    else:
        worker, free = engine._workers[0], threading.Event()
        answer = worker.answer
        worker.answer = lambda message: free.wait() and answer(message)
        try:
            yield
        finally:
            free.set()


def prepare(held: Description) -> Prepare:
    """A run on these units alone."""
    steps = np.zeros(len(held.tasks), np.int64)
    return Prepare(local_solver="sdca", max_passes=40, total_weight=held.weight, steps=steps)


def test_answers_arrive_as_they_are_ready(pair: Engine) -> None:
    """A slow worker does not delay the others."""
    described = pair.broadcast(Describe())
    dict(pair.exchange({k: prepare(one) for k, one in described.items()}))

    def one_round(k: int, number: int) -> Round:
        units = len(described[k].tasks)
        return Round(round=number, target=-1.0, w=np.zeros((units, 6)), step=np.full(units, 100.0))

    with first_worker_held(pair):
        pair.send(0, encode(one_round(0, 0)))
        for number in range(3):
            pair.send(1, encode(one_round(1, number)))
            assert pair.receive(timeout=CEILING)[0] == 1
        assert pair.pending == {0}
    assert pair.receive()[0] == 0


def test_answers_pending_from_before_are_dropped(pair: Engine) -> None:
    with first_worker_held(pair):
        pair.send(0, encode(HoldOut(fold=-1, folds=3, seed=4)))
        assert pair.pending == {0}
    answers = pair.broadcast(Describe(digest=True))
    assert all(isinstance(answer, Description) and answer.digest is not None for answer in answers.values())
    assert not pair.pending


def test_a_custom_loss_is_compiled_where_it_is_used() -> None:
    """Tests without Ray show that whole rounds work with such a loss."""
    data = random_problem("squared", m=2)
    W = np.random.default_rng(0).normal(size=(2, data.X.shape[1]))
    residuals = np.split(
        data.y - np.einsum("ij,ij->i", data.X, np.repeat(W, np.diff(data.starts), axis=0)), data.starts[1:-1]
    )
    with started("ray", data, halved_absolute(), 1) as engine:
        described = engine.broadcast(Describe())[0]
        engine.broadcast(HoldOut(fold=0, folds=1, seed=0))  # all rows
        engine.broadcast(prepare(described))
        scored = engine.broadcast(Score(w=W))[0]
    np.testing.assert_allclose(scored.loss, [np.abs(r).sum() / 2 for r in residuals], rtol=1e-12)


SPLITS = [(np.arange(0, 86, 2), np.arange(1, 86, 4)), (np.arange(1, 86, 2), np.arange(0, 86, 4))]  # not complements


@pytest.mark.parametrize(
    "how",
    [{"commons": [0.0, 1.0], "cv": 3}, {"commons": [1.0], "owns": [0.0], "cv": SPLITS, "scoring": "r2"}],
    ids=["folds", "splits and a score"],
)
def test_estimators_and_choice_of_lambda(how: dict[str, Any]) -> None:
    data = random_problem("squared", m=4, rows=20)
    tasks = np.repeat(data.names, np.diff(data.starts))
    how = {"lambdas": [10.0, 1.0, 0.1], **how}
    threads = MTRLRegressorCV(**how, n_jobs=2).fit(data.X, data.y, tasks=tasks)
    apart = MTRLRegressorCV(**how, engine=RayOptions(workers=2, cpus=0.1)).fit(data.X, data.y, tasks=tasks)
    assert apart.coef_.tobytes() == threads.coef_.tobytes()
    for name, values in vars(threads.cv_results_).items():
        assert values.tobytes() == getattr(apart.cv_results_, name).tobytes(), name


def test_the_benchmark_of_actors() -> None:
    params = {"rows": 40, "rounds": 2}
    figures = measure(**params)
    assert figures["same bits"]
    _, times, start = items([Record("bench cluster", params, {}, figures, 1.0)])
    assert "| Ray, two actors |" in markdown_text(times)
    assert "start a local cluster" in markdown_text(start)
