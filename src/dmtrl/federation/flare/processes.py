"""Processes that go on after the command that started them: the server, and a site."""

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil

from dmtrl import storage

_GRACE = 15.0  # seconds in which processes may end on their own
_FILE = "process.json"  # in the kit
Echo = Callable[[str], None]  # receives a command before it runs


def quiet(command: str) -> None:
    """Prints nothing; the default `echo`."""


class KitProcess(ABC):
    """What runs a kit: the server of a study, or a site."""

    @property
    @abstractmethod
    def kit(self) -> Path: ...

    @abstractmethod
    def prepare(self) -> list[str]:
        """Apply the settings of the kit, and return the command that runs it."""

    def start(self, echo: Echo = quiet) -> bool:
        """Start the process in the background; False if it is running already. echo: receives the command."""
        if running(self.kit) is not None:
            return False
        command = self.prepare()
        echo(" ".join(command))
        with open(self.kit / "process.log", "ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.kit, start_new_session=True
            )
        _record(self.kit, process.pid)
        return True

    def run(self, echo: Echo = quiet) -> NoReturn:
        """Run the kit in this process, which a service manager starts again when it ends. Does not return."""
        command = self.prepare()
        echo(" ".join(command))
        _record(self.kit, os.getpid(), managed=True)
        os.chdir(self.kit)
        os.execv(command[0], command)

    def stop(self) -> bool:
        """Stop the process and all processes that it started; False if it was not running."""
        process = running(self.kit)
        left = job_processes(self.kit)
        if process is not None:
            process.terminate()
            left.append(process)
        _, left = psutil.wait_procs(left, timeout=_GRACE)
        for survivor in left:
            with suppress(psutil.NoSuchProcess):
                survivor.kill()
        psutil.wait_procs(left, timeout=_GRACE)
        (self.kit / _FILE).unlink(missing_ok=True)
        return process is not None


def command_of(kit: Path, kind: str, name: str) -> list[str]:
    """The command that runs a kit. `kind`: server or client."""
    program = {"server": "server.server_train", "client": "client.client_train"}[kind]
    settings = ["secure_train=true", f"uid={name}", f"org={organisation(name)}", "config_folder="]
    path = str(kit.resolve())
    module = f"nvflare.private.fed.app.{program}"
    return [sys.executable, "-u", "-m", module, "-m", path, "-s", f"fed_{kind}.json", "--set", *settings]


def organisation(name: str) -> str:
    """FLARE gives every participant an organisation, whose name has no hyphen or dot."""
    return name.replace("-", "_").replace(".", "_")


def _record(kit: Path, number: int, managed: bool = False) -> None:
    noted = {"process": number, "created": psutil.Process(number).create_time(), "managed": managed}
    storage.write(str(kit / _FILE), json.dumps(noted).encode())  # whole: a command may be reading it


def managed(kit: Path) -> bool:
    """Whether a service manager runs the kit, and will start it again."""
    path = kit / _FILE
    return path.exists() and bool(json.loads(path.read_text())["managed"])


def running(kit: Path) -> psutil.Process | None:
    """The process that runs the kit, if it is alive."""
    try:
        noted = json.loads((kit / _FILE).read_text())
        process = psutil.Process(noted["process"])
        # a number is used again for another process some day
        same = abs(process.create_time() - noted["created"]) < 1.0
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None


def job_processes(kit: Path) -> list[psutil.Process]:
    """The job processes of a kit, also those that outlived their parent."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if str(kit.resolve()) in command and any(
            word.endswith(("worker_process", "runner_process")) for word in command
        ):
            found.append(process)
    return found


def connected(process: psutil.Process, port: int) -> bool:
    """Whether the process has a connection to this port of another machine or of this one."""
    try:
        connections = process.net_connections("tcp")
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_ESTABLISHED and c.raddr and c.raddr.port == port for c in connections)


def wait_until(condition: Callable[[], bool], timeout: float, step: float = 0.2) -> bool:
    """Whether the condition became true in time."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(step)
    return True
