"""The wire format between coordinator and workers: a name, scalars and named arrays.

A message is a magic word, the length of a JSON header, the header, then the bytes of the arrays in order. The bytes
that an engine reports are those of this format.
"""

import json
import math
import operator
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

Scalar = int | float | str | bool
MAGIC = b"DMTRL\x01"
_LENGTH = struct.Struct("<I")
_KINDS = "biuf"  # booleans, integers and floats; never objects
_DTYPE = re.compile(rf"[<|][{_KINDS}][0-9]{{1,2}}")


@dataclass(frozen=True)
class Message:
    """Immutable by convention; the receiver copies an array before it writes into it."""

    name: str
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def _header(self) -> bytes:
        layout = []
        for key, array in self.arrays.items():
            if array.dtype.kind not in _KINDS:
                raise TypeError(
                    f"message {self.name!r}: array {key!r} has dtype {array.dtype}, only numbers may travel"
                )
            layout.append([key, array.dtype.newbyteorder("<").str, list(array.shape)])
        return json.dumps([self.name, dict(self.scalars), layout], separators=(",", ":")).encode()

    @property
    def nbytes(self) -> int:
        """The length of `encode()`, without building it."""
        return len(MAGIC) + _LENGTH.size + len(self._header()) + sum(a.nbytes for a in self.arrays.values())

    def encode(self) -> bytes:
        header = self._header()
        parts = [MAGIC, _LENGTH.pack(len(header)), header]
        parts += [np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("<")).tobytes() for a in self.arrays.values()]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> "Message":
        start = len(MAGIC) + _LENGTH.size
        if data[: len(MAGIC)] != MAGIC or len(data) < start:
            raise ValueError("not a dmtrl message: it does not begin with the magic word")
        end = start + _LENGTH.unpack(data[len(MAGIC) : start])[0]
        try:
            name, scalars, header = json.loads(data[start:end])
            layout = [(str(key), _dtype(dtype), tuple(map(operator.index, shape))) for key, dtype, shape in header]
            if not (isinstance(name, str) and isinstance(scalars, dict)):
                raise TypeError("a name and scalars come first")
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError("a dmtrl message was cut short or damaged in its header") from error
        arrays = {}
        for key, kind, shape in layout:
            count = math.prod(shape)
            try:
                if min(shape, default=0) < 0:
                    raise ValueError("negative shape")
                arrays[key] = np.frombuffer(data, kind, count, end).reshape(shape)
            except (ValueError, OverflowError) as error:
                raise ValueError(f"a dmtrl message was cut short or damaged at its array {key!r}") from error
            end += count * kind.itemsize
        return cls(name, scalars, arrays)


def _dtype(text: str) -> np.dtype:
    """Numbers only: numpy would read other texts as types with fields, or as objects."""
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"{text!r} is not a type of numbers")
    return np.dtype(text)
