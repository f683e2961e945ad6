"""What runs in the process of a Ray actor: a worker, and its siblings."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from dmtrl.data.blocks import Blocks, Source
from dmtrl.losses import AnyLoss
from dmtrl.protocol.message import Message
from dmtrl.worker.worker import Worker


@dataclass
class _Seat:
    """A worker in an actor, with its last answer."""

    worker: Worker | None = None
    number: int = 0
    answer: Message = field(default_factory=lambda: Message("nothing"))


class Host:
    """A worker, and its siblings by number. They are created at their first message, so that an error of the source is
    raised where its answer is received."""

    def __init__(self, source: Source, losses: AnyLoss | Sequence[AnyLoss]):
        self._given: tuple[Source, AnyLoss | Sequence[AnyLoss]] | None = (source, losses)
        self._seats: dict[int | None, _Seat] = {None: _Seat()}
        # as in the coordinator: the same bits need the same number of BLAS threads
        self._limits = threadpool_limits(1)

    def answer(self, sibling: int | None, number: int, messages: Sequence[Message]) -> Message:
        """The answer to the last message; a repeated number is answered from memory."""
        seat = self._seats.setdefault(sibling, _Seat())
        if number == seat.number or not messages:
            return seat.answer
        try:
            worker = self._worker(sibling)
            for message in messages:
                arrays = {name: np.array(array) for name, array in message.arrays.items()}
                seat.answer = worker.answer(Message(message.name, message.scalars, arrays))
        except Exception as error:
            raise _as_builtin(error) from None
        seat.number = number
        return seat.answer

    def _worker(self, sibling: int | None) -> Worker:
        first, seat = self._seats[None], self._seats[sibling]
        if first.worker is None:
            assert self._given is not None
            source, losses = self._given
            first.worker = Worker(_writable(source.load()), losses)
            self._given = None  # lets Ray release its copy of the rows
        if seat.worker is None:
            assert sibling is not None
            seat.worker = first.worker.sibling(sibling)
        return seat.worker

    def dismiss(self, sibling: int) -> None:
        """Free what a sibling holds."""
        self._seats.pop(sibling, None)


def _writable(blocks: Blocks) -> Blocks:
    """Copies of arrays that Ray made read-only: numba would compile the kernels again for those."""
    X, weight = blocks.X, blocks.sample_weight
    parts = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)
    if all(part.flags.writeable for part in (*parts, blocks.y)):
        return blocks
    weight, offset = (None if part is None else part.copy() for part in (weight, blocks.offset))
    copies = {"X": X.copy(), "y": blocks.y.copy(), "sample_weight": weight, "starts": blocks.starts.copy()}
    return replace(blocks, **copies, offset=offset)


def _as_builtin(error: Exception) -> Exception:
    """The same message in a built-in exception; others may not survive pickling."""
    known = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return error if type(error) is known else known(str(error))
