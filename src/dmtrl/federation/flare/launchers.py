"""Start job processes again when they crash. FLARE as shipped ends the whole job.

A job process that a signal ended, such as one of the out-of-memory killer, is started again with the same command. Both
launchers are components of the parent processes, see `kits.py`.
"""

import json
import logging
import os
import shlex
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec
from nvflare.apis.workspace import Workspace
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.utils.job_launcher_utils import get_credential_env

from dmtrl.federation.flare.jobs import fault_in_job
from dmtrl.federation.flare.processes import job_processes
from dmtrl.federation.site import Site

_MAX_RESTARTS = 50  # of one job process
_DELAY = 0.5  # seconds before a restart
_RUNNING = "dmtrl_job.json"  # in the workspace, while a job process should be running
logger = logging.getLogger("dmtrl")


class RestartingHandle(JobHandleSpec):
    """A job process, and its replacements. start: a function that starts the process and returns it."""

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]]):
        super().__init__()
        self._start, self._process = start, start()
        self._terminated = threading.Event()

    def terminate(self) -> None:
        self._terminated.set()
        ProcessHandle(process=self._process).terminate()

    def poll(self) -> Any:
        return ProcessHandle(process=self._process).poll()

    def wait(self) -> None:
        for restart in range(_MAX_RESTARTS + 1):
            killed = self._process.wait() < 0  # by a signal
            if restart == _MAX_RESTARTS or not killed or self._terminated.wait(_DELAY):
                return
            logger.warning("the job process was killed and is started again (restart %d)", restart + 1)
            self._process = self._start()
            if self._terminated.is_set():  # while it was being started
                self.terminate()


def _launch(command: str, fl_ctx: FLContext) -> RestartingHandle:
    environment = {**os.environ, **get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {})}
    arguments = shlex.split(command, True)
    # In a group of its own, because FLARE ends groups of processes.
    return RestartingHandle(lambda: subprocess.Popen(arguments, env=environment, start_new_session=True))


class ServerLauncher(ServerProcessJobLauncher):
    """Starts the server's job process, again if it crashes."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        return _launch(self.get_command(job_meta, fl_ctx), fl_ctx)


class SiteLauncher(ClientProcessJobLauncher):
    """Starts the site's job process, again if it crashes. A site that crashed as a whole continues its job when it is
    started again: `Rejoin`."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        workspace: Workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        _refuse_other_jobs(workspace, job_meta[JobConstants.JOB_ID])
        handle = _launch(self.get_command(job_meta, fl_ctx), fl_ctx)
        record = Path(workspace.get_root_dir()) / _RUNNING
        record.write_text(json.dumps({"job": job_meta[JobConstants.JOB_ID]}))
        return handle


def _refuse_other_jobs(workspace: Workspace, job_id: str) -> None:
    """Write a refusal into the ledger of the site, and start nothing, if a job is not that of a study."""
    fault = fault_in_job(Path(workspace.get_app_dir(job_id)))
    if fault is not None:
        Site(Path(workspace.get_root_dir()).parent).refuse_job(fault)
        raise RuntimeError(f"the site refused the job: {fault}")


class Rejoin(FLComponent):
    """Continues the job that ran when the site crashed."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        workspace: Workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        if event_type == EventType.SYSTEM_START:
            record = Path(workspace.get_root_dir()) / _RUNNING
            if record.exists():
                self._rejoin(workspace, json.loads(record.read_text())["job"], fl_ctx)
        elif event_type == EventType.JOB_COMPLETED:
            (Path(workspace.get_root_dir()) / _RUNNING).unlink(missing_ok=True)

    def _rejoin(self, workspace: Workspace, job_id: str, fl_ctx: FLContext) -> None:
        meta = Path(workspace.get_job_meta_path(job_id))
        if not meta.exists():
            return
        for process in job_processes(Path(workspace.get_root_dir())):  # one that outlived its parent
            with suppress(psutil.NoSuchProcess):
                if job_id in process.cmdline():
                    process.kill()
                    process.wait(10)
        logger.warning("the site was restarted during job %s and continues it", job_id)
        # The server aborts the job at the next heartbeat if it no longer runs there.
        fl_ctx.get_engine().start_app(job_id, json.loads(meta.read_text()))
