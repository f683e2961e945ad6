"""Processes, runs and folders of a study over NVIDIA FLARE, without FLARE's own processes."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

pytest.importorskip("nvflare", reason='needs NVIDIA FLARE: pip install "dmtrl[federation]"')

from dmtrl.cli.main import main
from dmtrl.federation.coordinator.results import StudyEvent
from dmtrl.federation.flare import processes
from dmtrl.federation.flare.jobs import fault_in_job, write_job
from dmtrl.federation.flare.restarts import RestartingHandle
from dmtrl.federation.flare.server.runs import (
    FAILED,
    NOT_BEGUN,
    RUNNING,
    ProgressRecord,
    State,
    current,
    describe,
    new_run,
    runs,
    set_current,
)
from dmtrl.federation.flare.server.sites import Sites

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def _wait(condition: Callable[[], bool]) -> None:
    assert processes.wait_until(condition, 60, 0.02)


class Started:
    """Starts processes and remembers them."""

    def __init__(self, command: list[str]):
        self.command, self.processes = command, list[subprocess.Popen[bytes]]()

    def __call__(self) -> "subprocess.Popen[bytes]":
        self.processes.append(subprocess.Popen(self.command, start_new_session=True))
        return self.processes[-1]


@pytest.mark.subprocess
def test_a_killed_job_process_is_started_again_until_it_is_terminated() -> None:
    started = Started(SLEEP)
    handle = RestartingHandle(started)
    waiting = threading.Thread(target=handle.wait)
    waiting.start()
    for count in (1, 2):
        _wait(lambda count=count: len(started.processes) == count)
        os.kill(started.processes[-1].pid, signal.SIGKILL)
    _wait(lambda: len(started.processes) == 3)
    handle.terminate()
    waiting.join(60)
    assert not waiting.is_alive()
    assert len(started.processes) == 3
    assert all(process.poll() is not None for process in started.processes)


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.subprocess
def test_a_job_process_that_ends_on_its_own_is_not_started_again(code: int) -> None:
    started = Started([sys.executable, "-c", f"raise SystemExit({code})"])
    handle = RestartingHandle(started)
    handle.wait()
    assert len(started.processes) == 1
    assert handle.poll() == code


class Sleeper(processes.KitProcess):
    def __init__(self, kit: Path):
        self._kit = kit

    @property
    def kit(self) -> Path:
        return self._kit

    def prepare(self) -> list[str]:
        return SLEEP


@pytest.mark.subprocess
def test_a_process_in_the_background(tmp_path: Path) -> None:
    sleeper = Sleeper(tmp_path)
    assert processes.running(tmp_path) is None
    assert not sleeper.stop()
    assert sleeper.start()
    process = processes.running(tmp_path)
    assert process is not None
    assert process.cmdline() == SLEEP
    assert not sleeper.start()
    assert not processes.managed(tmp_path)
    assert not processes.connected(process, 1)
    assert sleeper.stop()
    assert not psutil.pid_exists(process.pid)
    assert processes.running(tmp_path) is None
    # the number of another process is not taken for ours
    (tmp_path / "process.json").write_text(json.dumps({"process": os.getpid(), "created": 1.0, "managed": False}))
    assert processes.running(tmp_path) is None


def test_the_record_of_a_run(tmp_path: Path) -> None:
    assert runs(tmp_path) == []
    first, second = new_run(tmp_path), new_run(tmp_path)
    (tmp_path / "runs" / "999").mkdir()
    new_run(tmp_path)
    assert [run.number for run in runs(tmp_path)] == [1, 2, 999, 1000]
    assert first.state() == State(NOT_BEGUN)
    second.set_state(RUNNING)
    second.set_state(FAILED, "va: no")
    assert second.state() == State(FAILED, "va: no")
    set_current(tmp_path, second, 7.0)
    assert current(tmp_path) == (second, 7.0)

    carrier = Sites(["a", "b"], lambda name, fields: None)
    record = ProgressRecord(first, carrier)
    record(StudyEvent("contacting the sites", sites=("a", "b")))
    record(StudyEvent("choosing lambda", 0.5, "1 of 2 fits", 3, 0.25, ("a", "b")))
    carrier.close()
    with open(first.folder / "progress.jsonl", "a") as file:
        file.write('{"stage": "cut')  # by a kill
    entries = list(first.progress())
    assert [entry.get("stage") for entry in entries] == ["contacting the sites", "choosing lambda", None]
    assert describe(entries[1]) == "1 of 2 fits, round 3, relative gap 25.00%, 2 sites"
    assert describe({**entries[1], "present": ["a"]}).endswith("away: b")
    assert list(first.progress(2)) == [{}]


def test_a_job_carries_class_names_and_sites_only(tmp_path: Path) -> None:
    write_job(tmp_path, ["a", "b"])
    files = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert set(files) == {"meta.json", "config_fed_server.json", "config_fed_client.json"}
    meta = json.loads(files["meta.json"])
    assert meta["deploy_map"] == {"app": ["server", "a", "b"]}
    assert meta["mandatory_clients"] == ["a", "b"]
    assert json.loads(files["config_fed_client.json"])["executors"][0]["executor"]["args"] == {}
    assert fault_in_job(tmp_path / "app") is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda job: job["executors"][0]["executor"]["args"].update(folder="/etc"), "passed arguments"),
        (lambda job: job["executors"][0]["executor"].update(path="os.system"), "named a class"),
        (lambda job: job["executors"].append(job["executors"][0]), "named a class"),
        (lambda job: job["components"].append({"id": "x", "path": "a.B", "args": {}}), "other components"),
        (lambda job: job.update(task_data_filters=[]), "other components"),
        (lambda job: job.pop("executors"), "could not be read"),
    ],
)
def test_jobs_that_a_site_does_not_accept(tmp_path: Path, change: Callable[[Any], object], fault: str) -> None:
    write_job(tmp_path, ["a", "b"])
    config = tmp_path / "app" / "config" / "config_fed_client.json"
    job = json.loads(config.read_text())
    change(job)
    config.write_text(json.dumps(job))
    assert fault in str(fault_in_job(tmp_path / "app"))
    write_job(tmp_path, ["a", "b"])
    (tmp_path / "app" / "custom").mkdir()
    assert "code of its own" in str(fault_in_job(tmp_path / "app"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("study", "status"), "is not a coordinator's folder"),
        (("study", "run"), "is not a coordinator's folder"),
        (("site", "start"), "has not joined a study"),
        (("site", "join", "study.toml"), "is not an invitation"),
    ],
)
def test_errors_are_sentences(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "study.toml").write_text("format = 1\n")
    where = ["-C" if words[0] == "study" else "--site", str(tmp_path)]
    given = [str(tmp_path / word) if word.endswith(".toml") else word for word in words]
    done = CliRunner().invoke(main, [*given, *where])
    assert done.exit_code == 1
    assert said in done.output
    assert "Traceback" not in done.output
