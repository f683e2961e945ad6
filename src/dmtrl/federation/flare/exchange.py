"""What the coordinator and a site exchange over FLARE: requests with a life and a number, and replies with a state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from dmtrl.exceptions import RefusedBySiteError

TOPIC = "dmtrl"  # of the messages of FLARE
# The states of a reply. WORKING: the request was taken and is being worked on. BUSY: it was not taken, send it again.
DONE, ALIVE, WORKING, BUSY = "done", "alive", "working", "busy"
REFUSED, RESTARTED, STALE = "refused", "restarted", "stale"

# Errors that keep their class on the way to the coordinator.
ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (RefusedBySiteError, FileNotFoundError, OSError, ValueError, TypeError, ArithmeticError, RuntimeError)
}


@dataclass(frozen=True)
class Request:
    """What the coordinator sends. `begin`: whether it is the first request of a life. Without
    messages, it asks whether the site is alive, or for the answer to `number`."""

    life: int
    number: int
    begin: bool = False
    messages: Sequence[bytes] = ()

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        return cls(int(fields["life"]), int(fields["number"]), bool(fields["begin"]), list(fields["messages"]))


@dataclass(frozen=True)
class Reply:
    """What the site returns. `body`: the answer to the last message; `kind`, `text`: of an error."""

    state: str
    body: bytes = b""
    kind: str = ""
    text: str = ""

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        return cls(str(fields["state"]), bytes(fields["body"]), str(fields["kind"]), str(fields["text"]))
