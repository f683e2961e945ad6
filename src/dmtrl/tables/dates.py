"""Dates that are written as text: the format of a column, and its cells as moments.

A format is written as for `datetime.strptime`. A format without a time of day also accepts cells that end with one,
such as `25.12.2024 18:30`. Parsing is vectorised: a regular expression splits the different texts of a column into
numbers, and numpy computes the moments.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np

from dmtrl.tables.arrow import pa, pc

ISO = "%Y-%m-%d"
# In order of preference: where day and month cannot be told apart, the day comes first.
FORMATS = (
    ISO, "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%d.%m.%y", "%d/%m/%y",
    "%m/%d/%y", "%d %b %Y", "%d. %b %Y", "%d-%b-%Y", "%b %d, %Y", "%b %d %Y",
)  # fmt: skip
MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_PARTS = {
    "Y": r"(?P<Y>\d{4})", "y": r"(?P<y>\d{2})", "m": r"(?P<m>\d{1,2})", "d": r"(?P<d>\d{1,2})",
    "b": r"(?P<b>[A-Za-z]{3,9})\.?", "B": r"(?P<b>[A-Za-z]{3,9})", "H": r"(?P<H>\d{1,2})", "I": r"(?P<H>\d{1,2})",
    "M": r"(?P<M>\d{2})", "S": r"(?P<S>\d{2})", "f": r"(?P<f>\d{1,9})", "p": r"(?P<p>[AaPp]\.?[Mm]\.?)",
    "z": r"(?P<z>Z|[+-]\d{2}:?\d{2})", "%": "%",
}  # fmt: skip
_TIME = (
    r"(?:[ T,]+(?P<H>\d{1,2}):(?P<M>\d{2})(?::(?P<S>\d{2})(?:[.,](?P<f>\d{1,9}))?)?(?: ?(?P<p>[AaPp]\.?[Mm]\.?))?"
    r" ?(?P<z>Z|[+-]\d{2}:?\d{2})?)?"
)
_LIKE_A_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}(\D|$)|\d{1,2}[. -]+[A-Za-z]{3}|[A-Za-z]{3,9}\.? \d{1,2}\D")
_GLANCE = 20  # texts to look at before every format is tried
_US = {"H": 3_600_000_000, "M": 60_000_000, "S": 1_000_000, "f": 1}


@dataclass(frozen=True)
class DateFormat:
    """One way to write a date. Raises ValueError for a directive that cannot be read, or without a year."""

    text: str

    def __post_init__(self) -> None:
        used = re.findall(r"%(.)", self.text, re.DOTALL)
        wrong = [f"%{letter}" for letter in used if letter not in _PARTS]
        if wrong or (self.text.endswith("%") and not self.text.endswith("%%")):
            known = " ".join(f"%{letter}" for letter in _PARTS)
            raise ValueError(f"the date format {self.text!r} has an unknown directive; known are {known}")
        names = ["b" if letter == "B" else "H" if letter == "I" else letter for letter in used if letter != "%"]
        if len(set(names)) < len(names) or len({"Y", "y"} & set(names)) != 1:
            raise ValueError(
                f"the date format {self.text!r} must have a year, %Y or %y, and nothing twice, as in %d.%m.%Y"
            )

    @cached_property
    def pattern(self) -> str:
        pieces = re.split(r"%(.)", self.text, flags=re.DOTALL)
        literal = [re.escape(piece) if i % 2 == 0 else _PARTS[piece] for i, piece in enumerate(pieces)]
        timed = re.search(r"%[HI]", self.text) is not None
        return f"^{''.join(literal)}{'' if timed else _TIME}$"

    @property
    def example(self) -> str:
        """How this format writes 31 January 2024."""
        return datetime(2024, 1, 31).strftime(self.text)

    def parse(self, words: Any) -> np.ndarray:
        """An arrow array of text as datetime64[us]; NaT where a text is missing or not such a date."""
        encoded = words.dictionary_encode()
        moments = np.append(self._moments(encoded.dictionary), np.datetime64("NaT", "us"))
        return moments[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]

    def _moments(self, values: Any) -> np.ndarray:
        if len(values) == 0:
            return np.zeros(0, "datetime64[us]")
        split = pc.extract_regex(values, self.pattern)
        found = np.asarray(split.is_valid().to_numpy(zero_copy_only=False), dtype=bool)
        texts = {field.name: pc.struct_field(split, field.name) for field in split.type}

        def number(name: str, default: int = 0) -> np.ndarray:
            if name not in texts:
                return np.full(len(values), default)
            return _whole(texts[name], default)

        year = number("Y") if "Y" in texts else number("y") + np.where(number("y") < 69, 2000, 1900)
        month = _month_numbers(texts["b"]) if "b" in texts else number("m", 1)
        day, hour = number("d", 1), number("H")
        fraction = _whole(pc.utf8_slice_codeunits(pc.utf8_rpad(texts["f"], 6, "0"), 0, 6), 0) if "f" in texts else 0
        if "p" in texts:
            half = np.array([(text or "")[:1].lower() for text in texts["p"].to_pylist()])
            found &= (half == "") | ((hour >= 1) & (hour <= 12))
            hour = np.where(half == "", hour, hour % 12 + 12 * (half == "p"))
        months = (year - 1970) * 12 + np.clip(month, 1, 12) - 1
        first = months.astype("datetime64[M]").astype("datetime64[D]")
        days = ((months + 1).astype("datetime64[M]").astype("datetime64[D]") - first).astype(int)
        found &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= days)
        found &= (hour < 24) & (number("M") < 60) & (number("S") < 60)
        time = hour * _US["H"] + number("M") * _US["M"] + number("S") * _US["S"] + fraction
        time = time - (_offsets(texts["z"]) * _US["M"] if "z" in texts else 0)
        moments = (first + np.where(found, day - 1, 0)).astype("datetime64[us]") + time.astype("timedelta64[us]")
        return np.where(found, moments, np.datetime64("NaT", "us"))


def _whole(texts: Any, default: int) -> np.ndarray:
    given = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    return np.asarray(pc.cast(given, pa.int64()).fill_null(default).to_numpy(zero_copy_only=False))


def _month_numbers(texts: Any) -> np.ndarray:
    """1 to 12, from English names or their first three letters; 0 for anything else."""
    numbers = {name[:length]: i + 1 for i, name in enumerate(MONTHS) for length in (3, 4, 9)}
    return np.array([numbers.get((text or "").lower(), 0) for text in texts.to_pylist()])


def _offsets(texts: Any) -> np.ndarray:
    """Minutes ahead of UTC."""
    words = [(text or "Z").replace(":", "") for text in texts.to_pylist()]
    return np.array([0 if w == "Z" else int(w[0] + "1") * (60 * int(w[1:3]) + int(w[3:5])) for w in words])


@dataclass(frozen=True)
class DateReading:
    """The format that reads most cells of a column. other: a format that reads them all just as well."""

    format: str
    is_date: np.ndarray  # which of the texts it reads
    other: str | None = None


def detect(values: Any, counts: np.ndarray, wanted: np.ndarray) -> DateReading | None:
    """The best format for the `wanted` ones of the different texts of a column; None if they do not look like dates.

    Two-digit years count only beside a day and a month of two digits: 1.2.30 may be a version.
    """
    few = values.filter(pa.array(wanted))[:_GLANCE].to_pylist()
    if not any(_LIKE_A_DATE.match(text) for text in few):
        return None
    best: DateReading | None = None
    for text in FORMATS:
        is_date = ~np.isnat(DateFormat(text).parse(values))
        if text.endswith("%y") and is_date.any():
            two_digits = pc.match_substring_regex(values, r"^\d{2}\D\d{2}\D")
            is_date &= np.asarray(two_digits.to_numpy(zero_copy_only=False), dtype=bool)
        n, before = int(counts[is_date & wanted].sum()), 0 if best is None else int(counts[best.is_date & wanted].sum())
        if n > before:
            best = DateReading(text, is_date)
        elif best is not None and n == before > 0 and best.other is None:
            best = DateReading(best.format, best.is_date, text)
    return best
