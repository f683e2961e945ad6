"""How the cells of a column without types are written: as numbers, with which decimal sign, as dates, or otherwise.

Room: tables, below columns. A column is judged as a whole, and by its cells, not by its different values: one cell that
was mistyped must not turn a column of numbers into text without a word, so a look says which cell that is.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dmtrl.tables.readers import MISSING

NUMBER, TEXT, DATE, NESTED = "number", "text", "date", "nested"
# Words that stand for nothing where all other cells are numbers or dates; in lower case.
MARKS = (
    "na", "n/a", "n.a.", "nan", "null", "none", "nil", "missing", "unknown", "-", "--", "---", "\u2013", "\u2014", "?",
    ".", "..", "...", "*", "#n/a", "#na", "#value!", "#div/0!", "#num!", "#ref!", "#name?", "#null!",
)  # fmt: skip
MOST = 0.8  # with so many cells written as numbers, the others are rather mistakes
DATE_FORM = r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?Z?)?$"
_NUMBER = r"^[+-]?((\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[iI][nN][fF]([iI][nN][iI][tT][yY])?)$"
_POINT = r"\."
_COMMA = r"^[+-]?(\d+,\d*|,\d+)([eE][+-]?\d+)?$"
_THOUSANDS = r"^[+-]?[1-9]\d{0,2}(,\d{3})+$"
_CODE = r"^[+-]?0\d+$"
_TRUTH = r"^([tT]rue|TRUE|[fF]alse|FALSE)$"


class CellError(ValueError):
    """A cell that cannot be read as the column wants it: `row` counts from 0 in the column; `where`, once it is known,
    says where that is in the files."""

    def __init__(self, before: str, text: str, row: int, after: str, where: str | None = None):
        super().__init__(f"{before} {text!r} ({where or f'row {row + 1}'}){after}")
        self.row, self._parts = row, (before, text, row, after)

    def at(self, where: str) -> "CellError":
        return CellError(*self._parts, where)


@dataclass(frozen=True)
class Look:
    """kind: what the column holds. comma: its numbers have decimal commas. marks: words that count as missing, in
    `marked` cells. almost: of text, what most of its cells are, number or date. strays: cells that are something else,
    the first of them `stray` in `row`. example: a cell with a decimal comma."""

    kind: str
    cells: int = 0
    comma: bool = False
    example: str = ""
    marks: tuple[str, ...] = ()
    marked: int = 0
    almost: str | None = None
    strays: int = 0
    stray: str = ""
    row: int = 0

    def refusal(self, before: str, after: str) -> CellError:
        """The sentence about the first cell that is no number (or date) among many that are."""
        share = f"{self.strays:,} of {self.cells:,} cells {'does' if self.strays == 1 else 'do'} not"
        thousands = ""
        if _matches_one(self.stray, _THOUSANDS):
            thousands = " (if its comma is for thousands, write the number without)"
        elif self.almost == NUMBER and "," in self.stray:
            thousands = " (decimal commas are read where all numbers of a column have them and none has a point)"
        first = "" if self.strays == 1 else "the first "
        return CellError(f"{before} holds {self.almost}s, but {share}: {first}".rstrip(), self.stray, self.row,
                         f"{thousands}; {after}")  # fmt: skip


def look_at(column: Any, semicolons: bool = False) -> Look:
    """What an arrow column of text holds; nothing at all counts as numbers. semicolons: these separate the columns of
    the file, so that a comma in a number is a decimal sign."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words = present(column)
    counted = pc.value_counts(words.drop_null())
    values, counts = counted.field(0), counted.field(1).to_numpy(zero_copy_only=False)
    cells = int(counts.sum())

    def match(form: str) -> np.ndarray:
        found = pc.match_substring_regex(values, form)
        return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)

    number, codes = match(_NUMBER), match(_CODE)
    if number.all():
        return Look(TEXT if codes.any() else NUMBER, cells)
    mark = np.asarray(is_mark(values).to_numpy(zero_copy_only=False), dtype=bool)
    marked: dict[str, Any] = {
        "marks": tuple(values.filter(pa.array(mark)).to_pylist()),
        "marked": int(counts[mark].sum()),
    }
    truth, date, comma, thousands = match(_TRUTH), match(DATE_FORM), match(_COMMA), match(_THOUSANDS)
    rest = ~mark
    with_comma = comma | (number & ~match(_POINT))
    decimal = bool((comma & (semicolons | ~thousands)).any() and counts[with_comma].sum() > counts[number].sum())
    good = with_comma if decimal else number
    if rest.any():
        if truth[rest].all():
            return Look(NUMBER, cells, **marked)
        if good[rest].all() and not codes.any():
            example = values.filter(pa.array(comma))[0].as_py() if decimal else ""
            return Look(NUMBER, cells, decimal, example, **marked)
        if date[rest].all():
            parsed = _are_dates(values.filter(pa.array(rest)))
            return Look(DATE, cells, **marked) if parsed else Look(TEXT, cells)
    almost, asked = None, max(MOST * counts[rest].sum(), 1)
    if counts[good | comma | thousands].sum() >= asked and not codes.any():
        almost = NUMBER
    elif counts[date].sum() >= asked:
        almost, good = DATE, date
    stray = rest & ~good
    if not stray.any():
        return Look(TEXT, cells)
    row = pc.index(pc.is_in(words, value_set=values.filter(pa.array(stray))), True).as_py()
    return Look(TEXT, cells, decimal, "", (), 0, almost, int(counts[stray].sum()), words[row].as_py(), row)


def present(column: Any) -> Any:
    """Text in one piece, without blanks around it, and nothing where a word stands for nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words = pc.utf8_trim_whitespace(pc.cast(column, pa.string()))
    words = words.combine_chunks() if isinstance(words, pa.ChunkedArray) else words
    return pc.if_else(pc.is_in(words, pa.array(MISSING)), pa.scalar(None, pa.string()), words)


def is_mark(words: Any) -> Any:
    """Which words stand for nothing among numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.is_in(pc.utf8_lower(words), pa.array(MARKS))


def has_decimal_commas(words: Any) -> bool:
    """Whether a comma in these words can only be a decimal sign."""
    import pyarrow.compute as pc

    commas = pc.match_substring_regex(words, _COMMA)
    sure = pc.and_(commas, pc.invert(pc.match_substring_regex(words, _THOUSANDS)))
    return bool(pc.any(sure).as_py())


def without(column: Any, missing: tuple[str, ...]) -> Any:
    """The column with nothing where one of these texts stands, or where a number is the one that they write."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not missing:
        return column
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        gone = pc.is_in(pc.utf8_trim_whitespace(pc.cast(column, pa.string())), pa.array(missing))
    elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        numbers = [float(text) for text in missing if _matches_one(text, _NUMBER)]
        gone = pc.is_in(pc.cast(column, pa.float64(), safe=False), pa.array(numbers, pa.float64()))
    else:
        return column
    return pc.if_else(gone, pa.scalar(None, column.type), column)


def parsed_dates(column: Any) -> np.ndarray:
    values = [None if text is None else text.removesuffix("Z") for text in column.to_pylist()]
    return np.array(values, dtype="datetime64[us]")


def _are_dates(values: Any) -> bool:
    try:
        parsed_dates(values)
    except ValueError:  # as 2023-02-31
        return False
    return True


def _matches_one(text: str, form: str) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    return bool(pc.match_substring_regex(pa.scalar(text, pa.string()), form).as_py())
