"""How columns become features of a linear model.

A Preparation keeps only numbers and words, so a model file needs no pickle and a loaded model computes the same bits.
Numbers: missing values become the median and set a flag; then mean 0 and standard deviation 1. Categories: one 0-1
column each; rare and unknown ones share a column. Dates: days since the first one, the time of year as sine and cosine,
and the weekday. `learning` decides what becomes of each column.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmtrl.tables import columns as read
from dmtrl.tables.cells import without

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_YEAR = 365.2425
_DAY_ZERO = np.datetime64("1970-01-05", "us")  # a Monday

# how many values needed a replacement, by column and what was done
Tally = Counter[tuple[str, str]] | None


@dataclass(frozen=True)
class Number:
    """(x - mean) / scale, where a missing x becomes `fill`. flagged: a second feature marks missing values.

    comma: whether the file of the fit had decimal commas; None: unknown.
    """

    name: str
    fill: float
    mean: float
    scale: float
    flagged: bool
    comma: bool | None = None

    @property
    def features(self) -> list[str]:
        return [self.name, f"{self.name} missing"] if self.flagged else [self.name]

    @property
    def summary(self) -> tuple[str, str]:
        filled = f"; missing: {self.fill:g}, and a flag" if self.flagged else ""
        return "number", f"scaled{filled}"

    def values(self, column: Any, tally: Tally) -> np.ndarray:
        x = read.numbers(column, self.name, self.comma)
        if not self.flagged:
            _count(tally, self.name, f"missing, replaced by {self.fill:g}", np.isnan(x).sum())
        return self.of_numbers(x)

    def of_numbers(self, x: np.ndarray) -> np.ndarray:
        missing = np.isnan(x)
        scaled = (np.where(missing, self.fill, x) - self.mean) / self.scale
        return np.column_stack([scaled, missing]) if self.flagged else scaled[:, None]


@dataclass(frozen=True)
class Category:
    """A 0-1 column for each category (None means missing). other: one more column for all other values."""

    name: str
    categories: tuple[str | None, ...]
    other: bool

    @property
    def features(self) -> list[str]:
        named = [f"{self.name} = {'(missing)' if c is None else c}" for c in self.categories]
        return [*named, f"{self.name} = (other)"] if self.other else named

    @property
    def summary(self) -> tuple[str, str]:
        rest = "rare and unknown ones share a column" if self.other else "unknown ones have none"
        return "category", f"one column each; {rest}"

    def values(self, column: Any, tally: Tally) -> np.ndarray:
        words = read.texts(column)
        number = {category: i for i, category in enumerate(self.categories)}
        n = len(self.categories)
        codes = np.fromiter((number.get(word, n) for word in words), dtype=int, count=len(words))
        if not self.other:
            _count(tally, self.name, "unknown or missing", (codes == n).sum())
        return np.eye(n + 1)[codes][:, : n + self.other]


@dataclass(frozen=True)
class Date:
    """Days since `first`, and those of the time of year and the weekday that are in `parts`."""

    name: str
    first: str
    days: Number
    parts: tuple[str, ...]

    @property
    def features(self) -> list[str]:
        return [*self.days.features, *(f"{self.name} {part}" for part in self.parts)]

    @property
    def summary(self) -> tuple[str, str]:
        done = [f"days since {self.first[:10]}"]
        done += ["time of year (sine, cosine)"] if "year sine" in self.parts else []
        done += ["weekday"] if set(WEEKDAYS) & set(self.parts) else []
        return "date", ", ".join(done)

    def values(self, column: Any, tally: Tally) -> np.ndarray:
        moments = read.dates(column, self.name)
        parts = date_parts(moments)
        chosen = [parts[part] for part in self.parts]
        if not self.days.flagged:
            _count(tally, self.name, "missing", np.isnat(moments).sum())
        return np.column_stack([self.days.of_numbers(days_since(self.first, moments)), *chosen])


@dataclass(frozen=True)
class Block:
    """The features of a libsvm file, unchanged."""

    name: str
    width: int

    @property
    def features(self) -> list[str]:
        return [str(i) for i in range(self.width)]

    @property
    def summary(self) -> tuple[str, str]:
        return "numbers", "as in the libsvm file, not scaled"


@dataclass(frozen=True)
class Dropped:
    """A column that is not used, and why."""

    name: str
    why: str
    features = ()

    @property
    def summary(self) -> tuple[str, str]:
        return "left out", self.why


Column = Number | Category | Date | Block | Dropped


@dataclass(frozen=True)
class Preparation:
    """How rows of named columns become features, and which columns hold the task and the target.

    missing: texts that count as missing in every column.
    """

    columns: tuple[Column, ...]
    task: str
    target: str
    task_is_file_name: bool = False
    missing: tuple[str, ...] = ()

    @property
    def used(self) -> list[str]:
        """The columns from which features are computed."""
        return [column.name for column in self.columns if not isinstance(column, Dropped | Block)]

    @property
    def feature_names(self) -> list[str]:
        return [name for column in self.columns for name in column.features]

    @property
    def width(self) -> int | None:
        """The number of features of a libsvm file; None for named columns."""
        return next((column.width for column in self.columns if isinstance(column, Block)), None)

    def table(self) -> list[tuple[str, str, str, int]]:
        """(column, kind, what was done, number of features) of every column."""
        return [(column.name, *column.summary, len(column.features)) for column in self.columns]

    def transform(self, frame: Any, block: Any = None, tally: Tally = None) -> Any:
        """The features of a pyarrow, pandas or polars frame, or of a dict of columns: (n, d) floats.

        tally: counts the values that needed a replacement.
        """
        if block is not None:
            return block
        frame = without_missing(as_arrow(frame), self.missing, self.used)
        absent = [name for name in self.used if name not in frame.column_names]
        if absent:
            raise ValueError(f"the model needs the column {absent[0]!r}, which the data lacks")
        parts = [c.values(frame.column(c.name), tally) for c in self.columns if not isinstance(c, Dropped | Block)]
        return np.ascontiguousarray(np.column_stack(parts), dtype=float)


def as_arrow(frame: Any) -> Any:
    """A pyarrow table from a pyarrow, pandas or polars frame, or from a dict of columns."""
    import pyarrow as pa

    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, Mapping):
        return pa.table(dict(frame))
    if hasattr(frame, "iloc"):
        return pa.Table.from_pandas(frame, preserve_index=False)
    return frame.to_arrow()


def without_missing(frame: Any, missing: Sequence[str], names: Iterable[str] | None = None) -> Any:
    """An arrow table with null instead of these texts, in these columns (None: all)."""
    for i, name in enumerate(frame.column_names):
        if missing and (names is None or name in names):
            frame = frame.set_column(i, name, without(frame.column(i), tuple(missing)))
    return frame


def days_since(first: str, moments: np.ndarray) -> np.ndarray:
    """Days with fractions; NaN for missing dates."""
    return np.asarray((moments - np.datetime64(first, "us")) / np.timedelta64(1, "D"))


def date_parts(moments: np.ndarray) -> dict[str, np.ndarray]:
    """The time of year as sine and cosine, and a 0-1 column for each weekday; zeros for missing dates."""
    missing = np.isnat(moments)
    known = np.where(missing, _DAY_ZERO, moments)
    year = known.astype("datetime64[Y]")
    angle = 2 * np.pi * ((known - year.astype("datetime64[us]")) / np.timedelta64(1, "D")) / _YEAR
    weekday = np.floor((known - _DAY_ZERO) / np.timedelta64(1, "D")).astype(int) % 7
    parts = {"year sine": np.sin(angle), "year cosine": np.cos(angle)}
    parts |= {day: (weekday == i).astype(float) for i, day in enumerate(WEEKDAYS)}
    return {part: np.where(missing, 0.0, values) for part, values in parts.items()}


def _count(tally: Tally, name: str, what: str, count: Any) -> None:
    if tally is not None and count:
        tally[name, what] += int(count)
