"""The one codec: every message is a dataclass in `rounds.py` or `study.py`, and travels as a `Message`.

A field that may be None is optional; a message has all others, whatever their defaults. An array travels as an array,
anything else as a scalar of the declared type.
"""

import re
import types
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from dmtrl.protocol import rounds, study
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import WANTED, Numbers, Restore, Vectors


def name_of(kind: type) -> str:
    """The name of a message on the wire: the class name in snake case."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


ANSWERS: dict[type, type] = {**study.ANSWERS, **rounds.ANSWERS}  # the class of the answer to each request
KINDS: dict[str, type] = {name_of(kind): kind for kind in (*ANSWERS, *ANSWERS.values())}
ANSWER_NAMES = {name_of(kind): name_of(answer) for kind, answer in ANSWERS.items()}


@dataclass(frozen=True)
class _Field:
    """A declared field. array: Numbers, Vectors or plain numpy.ndarray; None: a scalar of one of the types `scalar`."""

    optional: bool
    array: Any
    scalar: tuple[type, ...]


def _declared(kind: type) -> dict[str, _Field]:
    hints, found = get_type_hints(kind, include_extras=True), {}
    for item in fields(kind):
        hint, optional = hints[item.name], False
        if get_origin(hint) in (Union, types.UnionType):
            (hint,) = (part for part in get_args(hint) if part is not types.NoneType)
            optional = True
        array = hint if hint is np.ndarray or get_origin(hint) is Annotated else None
        scalar = () if array is not None else (int, float) if hint is float else (hint,)
        found[item.name] = _Field(optional, array, scalar)
        assert not optional or item.default is None or item.default is MISSING
    return found


_FIELDS: dict[type, dict[str, _Field]] = {kind: _declared(kind) for kind in KINDS.values()}
_WORDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}


def encode(content: Any) -> Message:
    """A message from the dataclass that declares it."""
    scalars: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, field in _FIELDS[type(content)].items():
        value = getattr(content, name)
        if value is not None:
            (scalars if field.array is None else arrays)[name] = value
    return Message(name_of(type(content)), scalars, arrays)


def decode(message: Message) -> Any:
    """The dataclass of a message; ValueError if it is unknown or does not have the fields that its class declares."""
    kind = KINDS.get(message.name)
    if kind is None:
        raise ValueError(f"unknown message {message.name!r}; this dmtrl knows {', '.join(sorted(KINDS))}")
    given, declared = {**message.scalars, **message.arrays}, _FIELDS[kind]
    for name in given:
        if name not in declared:
            raise ValueError(f"message {message.name!r} has the unknown field {name!r}")
    for name, field in declared.items():
        if name not in given:
            if not field.optional:
                raise ValueError(f"message {message.name!r} lacks the field {name!r}")
            continue
        if name in (message.arrays if field.array is None else message.scalars):
            wanted = "a scalar" if field.array is None else "an array"
            raise ValueError(f"message {message.name!r}: the field {name!r} must be {wanted}")
        if field.scalar and not isinstance(given[name], field.scalar):
            raise ValueError(f"message {message.name!r}: the field {name!r} must be {_WORDS[field.scalar[-1]]}")
    return kind(**given)


def received(data: bytes) -> Message:
    """A message from its bytes, with writable arrays: numba would compile the kernels again for read-only ones."""
    message = Message.decode(data)
    return Message(message.name, message.scalars, {name: array.copy() for name, array in message.arrays.items()})


def with_arrays(content: Any, numbers: Callable[[Any], Any], vectors: Callable[[Any], Any]) -> Any:
    """The same message with other arrays: `numbers` and `vectors` of those that have one number or vector per unit."""
    change, changed = {Numbers: numbers, Vectors: vectors}, {}
    for name, field in _FIELDS[type(content)].items():
        value = getattr(content, name)
        if field.array is not None and value is not None:
            changed[name] = change[field.array](value)
    return replace(content, **changed)


def _columns(request: Message, array: np.ndarray, features: int, outputs: int) -> int:
    """How many columns weights should have: for each output one more than features if there is an intercept."""
    if "w" in request.arrays:
        return int(request.arrays["w"].shape[1])
    with_intercept = (features + 1) * outputs
    if KINDS[request.name] is Restore:  # which run it restores is not in the request
        return with_intercept if array.shape[1:] == (with_intercept,) else features * outputs
    return with_intercept if request.scalars.get("intercept") else features * outputs


def _shape(kind: Any, request: Message, array: np.ndarray, units: int, features: int, outputs: int) -> tuple[int, ...]:
    """The shape that a field of an answer should have."""
    if kind is Numbers:
        return (units,)
    if kind is Vectors:
        return units, _columns(request, array, features, outputs)
    sizes = {
        "units": units,
        "outputs": outputs,
        "pairs": outputs**2,
        "cross": outputs**2 * features,
        "groups": int(request.scalars["groups"]),
        "parts": 2,
        "weights": outputs * features,
    }
    return tuple(sizes[word] for word in get_args(kind)[1].split())


def fault_in(request: Message, answer: object, units: int, features: int, outputs: int = 1) -> str:
    """What is wrong with an answer, as words that follow the worker's name; empty if nothing is.

    Checks names, shapes and NaN only. A worker that fails this check is broken, or the carrier damaged its answer.
    """
    if not isinstance(answer, Message):
        return f"answered {request.name!r} with a {type(answer).__name__} instead of a message"
    expected = ANSWERS[KINDS[request.name]]
    if answer.name != name_of(expected):
        return f"answered {request.name!r} with {answer.name!r} instead of {name_of(expected)!r}"
    try:
        decode(answer)
    except ValueError as error:
        return f"answered {request.name!r} with a bad message: {error}"
    asks, wanted = WANTED.get(KINDS[request.name], ("", ""))
    if (asks in request.arrays or request.scalars.get(asks)) and wanted not in answer.arrays:
        return f"answered {request.name!r} without {wanted!r}"
    for name, field in _FIELDS[expected].items():
        array = answer.arrays.get(name)
        if array is None:
            continue
        shape = _shape(field.array, request, array, units, features, outputs)
        if array.shape != shape:
            return f"answered {request.name!r} with {name!r} of shape {array.shape} instead of {shape}"
        if array.dtype.kind == "f" and (
            np.isnan(array).any() or (field.array is not Numbers and np.isinf(array).any())
        ):
            return f"answered {request.name!r} with NaN or infinity in {name!r}"
    return ""
