"""Job processes that are started again when a signal ends them, such as one of the out-of-memory killer.

FLARE as shipped ends the whole job when one of its processes is killed.
"""

import logging
import os
import shlex
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.utils.job_launcher_utils import get_credential_env

_MAX_RESTARTS = 50  # of one job process
_DELAY = 0.5  # seconds before a restart
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


def launch(command: str, fl_ctx: FLContext) -> RestartingHandle:
    environment = {**os.environ, **get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {})}
    arguments = shlex.split(command, True)
    # In a group of its own, because FLARE ends groups of processes.
    return RestartingHandle(lambda: subprocess.Popen(arguments, env=environment, start_new_session=True))
