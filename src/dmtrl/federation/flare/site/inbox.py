"""The site's end of the connection: every request of the coordinator is worked on once, however often it arrives.

A request has a life and a number. The coordinator begins a new life when it wants the site to start from its data
again; inside a life, requests are numbered upwards. A repeated number is answered from memory. Work happens in a thread
of its own: a request whose work takes longer than `patience` is answered "working", and the coordinator asks again, so
long rounds need no long timeouts.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.flare.exchange import (
    ALIVE,
    BUSY,
    DONE,
    ERRORS,
    REFUSED,
    RESTARTED,
    STALE,
    WORKING,
    Reply,
    Request,
)
from dmtrl.protocol.codec import received
from dmtrl.protocol.message import Message

_PATIENCE = 5.0  # seconds
logger = logging.getLogger("dmtrl")


class Answering(Protocol):
    """Answers messages; `federation.site.Site` and `worker.Worker` do."""

    def answer(self, message: Message) -> Message: ...


class Inbox:
    """Answers requests, at most one at a time.

    start: returns what answers messages, started from the site's data; it is called once in each life. patience:
    seconds after which a request that is being worked on is answered "working".
    """

    def __init__(self, start: Callable[[], Answering], patience: float = _PATIENCE):
        self._start, self._patience = start, patience
        self._changed = threading.Condition()
        self._life, self._number = 0, 0
        self._site: Answering | None = None
        self._working = False
        self._reply = Reply(ALIVE)

    def answer(self, request: Request) -> Reply:
        with self._changed:
            if request.life < self._life:
                return Reply(STALE)
            if request.life > self._life:
                if not request.begin:
                    return Reply(RESTARTED)
                if not self._idle():  # the work of the life before cannot be interrupted
                    return Reply(BUSY)
                self._life, self._number, self._site = request.life, request.number - 1, None
            if request.number < self._number:
                return Reply(STALE)
            if request.number > self._number:
                if self._working:
                    return Reply(BUSY)
                self._number, self._reply = request.number, Reply(ALIVE)
                if request.messages:
                    self._working = True
                    threading.Thread(target=self._work, args=(request.messages,), daemon=True).start()
            return self._reply if self._idle() else Reply(WORKING)

    def _idle(self) -> bool:
        return self._changed.wait_for(lambda: not self._working, self._patience)

    def _work(self, messages: Sequence[bytes]) -> None:
        try:
            self._site = self._site or self._start()
            answer = Message("nothing")
            for data in messages:
                answer = self._site.answer(received(data))
            reply = Reply(DONE, answer.encode())
        except Exception as error:
            logger.exception("a message was not answered")
            reply = Reply(REFUSED, kind=_kind(error), text=_without_data(error))
        with self._changed:
            self._reply, self._working = reply, False
            self._changed.notify_all()


def _kind(error: Exception) -> str:
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ERRORS), "RuntimeError")


def _without_data(error: Exception) -> str:
    """What may leave a site: the reason of a refusal. Other errors may quote its data; they stay in the site's log."""
    if isinstance(error, RefusedBySiteError):
        return error.reason
    return f"an error happened there ({type(error).__name__}); the site's log has the details"
