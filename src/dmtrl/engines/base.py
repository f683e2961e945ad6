"""The contract of an engine, which delivers messages to workers and knows nothing of the algorithm.

Authors of an engine can run its conformance suite: `dmtrl.engines.conformance.check_engine`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self

from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.message import Message


class Engine(Protocol):
    """Delivers messages to workers and returns their answers in the order of arrival.

    A worker handles one request at a time: `send` to a worker whose answer was not received yet raises RuntimeError,
    and so does `receive` when no worker was sent anything. `pending` holds the workers whose answer was not received.
    Answers depend on the messages a worker was sent, never on their timing.
    """

    pending: set[int]
    max_staleness: int = 0  # how often a worker may receive new weights while another is busy; 0: rounds wait for all

    @property
    def n_workers(self) -> int: ...

    @property
    def paths(self) -> int:
        """How many runs, each on a sibling, may take place at the same time. The default is one."""
        return 1

    def send(self, worker: int, message: Message) -> None: ...

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        """The next answer and the worker that sent it; TimeoutError if none arrives within so many seconds."""
        ...

    def close(self) -> None: ...

    def exchange(self, requests: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
        """Send a request (see protocol/rounds.py) to each worker and yield the answers in the order of arrival.

        Answers that are still pending from before are received and dropped first.
        """
        while self.pending:
            self.receive()
        for worker, request in requests.items():
            self.send(worker, encode(request))
        for _ in requests:
            worker, answer = self.receive()
            yield worker, decode(answer)

    def broadcast(self, request: Any) -> dict[int, Any]:
        """The same request to every worker, and all the answers."""
        return dict(self.exchange({k: request for k in range(self.n_workers)}))

    def sibling(self, number: int, threads: int = 1) -> "Engine | None":
        """An engine on the same rows for another run, which may take place at the same time in another thread.

        Its workers hold out rows and keep dual variables of their own; `number` tells their checkpoint files apart.
        None, the default, if there is one path at a time: then the runs take place on this engine.
        """
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def begin_request(pending: set[int], worker: int) -> None:
    """Mark a worker as pending; RuntimeError if it already is."""
    if worker in pending:
        raise RuntimeError(f"worker {worker} was sent a message before its last answer was received")
    pending.add(worker)


def require_pending(pending: set[int]) -> None:
    if not pending:
        raise RuntimeError("no worker was sent a message, so there is no answer to receive")
