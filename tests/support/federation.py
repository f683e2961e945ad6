"""A federation of NVIDIA FLARE on this machine, with faults: its processes are killed and suspended."""

import csv
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from dmtrl.federation.flare import processes
from dmtrl.federation.flare.loopback import Loopback, free_port
from dmtrl.federation.flare.server.runs import Run, runs
from support.waiting import CEILING, wait_for

SITES = ("cleveland", "hungarian", "va")
RUN_CEILING = 1800.0  # seconds after which a run counts as hanging; it takes many times longer on a loaded machine
STUDY = """
format = 1
name = "heart"

[target]
column = "num"
kind = "classification"
negative = ["0"]
positive = ["1", "2", "3", "4"]

[fit]
loss = "logistic"
lambda = [0.01, 0.1, 1.0]
common = [0.1, 1.0]
folds = 3

[limits]
sites = 2
on_lost = "go_on"

[columns]
age = {kind = "number"}
sex = {kind = "category", levels = ["0", "1"]}
cp = {kind = "category", levels = ["1", "2", "3", "4"]}
trestbps = {kind = "number"}
chol = {kind = "number"}
thalach = {kind = "number"}
exang = {kind = "category", levels = ["0", "1"]}
oldpeak = {kind = "number"}
"""


def heart_files(folder: Path, real: Path) -> dict[str, Path]:
    """The files of three hospitals, or where they are missing, files with the same columns and invented rows."""
    if (real / "va.csv").exists():
        return {site: real / f"{site}.csv" for site in SITES}
    rng = np.random.default_rng(0)
    header = ("age", "sex", "cp", "trestbps", "chol", "thalach", "exang", "oldpeak", "num")
    for site, rows in zip(SITES, (300, 290, 200), strict=True):
        with open(folder / f"{site}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            for _ in range(rows):
                age, pulse, ill = rng.integers(30, 78), rng.integers(80, 200), rng.integers(0, 2)
                depression = round(float(rng.exponential()) + ill * 0.7, 1)
                some = [rng.integers(0, 2), rng.integers(1, 5), rng.integers(95, 200), rng.integers(120, 420)]
                writer.writerow([age, *some, pulse - 20 * ill, rng.integers(0, 2), depression, ill])
    return {site: folder / f"{site}.csv" for site in SITES}


class Relay:
    """Passes a connection on and records its bytes, in both directions."""

    def __init__(self, target: int):
        self.port, self._target = free_port(), target
        self.bytes = bytearray()
        self._listener = socket.create_server(("localhost", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("localhost", self._target))
            except OSError:  # the server is away
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self.bytes += data
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()

    def close(self) -> None:
        self._listener.close()


def connect_through(kit: Path, port: int) -> None:
    """Make a site connect to another port than the server's."""
    path = kit / "startup" / "fed_client.json"
    content = json.loads(path.read_text())
    content["servers"][0]["service"]["target"] = f"localhost:{port}"
    path.write_text(json.dumps(content))
    path = kit / "invitation.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "port": port}))


class StudyRun:
    """`dmtrl study run` as a process, and what happens to the federation meanwhile."""

    def __init__(self, federation: Loopback, *options: str):
        self._federation = federation
        self._before = len(runs(federation.coordinator.folder)) - ("--resume" in options)
        self._output: str | None = None
        command = [sys.executable, "-m", "dmtrl.cli.main", "study", "run", "-C", str(federation.coordinator.folder)]
        self._process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    @property
    def run(self) -> Run:
        """The run that was begun, or the one that is resumed."""
        folder = self._federation.coordinator.folder
        wait_for(lambda: len(runs(folder)) > self._before or self.ended, "a run to begin")
        return runs(folder)[self._before]

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def entries(self) -> list[dict[str, Any]]:
        return list(self.run.progress())

    def reaches(self, share: float = 0.0) -> bool:
        """Wait for a new update with this share of the cross-validation done; False if it is over before that."""
        before = len(self.entries())

        def over() -> bool:
            return self.ended or any(entry.get("stage") == "fitting all rows" for entry in self.entries()[before:])

        def arrived() -> bool:
            new = self.entries()[before:]
            return any(entry.get("stage") == "choosing lambda" and entry["done"] >= share for entry in new)

        wait_for(lambda: arrived() or over(), f"progress beyond {share}")
        return not over()

    def finish(self) -> tuple[int, str]:
        """The exit code and everything that was printed."""
        if self._output is None:
            self._output, _ = self._process.communicate(timeout=RUN_CEILING)
        return self._process.returncode, self._output

    def kill(self) -> None:
        """End the process if it still runs."""
        if self._output is None:
            self._process.kill()
            self._output, _ = self._process.communicate()


def kill(*found: psutil.Process | None) -> None:
    """kill -9; there must be something to kill."""
    alive = [process for process in found if process is not None]
    assert alive, "there is no process to kill"
    for process in alive:
        process.kill()
    _, left = psutil.wait_procs(alive, timeout=CEILING)
    assert not left


def all_processes(kit: Path) -> list[psutil.Process]:
    """The process of a kit and its job processes."""
    process = processes.running(kit)
    return ([process] if process is not None else []) + processes.job_processes(kit)


def leftovers(folder: Path) -> list[Mapping[str, Any]]:
    """Processes whose command names this folder, except those of the tests themselves."""
    mine = {psutil.Process().pid, *(parent.pid for parent in psutil.Process().parents())}
    return [
        process.info
        for process in psutil.process_iter(["pid", "cmdline"])
        if process.pid not in mine and any(str(folder) in word for word in process.info["cmdline"] or [])
    ]


def suspend(seconds: float, found: list[psutil.Process]) -> None:
    assert found, "there is no process to suspend"
    for process in found:
        process.suspend()
    time.sleep(seconds)
    for process in found:
        process.resume()
