"""Questions to all sites over a carrier, before and after the rounds.

The requests are idempotent, so a site that was lost is simply asked again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dmtrl.engines.recovery import Carrier, Lost, Refused
from dmtrl.exceptions import RefusedBySiteError, WorkerLostError
from dmtrl.federation import messages
from dmtrl.protocol.message import Message

_MAX_REPEATS = 3  # of a message to a site that may be alive
_RETRY_DELAY = 1.0  # seconds before a repeat


class Subset:
    """A carrier of some of the sites of another carrier."""

    def __init__(self, carrier: Carrier, chosen: Sequence[int]):
        self._carrier, self._chosen = carrier, list(chosen)

    @property
    def n_workers(self) -> int:
        return len(self._chosen)

    def renew(self, worker: int) -> None:
        self._carrier.renew(self._chosen[worker])

    def post(self, worker: int, number: int, messages: Sequence[Message]) -> None:
        self._carrier.post(self._chosen[worker], number, messages)

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(end - time.monotonic(), 0.0)
            try:
                worker, answer = self._carrier.fetch(left)
            except Lost as lost:
                if lost.worker in self._chosen:
                    raise Lost(self._chosen.index(lost.worker), str(lost), lost.maybe_alive) from lost
            except Refused as refused:
                if refused.worker in self._chosen:
                    raise Refused(self._chosen.index(refused.worker), refused.error) from refused
            else:
                if worker in self._chosen:
                    return self._chosen.index(worker), answer

    def close(self) -> None:
        """Leave the other carrier open: its other sites may be used again."""


@dataclass
class _Site:
    """What the asker knows of one site."""

    name: str
    number: int = 0  # of the last post
    alive: bool = False  # has given a sign of life since it was started
    missing_since: float = 0.0
    repeats: int = 0  # of the last post
    timer: tuple[float, Callable[[], None]] | None = None  # an action that an answer cancels


class Asker:
    """Asks the sites of a carrier, and starts a site again that is lost meanwhile.

    Parameters
    ----------
    carrier : Carrier
    names : sequence of str
        The names of the sites, in the order of the carrier.
    patience : float
        Seconds within which a site must give a sign of life. After that it may take its time to answer.
    answer_timeout : float, optional
        Seconds that an answer may take before the site counts as lost. None: no limit.
    """

    def __init__(self, carrier: Carrier, names: Sequence[str], patience: float, answer_timeout: float | None = None):
        self._carrier, self._patience, self._answer_timeout = carrier, patience, answer_timeout
        self._sites = [_Site(name) for name in names]
        self._waiting: dict[int, Message] = {}  # sites that have not answered yet, and what they are asked
        for k in range(len(names)):
            self._start(k)

    def ask_all(self, request: Any) -> list[Any]:
        """The answers of all sites to one request, in order."""
        answers = self.ask({k: request for k in range(len(self._sites))})
        return [answers[k] for k in range(len(self._sites))]

    def ask(self, requests: Mapping[int, Any]) -> dict[int, Any]:
        """The answers to a request for each site."""
        answers: dict[int, Any] = {}
        self._waiting = {k: messages.encode(request) for k, request in requests.items()}
        for k, message in self._waiting.items():
            if self._sites[k].alive:
                self._post(k, [message])
        while self._waiting:
            arrived = self._step()
            if arrived is not None:
                k, answer = arrived
                answers[k] = self._checked(k, requests[k], answer)
                del self._waiting[k]
        return answers

    def _step(self) -> tuple[int, Message] | None:
        """Handle one event; an answer to the present question is returned."""
        moments = [site.timer[0] for site in self._sites if site.timer is not None]
        try:
            k, answer = self._carrier.fetch(max(min(moments) - time.monotonic(), 0.0) if moments else None)
        except TimeoutError:
            self._run_timers()
            return None
        except Lost as lost:
            self._handle_loss(lost.worker, lost.maybe_alive)
            return None
        except Refused as refused:
            raise refused_by(self._sites[refused.worker].name, refused.error) from refused.error
        site = self._sites[k]
        site.timer, site.repeats = None, 0
        if not site.alive:
            site.alive = True
            if k in self._waiting:
                self._post(k, [self._waiting[k]])
            return None
        return (k, answer) if k in self._waiting else None

    def _run_timers(self) -> None:
        now = time.monotonic()
        for site in self._sites:
            if site.timer is not None and site.timer[0] <= now:
                action, site.timer = site.timer[1], None
                action()

    def _start(self, k: int) -> None:
        """Start a site again from its folder, and wait for a sign of life."""
        site = self._sites[k]
        if site.alive or site.missing_since == 0.0:
            site.missing_since = time.monotonic()
        site.alive, site.repeats = False, 0
        self._carrier.renew(k)
        self._post(k, [])

    def _post(self, k: int, content: Sequence[Message]) -> None:
        site = self._sites[k]
        site.number += 1
        self._post_again(k, content)

    def _post_again(self, k: int, content: Sequence[Message]) -> None:
        site = self._sites[k]
        self._carrier.post(k, site.number, content)
        if not site.alive:
            site.timer = site.missing_since + self._patience, partial(self._give_up, k)
        elif self._answer_timeout is not None:
            site.timer = time.monotonic() + self._answer_timeout, partial(self._start, k)

    def _handle_loss(self, k: int, maybe_alive: bool) -> None:
        site = self._sites[k]
        if maybe_alive and site.alive and site.repeats < _MAX_REPEATS and k in self._waiting:
            site.repeats += 1
            again = partial(self._post_again, k, [self._waiting[k]])
            site.timer = time.monotonic() + _RETRY_DELAY, again
        else:
            self._start(k)

    def _checked(self, k: int, request: Any, answer: Message) -> Any:
        expected, name = messages.ANSWERS[type(request)], self._sites[k].name
        try:
            content = messages.decode(answer)
        except ValueError as error:
            raise RefusedBySiteError(f"sent an answer that cannot be read ({error})", site=name) from None
        if not isinstance(content, expected):
            raise RefusedBySiteError(f"answered {answer.name!r} to another question", site=name)
        return content

    def _give_up(self, k: int) -> None:
        alive = sum(site.alive for site in self._sites)
        message = f"the site {self._sites[k].name!r} gave no sign of life within {self._patience:g} seconds"
        raise WorkerLostError(message, k, [], alive)


def refused_by(site: str, error: Exception) -> RefusedBySiteError:
    """The refusal of a site, with its name."""
    reason = error.reason if isinstance(error, RefusedBySiteError) else f"{type(error).__name__}: {error}"
    return RefusedBySiteError(reason, site=site)
