"""The local engine: threads, timeouts and times. Its contract is tested in test_conformance.py."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dmtrl.engines import LocalEngine
from dmtrl.losses.builtin import get_loss
from dmtrl.protocol.codec import encode
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Describe
from dmtrl.worker import local_rows
from support.problems import random_problem
from support.waiting import CEILING, wait_for, wait_for_event

DATA = random_problem("squared", m=2)
DESCRIBE = encode(Describe())


@pytest.mark.parametrize("threads", [0, -1])
def test_at_least_one_thread(threads: int) -> None:
    with pytest.raises(ValueError, match=f"needs at least one thread, got {threads}"):
        LocalEngine(DATA.sources(2), get_loss("squared"), threads)


class Blocked(LocalEngine):
    """Worker 0 answers only once `free` is set."""

    def __init__(self) -> None:
        super().__init__(DATA.sources(2), get_loss("squared"), threads=2)
        self.free = threading.Event()

    def _answer(self, worker: int, message: Message) -> Message:
        if worker == 0:
            wait_for_event(self.free, "the test to let this worker answer")
        return super()._answer(worker, message)


def test_a_timeout_leaves_the_request_pending() -> None:
    with Blocked() as engine:
        engine.send(0, DESCRIBE)
        with pytest.raises(TimeoutError, match=r"no worker answered within 0.01 seconds"):
            engine.receive(timeout=0.01)
        assert engine.pending == {0}
        engine.send(1, DESCRIBE)
        assert engine.receive(timeout=CEILING)[0] == 1, "a slow worker does not delay the others"
        engine.free.set()
        assert engine.receive(timeout=CEILING)[0] == 0
        assert engine.pending == set()


def test_close_does_not_wait_for_answers() -> None:
    engine = Blocked()
    engine.send(0, DESCRIBE)
    engine.close()
    assert not engine.free.is_set(), "worker 0 is still busy"
    engine.free.set()


def test_siblings_that_start_at_the_same_time_pack_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense rows that are mostly zeros are packed when they are first used: once, whoever comes first."""
    packed, pack, arrived = [], local_rows.in_chunks, []

    def slowly(X: np.ndarray) -> Any:
        wait_for(lambda: len(arrived) == 4, "the other siblings to need the rows")
        packed.append(pack(X))
        return packed[-1]

    def need(rows: Any) -> Any:
        arrived.append(rows)
        return rows.arrays(0.1)

    monkeypatch.setattr(local_rows, "in_chunks", slowly)
    data = random_problem("hinge", m=2, rows=10)
    with LocalEngine(data.sources(1), get_loss("hinge")) as engine, ThreadPoolExecutor(4) as pool:
        rows = [engine.sibling(number)._workers[0]._rows for number in range(4)]
        found = list(pool.map(need, rows))
    assert len(packed) == 1
    assert all(one is packed[0] for one in found)
