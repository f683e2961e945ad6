"""The contract of an engine, which delivers messages to workers and knows nothing of the algorithm."""

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol, Self

from dmtrl.protocol.message import Message


class Engine(Protocol):
    """Delivers messages to workers and hands back the answers as they come; knows nothing of the algorithm.

    A worker is asked one thing at a time: it may be sent the next message once its answer was received.
    """

    asked: Collection[int] = ()  # workers whose answer was not received yet; empty where every run waits for all

    @property
    def n_workers(self) -> int: ...

    def send(self, k: int, message: Message) -> None: ...

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        """The next answer that arrives, and whose it is; TimeoutError if none does within so many seconds."""
        ...

    def close(self) -> None: ...

    def exchange(self, messages: Mapping[int, Message]) -> Iterator[tuple[int, Message]]:
        """Send all, then hand back every answer in the order of arrival. Answers that nobody waited for come first and
        are dropped."""
        while self.asked:
            self.receive()
        for k, message in messages.items():
            self.send(k, message)
        for _ in messages:
            yield self.receive()

    def broadcast(self, message: Message) -> dict[int, Message]:
        """The same message to every worker; all the answers."""
        return dict(self.exchange({k: message for k in range(self.n_workers)}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
