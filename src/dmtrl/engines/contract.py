"""What every engine insists on: one question at a time, and answers the server may believe.

Room: engines. Of answers names, shapes and finiteness only: a worker that breaks this is broken itself, or what
carried its answer is.
"""

import numpy as np

from dmtrl.protocol.message import Message

_PER_UNIT = {
    "describe": ("described", ("tasks", "shards", "rows", "weight")),
    "hold_out": ("described", ("tasks", "shards", "rows", "weight")),
    "prepare": ("prepared", ("b", "conjugate", "conjugate_at_zero", "longest_step")),
    "round": ("improved", ("b", "loss_w", "bracket_w", "loss_u", "conjugate", "steps", "solver")),
    "catch_up": ("caught_up", ("b", "loss_u", "conjugate", "steps", "solver")),
    "look": ("looked", ("loss_w",)),
    "score": ("scored", ("weight", "loss", "squared_error", "wrong")),
    "save": ("saved", ()),
    "restore": ("restored", ()),
}


def check_may_send(k: int, asked: set[int]) -> None:
    if k in asked:
        raise RuntimeError(f"worker {k} was sent a message before its last answer was received")


def check_may_receive(asked: set[int]) -> None:
    if not asked:
        raise RuntimeError("no worker was asked anything: there is no answer to receive")


def _besides(message: Message, answer: Message) -> tuple[str, ...]:
    """Arrays that belong into an answer to one such message and not to another."""
    if message.name == "prepare" and message.scalars.get("look"):
        return ("loss_w",)
    if message.name == "round" and "probe" in message.arrays:
        return ("loss_probe",)
    if message.name == "restore" and "b" in answer.arrays:  # who was saved before it was prepared has none
        return ("b",)
    return ()


def fault_in(message: Message, answer: object, units: int, features: int) -> str:
    """What is wrong with an answer, in words that follow the worker's name; nothing if all is well."""
    if not isinstance(answer, Message):
        return f"answered {message.name!r} with a {type(answer).__name__} instead of a message"
    name, per_unit = _PER_UNIT.get(message.name, (answer.name, ()))
    if answer.name != name:
        return f"answered {message.name!r} with {answer.name!r} instead of {name!r}"
    for key in (*per_unit, *_besides(message, answer)):
        if key not in answer.arrays:
            return f"left {key!r} out of its answer to {message.name!r}"
        shape = (units, features) if key == "b" else (units,)
        if answer.arrays[key].shape != shape:
            return f"answered {message.name!r} with {key!r} of shape {answer.arrays[key].shape} instead of {shape}"
    for key, array in answer.arrays.items():
        if array.dtype.kind == "f" and (np.isnan(array).any() or (key == "b" and np.isinf(array).any())):
            return f"answered {message.name!r} with NaN or infinity in {key!r}"
    return ""
