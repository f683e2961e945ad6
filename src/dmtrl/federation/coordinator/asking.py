"""Questions to all sites over a carrier, before and after the rounds."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dmtrl.engines.recovery import Carrier, Lost, Refused, RestartingEngine
from dmtrl.exceptions import RefusedBySiteError, WorkerLostError
from dmtrl.protocol.codec import ANSWERS, decode, encode
from dmtrl.protocol.message import Message


class Subset:
    """A carrier of some of the sites of another carrier."""

    def __init__(self, carrier: Carrier, chosen: Sequence[int]):
        self._carrier, self._chosen = carrier, list(chosen)
        self.advice, self.fault_advice = getattr(carrier, "advice", ""), getattr(carrier, "fault_advice", "")

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
            except WorkerLostError as error:
                if error.worker in self._chosen:
                    error.worker = self._chosen.index(error.worker)
                    raise
            else:
                if worker in self._chosen:
                    return self._chosen.index(worker), answer

    def close(self) -> None:
        """Leave the other carrier open: its other sites may be used again."""


class Asker(RestartingEngine):
    """Asks the sites of a carrier, whose names are in its order. A site that is lost meanwhile is started again from
    its folder and simply asked again: the requests are idempotent.

    A site that is started must respond within `patience` seconds; after that it may take its time to answer. The
    refusal of one site does not wait for another one to start.
    """

    def __init__(self, carrier: Carrier, names: Sequence[str], patience: float):
        super().__init__(carrier, patience)
        self.names = names

    def ask_all(self, request: Any) -> list[Any]:
        """The answers of all sites to one request, in order."""
        return list(self.ask({k: request for k in range(self.n_workers)}).values())

    def ask(self, requests: Mapping[int, Any]) -> dict[int, Any]:
        """The answers to a request for each site, in the order of the requests."""
        for k, request in requests.items():
            self.send(k, encode(request))
        try:
            answers = dict(self.receive() for _ in requests)
        except Refused as refused:
            raise refused_by(self.names[refused.worker], refused.error) from refused.error
        return {k: self._checked(k, request, answers[k]) for k, request in requests.items()}

    def _checked(self, k: int, request: Any, answer: Message) -> Any:
        expected, name = ANSWERS[type(request)], self.names[k]
        try:
            content = decode(answer)
        except ValueError as error:
            raise RefusedBySiteError(f"sent an answer that cannot be read ({error})", site=name) from None
        if not isinstance(content, expected):
            raise RefusedBySiteError(f"answered {answer.name!r} to another question", site=name)
        return content

    def describe(self, worker: int) -> str:
        return f"the site {self.names[worker]!r}"


def refused_by(site: str, error: Exception) -> RefusedBySiteError:
    """The refusal of a site, with its name."""
    reason = error.reason if isinstance(error, RefusedBySiteError) else f"{type(error).__name__}: {error}"
    return RefusedBySiteError(reason, site=site)
