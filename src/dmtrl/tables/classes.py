"""A target of classes of which one becomes +1 and all others -1.

Room: tables, below by_task. Whoever makes a plan sees the whole column and settles which texts mean the class; a worker
sees a part, which may look otherwise, so it only looks its cells up. A cell that says nothing is refused by both.
"""

from collections.abc import Collection, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from dmtrl.tables import cells
from dmtrl.tables.cells import NUMBER, CellError
from dmtrl.tables.readers import MISSING
from dmtrl.tables.source import nearest

_SHOWN = 20  # so many values are listed in an error


class Seen:
    """The values of a target, each with the row, counted from 0 over all that was added, and the task of its first."""

    def __init__(self) -> None:
        self._first: dict[str | None, tuple[int, str]] = {}
        self._rows = 0

    def add(self, words: Sequence[str | None] | np.ndarray, tasks: Sequence[str] | np.ndarray) -> None:
        for row, word in enumerate(words):
            if word not in self._first:
                self._first[word] = (self._rows + row, tasks[row])
        self._rows += len(words)

    def written_as(self, positive: Any, target: str) -> frozenset[str]:
        """The texts that mean `positive`: itself, and where all values are numbers those of the same number. A class
        that never occurs is refused, and so is a cell without one."""
        import pyarrow as pa

        asked = str(positive).strip()
        look = cells.look_at(pa.array(list(self._first), pa.string()))
        numbers = look.kind == NUMBER  # among which more words stand for nothing than among texts
        gone = {None, *MISSING, *(look.marks if numbers else ())} - {asked}
        for word, (row, task) in self._first.items():  # in the order of the rows
            if word in gone:
                raise _no_class(f"task {task!r}: the target {target!r}", word, row)
        known = [word for word in self._first if word is not None]
        number = _number(asked, look.comma) if numbers else None
        meant = {
            word for word in known if word == asked or (number is not None and _number(word, look.comma) == number)
        }
        if known and not meant:
            close = nearest(asked, known)
            hint = f"did you mean {close!r}? " if close is not None else ""
            more = f" and {len(known) - _SHOWN:,} more" if len(known) > _SHOWN else ""
            listed = ", ".join(map(repr, sorted(known)[:_SHOWN])) + more
            raise ValueError(f"the target {target!r} is never {asked!r}; {hint}there are {listed}")
        return frozenset(meant)


def signs(words: np.ndarray, meant: Collection[str], target: str) -> np.ndarray:
    """+1 where one of the texts that are meant stands, -1 where another does."""
    gone = {None, *MISSING} - set(meant)
    row = next((row for row, word in enumerate(words) if word in gone), None)
    if row is not None:
        raise _no_class(f"the target {target!r}", words[row], row)
    return np.array([1.0 if word in meant else -1.0 for word in words])


def _no_class(whose: str, word: str | None, row: int) -> CellError:
    return CellError(f"{whose} holds", word or "", row, ", which is no class; write one there or leave the row out")


def _number(text: str, comma: bool) -> Decimal | None:
    """Exact, for large whole numbers may be classes."""
    written = {"true": "1", "false": "0"}.get(text.lower(), text.replace(",", ".") if comma else text)
    try:
        number = Decimal(written)
    except InvalidOperation:
        return None
    return None if number.is_nan() else number
