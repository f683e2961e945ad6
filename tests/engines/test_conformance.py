"""Every engine passes the conformance suite, and the suite finds each violation of the contract. That of Ray is in
test_engines.py, where there is a cluster."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from dmtrl.data.blocks import Source
from dmtrl.engines import LocalEngine
from dmtrl.engines.base import Engine
from dmtrl.engines.conformance import check_engine
from dmtrl.engines.recovery import RecoveringEngine
from dmtrl.losses import AnyLoss
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Describe
from support.fragile import Fragile


@pytest.mark.parametrize("threads", [1, 2])
def test_local_engine(threads: int) -> None:
    check_engine(lambda sources, loss: LocalEngine(sources, loss, threads))


@pytest.mark.parametrize("faults", [{}, {7: "before", 21: "after", 40: "nan", 50: "shape", 60: "before"}])
def test_recovering_engine(faults: dict[int, str]) -> None:
    started = []

    def start(sources: Sequence[Source], loss: AnyLoss) -> Engine:
        started.append(RecoveringEngine(Fragile(sources, loss, len(sources), faults)))
        return started[-1]

    check_engine(start)
    assert all(engine.losses >= len(faults) - 1 for engine in started)


# Engines with one defect each


class TwoRequestsAtOnce(LocalEngine):
    def send(self, worker: int, message: Message) -> None:
        if worker not in self.pending:
            super().send(worker, message)


class AlwaysPending(LocalEngine):
    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        worker, answer = super().receive(timeout)
        self.pending.add(worker)
        return worker, answer


class NothingToReceive(LocalEngine):
    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        return super().receive(timeout) if self.pending else (0, Message("nothing"))


class OneWorkerMore(LocalEngine):
    @property
    def n_workers(self) -> int:
        return super().n_workers + 1


class MixedUpWorkers(LocalEngine):
    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        if len(self.pending) < 2:
            return super().receive(timeout)
        first, second = super().receive(timeout), super().receive(timeout)
        self._queued.append((first[0], encode(Describe())))
        self.pending.add(first[0])
        return second[0], first[1]


class OldAnswers(LocalEngine):
    def exchange(self, requests: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
        for worker, request in requests.items():
            if worker not in self.pending:
                self.send(worker, encode(request))
        while self.pending:
            worker, answer = self.receive()
            yield worker, decode(answer)


class OtherErrors(LocalEngine):
    def _answer(self, worker: int, message: Message) -> Message:
        try:
            return super()._answer(worker, message)
        except Exception as error:
            raise OSError(str(error)) from error


class ErrorsWithoutMessage(LocalEngine):
    def _answer(self, worker: int, message: Message) -> Message:
        try:
            return super()._answer(worker, message)
        except Exception as error:
            raise type(error)("an error") from error


class PendingAfterError(LocalEngine):
    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        worker = next(iter(self.pending), 0)
        try:
            return super().receive(timeout)
        except ValueError:
            self.pending.add(worker)
            self._queued.append((worker, encode(Describe())))
            raise


class Rounded(LocalEngine):
    """Sends numbers with less precision."""

    def _answer(self, worker: int, message: Message) -> Message:
        answer = super()._answer(worker, message)
        arrays = {k: a.astype(np.float32).astype(a.dtype) for k, a in answer.arrays.items()}
        return Message(answer.name, answer.scalars, arrays)


class Deaf(LocalEngine):
    """Does not deliver `restore`."""

    def _answer(self, worker: int, message: Message) -> Message:
        if message.name == "restore" and "missing" not in str(message.scalars["source"]):
            return Message("restored")
        return super()._answer(worker, message)


class ClosesOnce(LocalEngine):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("already closed")
        self.closed = True


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (TwoRequestsAtOnce, r"a second send\(\) to a worker whose answer is pending does not raise RuntimeError"),
        (AlwaysPending, r"pending is \{1\} after the answer is received instead of \{\}"),
        (NothingToReceive, r"receive\(\) does not raise RuntimeError when no answer is pending"),
        (OneWorkerMore, "n_workers is 4 with 3 sources"),
        (MixedUpWorkers, "'(tasks|rows|weight)' of message 'description' of worker . differs from LocalEngine"),
        (OldAnswers, r"broadcast\(\) returns answers to requests from before"),
        (OtherErrors, "a worker's ValueError .* comes back as OSError"),
        (ErrorsWithoutMessage, r"a worker's FileNotFoundError .* comes back as FileNotFoundError \(an error\)"),
        (PendingAfterError, r"pending is \{0\} after a worker raised an error"),
        (Rounded, r"'b' of message 'prepared' of worker . differs from LocalEngine \(a task split over workers\)"),
        (Deaf, r"'b' of message 'restored' of worker . differs from LocalEngine"),
        (ClosesOnce, r"close\(\), called twice, raises RuntimeError: already closed"),
    ],
)
def test_a_violation_is_found(engine: Callable[..., Engine], words: str) -> None:
    with pytest.raises(AssertionError, match=words) as caught:
        check_engine(engine)
    assert str(caught.value).startswith("the engine violates its contract:\n- ")
