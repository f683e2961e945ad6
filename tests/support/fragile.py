"""A carrier in this process that loses workers and damages answers on purpose."""

import time
from collections.abc import Sequence

import numpy as np

from dmtrl import TaskData
from dmtrl.data.blocks import Source
from dmtrl.engines.recovery import Lost, Refused
from dmtrl.losses import get_loss
from dmtrl.protocol.message import Message
from dmtrl.worker.worker import Worker


class Fragile:
    """Carries messages to workers in this process.

    Parameters
    ----------
    data : TaskData or sequence of Source
    loss : str
    workers : int
        Used only if `data` is TaskData.
    faults : dict of int to str
        The fault at each post, counted over all workers from 1: "before" or "after" loses the worker before or after it
        answers, "unreachable before" and "unreachable after" may leave it alive, "silent" drops the post, and "nan",
        "shape" and "name" damage the answer.
    dead : sequence of int
        Workers that, once lost, never come back.
    absent : sequence of int
        Workers that never start.
    """

    def __init__(
        self,
        data: TaskData | Sequence[Source],
        loss: str,
        workers: int,
        faults: dict[int, str],
        dead: Sequence[int] = (),
        absent: Sequence[int] = (),
    ):
        self.sources = data.sources(workers) if isinstance(data, TaskData) else list(data)
        self._loss, self._faults, self._dead = get_loss(loss), faults, dead
        self._workers: list[Worker | None] = [None] * len(self.sources)
        self._last: list[tuple[int, Message]] = [(0, Message("nothing"))] * len(self.sources)
        self._posted: list[tuple[int, int, Sequence[Message]]] = []
        self.posts = self.worked = self.replayed = 0
        self._silent = set(absent)
        self.closed = False

    @property
    def n_workers(self) -> int:
        return len(self.sources)

    def renew(self, k: int) -> None:
        if self._workers[k] is not None and k in self._dead:
            self._silent.add(k)
        self._workers[k] = Worker(self.sources[k], self._loss)
        self._last[k] = (0, Message("nothing"))

    def post(self, k: int, number: int, messages: Sequence[Message]) -> None:
        self._posted = [post for post in self._posted if post[0] != k]
        self._posted.append((k, number, [Message.decode(message.encode()) for message in messages]))

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        deliverable = [post for post in self._posted if post[0] not in self._silent]
        if not deliverable:
            assert timeout is not None, "no answer can arrive"
            time.sleep(timeout)
            raise TimeoutError
        self._posted.remove(deliverable[0])
        k, number, messages = deliverable[0]
        if not messages:
            return k, Message("alive")
        self.posts += 1
        fault = self._faults.get(self.posts, "")
        if fault == "silent":
            return self.fetch(timeout)
        if fault.endswith("before"):
            raise Lost(k, fault, maybe_alive=fault.startswith("unreachable"))
        try:
            answer = self._answer(k, number, messages)
        except Exception as error:
            raise Refused(k, error) from error
        if fault.endswith("after"):
            raise Lost(k, fault, maybe_alive=fault.startswith("unreachable"))
        return k, _damaged(answer, fault)

    def _answer(self, k: int, number: int, messages: Sequence[Message]) -> Message:
        if self._last[k][0] != number:
            worker = self._workers[k]
            assert worker is not None
            answers = [worker.answer(message) for message in messages]
            self.worked += len(answers)
            self.replayed += len(answers) - 1
            self._last[k] = (number, answers[-1])
        return self._last[k][1]

    def close(self) -> None:
        self.closed = True


def _damaged(answer: Message, fault: str) -> Message:
    arrays = dict(answer.arrays)
    if fault == "nan":
        for key, array in arrays.items():
            arrays[key] = np.full(array.shape, np.nan)
    elif fault == "shape":
        arrays[next(iter(arrays))] = np.zeros((7, 7))
    return Message("nonsense" if fault == "name" else answer.name, answer.scalars, arrays)
