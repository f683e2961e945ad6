"""A target of classes, of which one becomes +1 and all others -1.

Making a plan scans the whole column and decides which texts mean the positive class. A worker sees only some rows, so
it uses that decision. Both raise CellError for a cell without a class.
"""

from collections.abc import Collection, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from dmtrl.exceptions import CellError
from dmtrl.tables import cells
from dmtrl.tables.arrow import pa
from dmtrl.tables.cells import NUMBER
from dmtrl.tables.names import listed, nearest
from dmtrl.tables.readers import MISSING


class ClassScan:
    """The distinct values of a target, each with the row and the task where it occurs first."""

    def __init__(self) -> None:
        self._first: dict[str | None, tuple[int, str]] = {}
        self._rows = 0

    def add(self, values: Sequence[str | None] | np.ndarray, tasks: Sequence[str] | np.ndarray) -> None:
        for row, value in enumerate(values):
            if value not in self._first:
                self._first[value] = (self._rows + row, tasks[row])
        self._rows += len(values)

    def texts_of(self, positive: Any, target: str) -> frozenset[str]:
        """The texts that mean `positive`: its own text and, if all values are numbers, other texts of that number.

        Raises CellError if a cell has no class, and ValueError if the class never occurs.
        """
        text = str(positive).strip()
        summary = cells.summarize_cells(pa.array(list(self._first), pa.string()))
        are_numbers = summary.kind == NUMBER
        missing = {None, *MISSING, *(summary.missing_words if are_numbers else ())} - {text}
        for value, (row, task) in self._first.items():  # in the order of the rows
            if value in missing:
                raise _no_class(f"task {task!r}: the target {target!r}", value, row)
        known = [value for value in self._first if value is not None]
        number = _number(text, summary.decimal_comma) if are_numbers else None
        found = {
            value
            for value in known
            if value == text or (number is not None and _number(value, summary.decimal_comma) == number)
        }
        if known and not found:
            close = nearest(text, known)
            hint = f"did you mean {close!r}? " if close is not None else ""
            values = listed([repr(value) for value in sorted(known)], 20)
            raise ValueError(f"the target {target!r} is never {text!r}; {hint}its values are {values}")
        return frozenset(found)


def signs(values: np.ndarray, positive: Collection[str], target: str) -> np.ndarray:
    """+1 for the texts of the positive class, -1 for all others."""
    missing = {None, *MISSING} - set(positive)
    row = next((row for row, value in enumerate(values) if value in missing), None)
    if row is not None:
        raise _no_class(f"the target {target!r}", values[row], row)
    return np.array([1.0 if value in positive else -1.0 for value in values])


def _no_class(subject: str, value: str | None, row: int) -> CellError:
    return CellError(f"{subject} holds", value or "", row, ", which is not a class; enter a class or remove the row")


def _number(text: str, comma: bool) -> Decimal | None:
    """The exact number: classes may be integers that a float cannot represent."""
    written = {"true": "1", "false": "0"}.get(text.lower(), text.replace(",", ".") if comma else text)
    try:
        number = Decimal(written)
    except InvalidOperation:
        return None
    return None if number.is_nan() else number
