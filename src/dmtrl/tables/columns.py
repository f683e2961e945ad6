"""One arrow column as numbers, texts, dates or labels.

A column from a file without types holds numbers if all of its values read as numbers and none is written like a code
(007), dates if one format reads them all, and text otherwise. Prediction reads batches with the same functions, so a
column keeps the kind it had in fit.
"""

import re
from typing import Any

import numpy as np

from dmtrl.exceptions import CellError
from dmtrl.tables import cells
from dmtrl.tables.arrow import pa, pc
from dmtrl.tables.cells import DATE, NESTED, NUMBER, TEXT
from dmtrl.tables.dates import ISO, DateFormat

_WHOLE = re.compile(r"0|-?[1-9]\d{0,18}")


def kind_of(column: Any) -> str:
    """What a column holds by its type. A column without values counts as numbers."""
    kind, types = column.type, pa.types
    if is_text(kind):
        return TEXT
    numeric = (types.is_null, types.is_boolean, types.is_decimal, types.is_integer, types.is_floating)
    if any(is_kind(kind) for is_kind in numeric):
        return NUMBER
    return DATE if types.is_date(kind) or types.is_timestamp(kind) else NESTED


def numbers(column: Any, name: str, comma: bool | None = None) -> np.ndarray:
    """The column as floats, with NaN for missing values. Raises CellError for a value that is not a number.

    comma: whether a comma is the decimal sign; None: only if it can be nothing else.
    """
    if is_text(column.type):
        column = _numbers_of_texts(column, name, comma)
    elif pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.uint8())
    elif kind_of(column) != NUMBER:
        raise ValueError(f"column {name!r} holds {column.type}, not numbers")
    values = np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=float)
    if np.isinf(values).any():
        raise ValueError(f"column {name!r} holds infinity (inf); replace it, leave the cell empty, or drop the column")
    return values


def _numbers_of_texts(column: Any, name: str, comma: bool | None) -> Any:
    words = cells.trimmed(column)
    try:
        return pc.cast(words, pa.float64())
    except pa.ArrowInvalid:  # words for missing, decimal commas, booleans, or not numbers
        words = cells.trimmed(column, missing_words=True)
    decimal = comma or (comma is None and cells.has_decimal_commas(words))
    written = pc.replace_substring(words, ",", ".") if decimal else words
    encoded = written.dictionary_encode()
    values = [_number(text) for text in encoded.dictionary.to_pylist()]
    if None in values:
        wrong = pa.array([i for i, value in enumerate(values) if value is None], pa.int32())
        row = pc.index(pc.is_in(encoded.indices, wrong), True).as_py()
        raise CellError(f"column {name!r} holds", words[row].as_py(), row, ", which is not a number")
    return pa.array(values, pa.float64()).take(encoded.indices)


def _number(text: str) -> float | None:
    boolean = {"true": 1.0, "false": 0.0}.get(text.lower())
    if "_" in text:  # Python reads 1_000 as a number
        return None
    try:
        return float(text) if boolean is None else boolean
    except ValueError:
        return None


def texts(column: Any) -> np.ndarray:
    """The column as Python strings without surrounding blanks, None for missing values; 3.0 becomes "3"."""
    values = np.asarray(pc.utf8_trim_whitespace(as_strings(column)).to_numpy(zero_copy_only=False), dtype=object)
    values[values == ""] = None
    return values


def as_strings(column: Any) -> Any:
    """An arrow column of any simple type as text."""
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return pc.strftime(column, format="%Y-%m-%d" if pa.types.is_date(column.type) else "%Y-%m-%dT%H:%M:%S")
    if pa.types.is_floating(column.type):  # as Python writes them, whole numbers without a decimal point
        values = column.to_pylist()
        words = [
            None if v is None or v != v else str(int(v)) if v == v // 1 and abs(v) < 2**63 else repr(v) for v in values
        ]
        return pa.array(words, pa.string())
    return pc.cast(column, pa.string())


def dates(column: Any, name: str, format: str | None = None) -> np.ndarray:
    """The column as datetime64[us], with NaT for missing values. format: of dates that are written as text, or as
    whole numbers such as 20240131; ISO dates are always read."""
    if format is not None and pa.types.is_integer(column.type):
        column = pc.cast(column, pa.string())
    if is_text(column.type):
        words = cells.trimmed(column, missing_words=True)
        moments = DateFormat(format or ISO).parse(words)
        if format is not None and np.isnat(moments).any():  # ISO dates are never ambiguous
            moments = np.where(np.isnat(moments), DateFormat(ISO).parse(words), moments)
        wrong = np.isnat(moments) & words.is_valid().to_numpy(zero_copy_only=False)
        if wrong.any():
            row, like = int(np.argmax(wrong)), DateFormat(format or ISO).example
            raise CellError(f"column {name!r} holds", words[row].as_py(), row, f", which is not a date like {like}")
        return moments
    if pa.types.is_null(column.type):
        return np.full(len(column), np.datetime64("NaT", "us"))
    if kind_of(column) != DATE:
        raise ValueError(f"column {name!r} holds {column.type}, not dates")
    zone = getattr(column.type, "tz", None)
    column = pc.cast(column, pa.timestamp("us", zone), safe=False)
    return np.asarray(column.to_numpy(), dtype="datetime64[us]")


def labels(column: Any, untyped: bool) -> tuple[np.ndarray, np.ndarray]:
    """Names of tasks or classes, and a mask of missing ones. Names are integers if all are written so, else text."""
    if pa.types.is_integer(column.type) and column.type != pa.uint64():  # a shortcut; uint64 may not fit into int64
        return np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64), column.is_null().to_numpy()
    words = texts(column)
    missing = np.array([word is None for word in words], dtype=bool)
    present = words[~missing]
    if (untyped or not is_text(column.type)) and all(map(_is_int64, set(present.tolist()))):
        values = np.zeros(len(words), dtype=np.int64)
        values[~missing] = present.astype(np.int64)
        return values, missing
    longest = max(map(len, present), default=1)
    values = np.full(len(words), "", dtype=f"<U{longest}")
    values[~missing] = present
    return values, missing


def _is_int64(word: str) -> bool:
    return _WHOLE.fullmatch(word) is not None and -(2**63) <= int(word) < 2**63


def is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
