"""Runs in the server's job process: the coordinator's side of a study."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from dmtrl.exceptions import DmtrlError, StudyStoppedError
from dmtrl.federation.coordinator.run import run_study
from dmtrl.federation.flare.exchange import TOPIC
from dmtrl.federation.flare.server.runs import FAILED, FINISHED, STOPPED, ProgressRecord, current
from dmtrl.federation.flare.server.sites import PATIENCE, Sites
from dmtrl.federation.study.study_file import read_study
from dmtrl.solver.checkpoint import Checkpoint

_REPLY_TIMEOUT = 10.0  # seconds; a site that works longer replies "working" before that
logger = logging.getLogger("dmtrl")


class StudyController(Controller):
    """Has no arguments: the study and the results are in the coordinator's folder, which holds the server's kit."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        pass

    def stop_controller(self, fl_ctx: FLContext) -> None:
        pass

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        engine = fl_ctx.get_engine()
        folder = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()).parent
        run, patience = current(folder)
        names = sorted(client.name for client in engine.get_clients())

        def send(name: str, fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
            request = Shareable()
            request.update(fields)
            with engine.new_context() as context:
                replies = engine.send_aux_request([name], TOPIC, request, _REPLY_TIMEOUT, context, optional=True)
            reply = (replies or {}).get(name)
            return reply if reply is not None and reply.get_return_code() == ReturnCode.OK else None

        sites = Sites(names, send, lambda: abort_signal.triggered, min(PATIENCE, patience), patience)
        study = read_study(folder / "study.toml")
        try:
            checkpoint, record = Checkpoint(run.folder / "checkpoint", every_seconds=5.0), ProgressRecord(run, sites)
            # the carrier decides when a site is lost for good: it sees every sign of life
            run_study(study, sites, names, run.folder, record, resume=True, checkpoint=checkpoint, patience=math.inf)
            run.set_state(FINISHED)
        except StudyStoppedError as stopped:
            run.set_state(STOPPED, str(stopped))
        except Exception as error:
            logger.exception("the study failed")
            known = isinstance(error, DmtrlError | ValueError | OSError)
            reason = str(error) if known else f"{type(error).__name__}: {error}"
            run.set_state(FAILED, reason)
            self.system_panic(reason, fl_ctx)
        finally:
            sites.close()
