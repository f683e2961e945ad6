"""Runs in the site's job process: hands the coordinator's requests to the site."""

from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from threadpoolctl import threadpool_limits

from dmtrl.federation.flare.exchange import TOPIC, Request
from dmtrl.federation.flare.site.inbox import Inbox
from dmtrl.federation.site.site import Site


class SiteWorker(Executor):
    """Has no arguments: a job cannot point it at another file. The site's folder is the one that holds its kit."""

    def __init__(self) -> None:
        super().__init__()
        self._inbox: Inbox | None = None
        self._threads: Any = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.ABOUT_TO_START_RUN:
            return
        folder = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()).parent
        self._threads = threadpool_limits(1)  # as in the coordinator: the same bits need the same number of threads
        self._inbox = Inbox(lambda: Site(folder))
        fl_ctx.get_engine().register_aux_message_handler(topic=TOPIC, message_handle_func=self._answer)

    def _answer(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        assert self._inbox is not None
        reply = make_reply(ReturnCode.OK)
        reply.update(vars(self._inbox.answer(Request.read(request))))
        return reply

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        return make_reply(ReturnCode.TASK_UNKNOWN)  # studies use messages only
