"""One suite over every engine: the same seed and the same partition give the same bits.

Every task has another loss, so that one engine covers them all.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import clusters
from dmtrl import MTRLRegressorCV, Settings, TaskData, solve
from dmtrl.bench.cluster import measure, section
from dmtrl.coordinator import Outcome, broadcast
from dmtrl.engines import LocalEngine, RayEngine, RayOptions
from dmtrl.experiments.records import Record
from dmtrl.losses import BUILTIN, AnyLoss, get_loss
from dmtrl.message import Engine, Message
from dmtrl.report.files import markdown_text
from losses_by_hand import halved_absolute
from problems import random_problem

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
    with LocalEngine(sources, losses, 2) if kind == "threads" else RayEngine(sources, losses) as engine:
        yield engine


def same_bits(a: Outcome, b: Outcome) -> None:
    assert a.W.tobytes() == b.W.tobytes()
    assert a.dual.B.tobytes() == b.dual.B.tobytes()
    assert a.certificate == b.certificate
    for mine, theirs in zip(a.history, b.history, strict=True):
        assert repr(replace(mine, seconds=0.0)) == repr(replace(theirs, seconds=0.0))


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize(
    ("csr", "dtype", "workers", "shards"),
    [(False, np.float64, 3, 1), (True, np.float64, 4, 2), (True, np.float32, 2, 1)],
    ids=["dense", "sparse, split tasks", "sparse, single precision"],
)
def test_same_bits(kind: str, csr: bool, dtype: type, workers: int, shards: int) -> None:
    data = every_loss(csr, dtype)
    with started(kind, data, LOSSES, workers, shards) as engine:
        for settings in PRESETS.values():
            common = {"loss": LOSSES, "reg_lambda": 0.01, "settings": settings}
            plain = solve(data, workers=workers, shards=shards, **common)
            same_bits(solve(data, engine=engine, **common), plain)
            assert np.isfinite(plain.certificate.gap)


@pytest.mark.parametrize("kind", ENGINES)
def test_folds_are_drawn_and_scored_alike(kind: str) -> None:
    data = every_loss(False, np.float64)
    held = Message("hold_out", {"fold": 1, "folds": 3, "seed": 4})
    score = {}
    for engine in (LocalEngine(data.sources(2), LOSSES), started(kind, data, LOSSES, 2)):
        with engine as running:
            described = broadcast(running, held)
            solve(data, loss=LOSSES, reg_lambda=0.1, engine=running, settings=Settings(max_rounds=2))
            ones = {k: {"w": np.ones((len(d.arrays["tasks"]), 6))} for k, d in described.items()}
            answers = dict(running.exchange({k: Message("score", {}, arrays) for k, arrays in ones.items()}))
            score[engine] = [answers[k].arrays[name].tobytes() for k in sorted(answers) for name in answers[k].arrays]
    first, second = score.values()
    assert first == second


@pytest.mark.parametrize("kind", ENGINES)
def test_answers_come_as_they_are_ready(kind: str) -> None:
    """A worker that has much to do does not hold up the others."""
    rng = np.random.default_rng(0)
    large = (rng.normal(size=(30_000, 60)), np.sign(rng.normal(size=30_000)))
    small = (large[0][:10], large[1][:10])
    data = TaskData.from_list([large, small])
    with started(kind, data, get_loss("hinge"), 2) as engine:
        described = broadcast(engine, Message("describe"))
        scalars = {"seed": 0, "local_solver": "sdca", "sampling": "shuffled", "max_passes": 40, "keep": False}
        arrays = {k: {"total_weight": described[k].arrays["weight"], "steps": np.zeros(1, np.int64)} for k in (0, 1)}
        dict(engine.exchange({k: Message("prepare", scalars, arrays[k]) for k in (0, 1)}))
        order = Message("round", {"round": 0, "target": -1.0}, {"w": np.zeros((1, 60)), "step": np.full(1, 100.0)})
        answered = []
        engine.send(0, order)
        for number in range(3):
            engine.send(1, Message("round", order.scalars | {"round": number}, order.arrays))
            answered.append(engine.receive()[0])
        while 0 not in answered:
            answered.append(engine.receive()[0])
        assert answered == [1, 1, 1, 0]


def test_a_custom_loss_travels() -> None:
    """It is compiled where it is used, and does what the built-in loss with the same values does."""
    data = random_problem("squared", m=3)
    mine = solve(data, loss=halved_absolute(), reg_lambda=0.1, engine="ray", workers=1)
    theirs = solve(data, loss="quantile", reg_lambda=0.1)
    for a, b in ((mine, theirs), (theirs, mine)):
        assert a.certificate.dual <= b.certificate.primal


def test_estimators_and_choice_of_lambda() -> None:
    data = random_problem("squared", m=4, rows=20)
    tasks = np.repeat(data.names, np.diff(data.starts))
    plain = MTRLRegressorCV(lambdas=[0.1, 1.0], commons=[0.0], cv=2).fit(data.X, data.y, tasks=tasks)
    apart = MTRLRegressorCV(lambdas=[0.1, 1.0], commons=[0.0], cv=2, engine=RayOptions(workers=2))
    apart.fit(data.X, data.y, tasks=tasks)
    assert apart.reg_lambda_ == plain.reg_lambda_
    assert apart.coef_.tobytes() == plain.coef_.tobytes()


def test_the_benchmark_of_actors() -> None:
    params = {"rows": 40, "rounds": 2}
    figures = measure(**params)
    assert figures["same bits"]
    _, times, start = section([Record("bench cluster", params, {}, figures, 1.0)]).items
    assert "| Ray, two actors |" in markdown_text(times)
    assert "a cluster on this machine" in markdown_text(start)
