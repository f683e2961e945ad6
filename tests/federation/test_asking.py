"""Questions to sites that are lost, that refuse, and that do not start."""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import pytest

from dmtrl.engines import recovery
from dmtrl.engines.recovery import Lost, Refused
from dmtrl.exceptions import RefusedBySiteError, WorkerLostError
from dmtrl.federation.coordinator.asking import Asker, Subset
from dmtrl.protocol import study as messages
from dmtrl.protocol.codec import encode
from dmtrl.protocol.message import Message
from support.virtual_time import ManualClock

clock = ManualClock()


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", 0.0)
    monkeypatch.setattr(recovery, "time", clock)


class Sites:
    """Two sites. `behaviour[k]`: "answers", "silent", "refuses" a question, or how often it is lost before it does."""

    n_workers = 2

    def __init__(self, *behaviour: str | int):
        self.behaviour: list[str | int] = list(behaviour)
        self.events: deque[tuple[int, Sequence[Message]]] = deque()
        self.renewed = [0, 0]

    def renew(self, worker: int) -> None:
        self.renewed[worker] += 1

    def post(self, worker: int, number: int, messages: Sequence[Message]) -> None:
        if self.behaviour[worker] != "silent":
            self.events.append((worker, messages))

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        if not self.events:
            assert timeout is not None
            clock.sleep(timeout)
            raise TimeoutError
        k, posted = self.events.popleft()
        now = self.behaviour[k]
        if posted and now == "refuses":
            raise Refused(k, RefusedBySiteError("does not want to"))
        if posted and isinstance(now, int) and now > 0:
            self.behaviour[k] = now - 1
            raise Lost(k, "its process died")
        return k, encode(messages.SharedKey(key=np.zeros(1))) if posted else Message("alive")

    def close(self) -> None:
        pass


def ask(*behaviour: str | int, patience: float = 0.2) -> Sites:
    sites = Sites(*behaviour)
    with Asker(sites, ["north", "south"], patience) as asker:
        answers = asker.ask_all(messages.ShareKey(study="s", session="a"))
    assert [type(answer) for answer in answers] == [messages.SharedKey] * 2
    return sites


def test_a_lost_site_is_started_and_asked_again() -> None:
    assert ask("answers", 10).renewed == [1, 11]


def test_a_site_that_is_lost_again_and_again_is_given_up() -> None:
    with pytest.raises(WorkerLostError, match="the site 'south' was lost 11 times in a row"):
        ask("answers", 11)


def test_a_site_that_does_not_respond_is_given_up() -> None:
    with pytest.raises(WorkerLostError, match=r"the site 'south' did not respond within 0\.2 seconds"):
        ask("answers", "silent")


def test_a_refusal_ends_the_request_to_that_site() -> None:
    sites = Sites("answers", "refuses")
    with Asker(sites, ["north", "south"], 0.2) as asker:
        with pytest.raises(RefusedBySiteError):
            asker.ask_all(messages.ShareKey(study="s", session="a"))
        assert 1 not in asker.pending
        sites.behaviour[1] = "answers"
        assert len(asker.ask_all(messages.ShareKey(study="s", session="a"))) == 2


def test_a_refusal_does_not_wait_for_a_site_that_does_not_start() -> None:
    with pytest.raises(RefusedBySiteError, match="does not want to"):
        ask("refuses", "silent", patience=1e9)


class Gone(Sites):
    """Its carrier knows that the second site is lost for good."""

    advice = "call them"

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        if self.behaviour[1] == "silent":
            self.behaviour[1] = "answers"
            raise WorkerLostError("south is gone", 1, (), 1)
        return super().fetch(timeout)


def test_a_site_that_the_carrier_gives_up_is_numbered_among_the_chosen() -> None:
    chosen = Subset(Gone("answers", "silent"), [1])
    assert chosen.advice == "call them"
    with Asker(chosen, ["south"], math.inf) as asker, pytest.raises(WorkerLostError, match="south is gone") as gone:
        asker.ask_all(messages.ShareKey(study="s", session="a"))
    assert gone.value.worker == 0


def test_a_site_that_was_not_chosen_may_be_gone() -> None:
    with Asker(Subset(Gone("answers", "silent"), [0]), ["north"], math.inf) as asker:
        assert len(asker.ask_all(messages.ShareKey(study="s", session="a"))) == 1
