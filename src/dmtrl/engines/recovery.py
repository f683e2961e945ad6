"""Replaces lost workers.

A worker is deterministic: a replacement that reads the same source and is sent the same messages holds the same dual
variables, to the bit. The transport is a `Carrier`: Ray's actors, or in tests workers that are lost on purpose. The
states of a worker, and what happens in them, are in states.py.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from dmtrl.engines.base import Engine, begin_request, require_pending
from dmtrl.engines.log import IN_MEMORY, ReplayLog
from dmtrl.engines.states import TRANSITIONS, Action, Event, State
from dmtrl.exceptions import WorkerLostError
from dmtrl.protocol.codec import decode, encode, fault_in
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Describe, Description

_DESCRIBE = encode(Describe(digest=True))
_MAX_LOSSES = 10  # of one worker without an answer in between
_MAX_REPEATS = 3  # of a message to a worker that may be alive
_RETRY_DELAY = 1.0  # seconds before a repeat, and before unreadable rows are tried again for the first time
_UP = (State.DESCRIBING, State.REPLAYING, State.IDLE, State.WORKING)  # has responded
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
    """Starts workers and carries messages. Only `fetch` waits.

    A carrier may have two more attributes, sentences without a full stop that end an error message and say what the
    user can do: `advice` if a worker cannot be started or replaced in time, and `fault_advice` if a worker sends
    damaged answers also after it was restarted.
    """

    @property
    def n_workers(self) -> int: ...

    def renew(self, worker: int) -> None:
        """Drop the worker, if it exists, and start it again from its source."""

    def post(self, worker: int, number: int, messages: Sequence[Message]) -> None:
        """Messages to be answered in order. The last answer comes back; without messages, any response. If the
        worker has just answered this number, the answer is repeated from memory and no work is done twice."""

    def fetch(self, timeout: float | None) -> tuple[int, Message]:
        """The next answer. Raises Lost or Refused, or TimeoutError if nothing arrives in time. A carrier that sees more
        of its workers than their answers may itself decide that one is lost for good, and raise WorkerLostError; its
        engine then gets an infinite `recovery_timeout`.

        Answers, losses and errors are about the last post to a worker; those about earlier posts are dropped."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Post:
    """What was posted last to a worker."""

    number: int = 0
    messages: Sequence[Message] = ()
    repeats: int = 0


@dataclass
class _Trouble:
    """What has gone wrong since the last answer of a worker to the caller."""

    losses: int = 0
    unreadable_since: float | None = None  # when a replacement first could not read its data
    fault: str = ""  # of its last answer to the present request


@dataclass
class _Worker:
    """What the engine knows of one worker."""

    log: ReplayLog
    state: State = State.ABSENT
    request: Message | None = None  # what the caller waits for
    post: _Post = _Post()
    starting_since: float = 0.0
    replay: Iterator[list[Message]] = field(default_factory=lambda: iter(()))  # what was not posted yet of the log
    description: Description | None = None  # of its rows
    trouble: _Trouble = field(default_factory=_Trouble)

    @property
    def tasks(self) -> list[int]:
        return [] if self.description is None else self.description.tasks.tolist()


class RestartingEngine(Engine):
    """An engine over a carrier that restarts lost workers and sends them the pending request again.

    That is enough for workers that keep no state of a run in memory, such as the sites that a study
    asks; `RecoveringEngine` also restores state. An error that a worker raises instead of answering reaches the caller
    of `receive` as `Refused`.

    A worker that was started must respond within `recovery_timeout` seconds. An answer may take `answer_timeout`
    seconds before the worker counts as lost (None: no limit).
    """

    def __init__(self, carrier: Carrier, recovery_timeout: float = 120.0, answer_timeout: float | None = None):
        self._carrier, self._recovery_timeout, self._answer_timeout = carrier, recovery_timeout, answer_timeout
        self.pending: set[int] = set()
        self._workers = [_Worker(ReplayLog(IN_MEMORY // carrier.n_workers)) for _ in range(carrier.n_workers)]
        self._timers: dict[int, tuple[float, Callable[[], None]]] = {}  # actions that an answer cancels
        self._actions: dict[Action, Callable[[int], None]] = {
            Action.START: self._start,
            Action.START_AGAIN: self._start_again,
            Action.START_LATER: self._start_later,
            Action.DESCRIBE: self._describe_rows,
            Action.REPLAY: self._replay,
            Action.SETTLE: self._settle,
            Action.WORK: self._work,
            Action.POST_AGAIN: self._post_again,
            Action.WAIT: self._wait,
            Action.DROP: self._drop,
        }
        self.losses = 0  # how often a worker was lost
        try:
            for k in range(carrier.n_workers):
                self._advance(k, Event.START)
        except BaseException:
            self.close()
            raise

    @property
    def n_workers(self) -> int:
        return len(self._workers)

    def send(self, worker: int, message: Message) -> None:
        begin_request(self.pending, worker)
        self._workers[worker].request = message
        self._advance(worker, Event.REQUESTED)

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

    def describe(self, worker: int) -> str:
        """How error messages name a worker."""
        return f"worker {worker}"

    # What the carrier reports

    def _step(self, end: float | None) -> tuple[int, Message] | None:
        """Handle one event. Returns an answer for the caller, if it is one."""
        try:
            k, answer = self._carrier.fetch(self._seconds_to_wait(end))
        except TimeoutError:  # timers run only when no answer is waiting: it might be the one they are for
            self._run_timers()
            if end is not None and time.monotonic() >= end:
                raise TimeoutError("no worker answered in time") from None
        except Lost as lost:
            if self._expects(lost.worker, Event.LOST):
                self._handle_loss(lost)
        except Refused as refused:
            if self._expects(refused.worker, Event.REFUSED):
                self._handle_refusal(refused)
        else:
            if self._expects(k, Event.ANSWERED):
                self._timers.pop(k, None)
                return self._handle_answer(k, answer)
        return None

    def _handle_answer(self, k: int, answer: Message) -> tuple[int, Message] | None:
        """What the caller receives; None if the answer was for the engine itself."""
        if self._workers[k].state is State.STARTING:
            self._advance(k, Event.CAUGHT_UP)
            return None
        self._workers[k].request = None
        self._advance(k, Event.ANSWERED)
        return k, answer

    def _handle_loss(self, lost: Lost) -> None:
        k, worker = lost.worker, self._workers[lost.worker]
        if lost.maybe_alive and worker.post.repeats < _MAX_REPEATS and self._expects(k, Event.UNREACHABLE):
            self._advance(k, Event.UNREACHABLE)
            return
        self._count(lost)
        self._advance(k, Event.LOST)

    def _handle_refusal(self, refused: Refused) -> None:
        """A worker raised an error instead of answering: the request is over."""
        self._end_request(refused.worker)
        raise refused

    def _end_request(self, k: int) -> None:
        self._timers.pop(k, None)
        self.pending.discard(k)
        self._workers[k].request = None
        self._advance(k, Event.REFUSED)

    def _count(self, lost: Lost) -> None:
        """Count a loss; raise if there are too many."""
        k, worker = lost.worker, self._workers[lost.worker]
        worker.trouble.losses += 1
        self.losses += 1
        if worker.log.missing:
            words = f"was lost ({lost}) and cannot be replaced: the messages it was sent could not be kept"
            raise self._give_up(k, f"{words} ({worker.log.missing}); give the temporary folder more room")
        if worker.trouble.losses > _MAX_LOSSES:
            raise self._give_up(k, f"was lost {worker.trouble.losses} times in a row: {lost}")
        logger.warning("%s was lost (%s) and is being replaced", self.describe(k), str(lost).split("\n")[0])

    def _give_up(self, k: int, words: str) -> WorkerLostError:
        tasks = self._workers[k].tasks
        others = (other for i, other in enumerate(self._workers) if i != k)
        alive = sum(other.state in _UP and not other.trouble.losses for other in others)
        self._advance(k, Event.GIVEN_UP)
        return WorkerLostError(f"{self.describe(k)} {words}", k, tasks, alive)

    # The state machine

    def _expects(self, k: int, event: Event) -> bool:
        return (self._workers[k].state, event) in TRANSITIONS

    def _advance(self, k: int, event: Event) -> None:
        worker = self._workers[k]
        worker.state, action = TRANSITIONS[worker.state, event]
        self._actions[action](k)

    def _start(self, k: int) -> None:
        self._workers[k].starting_since = time.monotonic()
        self._start_again(k)

    def _start_again(self, k: int) -> None:
        self._carrier.renew(k)
        self._post(k, [])

    def _start_later(self, k: int) -> None:
        """The delay doubles with every loss; the first one had another reason. The last attempt is at the very end of
        `recovery_timeout`."""
        trouble = self._workers[k].trouble
        assert trouble.unreadable_since is not None
        moment = time.monotonic() + _RETRY_DELAY * 2.0 ** (trouble.losses - 2)
        end = trouble.unreadable_since + self._recovery_timeout
        self._timers[k] = min(moment, end), partial(self._advance, k, Event.START)

    def _describe_rows(self, k: int) -> None:
        """From here on it may take its time: it may have many rows."""
        self._workers[k].replay = self._workers[k].log.batches()
        self._post(k, [_DESCRIBE])

    def _replay(self, k: int) -> None:
        batch = next(self._workers[k].replay, None)
        if batch is None:
            self._advance(k, Event.CAUGHT_UP)
        else:
            self._post(k, batch)

    def _settle(self, k: int) -> None:
        if self._workers[k].request is None:
            self._workers[k].trouble = _Trouble()
        else:
            self._advance(k, Event.REQUESTED)

    def _work(self, k: int) -> None:
        request = self._workers[k].request
        assert request is not None
        self._post(k, [request])

    def _wait(self, k: int) -> None:
        """The request is taken up when the worker has caught up."""

    def _drop(self, k: int) -> None:
        self._timers.pop(k, None)
        self.pending.discard(k)  # no answer will come
        self._workers[k].request, self._workers[k].trouble = None, _Trouble()

    # Posts and timers

    def _post(self, k: int, messages: Sequence[Message]) -> None:
        self._workers[k].post = _Post(self._workers[k].post.number + 1, messages)
        self._deliver(k)

    def _post_again(self, k: int) -> None:
        worker = self._workers[k]
        worker.post = replace(worker.post, repeats=worker.post.repeats + 1)
        self._timers[k] = time.monotonic() + _RETRY_DELAY, partial(self._deliver, k)

    def _deliver(self, k: int) -> None:
        worker = self._workers[k]
        self._timers.pop(k, None)
        self._carrier.post(k, worker.post.number, worker.post.messages)
        if worker.state is State.STARTING:
            self._timers[k] = worker.starting_since + self._recovery_timeout, partial(self._not_in_time, k)
        elif self._answer_timeout is not None:  # per message; only the last answer comes back
            seconds = self._answer_timeout * len(worker.post.messages)
            silent = Lost(k, f"it did not answer for {seconds:g} seconds")
            self._timers[k] = time.monotonic() + seconds, partial(self._handle_loss, silent)

    def _not_in_time(self, k: int) -> None:
        advice = getattr(self._carrier, "advice", "")
        words = f"{self._not_started(k)} within {self._recovery_timeout:g} seconds"
        raise self._give_up(k, f"{words}; {advice}" if advice else words)

    def _not_started(self, k: int) -> str:
        return "did not respond"

    def _seconds_to_wait(self, end: float | None) -> float | None:
        moments = [moment for moment, _ in self._timers.values()] + ([] if end is None else [end])
        return max(min(moments) - time.monotonic(), 0.0) if moments else None

    def _run_timers(self) -> None:
        now = time.monotonic()
        for k in [k for k, (moment, _) in self._timers.items() if moment <= now]:
            _, action = self._timers.pop(k)
            action()


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
            while any(worker.state is not State.IDLE for worker in self._workers):
                self._step(None)
        except BaseException:
            self.close()
            raise

    def _handle_answer(self, k: int, answer: Message) -> tuple[int, Message] | None:
        worker = self._workers[k]
        if worker.state is State.DESCRIBING:
            self._check_description(k, answer)
        elif worker.state is State.WORKING:
            if not self._accepts(k, answer):
                return None
            worker.request = None
            self._advance(k, Event.ANSWERED)
            return k, answer
        self._advance(k, Event.ANSWERED)
        return None

    def _check_description(self, k: int, answer: Message) -> None:
        """Raise ValueError if the rows are others than before: the messages sent so far do not fit them."""
        worker, description = self._workers[k], decode(answer)
        assert isinstance(description, Description)
        if worker.description is not None and worker.description.digest != description.digest:
            self._end_request(k)
            raise ValueError(
                f"the source of {self.describe(k)} gave other rows than before, so the results so far do not hold for "
                "them; start the run again, from data that does not change while it is read"
            )
        worker.description = description

    def _accepts(self, k: int, answer: Message) -> bool:
        """Log a valid answer. The first damaged answer to a request counts as a loss; the second one ends the run."""
        worker, request = self._workers[k], self._workers[k].request
        assert request is not None
        assert worker.description is not None
        rows = worker.description
        fault = fault_in(request, answer, len(rows.tasks), int(rows.features), int(rows.outputs))
        if fault and worker.trouble.fault:
            words, advice = (
                f"{fault}, and did so again after it was restarted",
                getattr(self._carrier, "fault_advice", ""),
            )
            raise self._give_up(k, f"{words}; {advice}" if advice else words)
        if fault:
            worker.trouble.fault = fault
            self._handle_loss(Lost(k, f"it {fault}"))
            return False
        worker.log.add(request, answer)
        if worker.log.missing and not self._warned_about_log:
            self._warned_about_log = True
            logger.warning(
                "the messages sent to %s could not be kept (%s); if it is lost it cannot be replaced",
                self.describe(k),
                worker.log.missing,
            )
        return True

    def _handle_refusal(self, refused: Refused) -> None:
        """An error that a worker raises ends the run. The exception is a replacement that cannot read its rows or its
        checkpoint: it may be on a machine that does not see them, or they are out of reach for a while. Then another
        replacement is tried, after a delay that grows."""
        k, error, trouble = refused.worker, refused.error, self._workers[refused.worker].trouble
        if not (isinstance(error, OSError) and trouble.losses):
            self._end_request(k)
            raise error from None
        now = time.monotonic()
        if trouble.unreadable_since is None:
            trouble.unreadable_since = now
        if now >= trouble.unreadable_since + self._recovery_timeout:
            words = f"was lost, and no replacement could read its data within {self._recovery_timeout:g} s: {error}"
            raise self._give_up(k, words) from error
        self._count(Lost(k, f"it could not read: {error}"))
        self._advance(k, Event.UNREADABLE)

    def _work(self, k: int) -> None:
        request = self._workers[k].request
        assert request is not None
        self._workers[k].log.before(request)
        super()._work(k)

    def _not_started(self, k: int) -> str:
        return f"could not be {'replaced' if self._workers[k].trouble.losses else 'started'}"

    def describe(self, worker: int) -> str:
        tasks = self._workers[worker].tasks
        names = [repr(self._names[t]) if self._names is not None else str(t) for t in tasks[:5]]
        if len(tasks) > 5:
            names.append(f"... {len(tasks)} in total")
        return f"worker {worker}" + (f" (tasks {', '.join(names)})" if names else "")
