"""The states of a worker of an engine that replaces lost ones (recovery.py), what can happen in them, and what follows.

`TRANSITIONS` is the whole table. docs/architecture.md shows it, and a test compares the two.
"""

from enum import Enum


class State(Enum):
    """What the engine expects of a worker."""

    ABSENT = "absent"  # nothing: it was not started, or the engine gave up or raised its error
    STARTING = "starting"  # a first response, within recovery_timeout
    DESCRIBING = "describing"  # that it reads its rows and describes them
    REPLAYING = "replaying"  # an answer to messages that a worker before it has answered
    IDLE = "idle"  # nothing: it holds the state of the run
    WORKING = "working"  # the answer to the caller's request
    DELAYED = "delayed"  # nothing: it could not read its data, and another one is started later


class Event(Enum):
    """What happens to a worker. The carrier reports `answered` to `refused`, the others come from the engine."""

    ANSWERED = "answered"  # any response to what was posted last
    UNREACHABLE = "unreachable"  # it may be alive, and was not asked too often yet
    LOST = "lost"  # its process is gone, it took longer than answer_timeout, or its answer is damaged
    UNREADABLE = "unreadable"  # a replacement raised OSError
    REFUSED = "refused"  # it raised any other error
    START = "start"  # the engine begins, or a delay is over
    REQUESTED = "requested"  # the caller sends a request, or one is waiting
    CAUGHT_UP = "caught up"  # it has the state that the worker before it had
    GIVEN_UP = "given up"  # too many losses, too much time, or damaged answers twice


class Action(Enum):
    """What the engine does at a transition."""

    START = "start it; recovery_timeout begins"
    START_AGAIN = "start it again; recovery_timeout goes on"
    START_LATER = "start another one after a delay"
    DESCRIBE = "ask for a description of its rows"
    REPLAY = "post the next part of the log"
    SETTLE = "take up the request that is waiting, if any"
    WORK = "post the request"
    POST_AGAIN = "post the last message again after a delay"
    WAIT = "keep the request"
    DROP = "forget the request"


_CATCHING_UP = (State.STARTING, State.DESCRIBING, State.REPLAYING)
_POSTED = (*_CATCHING_UP, State.WORKING)  # something was posted to it, about which the carrier reports

Table = dict[tuple[State, Event], tuple[State, Action]]

# What is not in the table is too late and ignored, such as an answer of a worker that was given up.
TRANSITIONS: Table = {
    (State.ABSENT, Event.START): (State.STARTING, Action.START),
    (State.ABSENT, Event.REQUESTED): (State.STARTING, Action.START),
    (State.STARTING, Event.ANSWERED): (State.DESCRIBING, Action.DESCRIBE),
    (State.STARTING, Event.CAUGHT_UP): (State.IDLE, Action.SETTLE),  # a worker that keeps no state
    (State.STARTING, Event.LOST): (State.STARTING, Action.START_AGAIN),
    (State.DESCRIBING, Event.ANSWERED): (State.REPLAYING, Action.REPLAY),
    (State.DESCRIBING, Event.LOST): (State.STARTING, Action.START),
    (State.REPLAYING, Event.ANSWERED): (State.REPLAYING, Action.REPLAY),
    (State.REPLAYING, Event.CAUGHT_UP): (State.IDLE, Action.SETTLE),
    (State.REPLAYING, Event.LOST): (State.STARTING, Action.START),
    (State.IDLE, Event.REQUESTED): (State.WORKING, Action.WORK),
    (State.IDLE, Event.LOST): (State.STARTING, Action.START),
    (State.WORKING, Event.ANSWERED): (State.IDLE, Action.SETTLE),
    (State.WORKING, Event.REFUSED): (State.IDLE, Action.SETTLE),
    (State.WORKING, Event.LOST): (State.STARTING, Action.START),
    (State.DELAYED, Event.START): (State.STARTING, Action.START),
    (State.DELAYED, Event.REQUESTED): (State.DELAYED, Action.WAIT),
    **{(state, Event.REQUESTED): (state, Action.WAIT) for state in _CATCHING_UP},
    **{(state, Event.REFUSED): (State.ABSENT, Action.DROP) for state in _CATCHING_UP},
    **{(state, Event.UNREACHABLE): (state, Action.POST_AGAIN) for state in _POSTED},
    **{(state, Event.UNREADABLE): (State.DELAYED, Action.START_LATER) for state in _POSTED},
    **{(state, Event.GIVEN_UP): (State.ABSENT, Action.DROP) for state in (*_POSTED, State.IDLE)},
}
