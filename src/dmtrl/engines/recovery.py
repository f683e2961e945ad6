"""Lost workers come back: what they were told is told again.

Room: engines, without a transport of its own. A worker is deterministic, so one that is made anew from its source and
hears the same messages again holds the same alpha, to the bit; the server's B stays what the workers' alpha say. What
really carries messages is a `Carrier` (Ray's actors; in tests, workers that are lost on purpose).
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from dmtrl.engines.base import Engine
from dmtrl.engines.contract import check_may_receive, check_may_send, fault_in
from dmtrl.engines.log import IN_MEMORY, Log
from dmtrl.exceptions import WorkerLostError
from dmtrl.protocol.message import Message

_INTRODUCE = Message("describe", {"digest": True})
_MOST_LOSSES = 10  # of one worker without an answer in between
_MOST_REPEATS = 3  # of a message to a worker that may be alive
_BREATH = 1.0  # seconds before such a repeat, and before rows that could not be read are tried again for the first time
logger = logging.getLogger("dmtrl")


class Lost(Exception):
    """A worker did not answer because its process is gone, or because it cannot be reached and is perhaps alive."""

    def __init__(self, worker: int, reason: str, perhaps_alive: bool = False):
        super().__init__(reason)
        self.worker, self.perhaps_alive = worker, perhaps_alive


class Refused(Exception):
    """A worker raised `error` instead of answering."""

    def __init__(self, worker: int, error: Exception):
        super().__init__(str(error))
        self.worker, self.error = worker, error


class Carrier(Protocol):
    """Makes workers and carries messages. Nothing here waits, except `fetch`."""

    @property
    def n_workers(self) -> int: ...

    def renew(self, k: int) -> None:
        """Give up worker k, if there is one, and make it anew from its source."""

    def post(self, k: int, number: int, messages: Sequence[Message]) -> None:
        """Messages to be answered in order; the last answer comes back, and without messages a sign of life. A number
        the worker has just answered is answered again from memory and not worked on twice."""

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        """The next answer. Raises Lost, Refused, or TimeoutError if there is nothing to fetch by then."""
        ...

    def close(self) -> None: ...


@dataclass
class _Worker:
    """What the engine knows of one worker."""

    log: Log
    number: int = 0  # of the last post
    posted: Sequence[Message] = ()
    asked: Message | None = None  # what the caller wants an answer to
    coming: bool = True  # was made, and has not given a sign of life
    introducing: bool = False  # is alive, and reads its rows
    since: float = 0.0  # when it was first missed
    unread: float = 0.0  # when one in its place first could not read what it needs
    retelling: Iterator[list[Message]] | None = None
    tasks: Sequence[int] = ()
    features: int = 0
    digest: str = ""  # of its rows, as it first read them
    losses: int = 0  # since it last answered: unless it is zero, the worker takes the place of a lost one
    repeats: int = 0
    fault: str = ""  # of its last answer to what it is asked now


class RecoveringEngine(Engine):
    """patience: how many seconds a lost worker may need until it gives a sign of life; then it may take its time to
    read its rows. silence: how many seconds one answer may take, and the reading of rows, before its worker is taken
    for lost; None: as long as it likes. names: of the tasks, for error messages."""

    def __init__(
        self,
        carrier: Carrier,
        patience: float = 120.0,
        names: Sequence[str] | None = None,
        silence: float | None = None,
    ):
        self._carrier, self._patience, self._silence, self._names = carrier, patience, silence, names
        self.asked: set[int] = set()
        self._workers = [_Worker(Log(IN_MEMORY // carrier.n_workers)) for _ in range(carrier.n_workers)]
        self._due: dict[int, tuple[float, Callable[[], None]]] = {}  # what is done when, unless the worker speaks first
        self._all_kept = True  # of what workers were told
        self.losses = 0  # how often a worker was lost
        try:
            for k in range(carrier.n_workers):
                self._renew(k)
            while any(worker.coming or worker.introducing for worker in self._workers):
                self._step(None)
        except BaseException:
            self.close()
            raise

    @property
    def n_workers(self) -> int:
        return len(self._workers)

    def send(self, k: int, message: Message) -> None:
        check_may_send(k, self.asked)
        self.asked.add(k)
        self._workers[k].asked = message
        self._post(k, [message])

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        check_may_receive(self.asked)
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            answered = self._step(end)
            if answered is not None:
                self.asked.discard(answered[0])
                return answered

    def close(self) -> None:
        self._carrier.close()
        for worker in self._workers:
            worker.log.close()

    def _step(self, end: float | None) -> tuple[int, Message] | None:
        """One thing that happens: an answer to the caller, or progress of a worker that is being brought back."""
        try:
            k, answer = self._carrier.fetch(self._wait(end))
        except TimeoutError:  # nobody is late as long as there are answers to take: theirs may be among them
            self._do_what_is_due()
            if end is not None and time.monotonic() >= end:
                raise TimeoutError("no worker answered in time") from None
            return None
        except Lost as lost:
            self._miss(lost)
            return None
        except Refused as refused:
            self._bear(refused)
            return None
        worker = self._workers[k]
        self._due.pop(k, None)
        worker.repeats = 0
        if worker.coming:  # from here on it may take its time: its rows may be many
            worker.coming, worker.introducing = False, True
            self._post(k, [_INTRODUCE])
        elif worker.introducing:
            self._welcome(k, answer)
        elif worker.retelling is not None:
            self._retell(k)
        elif worker.asked is not None:
            return self._take(k, worker.asked, answer)
        return None

    def _wait(self, end: float | None) -> float | None:
        """Seconds until something is to be done even if nobody speaks."""
        moments = [moment for moment, _ in self._due.values()] + ([] if end is None else [end])
        return max(min(moments) - time.monotonic(), 0.0) if moments else None

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        for k in [k for k, (moment, _) in self._due.items() if moment <= now]:
            _, act = self._due.pop(k)
            act()

    def _take(self, k: int, asked: Message, answer: Message) -> tuple[int, Message] | None:
        worker = self._workers[k]
        fault = fault_in(asked, answer, len(worker.tasks), worker.features)
        if fault:
            if worker.fault:
                raise self._lost_for_good(
                    k,
                    f"{fault}, and did so again after it was made anew from its data; if the loss is your own, try "
                    "dmtrl.check_loss",
                )
            worker.fault = fault
            self._miss(Lost(k, f"it {fault}"))
            return None
        worker.log.add(asked, answer)
        if worker.log.missing and self._all_kept:
            self._all_kept = False
            logger.warning(
                "what %s was told could not be kept (%s); if it is lost it cannot be brought back",
                self._who(k),
                worker.log.missing,
            )
        worker.asked, worker.fault = None, ""
        self._is_back(k)
        return k, answer

    def _is_back(self, k: int) -> None:
        worker = self._workers[k]
        worker.losses, worker.unread = 0, 0.0

    def _miss(self, lost: Lost) -> None:
        k, worker = lost.worker, self._workers[lost.worker]
        if lost.perhaps_alive and worker.repeats < _MOST_REPEATS:
            worker.repeats += 1
            self._due[k] = time.monotonic() + _BREATH, partial(self._hand_over, k)
            return
        self._count(lost)
        self._renew(k)

    def _bear(self, refused: Refused) -> None:
        """What a worker itself says ends the run, unless it takes the place of a lost one and cannot read its rows or
        its checkpoint: it may have come to a machine that does not see them, or they are out of reach for a while. Then
        another takes its place, after a pause that grows."""
        k, worker, error = refused.worker, self._workers[refused.worker], refused.error
        if not (isinstance(error, OSError) and worker.losses):
            self._due.pop(k, None)
            self.asked.discard(k)
            worker.asked = None
            raise error from None
        now = time.monotonic()
        worker.unread = worker.unread or now
        end = worker.unread + self._patience
        if now >= end:
            words = f"was lost, and whoever took its place could not read within {self._patience:g} seconds: {error}"
            raise self._lost_for_good(k, words) from error
        self._count(Lost(k, f"it could not read: {error}"))
        pause = _BREATH * 2.0 ** (worker.losses - 2)  # the first loss was another
        self._due[k] = min(now + pause, end), partial(self._renew, k)

    def _count(self, lost: Lost) -> None:
        """Another loss, unless it is one too many."""
        k, worker = lost.worker, self._workers[lost.worker]
        worker.losses += 1
        self.losses += 1
        if worker.log.missing:
            words = f"was lost ({lost}) and cannot be brought back: what it was told could not be kept"
            raise self._lost_for_good(k, f"{words} ({worker.log.missing}); give the temporary folder more room")
        if worker.losses > _MOST_LOSSES:
            raise self._lost_for_good(k, f"was lost {worker.losses} times in a row: {lost}")
        logger.warning("%s was lost (%s) and is being brought back", self._who(k), str(lost).split("\n")[0])

    def _renew(self, k: int) -> None:
        worker = self._workers[k]
        if not worker.coming or worker.since == 0.0:
            worker.since = time.monotonic()
        worker.coming, worker.introducing, worker.retelling, worker.repeats = True, False, None, 0
        self._carrier.renew(k)
        self._post(k, [])

    def _welcome(self, k: int, introduction: Message) -> None:
        worker = self._workers[k]
        worker.introducing = False
        worker.tasks = introduction.arrays["tasks"].tolist()
        worker.features = int(introduction.scalars["features"])
        digest = str(introduction.scalars["digest"])
        if worker.digest not in ("", digest):  # what was told to the first does not hold for these rows
            raise ValueError(
                f"the source of {self._who(k)} gave other rows than before: what the run has found does not hold for "
                "them; begin anew, from data that stays as it is while a run reads it"
            )
        worker.digest = digest
        if worker.asked is None:
            self._is_back(k)
        else:
            worker.retelling = worker.log.batches()
            self._retell(k)

    def _retell(self, k: int) -> None:
        """The next part of what a new worker has to hear, and at last what it is asked."""
        worker = self._workers[k]
        batch = next(worker.retelling, None) if worker.retelling is not None else None
        if batch is None:
            worker.retelling = None
            assert worker.asked is not None
            batch = [worker.asked]
        self._post(k, batch)

    def _post(self, k: int, messages: Sequence[Message]) -> None:
        worker = self._workers[k]
        worker.number, worker.posted = worker.number + 1, messages
        self._hand_over(k)

    def _hand_over(self, k: int) -> None:
        """What was posted last, perhaps not for the first time."""
        worker = self._workers[k]
        self._carrier.post(k, worker.number, worker.posted)
        if worker.coming:
            self._due[k] = worker.since + self._patience, partial(self._give_up, k)
        elif self._silence is not None:  # for each answer, of which only the last is heard
            seconds = self._silence * len(worker.posted)
            silent = Lost(k, f"it said nothing for {seconds:g} seconds")
            self._due[k] = time.monotonic() + seconds, partial(self._miss, silent)

    def _give_up(self, k: int) -> None:
        what = "brought back" if self._workers[k].losses else "started"
        raise self._lost_for_good(
            k,
            f"could not be {what} within {self._patience:g} seconds; give the cluster room for it (processors, memory, "
            "what resources= asks for) or have more patience",
        )

    def _lost_for_good(self, k: int, words: str) -> WorkerLostError:
        alive = sum(not other.coming and not other.losses for other in self._workers)
        return WorkerLostError(f"{self._who(k)} {words}", k, self._workers[k].tasks, alive)

    def _who(self, k: int) -> str:
        tasks = self._workers[k].tasks
        named = [repr(self._names[t]) if self._names is not None else str(t) for t in tasks[:5]]
        if len(tasks) > 5:
            named.append(f"... {len(tasks)} in all")
        return f"worker {k}" + (f" (tasks {', '.join(named)})" if named else "")
