"""How the cells of a text column are written: as numbers, with which decimal sign, as dates, or as text.

A column is judged as a whole. One mistyped cell must not silently turn a column of numbers into text, so the summary
names that cell.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmtrl.exceptions import CellError, Note, Setting
from dmtrl.tables import dates
from dmtrl.tables.arrow import pa, pc
from dmtrl.tables.readers import MISSING

NUMBER, TEXT, DATE, NESTED = "number", "text", "date", "nested"
# Words, in lower case, that count as missing if all other cells are numbers or dates.
MISSING_WORDS = (
    "na", "n/a", "n.a.", "nan", "null", "none", "nil", "missing", "unknown", "-", "--", "---", "\u2013", "\u2014", "?",
    ".", "..", "...", "*", "#n/a", "#na", "#value!", "#div/0!", "#num!", "#ref!", "#name?", "#null!",
)  # fmt: skip
MOSTLY = 0.8  # if at least this share of the cells are numbers (or dates), the others are probably mistakes
_NUMBER = r"^[+-]?((\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[iI][nN][fF]([iI][nN][iI][tT][yY])?)$"
_POINT = r"\."
_COMMA = r"^[+-]?(\d+,\d*|,\d+)([eE][+-]?\d+)?$"
_THOUSANDS = r"^[+-]?[1-9]\d{0,2}(,\d{3})+$"
_CODE = r"^[+-]?0\d+$"
_BOOLEAN = r"^([tT]rue|TRUE|[fF]alse|FALSE)$"


@dataclass(frozen=True)
class CellSummary:
    """How the cells of a text column are written."""

    kind: str  # NUMBER, TEXT, DATE or NESTED
    n_cells: int = 0  # that are not missing
    decimal_comma: bool = False  # whether its numbers have decimal commas
    example: str = ""  # a number with a decimal comma, or a date
    date_format: str | None = None  # of a column of dates
    other_format: str | None = None  # that reads all of its dates as well, as other days
    missing_words: tuple[str, ...] = ()  # words such as "?" that count as missing
    n_missing: int = 0  # cells with such a word
    mostly: str | None = None  # NUMBER or DATE if most cells of a text column are such; the others are bad cells
    n_bad: int = 0
    first_bad: str = ""
    first_bad_row: int = 0

    def cell_error(self, subject: str, problem: str) -> CellError:
        """An error about the first bad cell."""
        return CellError(subject, self.first_bad, self.first_bad_row, problem)

    def mixed_error(self, column: str, is_target: bool = False) -> CellError:
        """The error to raise if the bad cells are not acceptable."""
        subject = f"{'the target' if is_target else 'column'} {column!r} holds {self.mostly}s, except for "
        subject += f"{self.n_bad:,} of {self.n_cells:,} cells" + (":" if self.n_bad == 1 else "; the first is")
        hint = ""
        if _matches(self.first_bad, _THOUSANDS):
            hint = " (if its comma separates thousands, remove the comma)"
        elif self.mostly == NUMBER and "," in self.first_bad:
            hint = " (commas are decimal signs only if no number of the column has a decimal point)"
        elif self.mostly == DATE and self.date_format is not None:
            hint = f" (dates are read like {dates.DateFormat(self.date_format).example})"
        missing = Setting("missing", [self.first_bad])
        drop, category = Setting("drop", [column]), Setting("category", [column])
        advice: list[str | Setting] = [drop, " to leave the column out, or ", category, " if its values are names"]
        if is_target:
            advice = ["or ", Setting("kind", "classification"), " if its values are classes"]
        problem = Note(f"{hint}; correct it, or pass ", missing, " if it means missing, ", *advice)
        return self.cell_error(subject, problem)


def summarize_cells(column: Any, semicolons: bool = False) -> CellSummary:
    """Summarize an arrow column of text. A column without values counts as numbers.

    semicolons: whether semicolons separate the columns of the file; then a comma in a number is a decimal sign.
    """
    words = trimmed(column)
    counted = pc.value_counts(words.drop_null())
    values, counts = counted.field(0), counted.field(1).to_numpy(zero_copy_only=False)
    n_cells = int(counts.sum())

    def match(pattern: str) -> np.ndarray:
        found = pc.match_substring_regex(values, pattern)
        return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)

    number, codes = match(_NUMBER), match(_CODE)
    if number.all():
        return CellSummary(TEXT if codes.any() else NUMBER, n_cells)
    missing = np.asarray(_is_missing_word(values).to_numpy(zero_copy_only=False), dtype=bool)
    ignored: dict[str, Any] = {
        "missing_words": tuple(values.filter(pa.array(missing)).to_pylist()),
        "n_missing": int(counts[missing].sum()),
    }
    comma, thousands = match(_COMMA), match(_THOUSANDS)
    rest = ~missing
    with_comma = comma | (number & ~match(_POINT))
    decimal = bool((comma & (semicolons | ~thousands)).any() and counts[with_comma].sum() > counts[number].sum())
    good = with_comma if decimal else number
    if rest.any():
        if match(_BOOLEAN)[rest].all():
            return CellSummary(NUMBER, n_cells, **ignored)
        if good[rest].all() and not codes.any():
            example = values.filter(pa.array(comma))[0].as_py() if decimal else ""
            return CellSummary(NUMBER, n_cells, decimal, example, **ignored)
    reading = dates.detect(values, counts, rest) if rest.any() else None
    if reading is not None and reading.is_date[rest].all():
        example = values.filter(pa.array(rest))[0].as_py()
        written = {"example": example, "date_format": reading.format, "other_format": reading.other}
        return CellSummary(DATE, n_cells, **written, **ignored)
    mostly, enough, date_format = None, max(MOSTLY * counts[rest].sum(), 1), None
    if counts[good | comma | thousands].sum() >= enough and not codes.any():
        mostly = NUMBER
    elif reading is not None and counts[reading.is_date & rest].sum() >= enough:
        mostly, good, date_format = DATE, reading.is_date, reading.format
    bad = rest & ~good
    if not bad.any():
        return CellSummary(TEXT, n_cells)
    row = pc.index(pc.is_in(words, value_set=values.filter(pa.array(bad))), True).as_py()
    first: dict[str, Any] = {"n_bad": int(counts[bad].sum()), "first_bad": words[row].as_py(), "first_bad_row": row}
    return CellSummary(TEXT, n_cells, decimal, mostly=mostly, date_format=date_format, **first)


def trimmed(column: Any, missing_words: bool = False) -> Any:
    """Text without surrounding blanks, as one arrow array; null where the text means missing.

    missing_words: whether words such as "?" mean missing too.
    """
    words = pc.utf8_trim_whitespace(pc.cast(column, pa.string()))
    words = words.combine_chunks() if isinstance(words, pa.ChunkedArray) else words
    missing = pc.is_in(words, pa.array(MISSING))
    if missing_words:
        missing = pc.or_(missing, _is_missing_word(words))
    return pc.if_else(missing, pa.scalar(None, pa.string()), words)


def _is_missing_word(words: Any) -> Any:
    return pc.is_in(pc.utf8_lower(words), pa.array(MISSING_WORDS))


def has_decimal_commas(words: Any) -> bool:
    """Whether a comma in these words can only be a decimal sign."""
    commas = pc.match_substring_regex(words, _COMMA)
    certain = pc.and_(commas, pc.invert(pc.match_substring_regex(words, _THOUSANDS)))
    return bool(pc.any(certain).as_py())


def without(column: Any, missing: Sequence[str]) -> Any:
    """The column with null instead of these texts; in a column of numbers, instead of the numbers that they write."""
    if not missing:
        return column
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        found = pc.is_in(pc.utf8_trim_whitespace(pc.cast(column, pa.string())), pa.array(missing))
    elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        numbers = [float(text) for text in missing if _matches(text, _NUMBER)]
        found = pc.is_in(pc.cast(column, pa.float64(), safe=False), pa.array(numbers, pa.float64()))
    else:
        return column
    return pc.if_else(found, pa.scalar(None, column.type), column)


def _matches(text: str, pattern: str) -> bool:
    return bool(pc.match_substring_regex(pa.scalar(text, pa.string()), pattern).as_py())
