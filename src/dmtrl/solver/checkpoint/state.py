"""A dataclass as named arrays, and back.

Fields may hold numbers, arrays, other dataclasses, lists of dataclasses with plain fields, or None. A field with the
metadata `saved: False` is left out and gets its default.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

T = TypeVar("T")


def to_arrays(state: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """The saved fields of a dataclass; nested names are joined with dots."""
    arrays: dict[str, np.ndarray] = {}
    for field in fields(state):
        value, name = getattr(state, field.name), f"{prefix}{field.name}"
        if value is None or not field.metadata.get("saved", True):
            continue
        if is_dataclass(value):
            arrays |= to_arrays(value, f"{name}.")
        elif isinstance(value, list):  # of records: one array per column
            for column in fields(value[0]) if value else ():
                arrays[f"{name}.{column.name}"] = np.array([getattr(record, column.name) for record in value])
        else:
            arrays[name] = np.asarray(value)
    return arrays


def from_arrays(kind: type[T], arrays: Mapping[str, np.ndarray], prefix: str = "", **given: Any) -> T:
    """The dataclass again; `given` are the types of fields that are declared as Any."""
    hints = get_type_hints(kind)
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if not field.metadata.get("saved", True):
            continue
        value = _value(given.get(field.name, hints[field.name]), arrays, f"{prefix}{field.name}")
        if value is not _ABSENT:
            values[field.name] = value
    return kind(**values)


_ABSENT = object()


def _value(hint: Any, arrays: Mapping[str, np.ndarray], name: str) -> Any:
    if isinstance(hint, UnionType):
        hint = next(part for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is list:
        return _records(get_args(hint)[0], arrays, name)
    if isinstance(hint, type) and is_dataclass(hint):
        return from_arrays(hint, arrays, f"{name}.") if any(key.startswith(f"{name}.") for key in arrays) else _ABSENT
    if name not in arrays:
        return _ABSENT
    array = arrays[name]
    return array if array.ndim or hint is np.ndarray else array.item()


def _records(kind: Any, arrays: Mapping[str, np.ndarray], name: str) -> list[Any]:
    columns = [arrays[f"{name}.{field.name}"].tolist() for field in fields(kind) if f"{name}.{field.name}" in arrays]
    return [kind(*values) for values in zip(*columns, strict=True)] if columns else []
