"""Settings, Checkpoint, RayOptions, solve and the estimators: an invalid value is one clear error before anything runs,
and a valid one reaches the run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from dmtrl import (
    Checkpoint,
    LocalOptions,
    MTRLClassifier,
    MTRLClassifierCV,
    MTRLRegressor,
    MTRLRegressorCV,
    Settings,
)
from dmtrl.engines.ray import RayOptions
from dmtrl.solver import coordinator
from dmtrl.solver.checkpoint import newest
from dmtrl.solver.methods.asynchronous import AsynchronousSplitting
from support.checkpoints import table
from support.problems import random_problem
from support.solving import solve_data

STANDARD: dict[str, Any] = {"loss": "squared", "reg_lambda": 0.1}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"max_rounds": 2.5}, "max_rounds must be an integer of at least 1, got 2.5"),
        ({"steps": 2.5}, "steps must be None, a positive integer, .* got 2.5"),
        ({"steps": (3, "x")}, "steps must be None, a positive integer"),
        ({"tol": np.inf}, "tol must be a finite number, got inf"),
        ({"tol": "0.1"}, "tol must be a finite number, got '0.1'"),
        ({"initial_step": np.inf}, "initial_step must be None or positive"),
    ],
)
def test_settings(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Settings(**options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"workers": 2.5}, "workers must be None or a positive integer, got 2.5"),
        ({"workers": "2"}, "workers must be None or a positive integer, got '2'"),
        ({"workers": 0}, "workers must be None or a positive integer"),
        ({"workers": True}, "workers must be None or a positive integer"),
        ({"cpus": np.inf}, "cpus must be None, or finite and not negative, got inf"),
        ({"cpus": -1}, "cpus must be"),
        ({"cpus": "1"}, "cpus must be"),
        ({"resources": None}, "resources must be a mapping of names to amounts, .*, got None"),
        ({"resources": {"fast": "1"}}, "resources must be a mapping"),
        ({"resources": ["fast"]}, "resources must be a mapping"),
        ({"recovery_timeout": None}, "recovery_timeout must be a positive number of seconds, got None"),
        ({"recovery_timeout": np.nan}, "recovery_timeout must be a positive number of seconds, got nan"),
        ({"recovery_timeout": 0}, "recovery_timeout must be a positive number of seconds, got 0"),
        ({"strategy": "SPRED"}, "strategy must be 'SPREAD', 'DEFAULT' or one of Ray's objects, got 'SPRED'"),
    ],
)
def test_ray_options(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RayOptions(**options)


def test_ray_options_of_numpy() -> None:
    RayOptions(workers=np.int64(2), cpus=np.float32(0.5), resources={"fast": np.int32(1)}, recovery_timeout=np.int64(9))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"path": None}, "the path of a checkpoint must be a folder or URL, as str or Path, got None"),
        ({"path": ""}, "the path of a checkpoint must be .* got ''"),
        ({"path": b"x"}, "the path of a checkpoint must be .* got b'x'"),
        ({"path": "x", "every_rounds": 0.5}, "every_rounds must be a positive integer, got 0.5"),
        ({"path": "x", "every_rounds": "3"}, "every_rounds must be a positive integer, got '3'"),
        ({"path": "x", "every_rounds": True}, "every_rounds must be a positive integer, got True"),
        ({"path": "x", "every_seconds": "3"}, "every_seconds must be positive, got '3'"),
        ({"path": "x", "every_seconds": np.nan}, "every_seconds must be positive, got nan"),
    ],
)
def test_checkpoints(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Checkpoint(**words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"checkpoint": True}, "the path of a checkpoint must be a folder or URL, as str or Path, got True"),
        ({"checkpoint": ""}, "the path of a checkpoint must be .* got ''"),
        ({"resume": 5}, "resume must be a folder or URL, as str or Path, got 5"),
        ({"resume": ""}, "resume must be .* got ''"),
    ],
)
def test_invalid_checkpoint_arguments_are_refused(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        solve_data(random_problem(), **STANDARD, **words)


def test_numbers_of_numpy_can_be_kept(tmp_path: Path) -> None:
    data = random_problem("squared", m=4)
    rows = np.diff(data.starts)
    numbers: dict[str, Any] = {"seed": np.int64(1), "max_rounds": np.int32(40), "tol": np.float32(0.25)}
    mine = Settings(steps=tuple(rows), local_solver="sdca", **numbers)
    plain = Settings(steps=tuple(rows.tolist()), local_solver="sdca", seed=1, max_rounds=40, tol=0.25)
    assert mine == plain
    assert Settings(steps=rows).steps == plain.steps  # type: ignore[arg-type]
    kept = solve_data(data, settings=mine, checkpoint=Checkpoint(tmp_path, every_rounds=1), **STANDARD)
    again = solve_data(data, settings=plain, resume=tmp_path, **STANDARD)  # the same settings, says the file
    assert kept.W.tobytes() == again.W.tobytes() == solve_data(data, settings=plain, **STANDARD).W.tobytes()


def test_a_fresh_run_leaves_the_checkpoint_of_another_alone(tmp_path: Path) -> None:
    data = random_problem("squared", m=4)
    old, other = tmp_path / "old", tmp_path / "other"
    first = solve_data(data, checkpoint=Checkpoint(old, every_rounds=1), **STANDARD)
    solve_data(data, checkpoint=other, **STANDARD)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    rounds: list[int] = []
    heard = {"callbacks": [lambda record: rounds.append(record.round)]}
    sentence = "holds the checkpoint of another run; continue that run with resume=.*, or name another folder"
    for words in (
        {"checkpoint": old},
        {"checkpoint": str(old), "resume": False},
        {"checkpoint": Checkpoint(old, every_rounds=2)},
        {"checkpoint": other, "resume": old},
    ):
        with pytest.raises(FileExistsError, match=sentence):
            solve_data(data, **STANDARD, **heard, **words)
    assert rounds == []
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    newest_version = newest(str(old))
    assert newest_version is not None
    for words in ({"resume": True}, {"resume": f"{old}/"}, {"resume": newest_version}):
        assert solve_data(data, **STANDARD, checkpoint=old, **words).W.tobytes() == first.W.tobytes()


ESTIMATORS = [
    MTRLRegressor(reg_lambda=0.01, tol=1e-4),
    MTRLClassifier(tol=1e-4),
    MTRLRegressorCV(lambdas=(0.1, 0.01), commons=(0.0, 1.0), cv=3),
    MTRLClassifierCV(lambdas=(0.1, 0.01), commons=(0.0,), cv=3),
]


@pytest.mark.parametrize("staleness", [-1, 1.5, "2", None, True])
def test_a_staleness_must_be_an_integer(staleness: Any) -> None:
    for options in (LocalOptions, RayOptions):
        with pytest.raises(ValueError, match="max_staleness must be an integer of at least 0, got"):
            options(max_staleness=staleness)


@pytest.mark.parametrize("model", ESTIMATORS, ids=lambda model: type(model).__name__)
def test_estimators_with_asynchronous_rounds(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run of a fit is one, those that choose lambda too, and it ends at the same optimum."""
    runs: list[int] = []

    class Counted(AsynchronousSplitting):
        def __init__(self, *about: Any, **more: Any) -> None:
            super().__init__(*about, **more)
            runs.append(len(self._context.layout.positions))

    monkeypatch.setattr(coordinator, "AsynchronousSplitting", Counted)
    X, y, tasks = table(2 if isinstance(model, MTRLClassifier) else 0)
    synchronous = clone(model).fit(X, y, tasks=tasks)
    assert runs == []
    asynchronous = clone(clone(model).set_params(engine=LocalOptions(max_staleness=8), n_jobs=2))
    assert asynchronous.get_params()["engine"].max_staleness == 8
    asynchronous.fit(X, y, tasks=tasks)
    searches = hasattr(asynchronous, "cv_results_")
    fits = int((asynchronous.cv_results_.rounds > 0).sum()) if searches else 0
    assert runs == ([1] * (fits + 1) if searches else [2]), "two threads share the folds, and no fold is fitted twice"
    assert asynchronous.certificate_.relative_gap <= asynchronous.tol
    if not searches:
        primal, other = synchronous.certificate_.primal, asynchronous.certificate_.primal
        assert abs(primal - other) <= model.tol * max(primal, other)
        asynchronous.set_params(warm_start=True).fit(X, y, tasks=tasks)
        assert asynchronous.history_[0]["primal"] == pytest.approx(other, rel=1e-9), "it begins where it was"
    else:
        # each fit is within its own tol of the best
        nearly = pytest.approx(synchronous.cv_results_.mean("loss"), rel=0.1)
        assert asynchronous.cv_results_.mean("loss") == nearly
