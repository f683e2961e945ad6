"""Replaces lost workers.

A worker is deterministic: a replacement that reads the same source and is sent the same messages holds the same dual
variables, to the bit. The transport is a `Carrier`: Ray's actors, or in tests workers that are lost on purpose.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from dmtrl.engines.base import Engine, begin_request, require_pending
from dmtrl.engines.log import IN_MEMORY, ReplayLog
from dmtrl.exceptions import WorkerLostError
from dmtrl.protocol.codec import decode, encode, fault_in
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Describe, Description

_INTRODUCE = encode(Describe(digest=True))
_MAX_LOSSES = 10  # of one worker without an answer in between
_MAX_REPEATS = 3  # of a message to a worker that may be alive
_RETRY_DELAY = 1.0  # seconds before a repeat, and before unreadable rows are tried again for the first time
logger = logging.getLogger("dmtrl")


class Lost(Exception):
    """A worker did not answer: its process is gone, or it cannot be reached and may be alive."""

    def __init__(self, worker: int, reason: str, maybe_alive: bool = False):
        super().__init__(reason)
        self.worker, self.maybe_alive = worker, maybe_alive


class Refused(Exception):
    """A worker raised `error` instead of answering."""

    def __init__(self, worker: int, error: Exception):
        super().__init__(str(error))
        self.worker, self.error = worker, error


class Carrier(Protocol):
    """Starts workers and carries messages. Only `fetch` waits."""

    @property
    def n_workers(self) -> int: ...

    def renew(self, worker: int) -> None:
        """Drop the worker, if it exists, and start it again from its source."""

    def post(self, worker: int, number: int, messages: Sequence[Message]) -> None:
        """Messages to be answered in order. The last answer comes back; without messages, any response. If the
        worker has just answered this number, the answer is repeated from memory and no work is done twice."""

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        """The next answer. Raises Lost, Refused, or TimeoutError if nothing arrives in time."""
        ...

    def close(self) -> None: ...


@dataclass
class _Worker:
    """What the engine knows of one worker."""

    log: ReplayLog
    number: int = 0  # of the last post
    posted: Sequence[Message] = ()
    request: Message | None = None  # what the caller waits for
    starting: bool = True  # has not responded yet
    introducing: bool = False  # is alive and reads its rows
    missing_since: float = 0.0
    unreadable_since: float = 0.0  # when a replacement first could not read its rows
    replaying: Iterator[list[Message]] | None = None
    tasks: Sequence[int] = ()
    features: int = 0
    outputs: int = 1
    digest: str = ""  # of its rows, as first read
    losses: int = 0  # since its last answer; positive while a replacement is catching up
    repeats: int = 0
    fault: str = ""  # of its last answer to the present request


class RestartingEngine(Engine):
    """An engine over a carrier that restarts lost workers and sends them the pending request again.

    That is enough for workers that keep no state of a run in memory, such as the sites that a study
    asks; `RecoveringEngine` also restores state. An error that a worker raises instead of answering reaches the caller
    of `receive` as `Refused`.

    A worker that was started must respond within `recovery_timeout` seconds. An answer may take
    `answer_timeout` seconds before the worker counts as lost (None: no limit).
    """

    def __init__(self, carrier: Carrier, recovery_timeout: float = 120.0, answer_timeout: float | None = None):
        self._carrier, self._recovery_timeout, self._answer_timeout = carrier, recovery_timeout, answer_timeout
        self.pending: set[int] = set()
        self._workers = [_Worker(ReplayLog(IN_MEMORY // carrier.n_workers)) for _ in range(carrier.n_workers)]
        self._timers: dict[int, tuple[float, Callable[[], None]]] = {}  # actions that an answer cancels
        self.losses = 0  # how often a worker was lost
        try:
            for k in range(carrier.n_workers):
                self._renew(k)
        except BaseException:
            self.close()
            raise

    @property
    def n_workers(self) -> int:
        return len(self._workers)

    def send(self, worker: int, message: Message) -> None:
        begin_request(self.pending, worker)
        self._workers[worker].request = message
        if not self._workers[worker].starting:  # else it is posted after the first response
            self._post(worker, [message])

    def receive(self, timeout: float | None = None) -> tuple[int, Message]:
        require_pending(self.pending)
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            answered = self._step(end)
            if answered is not None:
                self.pending.discard(answered[0])
                return answered

    def close(self) -> None:
        self._carrier.close()
        for worker in self._workers:
            worker.log.close()

    def _step(self, end: float | None) -> tuple[int, Message] | None:
        """Handle one event: an answer to the caller, or progress of a worker that is being replaced."""
        try:
            k, answer = self._carrier.fetch(self._seconds_to_wait(end))
        except TimeoutError:  # timers run only when no answer is waiting: it might be the one they are for
            self._run_timers()
            if end is not None and time.monotonic() >= end:
                raise TimeoutError("no worker answered in time") from None
            return None
        except Lost as lost:
            self._handle_loss(lost)
            return None
        except Refused as refused:
            self._handle_refusal(refused)
            return None
        worker = self._workers[k]
        self._timers.pop(k, None)
        worker.repeats = 0
        if worker.starting:
            worker.starting = False
            self._handle_first_response(k)
            return None
        return self._handle_answer(k, answer)

    def _handle_first_response(self, k: int) -> None:
        """Continue with a worker that was started: send it the pending request, if there is one."""
        request = self._workers[k].request
        if request is None:
            self._recovered(k)
        else:
            self._post(k, [request])

    def _handle_answer(self, k: int, answer: Message) -> tuple[int, Message] | None:
        """What the caller receives; None if the answer was for the engine itself."""
        if self._workers[k].request is None:
            return None
        self._workers[k].request = None
        self._recovered(k)
        return k, answer

    def _handle_refusal(self, refused: Refused) -> None:
        """A worker raised an error instead of answering: the request is over."""
        self._end_request(refused.worker)
        raise refused

    def _end_request(self, k: int) -> None:
        self._timers.pop(k, None)
        self.pending.discard(k)
        worker = self._workers[k]
        worker.request, worker.starting, worker.repeats = None, False, 0

    def _seconds_to_wait(self, end: float | None) -> float | None:
        moments = [moment for moment, _ in self._timers.values()] + ([] if end is None else [end])
        return max(min(moments) - time.monotonic(), 0.0) if moments else None

    def _run_timers(self) -> None:
        now = time.monotonic()
        for k in [k for k, (moment, _) in self._timers.items() if moment <= now]:
            _, action = self._timers.pop(k)
            action()

    def _recovered(self, k: int) -> None:
        self._workers[k].losses, self._workers[k].unreadable_since = 0, 0.0

    def _handle_loss(self, lost: Lost) -> None:
        k, worker = lost.worker, self._workers[lost.worker]
        if lost.maybe_alive and worker.repeats < _MAX_REPEATS:
            worker.repeats += 1
            self._timers[k] = time.monotonic() + _RETRY_DELAY, partial(self._post_again, k)
            return
        self._count(lost)
        self._renew(k)

    def _count(self, lost: Lost) -> None:
        """Count a loss; raise if there are too many."""
        k, worker = lost.worker, self._workers[lost.worker]
        worker.losses += 1
        self.losses += 1
        if worker.log.missing:
            words = f"was lost ({lost}) and cannot be replaced: the messages it was sent could not be kept"
            raise self._lost_for_good(k, f"{words} ({worker.log.missing}); give the temporary folder more room")
        if worker.losses > _MAX_LOSSES:
            raise self._lost_for_good(k, f"was lost {worker.losses} times in a row: {lost}")
        logger.warning("%s was lost (%s) and is being replaced", self.describe(k), str(lost).split("\n")[0])

    def _renew(self, k: int) -> None:
        worker = self._workers[k]
        if not worker.starting or worker.missing_since == 0.0:
            worker.missing_since = time.monotonic()
        worker.starting, worker.introducing, worker.replaying, worker.repeats = True, False, None, 0
        self._carrier.renew(k)
        self._post(k, [])

    def _post(self, k: int, messages: Sequence[Message]) -> None:
        worker = self._workers[k]
        worker.number, worker.posted = worker.number + 1, messages
        self._post_again(k)

    def _post_again(self, k: int) -> None:
        worker = self._workers[k]
        self._carrier.post(k, worker.number, worker.posted)
        if worker.starting:
            self._timers[k] = worker.missing_since + self._recovery_timeout, partial(self._give_up, k)
        elif self._answer_timeout is not None:  # per message; only the last answer comes back
            seconds = self._answer_timeout * len(worker.posted)
            silent = Lost(k, f"it did not answer for {seconds:g} seconds")
            self._timers[k] = time.monotonic() + seconds, partial(self._handle_loss, silent)

    def _give_up(self, k: int) -> None:
        raise self._lost_for_good(k, f"did not respond within {self._recovery_timeout:g} seconds")

    def _lost_for_good(self, k: int, words: str) -> WorkerLostError:
        self.pending.discard(k)  # no answer will come
        alive = sum(not other.starting and not other.losses for other in self._workers)
        return WorkerLostError(f"{self.describe(k)} {words}", k, self._workers[k].tasks, alive)

    def describe(self, worker: int) -> str:
        """How error messages name a worker."""
        return f"worker {worker}"


class RecoveringEngine(RestartingEngine):
    """An engine over a carrier that replaces lost workers, with all the state they had.

    A lost worker must answer again within `recovery_timeout` seconds; reading its rows may then take longer. An answer,
    or reading rows, may take `answer_timeout` seconds before the worker counts as lost (None: no limit). `names`: of
    the tasks, for error messages.
    """

    def __init__(
        self,
        carrier: Carrier,
        recovery_timeout: float = 120.0,
        names: Sequence[str] | None = None,
        answer_timeout: float | None = None,
    ):
        self._names, self._warned_about_log = names, False
        super().__init__(carrier, recovery_timeout, answer_timeout)
        try:
            while any(worker.starting or worker.introducing for worker in self._workers):
                self._step(None)
        except BaseException:
            self.close()
            raise

    def _handle_first_response(self, k: int) -> None:
        """Ask what a started worker holds. From here on it may take its time: it may have many rows."""
        self._workers[k].introducing = True
        self._post(k, [_INTRODUCE])

    def _handle_answer(self, k: int, answer: Message) -> tuple[int, Message] | None:
        worker = self._workers[k]
        if worker.introducing:
            self._introduced(k, answer)
        elif worker.replaying is not None:
            self._replay(k)
        elif worker.request is not None:
            return self._take(k, worker.request, answer)
        return None

    def _take(self, k: int, request: Message, answer: Message) -> tuple[int, Message] | None:
        worker = self._workers[k]
        fault = fault_in(request, answer, len(worker.tasks), worker.features, worker.outputs)
        if fault:
            if worker.fault:
                raise self._lost_for_good(
                    k,
                    f"{fault}, and did so again after it was restarted from its data; if the loss is your own, run "
                    "dmtrl.check_loss",
                )
            worker.fault = fault
            self._handle_loss(Lost(k, f"it {fault}"))
            return None
        worker.log.add(request, answer)
        if worker.log.missing and not self._warned_about_log:
            self._warned_about_log = True
            logger.warning(
                "the messages sent to %s could not be kept (%s); if it is lost it cannot be replaced",
                self.describe(k),
                worker.log.missing,
            )
        worker.request, worker.fault = None, ""
        self._recovered(k)
        return k, answer

    def _handle_refusal(self, refused: Refused) -> None:
        """An error that a worker raises ends the run. The exception is a replacement that cannot read its rows or its
        checkpoint: it may be on a machine that does not see them, or they are out of reach for a while. Then another
        replacement is tried, after a delay that grows."""
        k, worker, error = refused.worker, self._workers[refused.worker], refused.error
        if not (isinstance(error, OSError) and worker.losses):
            self._end_request(k)
            raise error from None
        now = time.monotonic()
        worker.unreadable_since = worker.unreadable_since or now
        end = worker.unreadable_since + self._recovery_timeout
        if now >= end:
            words = f"was lost, and no replacement could read its data within {self._recovery_timeout:g} s: {error}"
            raise self._lost_for_good(k, words) from error
        self._count(Lost(k, f"it could not read: {error}"))
        delay = _RETRY_DELAY * 2.0 ** (worker.losses - 2)  # the first loss had another reason
        self._timers[k] = min(now + delay, end), partial(self._renew, k)

    def _introduced(self, k: int, answer: Message) -> None:
        worker, description = self._workers[k], decode(answer)
        assert isinstance(description, Description)
        worker.introducing = False
        worker.tasks, worker.features = description.tasks.tolist(), int(description.features)
        worker.outputs = int(description.outputs)
        digest = str(description.digest)
        if worker.digest not in ("", digest):  # the messages sent so far do not fit these rows
            raise ValueError(
                f"the source of {self.describe(k)} gave other rows than before, so the results so far do not hold for "
                "them; start the run again, from data that does not change while it is read"
            )
        worker.digest = digest
        if worker.request is None:
            self._recovered(k)
        else:
            worker.replaying = worker.log.batches()
            self._replay(k)

    def _replay(self, k: int) -> None:
        """Send the next part of the log to a replacement, and at the end the present request."""
        worker = self._workers[k]
        assert worker.replaying is not None
        assert worker.request is not None
        batch = next(worker.replaying, None)
        if batch is None:
            worker.replaying, batch = None, [worker.request]
        self._post(k, batch)

    def _give_up(self, k: int) -> None:
        what = "replaced" if self._workers[k].losses else "started"
        raise self._lost_for_good(
            k,
            f"could not be {what} within {self._recovery_timeout:g} seconds; give the cluster room for it (CPUs, "
            "memory, custom resources)",
        )

    def describe(self, worker: int) -> str:
        tasks = self._workers[worker].tasks
        names = [repr(self._names[t]) if self._names is not None else str(t) for t in tasks[:5]]
        if len(tasks) > 5:
            names.append(f"... {len(tasks)} in total")
        return f"worker {worker}" + (f" (tasks {', '.join(names)})" if names else "")
