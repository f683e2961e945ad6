"""Carrier and inbox, without FLARE between them: an unreliable network in this process."""

import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("nvflare", reason='needs NVIDIA FLARE: pip install "dmtrl[federation]"')

from dmtrl import Execution, Problem, Settings, solve
from dmtrl.data.blocks import Source
from dmtrl.engines import LocalEngine
from dmtrl.engines.base import Engine
from dmtrl.engines.conformance import check_engine
from dmtrl.engines.recovery import RecoveringEngine
from dmtrl.exceptions import RefusedBySiteError, StudyStoppedError, WorkerLostError
from dmtrl.federation.flare.exchange import ALIVE, BUSY, DONE, RESTARTED, STALE, WORKING, Request
from dmtrl.federation.flare.server import sites as carrier
from dmtrl.federation.flare.server.sites import Sites
from dmtrl.federation.flare.site import inbox
from dmtrl.federation.flare.site.inbox import Inbox
from dmtrl.losses import AnyLoss, get_loss
from dmtrl.protocol.codec import encode
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Describe
from dmtrl.worker.worker import Worker
from support.problems import random_problem

FAULTS = ("request lost", "reply lost", "delivered twice", "killed before", "killed after")


class Network:
    """Sites as inboxes. `faults`: what happens to which call, counted from 1 over all sites."""

    def __init__(self, sources: Sequence[Source], loss: AnyLoss, faults: Mapping[int, str], patience: float = 5.0):
        self._start = [lambda source=source: Worker(source, loss) for source in sources]
        self._patience, self._faults = patience, faults
        self._inboxes = [self._process(k) for k in range(len(sources))]
        self._lock, self._calls = threading.Lock(), 0
        self.happened: Counter[str] = Counter()
        self.states: Counter[str] = Counter()
        self.gone: set[str] = set()

    def _process(self, k: int) -> Inbox:
        return Inbox(self._start[k], self._patience)

    @property
    def names(self) -> list[str]:
        return [str(k) for k in range(len(self._inboxes))]

    def send(self, name: str, fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
        k = int(name)
        with self._lock:
            self._calls += 1
            fault = self._faults.get(self._calls, "")
            self.happened[fault] += 1
        if fault == "request lost" or name in self.gone:
            return None
        if fault == "killed before":
            self._inboxes[k] = self._process(k)
        if fault == "delivered twice":
            self._inboxes[k].answer(Request.read(fields))
        reply = self._inboxes[k].answer(Request.read(fields))
        self.states[reply.state] += 1
        if fault == "killed after":
            self._inboxes[k] = self._process(k)
        return None if fault in ("reply lost", "killed after") else vars(reply)


@pytest.fixture(autouse=True)
def _without_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "_RETRY", 0.0)


def test_sites_satisfy_the_contract_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "_without_data", str)  # the suite reads the texts of errors

    def start(sources: Sequence[Source], loss: AnyLoss) -> Engine:
        network = Network(sources, loss, {9: "request lost", 22: "delivered twice", 35: "killed before"})
        return RecoveringEngine(Sites(network.names, network.send))

    check_engine(start)


@given(faults=st.dictionaries(st.integers(1, 80), st.sampled_from(FAULTS), max_size=25))
@settings(max_examples=25, deadline=None)
def test_whatever_the_network_does_the_bits_are_the_same(faults: dict[int, str]) -> None:
    data, loss = random_problem("logistic", m=4, rows=8), get_loss("logistic")
    options = Settings(tol=1e-5)
    with LocalEngine(data.sources(3), loss) as local:
        expected = solve(Problem.of(data, loss="logistic", reg_lambda=0.1), Execution(local, settings=options))
    network = Network(data.sources(3), loss, faults)
    with RecoveringEngine(Sites(network.names, network.send)) as engine:
        found = solve(Problem.of(data, loss="logistic", reg_lambda=0.1), Execution(engine, settings=options))
    np.testing.assert_array_equal(found.W, expected.W)


def test_long_work_is_waited_for_with_short_requests() -> None:
    data, loss = random_problem("logistic", m=4, rows=8), get_loss("logistic")
    network = Network(data.sources(2), loss, {}, patience=0.0)
    with RecoveringEngine(Sites(network.names, network.send)) as engine:
        assert solve(Problem.of(data, loss="logistic", reg_lambda=0.1), Execution(engine)).converged
    assert network.states[WORKING] > 0


def test_busy_and_working_are_signs_of_life() -> None:
    """A site that still works for a life before is not given up, however short the patience is."""
    data, loss = random_problem("logistic", m=4, rows=8), get_loss("logistic")
    free, replies = threading.Event(), Counter[str]()

    class Slow(Worker):
        def answer(self, message: Message) -> Message:
            free.wait()
            return super().answer(message)

    site = Inbox(lambda: Slow(data.sources(1)[0], loss), patience=0.0)
    body = [encode(Describe()).encode()]
    assert site.answer(Request(1, 1, begin=True, messages=body)).state == WORKING

    def send(name: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        reply = site.answer(Request.read(fields))
        replies[reply.state] += 1
        if replies[BUSY] == 20:
            free.set()
        return vars(reply)

    with RecoveringEngine(Sites(["va"], send, patience=0.0, recovery=0.0), math.inf) as engine:
        assert solve(Problem.of(data, loss="logistic", reg_lambda=0.1), Execution(engine)).converged
    assert replies[BUSY] >= 20


@pytest.mark.parametrize("unanswered", [1, 2])
def test_a_few_slow_replies_are_no_loss(unanswered: int) -> None:
    """On a busy machine a reply may take longer than one try: seconds alone do not decide."""
    data, loss = random_problem("logistic", m=4, rows=8), get_loss("logistic")
    site, calls = Inbox(lambda: Worker(data.sources(1)[0], loss)), Counter[str]()

    def send(name: str, fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
        calls["all"] += 1
        slow = calls["all"] % (unanswered + 1) != 0
        return None if slow else vars(site.answer(Request.read(fields)))

    with RecoveringEngine(Sites(["va"], send, patience=0.0, recovery=0.0), math.inf) as engine:
        assert solve(Problem.of(data, loss="logistic", reg_lambda=0.1), Execution(engine)).converged
        assert engine.losses == 0


def test_a_site_that_is_gone_is_named_with_advice_for_a_study() -> None:
    data, loss = random_problem("logistic", m=4, rows=8), get_loss("logistic")
    network = Network(data.sources(2), loss, {})
    sites = Sites(["0", "1"], network.send, patience=0.0, recovery=0.0)
    with RecoveringEngine(sites, math.inf) as engine:
        network.gone.add("1")
        with pytest.raises(
            WorkerLostError, match=r"the site '1' did not respond for .* 'dmtrl study run --resume'"
        ) as lost:
            solve(Problem.of(data, loss="logistic", reg_lambda=0.1), Execution(engine))
    assert lost.value.worker == 1
    assert sites.present == ["0"]


def test_a_stopped_run_ends() -> None:
    data, loss = random_problem("logistic", m=4, rows=8), get_loss("logistic")
    network = Network(data.sources(2), loss, {})
    with (
        RecoveringEngine(Sites(network.names, network.send, lambda: network.happened[""] > 6)) as engine,
        pytest.raises(StudyStoppedError),
    ):
        solve(Problem.of(data, loss="logistic", reg_lambda=0.1), Execution(engine))


def test_a_refusal_names_the_site_and_the_reason() -> None:
    class Refusing:
        def answer(self, message: Message) -> Message:
            raise RefusedBySiteError("the policy of this site does not allow it")

    site = Inbox(Refusing)
    with pytest.raises(RefusedBySiteError, match=r"^va: the policy of this site does not allow it"):
        RecoveringEngine(Sites(["va"], lambda name, fields: vars(site.answer(Request.read(fields)))))


@pytest.mark.parametrize("damaged", [{"state": "done", "body": b"junk"}, {"state": "refused", "kind": "KeyError"}])
def test_a_reply_that_cannot_be_read_ends_the_run_and_names_the_site(damaged: dict[str, Any]) -> None:
    reply = {"state": "done", "body": b"", "kind": "", "text": "", **damaged}
    with pytest.raises(RefusedBySiteError, match=r"^va: sent a reply that cannot be read"):
        RecoveringEngine(Sites(["va"], lambda name, fields: reply), math.inf).receive(60.0)


def test_the_text_of_an_error_stays_at_the_site(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def answer(self, message: Message) -> Message:
            raise ValueError("column 'name' holds 'Mr Smith'")

    site = Inbox(Broken)
    with pytest.raises(ValueError, match=r"^va: an error happened there \(ValueError\)") as caught:
        RecoveringEngine(Sites(["va"], lambda name, fields: vars(site.answer(Request.read(fields)))))
    assert "Smith" not in str(caught.value)
    assert "Mr Smith" in caplog.text


def test_states_of_replies() -> None:
    release = threading.Event()

    class Slow:
        def answer(self, message: Message) -> Message:
            release.wait(10)
            return Message("answer", {"was": message.name})

    site, body = Inbox(Slow, patience=0.05), [Message("question").encode()]
    assert site.answer(Request(5, 1, messages=body)).state == RESTARTED  # nobody began this life
    assert site.answer(Request(5, 1, begin=True)).state == ALIVE
    assert site.answer(Request(4, 1, begin=True)).state == STALE
    assert site.answer(Request(5, 2, messages=body)).state == WORKING
    assert site.answer(Request(5, 3, messages=body)).state == BUSY
    assert site.answer(Request(6, 1, begin=True)).state == BUSY  # its work cannot be interrupted
    release.set()
    reply = site.answer(Request(5, 2))
    assert reply.state in (DONE, WORKING)
    while reply.state == WORKING:
        reply = site.answer(Request(5, 2))
    assert Message.decode(reply.body).scalars == {"was": "question"}
    assert site.answer(Request(5, 1)).state == STALE
    reply = site.answer(Request(7, 1, begin=True, messages=body))  # a life may begin with work
    while reply.state == WORKING:
        reply = site.answer(Request(7, 1))
    assert reply.state == DONE
