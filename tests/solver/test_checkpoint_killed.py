"""Runs killed with SIGKILL, and full disks: the same bits after a resume."""

import contextlib
import errno
import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmtrl import Checkpoint, MTRLClassifierCV, Outcome, Settings
from dmtrl.solver.checkpoint import newest
from support.checkpoints import CVCallback
from support.problems import random_problem
from support.solving import solve_data
from support.waiting import CEILING, alive, be_slow, wait_for

HOW: dict[str, Any] = {"loss": "hinge", "reg_lambda": 0.01, "workers": 3, "settings": Settings(tol=1e-6)}
CV: dict[str, Any] = {"loss": "hinge", "lambdas": (0.1, 0.01), "commons": (0.0, 1.0), "cv": 3, "random_state": 1}


def digest(outcome: Outcome) -> str:
    return hashlib.sha256(outcome.W.tobytes() + outcome.dual.B.tobytes()).hexdigest()


def wait_for_the_kill(place: str, number: str) -> None:
    """Pause once a few more versions exist than the test waits for, so that no run finishes before it is killed."""
    be_slow(0.02)  # and slowly until then, so that it may strike anywhere
    while version(Path(place)) >= int(number) + 3:
        signal.pause()


def run(place: str, until: str = "", engine: Any = "local") -> Outcome:
    data, checkpoint = random_problem("hinge", m=6, rows=20), Checkpoint(place, every_rounds=1)
    callbacks = [lambda record: wait_for_the_kill(place, until)] if until else []
    return solve_data(data, engine=engine, resume=True, checkpoint=checkpoint, callbacks=callbacks, **HOW)


def ray_run(place: str, until: str = "") -> Outcome:
    from dmtrl.engines.ray import RayOptions

    return run(place, until, RayOptions(workers=3))


def labelled() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(120, 4)), np.repeat(["a", "b", "c"], 40)
    return X, X[:, 0] * np.where(tasks == "c", -1, 1) + 0.3 * rng.normal(size=120) > 0, tasks


def choose(place: str, until: str = "") -> MTRLClassifierCV:
    X, y, tasks = labelled()
    callbacks = [CVCallback(on_fit=lambda done, total: wait_for_the_kill(place, until))] if until else None
    model = MTRLClassifierCV(**CV, callbacks=callbacks)
    return model.fit(X, y, tasks=tasks, checkpoint=Checkpoint(place, every_rounds=1), resume=True)


@contextlib.contextmanager
def child(*words: object) -> Iterator[subprocess.Popen[str]]:
    """A function of this file in a process, and session, of its own, which ends here in any case."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[:2])),
        "PYTHONWARNINGS": "ignore",
    }
    code = "import sys, test_checkpoint_killed as t; print(getattr(t, sys.argv[1])(*sys.argv[2:]))"
    command = [sys.executable, "-c", code, *map(str, words)]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, env=environment, **how) as process:
        try:
            yield process
        finally:
            process.kill()
            for left in _in_session(process.pid):  # Ray ends with its driver, but takes up to a minute to notice
                with contextlib.suppress(ProcessLookupError):
                    os.kill(left, signal.SIGKILL)


def version(place: Path) -> int:
    return int(Path(newest(str(place)) or "-0-").name.split("-")[1])


def kill_at(process: subprocess.Popen[str], place: Path, number: int) -> None:
    """kill -9 once so many versions are complete; where in the next rounds it strikes is chance."""
    wait_for(lambda: alive(process) and version(place) >= number, f"version {number}", every=0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.faults
@pytest.mark.subprocess
def test_the_driver_is_killed_again_and_again(tmp_path: Path) -> None:
    whole = solve_data(random_problem("hinge", m=6, rows=20), **HOW)
    assert len(whole.history) > 20
    for number in (3, 9):
        with child("run", tmp_path, number) as process:
            kill_at(process, tmp_path, number)
    heard = len(whole.history) - version(tmp_path)
    assert 0 < heard < len(whole.history)
    resumed = run(str(tmp_path))
    assert digest(resumed) == digest(whole)
    assert [record.gap for record in resumed.history] == [record.gap for record in whole.history]
    assert len(list(tmp_path.iterdir())) == 2, "nothing half written is left"


@pytest.mark.faults
@pytest.mark.subprocess
def test_a_cross_validation_is_killed(tmp_path: Path) -> None:
    X, y, tasks = labelled()
    whole = MTRLClassifierCV(**CV).fit(X, y, tasks=tasks)
    half = int(whole.cv_results_.rounds.sum()) // 2
    with child("choose", tmp_path, half) as process:
        kill_at(process, tmp_path, half)
    resumed = choose(str(tmp_path))
    assert resumed.coef_.tobytes() == whole.coef_.tobytes()
    assert resumed.certificate_ == whole.certificate_
    for name, values in vars(whole.cv_results_).items():
        assert values.tobytes() == getattr(resumed.cv_results_, name).tobytes(), name


def print_ray_digest(place: str) -> str:
    return digest(ray_run(place))


@pytest.mark.faults
@pytest.mark.ray
@pytest.mark.subprocess
def test_the_driver_of_a_ray_cluster_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with child("ray_run", tmp_path, 5) as process:
        kill_at(process, tmp_path, 5)
    with child("print_ray_digest", tmp_path) as again:
        said, _ = again.communicate(timeout=CEILING)
    assert again.returncode == 0
    whole = solve_data(random_problem("hinge", m=6, rows=20), **HOW)
    assert said.strip().splitlines()[-1] == digest(whole)
    assert version(tmp_path) > 5


def _in_session(session: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def with_a_limit(place: str) -> str:
    """Once four checkpoints are there files may not grow, until twelve rounds later."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(record: Any) -> None:
        if record.round == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, unlimited[1]))
        if record.round == 16:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

    return fit_and_report(place, limit)


def fit_and_report(place: str, callback: Any) -> str:
    """Every warning, the number of the newest version after every round, the files at the end, and the digest."""
    versions: list[int] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        data = random_problem("hinge", m=6, rows=20)
        callbacks = [callback, lambda record: versions.append(version(Path(place)))]
        outcome = solve_data(data, checkpoint=Checkpoint(place, every_rounds=1), callbacks=callbacks, **HOW)
    words = [str(warning.message) for warning in said]
    names = sorted(path.name for path in Path(place).iterdir())
    return "\n".join([*words, str(versions), " ".join(names), digest(outcome)])


def check_report(report: str, reason: str) -> None:
    *warned, versions, names, found = report.strip().splitlines()
    assert found == digest(solve_data(random_problem("hinge", m=6, rows=20), **HOW)), "the fit is not affected"
    assert len(warned) == 1, "one warning, not one per round"
    assert "a checkpoint could not be written" in warned[0]
    assert reason in warned[0]
    assert re.search(r"version-000004-\w+, is kept", warned[0])
    counted = [int(part) for part in versions.strip("[]").split(",")]
    assert counted[:17] == [0, 1, 2, 3, *[4] * 13], "what was there stays, and nothing incomplete counts"
    assert counted[17] > 4
    assert len(names.split()) == 2


@pytest.mark.subprocess
def test_files_may_not_grow_for_a_while(tmp_path: Path) -> None:
    with child("with_a_limit", tmp_path / "c") as process:
        said, _ = process.communicate(timeout=CEILING)
    assert process.returncode == 0
    check_report(said, "File too large")


def test_the_disk_is_full_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, full = os.fsync, threading.Event()

    def fsync(file: int) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    def fill(record: Any) -> None:
        if record.round == 4:
            full.set()
        if record.round == 16:
            full.clear()

    monkeypatch.setattr(os, "fsync", fsync)
    check_report(fit_and_report(str(tmp_path / "c"), fill), "No space left on device")
