"""Checkpoints of asynchronous rounds: all pending answers are awaited first, and the run resumes from there."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl import (
    Checkpoint,
    Execution,
    LocalOptions,
    MTRLClassifier,
    NotConvergedWarning,
    Problem,
    Settings,
    TaskData,
    solve,
)
from dmtrl.datasets import make_synthetic
from dmtrl.solver.checkpoint import open_session
from dmtrl.solver.outcome import Outcome
from support.problems import random_problem
from support.solving import solve_data
from support.virtual_time import VirtualEngine, virtual

EVERY = 3  # rounds


def saved_run(engine: VirtualEngine, data: TaskData, lam: float, session: Any, **options: Any) -> Outcome:
    settings, engine.max_staleness = Settings(**{"tol": 1e-5, "max_rounds": 24, **options}), 8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        return solve(
            Problem.of(data, loss="hinge", reg_lambda=lam), Execution(engine, settings=settings, checkpoint=session)
        )


def problems() -> list[Any]:
    small = random_problem("hinge", m=8, d=6, rows=40)
    fleet = make_synthetic(1, 0, m=64, rows_per_task=80, d=40).train
    return [
        pytest.param(small, (1.0, 1.0, 10.0, 1.0), 1, 0.05, id="a few"),
        pytest.param(small, (1.0, 1.0, 10.0, 1.0), 2, 0.05, id="tasks in pieces"),
        pytest.param(fleet, tuple(10.0 if k == 8 else 1.0 for k in range(16)), 1, 1e-2, id="many tasks"),
    ]


@pytest.mark.parametrize(("data", "slowness", "shards", "lam"), problems())
def test_a_stopped_run_resumes(
    data: TaskData, slowness: tuple[float, ...], shards: int, lam: float, tmp_path: Path
) -> None:
    """On a clock that follows from the work; so nothing is missing in what is written down."""

    def engine() -> VirtualEngine:
        return virtual(data, "hinge", slowness, shards)

    whole = saved_run(engine(), data, lam, Checkpoint(tmp_path / "whole", every_rounds=EVERY))
    place = Checkpoint(tmp_path / "stopped", every_rounds=EVERY)
    half = saved_run(engine(), data, lam, place, max_rounds=4 * EVERY)
    rest = saved_run(engine(), data, lam, open_session(place, True))
    assert len(half.history) == 4 * EVERY
    assert [record.gap for record in rest.history] == [record.gap for record in whole.history]
    np.testing.assert_array_equal(rest.W, whole.W)
    assert rest.certificate == whole.certificate


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize(("relationship", "shards"), [("independent", 1), ("learned", 2), ("learned", 1)])
def test_a_run_ends_however_often_it_is_saved(relationship: str, shards: int, every: int, tmp_path: Path) -> None:
    """Also where the loss is asked for at one point of all, for which it takes more than one answer of each."""
    data = random_problem("hinge", m=8, d=6, rows=40)
    engine = virtual(data, "hinge", shards=shards)
    engine.max_staleness = 8
    outcome = solve(
        Problem.of(data, loss="hinge", reg_lambda=0.05, relationship=relationship),
        Execution(
            engine,
            settings=Settings(tol=1e-3, max_rounds=200),
            checkpoint=Checkpoint(tmp_path, every_rounds=every),
        ),
    )
    assert outcome.converged


def test_what_is_resumed_is_certified(tmp_path: Path) -> None:
    """With real threads, whose order is not known."""
    data = make_synthetic(1, rows_per_task=200, d=20).train
    known = {"loss": "hinge", "reg_lambda": 1e-3, "workers": 4, "n_jobs": 2}
    best = solve_data(data, settings=Settings(tol=1e-6), **known).certificate
    place = Checkpoint(tmp_path, every_rounds=2)
    solve_data(data, max_staleness=8, settings=Settings(tol=0.3), checkpoint=place, **known)
    found = solve_data(data, max_staleness=8, settings=Settings(tol=1e-3), checkpoint=place, resume=True, **known)
    assert found.converged
    assert found.certificate.primal >= best.dual
    assert found.certificate.dual <= best.primal


def test_an_estimator_with_a_checkpoint(tmp_path: Path) -> None:
    data = make_synthetic(1, rows_per_task=100, d=10).train
    tasks = np.repeat(np.arange(data.m), np.diff(data.starts))
    model = MTRLClassifier(reg_lambda=1e-2, engine=LocalOptions(max_staleness=4), n_jobs=2)
    model.fit(data.X, data.y, tasks=tasks, checkpoint=Checkpoint(tmp_path, every_rounds=1))
    again = MTRLClassifier(reg_lambda=1e-2, engine=LocalOptions(max_staleness=4), n_jobs=2)
    again.fit(data.X, data.y, tasks=tasks, resume=tmp_path)
    assert model.certificate_.relative_gap <= 1e-3
    assert again.certificate_ == model.certificate_  # it was over when it was written down


def test_without_a_checkpoint_no_answer_is_awaited() -> None:
    data = random_problem("hinge", m=8, d=6, rows=40)
    engine = virtual(data, "hinge")
    assert saved_run(engine, data, 0.05, None, tol=1e-2, max_rounds=300).converged
    assert engine.pending
