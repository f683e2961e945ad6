"""A run that is stopped and resumed ends with the same bits as an uninterrupted one."""

import json
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmtrl import (
    Checkpoint,
    CheckpointWarning,
    Execution,
    LocalOptions,
    MTRLClassifier,
    MTRLClassifierCV,
    MTRLRegressor,
    MTRLRegressorCV,
    NotConvergedWarning,
    Outcome,
    Problem,
    Settings,
    solve,
    storage,
)
from dmtrl.data.blocks import Blocks
from dmtrl.engines import recovery
from dmtrl.engines.recovery import RecoveringEngine
from dmtrl.exceptions import WorkerLostError
from dmtrl.solver.checkpoint import CheckpointSession, newest, open_session
from dmtrl.solver.cv_results import CvResults
from dmtrl.solver.grid import Grid
from dmtrl.solver.search import search
from support.checkpoints import CVCallback, Stopped, halfway, numbers, stop_after, table, version
from support.fragile import Fragile
from support.problems import random_problem
from support.solving import solve_data

METHODS = {
    "splitting": Settings(tol=1e-6, max_rounds=25),
    "dual": Settings(method="dual", tol=1e-6, max_rounds=25, w_rounds=4),
    "paper": Settings.paper(T=4, P=6),
    "sdca": Settings(tol=1e-6, max_rounds=25, local_solver="sdca"),
}


def same_bits(one: Outcome, other: Outcome) -> None:
    for name in ("W", "common"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    assert one.covariance.basis.tobytes() == other.covariance.basis.tobytes()
    assert one.dual.B.tobytes() == other.dual.B.tobytes()
    assert one.certificate == other.certificate
    assert repr([replace(r, seconds=0) for r in one.history]) == repr([replace(r, seconds=0) for r in other.history])


@pytest.fixture(autouse=True)
def _many_small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which end on max_rounds, and need not outlive a power cut."""
    warnings.simplefilter("ignore", NotConvergedWarning)
    monkeypatch.setattr(recovery, "_RETRY_DELAY", 0.0)
    monkeypatch.setattr(os, "fsync", lambda number: None)


@given(
    how=st.fixed_dictionaries(
        {
            "loss": st.sampled_from(["squared", "hinge", "logistic", "poisson", "absolute"]),
            "relationship": st.sampled_from(["learned", "learned", "shared", "independent"]),
            "common": st.sampled_from([0.0, 0.5]),
            "shards": st.sampled_from([1, 3]),
            "settings": st.sampled_from(list(METHODS.values())),
        }
    ),
    csr=st.booleans(),
    wide=st.booleans(),
    stop=st.integers(0, 23),
    every=st.integers(1, 5),
)
@settings(max_examples=20)
def test_stopped_anywhere_the_bits_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, how: dict[str, Any], csr: bool, wide: bool, stop: int, every: int
) -> None:
    shape: dict[str, Any] = {"d": 12, "dtype": np.float32} if wide else {"d": 3}
    data = random_problem(how["loss"], m=5, rows=10, csr=csr, **shape)
    how |= {"reg_lambda": 0.05, "workers": 3}
    whole = solve_data(data, **how)
    place = tmp_path_factory.mktemp("checkpoint")
    stopped = False
    try:
        solve_data(data, checkpoint=Checkpoint(place, every_rounds=every), callbacks=[stop_after(stop)], **how)
    except Stopped:
        stopped = True
    assert stopped == (stop < len(whole.history))
    heard: list[int] = []
    resumed = solve_data(
        data, checkpoint=place, resume=True, callbacks=[lambda record: heard.append(record.round)], **how
    )
    same_bits(resumed, whole)
    kept = stop // every * every if stopped else len(whole.history)
    assert heard == list(range(kept, len(whole.history))), "what was kept is not done again"


@pytest.mark.parametrize("intercept", [None, 1e-3])
def test_stopped_after_every_round(tmp_path: Path, intercept: float | None) -> None:
    data, place = random_problem("logistic", m=4, d=4, csr=True), Checkpoint(tmp_path / "c", every_rounds=1)
    how: dict[str, Any] = {"loss": "logistic", "reg_lambda": 0.01, "common": 1.0, "intercept_ridge": intercept}
    whole = solve_data(data, **how)
    for number in range(1, len(whole.history)):
        with pytest.raises(Stopped):  # in the round after the one that is kept
            solve_data(data, checkpoint=place, resume=True, callbacks=[stop_after(number)], **how)
    same_bits(solve_data(data, checkpoint=place, resume=True, **how), whole)


def test_a_finished_run_resumes_with_a_smaller_tol(tmp_path: Path) -> None:
    data = random_problem("hinge")
    solve(Problem.of(data, loss="hinge", reg_lambda=0.1), Execution(settings=Settings(tol=1e-2), checkpoint=tmp_path))
    rounds: list[int] = []
    fine = Settings(tol=1e-5)
    resumed = solve(
        Problem.of(data, loss="hinge", reg_lambda=0.1),
        Execution(settings=fine, resume=tmp_path, callbacks=[lambda r: rounds.append(r.round)]),
    )
    same_bits(resumed, solve(Problem.of(data, loss="hinge", reg_lambda=0.1), Execution(settings=fine)))
    assert rounds[0] > 0
    again = solve(
        Problem.of(data, loss="hinge", reg_lambda=0.1),
        Execution(settings=fine, resume=tmp_path, callbacks=[stop_after(0)]),
    )
    same_bits(again, resumed)


def test_behind_a_url() -> None:
    data = random_problem()
    how = halfway(data, "memory://some/bucket/run")
    assert len(storage.names("memory://some/bucket/run")) == 2
    same_bits(solve_data(data, resume="memory://some/bucket/run", **how), solve_data(data, **how))
    clear("memory://some/bucket/run")
    assert storage.names("memory://some/bucket/run") == []
    with pytest.raises(OSError, match="nosuch"):
        solve_data(data, checkpoint="nosuch://place", **how)


def test_two_versions_stay_and_nothing_else_is_touched(tmp_path: Path) -> None:
    data = random_problem()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "version-old").mkdir()
    for name in ("version-2024", "version-000001"):  # somebody else's, by its name or by what lies in it
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.csv").write_text("a,b\n")
    before = {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    how = halfway(data, tmp_path)
    assert numbers(tmp_path) == [2, 3]
    last = version(tmp_path, 3)
    manifest = json.loads((last / "manifest.json").read_text())
    files = sorted(path.name for path in last.iterdir())
    assert files == sorted([*manifest["files"], "manifest.json"])
    assert len(files) == 2 + 2
    for name in manifest["files"]:
        with np.load(last / name, allow_pickle=False) as archive:
            assert all(archive[key].dtype.kind in "biufU" for key in archive.files)
    whole = solve_data(data, **how)
    same_bits(solve_data(data, resume=version(tmp_path, 2), **how), whole)  # an older one may be named
    clear(tmp_path)
    assert {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()} == before
    assert (tmp_path / "version-old").is_dir()


def test_two_runs_that_begin_at_once_in_one_folder(tmp_path: Path) -> None:
    """Neither overwrites or removes what the other keeps; one is gone on from where its own version is named."""
    data, every = random_problem(), Checkpoint(tmp_path, every_rounds=1)
    how: dict[str, Any] = {"loss": "squared", "workers": 2, "settings": Settings(tol=1e-12)}
    first, second = open_session(every, None), open_session(every, None)

    def meanwhile(record: Any) -> None:
        if record.round == 3:
            with pytest.raises(Stopped):
                solve_data(data, reg_lambda=0.5, checkpoint=second, callbacks=[stop_after(6)], **how)  # type: ignore[arg-type]
        stop_after(7)(record)

    with pytest.raises(Stopped):
        solve_data(data, reg_lambda=0.05, checkpoint=first, callbacks=[meanwhile], **how)  # type: ignore[arg-type]
    assert numbers(tmp_path) == [5, 6, 6, 7]
    for session, lam, other in ((first, 0.05, 0.5), (second, 0.5, 0.05)):
        with pytest.raises(ValueError, match=f"lambda is {other:g} here and {lam:g} there"):
            solve_data(data, reg_lambda=other, resume=session.last, **how)
        mine = tmp_path / f"{lam:g}"
        mine.mkdir()
        whole = solve_data(data, reg_lambda=lam, **how)
        same_bits(solve_data(data, reg_lambda=lam, resume=session.last, checkpoint=mine, **how), whole)
    kept = set(versions(tmp_path, second))
    solve_data(data, reg_lambda=0.05, resume=first.last, **how)  # goes on being kept there, beside the other's
    assert set(versions(tmp_path, second)) == kept
    assert len(versions(tmp_path, first)) == 2
    assert first.writer is not None
    first.writer.clear()
    assert numbers(tmp_path) == [5, 6]


def clear(place: Any) -> None:
    writer = open_session(None, place).writer
    assert writer is not None
    writer.clear()


def versions(folder: Path, of: CheckpointSession) -> list[str]:
    assert of.last is not None
    return [path.name for path in folder.glob(f"version-*{of.last[-9:]}")]


def test_a_version_that_was_not_finished_does_not_count(tmp_path: Path) -> None:
    data = random_problem()
    how = halfway(data, tmp_path)
    whole = solve_data(data, **how)
    (damaged := version(tmp_path, 3) / "manifest.json").write_text('{"kind": "dmtrl chec')
    (tmp_path / "version-000004").mkdir()
    assert newest(str(tmp_path)) == str(version(tmp_path, 2))
    same_bits(solve_data(data, resume=tmp_path, **how), whole)
    assert not damaged.parent.exists(), "a leftover that is removed"


def test_a_version_that_was_renamed_can_be_resumed_more_than_once(tmp_path: Path) -> None:
    data, kept = random_problem(), tmp_path / "kept"
    how = halfway(data, tmp_path / "run")
    whole = solve_data(data, **how)
    version(tmp_path / "run", 3).rename(kept)
    for place in (tmp_path / "elsewhere", kept):
        records: list[Any] = []
        checkpoint = Checkpoint(place, every_rounds=1)
        with pytest.raises(Stopped):
            solve_data(data, resume=kept, checkpoint=checkpoint, callbacks=[stop_after(9)], **how)
        same_bits(solve_data(data, resume=place, callbacks=[records.append], **how), whole)
        assert records[0].round == 9


@given(
    faults=st.dictionaries(st.integers(4, 90), st.sampled_from(["before", "after"]), max_size=25),
    every=st.integers(1, 5),
)
@settings(max_examples=8)
def test_lost_workers_come_back_from_the_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, faults: dict[int, str], every: int
) -> None:
    data, options = random_problem("hinge", m=5, rows=8), Settings(tol=1e-5)
    whole = solve(Problem.of(data, loss="hinge", reg_lambda=0.1), Execution(LocalOptions(workers=3), settings=options))
    place = tmp_path_factory.mktemp("checkpoint")
    with RecoveringEngine(Fragile(data, "hinge", 3, faults)) as engine:
        checkpoint = Checkpoint(place, every_rounds=every)
        found = solve(
            Problem.of(data, loss="hinge", reg_lambda=0.1), Execution(engine, settings=options, checkpoint=checkpoint)
        )
        same_bits(found, whole)


@pytest.mark.parametrize("moment", [36, 39, 42])
def test_an_incomplete_save_restores_no_worker(tmp_path: Path, moment: int) -> None:
    """The third checkpoint fails at one worker, and its folder is removed. A worker lost after that is restored from
    the second."""
    data = random_problem("hinge", m=5, rows=8)
    how: dict[str, Any] = {"loss": "hinge", "reg_lambda": 0.1, "settings": Settings(tol=1e-5)}
    whole = solve_data(data, workers=3, **how)
    session = open_session(Checkpoint(tmp_path, every_rounds=2), None)

    def stand_in_the_way(record: Any) -> None:
        if record.round == 5:
            third = version(tmp_path, 2).name.replace("2", "3", 1)
            (tmp_path / third / "worker-0-0.npz").mkdir(parents=True)

    with RecoveringEngine(Fragile(data, "hinge", 3, {moment: "before", moment + 1: "after"})) as engine:
        with pytest.warns(CheckpointWarning, match=r"version-000002-\w+, is kept"):
            found = solve_data(data, engine=engine, callbacks=[stand_in_the_way], checkpoint=session, **how)
        same_bits(found, whole)
        assert engine.losses == 2
    assert session.last == newest(str(tmp_path))


@pytest.mark.parametrize("moment", [30, 36, 39, 44])  # the path begins anew at 29; 33 and 39 are saves
def test_a_worker_lost_after_a_resume_needs_no_removed_version(tmp_path: Path, moment: int) -> None:
    """A path starts again after the resume, and the version that the run resumed from has been deleted by then."""
    data, place = random_problem("hinge", m=4, rows=8), Checkpoint(tmp_path, every_rounds=2)

    def choose(
        faults: dict[int, str], session: CheckpointSession | None, on_round: Any = None
    ) -> tuple[CvResults, RecoveringEngine]:
        problem, grid = Problem.of(data, loss="hinge", reg_lambda=0.1), Grid([0.1], [0.0, 1.0], folds=2)
        callbacks = [] if on_round is None else [CVCallback(on_round=on_round)]
        with RecoveringEngine(Fragile(data, "hinge", 2, faults)) as engine:
            how = Execution(engine, Settings(tol=1e-6, max_rounds=9), session, callbacks=callbacks)
            return search(problem, grid, how).results, engine

    whole, _ = choose({}, None)
    with pytest.raises(Stopped):
        choose({}, open_session(place, None), stop_after(3))
    begun = newest(str(tmp_path))
    assert begun is not None
    resumed, engine = choose({moment: "before"}, open_session(place, tmp_path))
    assert engine.losses == 1
    assert not Path(begun).exists()
    for name, values in vars(whole).items():
        assert values.tobytes() == getattr(resumed, name).tobytes(), name


class OutOfReach:
    def load(self) -> Blocks:
        raise ConnectionError("the rows are out of reach")


def test_only_errors_of_writing_a_checkpoint_become_warnings(tmp_path: Path) -> None:
    """A worker is lost while it saves and cannot read its rows again: that ends the run, which says what it is."""
    data = random_problem("hinge", m=4, rows=8)
    with RecoveringEngine(carrier := Fragile(data, "hinge", 2, {10: "before"})) as engine:
        carrier.sources = [OutOfReach(), OutOfReach()]
        with pytest.raises(ConnectionError, match="the rows are out of reach"):
            solve(
                Problem.of(data, loss="hinge", reg_lambda=0.1),
                Execution(engine, checkpoint=Checkpoint(tmp_path, every_rounds=1)),
            )
    names = [path.name for path in version(tmp_path, 1).iterdir()]
    assert names == ["worker-0-0.npz"], "the other one was saving"


def test_a_version_that_goes_while_it_is_looked_at_does_not_count(tmp_path: Path) -> None:
    data = random_problem()
    halfway(data, tmp_path)
    manifest = version(tmp_path, 3) / "manifest.json"
    manifest.unlink()
    manifest.symlink_to(tmp_path / "gone")  # listed, and not there
    assert newest(str(tmp_path)) == str(version(tmp_path, 2))


def test_a_url_needs_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)  # as if it were not installed
    with pytest.raises(OSError, match=r'is a URL, which needs fsspec: pip install "dmtrl\[ray\]"'):
        open_session(Checkpoint("memory://some/bucket"), True)


def test_a_worker_that_stays_lost_ends_the_run_and_names_the_checkpoint(tmp_path: Path) -> None:
    data = random_problem(m=4)
    faults = dict.fromkeys(range(40, 200), "before")
    how: dict[str, Any] = {"loss": "squared", "reg_lambda": 0.05, "settings": Settings(tol=1e-9)}
    with RecoveringEngine(Fragile(data, "squared", 2, faults)) as engine, pytest.raises(WorkerLostError) as lost:
        solve_data(data, engine=engine, checkpoint=Checkpoint(tmp_path, every_rounds=3), **how)
    folder = newest(str(tmp_path))
    assert f"resume={folder!r}" in str(lost.value)
    same_bits(
        solve_data(data, workers=2, resume=folder, **how),
        solve_data(data, workers=2, **how),
    )


def same_model(one: Any, other: Any) -> None:
    for name in ("coef_", "intercept_", "common_coef_"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    assert (one.certificate_, one.reg_lambda_) == (other.certificate_, other.reg_lambda_)
    assert [r["gap"] for r in one.history_] == [r["gap"] for r in other.history_]
    if hasattr(one, "cv_results_"):
        for name, values in vars(one.cv_results_).items():
            assert values.tobytes() == getattr(other.cv_results_, name).tobytes(), name


@pytest.mark.parametrize("model", [MTRLRegressor(tol=1e-6), MTRLClassifier(tol=1e-6), MTRLClassifier(loss="hinge")])
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_an_estimator_resumes(tmp_path: Path, model: Any, stop: int) -> None:
    X, y, tasks = table(2 if isinstance(model, MTRLClassifier) else 0)
    whole = model.fit(X, y, tasks=tasks)
    stopping = type(model)(**(model.get_params() | {"callbacks": [stop_after(stop)]}))
    with pytest.raises(Stopped):
        stopping.fit(X, y, tasks=tasks, checkpoint=Checkpoint(tmp_path, every_rounds=1))
    assert not hasattr(stopping, "coef_")
    resumed = type(model)(**model.get_params()).fit(X, y, tasks=tasks, checkpoint=tmp_path, resume=True)
    same_model(resumed, whole)


@pytest.mark.parametrize("stop", [1, 4, 12])
@pytest.mark.parametrize(
    "model",
    [
        MTRLRegressorCV(lambdas=(1.0, 0.1), commons=(0.0, 1.0), cv=3, tol=1e-5),
        MTRLClassifierCV("hinge", lambdas=(1.0, 0.1), commons=(0.0, 1.0), cv=3, n_jobs=2),
        MTRLClassifierCV(lambdas=(1.0, 0.1), commons=(0.0,), cv=3),
    ],
    ids=["squared", "hinge", "three classes"],
)
def test_cross_validation_resumes(tmp_path: Path, model: Any, stop: int) -> None:
    """Stopped while choosing: what was written last lies in the middle of some fit, or between two."""
    classes = {"MTRLRegressorCV": 0, "MTRLClassifierCV": 3 if len(model.commons) == 1 else 2}[type(model).__name__]
    X, y, tasks = table(classes)
    whole = model.fit(X, y, tasks=tasks)
    place = Checkpoint(tmp_path, every_rounds=1 if stop == 1 else 2 + stop % 4)
    stop = min(stop, whole.cv_results_.rounds.size)

    def copy(**callbacks: Any) -> Any:
        return type(model)(**model.get_params() | {"callbacks": [CVCallback(**callbacks)]})

    def on_fit(done: int, total: int) -> None:
        if done == stop:
            raise Stopped

    with pytest.raises(Stopped):
        copy(on_fit=on_fit).fit(X, y, tasks=tasks, checkpoint=place)
    again = open_session(Checkpoint(tmp_path, every_rounds=3), tmp_path)
    # Paths side by side meet for a checkpoint every two rounds, so each may have finished one more fit since the last.
    unsaved = 1 if model.n_jobs is None else 3
    assert len(again.fits.scores) >= stop - unsaved
    same_model(copy().fit(X, y, tasks=tasks, checkpoint=again), whole)

    # now it is over: the newest version is the end of the fit on all rows
    def nothing_left(record: Any) -> None:
        pytest.fail("nothing is left to do")

    finished = copy(on_round=nothing_left, on_final_round=nothing_left)
    same_model(finished.fit(X, y, tasks=tasks, resume=tmp_path), whole)
