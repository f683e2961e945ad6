"""Starts the job process of the server. A component of the server's parent process, see `kits.py`."""

from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher

from dmtrl.federation.flare.restarts import launch


class ServerLauncher(ServerProcessJobLauncher):
    """Starts the server's job process, again if it crashes."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        return launch(self.get_command(job_meta, fl_ctx), fl_ctx)
