"""The coordinator's end of the connection: a `Carrier` with one worker per site."""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dmtrl.engines.recovery import Lost, Refused
from dmtrl.exceptions import RefusedBySiteError, StudyStoppedError
from dmtrl.federation.flare.inbox import ALIVE, BUSY, DONE, ERRORS, REFUSED, RESTARTED, WORKING, Reply, Request
from dmtrl.protocol.message import Message

PATIENCE = 40.0  # seconds without a reply after which a site counts as lost
_RETRY = 0.5  # seconds between two tries to reach a silent site
_TICK = 0.5  # seconds between two looks at `stopped`

Send = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | None]


@dataclass(frozen=True)
class _Post:
    worker: int
    request: Request


class Sites:
    """Carries messages to sites, with one thread per site.

    A site that does not reply is asked again until it does. After `patience` seconds it counts as lost; who posted the
    message then decides how long to wait for it to come back. A suspended site or a short network failure is therefore
    no loss.

    names: the names of the sites, in the order of the workers. send: `send(name, fields)` delivers a request and
    returns the fields of the reply, or None if there was none; it is called from several threads. stopped: whether the
    run is to end; `fetch` then raises StudyStoppedError.
    """

    def __init__(
        self,
        names: Sequence[str],
        send: Send,
        stopped: Callable[[], bool] = lambda: False,
        patience: float = PATIENCE,
    ):
        self._names, self._send, self._stopped, self._patience = names, send, stopped, patience
        self._lives = [0] * len(names)
        self._begun = [False] * len(names)  # whether anything was posted in the present life
        self._current: list[_Post | None] = [None] * len(names)
        self._silent_since: list[float | None] = [None] * len(names)
        self._outbox: list[queue.SimpleQueue[_Post | None]] = [queue.SimpleQueue() for _ in names]
        self._arrived: queue.SimpleQueue[tuple[_Post, Message | Exception]] = queue.SimpleQueue()
        self._closed = threading.Event()
        for k in range(len(names)):
            threading.Thread(target=self._deliver_all, args=(k,), daemon=True).start()

    @property
    def n_workers(self) -> int:
        return len(self._names)

    @property
    def present(self) -> list[str]:
        """The sites that replied when they were last asked."""
        return [name for name, since in zip(self._names, self._silent_since, strict=True) if since is None]

    def renew(self, worker: int) -> None:
        # lives must grow also when this process replaces one that crashed
        self._lives[worker] = max(self._lives[worker] + 1, time.time_ns())
        self._begun[worker] = False

    def post(self, worker: int, number: int, messages: Sequence[Message]) -> None:
        bodies = [message.encode() for message in messages]
        post = _Post(worker, Request(self._lives[worker], number, not self._begun[worker], bodies))
        self._begun[worker], self._current[worker] = True, post
        self._outbox[worker].put(post)

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._stopped():
                raise StudyStoppedError("the run was stopped")
            left = _TICK if end is None else min(_TICK, max(end - time.monotonic(), 0.0))
            try:
                post, outcome = self._arrived.get(timeout=left)
            except queue.Empty:
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError from None
                continue
            if post is not self._current[post.worker]:
                continue
            if isinstance(outcome, Exception):
                raise outcome
            return post.worker, outcome

    def close(self) -> None:
        self._closed.set()
        for outbox in self._outbox:
            outbox.put(None)

    def _deliver_all(self, k: int) -> None:
        while (post := self._outbox[k].get()) is not None:
            outcome = self._deliver(post)
            if outcome is not None:
                self._arrived.put((post, outcome))

    def _deliver(self, post: _Post) -> Message | Exception | None:
        """The answer or what went wrong; None if the post was replaced by another one."""
        k, request = post.worker, post.request
        name = self._names[k]
        while post is self._current[k] and not self._closed.is_set():
            fields = self._send(name, vars(request))
            now = time.monotonic()
            if fields is None:
                self._silent_since[k] = since = self._silent_since[k] or now
                if now - since > self._patience and not request.begin:
                    return Lost(k, f"site {name!r} did not reply for {now - since:.0f} s")
                self._closed.wait(_RETRY)
                continue
            self._silent_since[k] = None
            reply = Reply.read(fields)
            if reply.state == WORKING:
                request = replace(request, begin=False, messages=[])  # the site has them
            elif reply.state != BUSY:
                return _outcome(k, name, reply)
        return None


def _outcome(k: int, name: str, reply: Reply) -> Message | Exception:
    if reply.state == DONE:
        return Message.decode(reply.body)
    if reply.state == ALIVE:
        return Message("nothing")
    if reply.state == RESTARTED:
        return Lost(k, f"the process of site {name!r} was restarted")
    if reply.state == REFUSED:
        kind = ERRORS[reply.kind]
        refusal = kind is RefusedBySiteError
        return Refused(k, RefusedBySiteError(reply.text, site=name) if refusal else kind(f"{name}: {reply.text}"))
    return Lost(k, f"site {name!r} has received newer requests than this one")
