"""The coordinator's end of the connection: a `Carrier` with one worker per site."""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dmtrl.engines.recovery import Lost, Refused
from dmtrl.exceptions import RefusedBySiteError, StudyStoppedError, WorkerLostError
from dmtrl.federation.flare.exchange import ALIVE, BUSY, DONE, ERRORS, REFUSED, RESTARTED, WORKING, Reply, Request
from dmtrl.protocol.message import Message

PATIENCE = 40.0  # seconds without a reply after which a site counts as lost
_TRIES = 3  # that must fail in a row before a site counts as lost, however long they took
_RETRY = 0.5  # seconds between two tries to reach a silent site
_TICK = 0.5  # seconds between two looks at `stopped`

Send = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | None]


@dataclass
class _Site:
    """What the carrier knows of one site."""

    name: str
    life: int = 0
    begun: bool = False  # whether anything was posted in the present life
    current: Request | None = None  # posted last
    silent_since: float | None = None  # the first of the tries without a reply; None: it replied to the last one
    unanswered: int = 0  # tries without a reply, since the last reply
    outbox: queue.SimpleQueue[Request | None] = field(default_factory=queue.SimpleQueue)


class Sites:
    """Carries messages to sites, with one thread per site.

    A site that does not reply is asked again until it does, so a suspended site or a short network failure is no loss.
    Every reply is a sign of life, also "working" and "busy". A site that gave none for `patience` seconds counts as
    lost (`Lost`) and is started again. If it then gives none for `recovery` seconds, it is lost for good
    (`WorkerLostError`); the engine over this carrier needs no timeout of its own. Seconds alone decide nothing: on a
    busy machine a reply may take longer than one try, so several tries must have failed as well.

    names: of the sites, in the order of the workers. send: `send(name, fields)` delivers a request and
    returns the fields of the reply, or None if there was none; it is called from several threads. stopped: whether the
    run is to end; `fetch` then raises StudyStoppedError.
    """

    def __init__(
        self,
        names: Sequence[str],
        send: Send,
        stopped: Callable[[], bool] = lambda: False,
        patience: float = PATIENCE,
        recovery: float = 120.0,
    ):
        self._send, self._stopped, self._patience, self._recovery = send, stopped, patience, recovery
        self._sites = [_Site(name) for name in names]
        self._arrived: queue.SimpleQueue[tuple[int, Request, Message | Exception]] = queue.SimpleQueue()
        self._closed = threading.Event()
        for k in range(len(names)):
            threading.Thread(target=self._deliver_all, args=(k,), daemon=True).start()

    @property
    def n_workers(self) -> int:
        return len(self._sites)

    @property
    def present(self) -> list[str]:
        """The sites that replied when they were last asked."""
        return [site.name for site in self._sites if site.silent_since is None]

    def renew(self, worker: int) -> None:
        site = self._sites[worker]
        site.life = max(site.life + 1, time.time_ns())  # lives grow also when this process replaces one that crashed
        site.begun = False

    def post(self, worker: int, number: int, messages: Sequence[Message]) -> None:
        site, bodies = self._sites[worker], [message.encode() for message in messages]
        site.current = Request(site.life, number, not site.begun, bodies)
        site.begun = True
        site.outbox.put(site.current)

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._stopped():
                raise StudyStoppedError("the run was stopped")
            left = _TICK if end is None else min(_TICK, max(end - time.monotonic(), 0.0))
            try:
                worker, request, outcome = self._arrived.get(timeout=left)
            except queue.Empty:
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError from None
                continue
            if request is not self._sites[worker].current:
                continue
            if isinstance(outcome, Exception):
                raise outcome
            return worker, outcome

    def close(self) -> None:
        self._closed.set()
        for site in self._sites:
            site.outbox.put(None)

    def _deliver_all(self, k: int) -> None:
        while (request := self._sites[k].outbox.get()) is not None:
            try:
                outcome = self._deliver(k, request)
            except Exception as error:  # a thread that ends here would leave the coordinator waiting for good
                reason = f"sent a reply that cannot be read ({type(error).__name__}: {error})"
                outcome = Refused(k, RefusedBySiteError(reason, site=self._sites[k].name))
            if outcome is not None:
                self._arrived.put((k, request, outcome))

    def _deliver(self, k: int, posted: Request) -> Message | Exception | None:
        """The answer or what went wrong; None if the request was replaced by another one."""
        site, request = self._sites[k], posted
        while posted is site.current and not self._closed.is_set():
            tried = time.monotonic()
            fields = self._send(site.name, vars(request))
            if fields is None:
                lost = self._silence(k, site, tried, request)
                if lost is not None:
                    return lost
                self._closed.wait(_RETRY)
                continue
            site.silent_since, site.unanswered = None, 0
            reply = Reply.read(fields)
            if reply.state == WORKING:
                request = replace(request, begin=False, messages=[])  # the site has them
            elif reply.state == BUSY:
                self._closed.wait(_RETRY)
            else:
                return _outcome(k, site.name, reply)
        return None

    def _silence(self, k: int, site: _Site, tried: float, request: Request) -> Exception | None:
        """Note a try without a reply; what to report if there were too many, for too long."""
        site.silent_since = tried if site.silent_since is None else site.silent_since
        site.unanswered += 1
        seconds = time.monotonic() - site.silent_since
        if not request.begin and seconds > self._patience and site.unanswered >= _TRIES:
            site.silent_since, site.unanswered = time.monotonic(), 0  # from here on it is being started
            return Lost(k, f"site {site.name!r} did not reply for {seconds:.0f} s")
        if request.begin and seconds > self._recovery and site.unanswered >= _TRIES:
            return WorkerLostError(
                f"the site {site.name!r} did not respond for {seconds:.0f} s; see that 'dmtrl site start' runs there "
                "and that it reaches the server, then continue with 'dmtrl study run --resume'",
                k,
                (),
                len(self.present),
            )
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
