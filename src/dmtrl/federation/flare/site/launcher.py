"""Starts the job process of a site, also after the whole site was restarted. Components of the site's parent process,
see `kits.py`.
"""

import json
import logging
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

from dmtrl.federation.flare.jobs import fault_in_job
from dmtrl.federation.flare.processes import job_processes
from dmtrl.federation.flare.restarts import launch
from dmtrl.federation.site.site import Site

_RUNNING = "dmtrl_job.json"  # in the workspace, while a job process should be running
logger = logging.getLogger("dmtrl")


class SiteLauncher(ClientProcessJobLauncher):
    """Starts the site's job process, again if it crashes. A site that crashed as a whole continues its job when it is
    started again: `Rejoin`."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        workspace: Workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        _refuse_other_jobs(workspace, job_meta[JobConstants.JOB_ID])
        handle = launch(self.get_command(job_meta, fl_ctx), fl_ctx)
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
