"""Checkpoints of rounds without a barrier: everybody is waited for, and the run goes on from there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl import Checkpoint, MTRLClassifier, Settings, TaskData, solve
from dmtrl.datasets import make_synthetic
from dmtrl.relationship import get_relationship
from dmtrl.solver.checkpoint import Keeper, keeper_for
from dmtrl.solver.coordinator import Coordinator, Outcome
from dmtrl.solver.methods import asynchronous
from dmtrl.solver.methods.asynchronous import AsynchronousSplitting
from support.problems import random_problem
from support.virtual_time import VirtualEngine, virtual

EVERY = 3  # rounds


def kept_run(engine: VirtualEngine, data: TaskData, lam: float, keeper: Keeper | None, **knobs: Any) -> Outcome:
    settings = Settings(**{"max_staleness": 8, "tol": 1e-5, "max_rounds": 24, **knobs})
    return Coordinator(engine, data.m, get_relationship("learned", data.m), lam, settings).run(keeper=keeper)


def problems() -> list[Any]:
    small = random_problem("hinge", m=8, d=6, rows=40)
    fleet = make_synthetic(1, 0, m=64, rows_per_task=80, d=40).train
    return [
        pytest.param(small, (1.0, 1.0, 10.0, 1.0), 1, 0.05, id="a few"),
        pytest.param(small, (1.0, 1.0, 10.0, 1.0), 2, 0.05, id="tasks in pieces"),
        pytest.param(fleet, tuple(10.0 if k == 8 else 1.0 for k in range(16)), 1, 1e-2, id="one catches up"),
    ]


@pytest.mark.parametrize(("data", "slowness", "shards", "lam"), problems())
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    data: TaskData, slowness: tuple[float, ...], shards: int, lam: float, tmp_path: Path
) -> None:
    """On a clock that follows from the work; so nothing is missing in what is written down."""

    def engine() -> VirtualEngine:
        return virtual(data, "hinge", slowness, shards)

    whole = kept_run(engine(), data, lam, Keeper(Checkpoint(tmp_path / "whole", every_rounds=EVERY)))
    place = Checkpoint(tmp_path / "stopped", every_rounds=EVERY)
    half = kept_run(engine(), data, lam, Keeper(place), max_rounds=4 * EVERY)
    rest = kept_run(engine(), data, lam, keeper_for(place, True))
    assert len(half.history) == 4 * EVERY
    assert [record.gap for record in rest.history] == [record.gap for record in whole.history]
    np.testing.assert_array_equal(rest.W, whole.W)
    assert rest.certificate == whole.certificate


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize(("relationship", "shards"), [("independent", 1), ("learned", 2), ("learned", 1)])
def test_however_often_everybody_is_waited_for_a_run_ends(
    relationship: str, shards: int, every: int, tmp_path: Path
) -> None:
    """Also where the loss is asked for at one point of all, for which it takes more than one answer of each."""
    data = random_problem("hinge", m=8, d=6, rows=40)
    engine, keeper = virtual(data, "hinge", shards=shards), Keeper(Checkpoint(tmp_path, every_rounds=every))
    relation, settings = get_relationship(relationship, data.m), Settings(max_staleness=8, tol=1e-3, max_rounds=200)
    assert Coordinator(engine, data.m, relation, 0.05, settings).run(keeper=keeper).converged


def test_all_that_changes_in_a_run_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what is empty when everybody has answered, and what the workers know themselves."""
    made: list[AsynchronousSplitting] = []

    class Kept(AsynchronousSplitting):
        def __init__(self, *args: Any, **knobs: Any) -> None:
            super().__init__(*args, **knobs)
            made.append(self)

    monkeypatch.setattr("dmtrl.solver.coordinator.AsynchronousSplitting", Kept)
    data, lam = make_synthetic(1, 0, m=64, rows_per_task=80, d=40).train, 1e-2
    for rounds in (1, 24):
        engine = virtual(data, "hinge", [10.0 if k == 8 else 1.0 for k in range(16)])
        kept_run(engine, data, lam, None, max_rounds=rounds)
    of_others = {"_versions", "_at_work", "_idle", "_early", "_again", "arrivals", "sent", "received", "_b", "_engine"}
    early, late = (vars(method) for method in made)
    changed = {name for name in early if repr(early[name]) != repr(late[name])} - of_others
    assert {"_Z", "_U", "_answered", "_before"} <= changed
    assert changed - {"_relationship", "_layout", "_settings"} <= set(asynchronous._STATE)


def test_what_is_resumed_is_certified(tmp_path: Path) -> None:
    """With real threads, whose order nobody knows."""
    data = make_synthetic(1, rows_per_task=200, d=20).train
    known = {"loss": "hinge", "reg_lambda": 1e-3, "workers": 4, "n_jobs": 2}
    best = solve(data, **known, settings=Settings(tol=1e-6)).certificate
    place = Checkpoint(tmp_path, every_rounds=2)
    solve(data, **known, settings=Settings(tol=0.3, max_staleness=8), checkpoint=place)
    found = solve(data, **known, settings=Settings(tol=1e-3, max_staleness=8), checkpoint=place, resume=True)
    assert found.converged
    assert found.certificate.primal >= best.dual
    assert found.certificate.dual <= best.primal
    assert found.trace.arrivals == ()  # it cannot be repeated: who was waited for is not in it


def test_an_estimator_with_a_checkpoint(tmp_path: Path) -> None:
    data = make_synthetic(1, rows_per_task=100, d=10).train
    tasks = np.repeat(np.arange(data.m), np.diff(data.starts))
    model = MTRLClassifier(reg_lambda=1e-2, max_staleness=4, n_jobs=2)
    model.fit(data.X, data.y, tasks=tasks, checkpoint=Checkpoint(tmp_path, every_rounds=1))
    again = MTRLClassifier(reg_lambda=1e-2, max_staleness=4, n_jobs=2)
    again.fit(data.X, data.y, tasks=tasks, resume=tmp_path)
    assert model.certificate_.relative_gap <= 1e-3
    assert again.certificate_ == model.certificate_  # it was over when it was written down


def test_nobody_is_waited_for_without_a_checkpoint() -> None:
    data = random_problem("hinge", m=8, d=6, rows=40)
    engine = virtual(data, "hinge")
    assert kept_run(engine, data, 0.05, None, tol=1e-2, max_rounds=300).converged
    assert engine.asked
