"""Columns as people have them -> features a linear model can use; learned once, kept with the model as plain values.

Room: beside intake. What is learned comes from scikit-learn's own transformers (SimpleImputer, StandardScaler,
OneHotEncoder); what is kept are the few numbers and words they learned, so a model file needs no pickle and a loaded
model makes the same features to the last bit. Numbers: missing ones become the median, beside a column that says so,
then mean 0 and deviation 1. Categories: one column each; rare ones share a column, and one never seen goes there too.
Dates: days since the first one, the time of the year as sine and cosine, and the weekday.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmtrl.tables import columns as read
from dmtrl.tables.cells import DATE, NESTED, NUMBER, Look, look_at, without

MOST_CATEGORIES = 100  # columns a category may become
LARGEST = 1e100  # the square of a larger number is no number any more
_ID_NAME = re.compile(r"(^|[_\-. ])(id|ids|uuid|guid|key|index|rownum|row_number|unnamed_\d+)$", re.IGNORECASE)
_FEW = 50  # with fewer values nothing can be said about how they repeat
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_YEAR = 365.2425
_DAY_ZERO = np.datetime64("1970-01-05", "us")  # a Monday

Tally = Counter[tuple[str, str]] | None


@dataclass(frozen=True)
class Number:
    """(x - mean) / scale, with `fill` where x is missing; `flagged`: a second feature says that it was. `comma`: the
    file of fit had decimal commas; None: nothing was said about it."""

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
    def words(self) -> tuple[str, str]:
        filled = f"; missing: median {self.fill:g}, and a flag" if self.flagged else ""
        return "number", f"scaled{filled}"

    def values(self, column: Any, tally: Tally) -> np.ndarray:
        x = read.numbers(column, self.name, self.comma)
        _count(tally, self.name, f"values missing, taken as {self.fill:g}", 0 if self.flagged else np.isnan(x).sum())
        return self.of_numbers(x)

    def of_numbers(self, x: np.ndarray) -> np.ndarray:
        missing = np.isnan(x)
        scaled = (np.where(missing, self.fill, x) - self.mean) / self.scale
        return np.column_stack([scaled, missing]) if self.flagged else scaled[:, None]


@dataclass(frozen=True)
class Category:
    """A column of 0 and 1 per category (None is a missing value); `other`: one more for all that are not listed."""

    name: str
    categories: tuple[str | None, ...]
    other: bool

    @property
    def features(self) -> list[str]:
        named = [f"{self.name} = {'(missing)' if c is None else c}" for c in self.categories]
        return [*named, f"{self.name} = (other)"] if self.other else named

    @property
    def words(self) -> tuple[str, str]:
        rest = "rare and unknown ones together" if self.other else "unknown ones: none of them"
        return "category", f"a column each; {rest}"

    def values(self, column: Any, tally: Tally) -> np.ndarray:
        words = read.texts(column)
        number = {category: i for i, category in enumerate(self.categories)}
        elsewhere = len(self.categories)
        codes = np.fromiter((number.get(word, elsewhere) for word in words), dtype=int, count=len(words))
        _count(tally, self.name, "values not known or missing", 0 if self.other else (codes == elsewhere).sum())
        return np.eye(elsewhere + 1)[codes][:, : elsewhere + self.other]


@dataclass(frozen=True)
class Date:
    """Days since `first` as a number, the time of the year on a circle, and the weekday; of these, those in `parts`."""

    name: str
    first: str
    days: Number
    parts: tuple[str, ...]

    @property
    def features(self) -> list[str]:
        return [*self.days.features, *(f"{self.name} {part}" for part in self.parts)]

    @property
    def words(self) -> tuple[str, str]:
        more = [f"days since {self.first[:10]}"]
        more += ["time of year (sine, cosine)"] if "year sine" in self.parts else []
        more += ["weekday"] if set(_WEEKDAYS) & set(self.parts) else []
        return "date", ", ".join(more)

    def values(self, column: Any, tally: Tally) -> np.ndarray:
        moments = read.dates(column, self.name)
        parts = date_parts(moments)
        chosen = [parts[part] for part in self.parts]
        _count(tally, self.name, "dates missing", 0 if self.days.flagged else np.isnat(moments).sum())
        return np.column_stack([self.days.of_numbers(days_between(self.first, moments)), *chosen])


@dataclass(frozen=True)
class Block:
    """The features of a libsvm file, as they stand."""

    name: str
    width: int

    @property
    def features(self) -> list[str]:
        return [str(i) for i in range(self.width)]

    @property
    def words(self) -> tuple[str, str]:
        return "numbers", "as they stand in the libsvm file, not scaled"


@dataclass(frozen=True)
class Dropped:
    """A column that is not used, and why."""

    name: str
    why: str
    features = ()

    @property
    def words(self) -> tuple[str, str]:
        return "left out", self.why


Column = Number | Category | Date | Block | Dropped


@dataclass(frozen=True)
class Preparation:
    """How rows of named columns become features, and which columns name the task and the target. `missing`: texts that
    count as nothing in every column."""

    columns: tuple[Column, ...]
    task: str
    target: str
    task_is_file_name: bool = False
    missing: tuple[str, ...] = ()

    @property
    def used(self) -> list[str]:
        """The columns that the features are made of."""
        return [column.name for column in self.columns if not isinstance(column, Dropped | Block)]

    @property
    def feature_names(self) -> list[str]:
        return [name for column in self.columns for name in column.features]

    @property
    def width(self) -> int | None:
        """How many features a libsvm file has; None for columns with names."""
        return next((column.width for column in self.columns if isinstance(column, Block)), None)

    def table(self) -> list[tuple[str, str, str, int]]:
        """(column, kind, what was done, how many features) of every column."""
        return [(column.name, *column.words, len(column.features)) for column in self.columns]

    def transform(self, frame: Any, block: Any = None, tally: Tally = None) -> Any:
        """The features of a pyarrow, pandas or polars frame, or of a dict of columns: (n, d) floats.

        tally: counts values that fit did not meet, by column and what was done with them.
        """
        if block is not None:
            return block
        frame = without_missing(as_arrow(frame), self.missing, self.used)
        absent = [name for name in self.used if name not in frame.column_names]
        if absent:
            raise ValueError(f"the model needs the column {absent[0]!r}, which is not there")
        parts = [c.values(frame.column(c.name), tally) for c in self.columns if not isinstance(c, Dropped | Block)]
        return np.ascontiguousarray(np.column_stack(parts), dtype=float)


def learn(
    frame: Any,
    task: str,
    target: str,
    *,
    untyped: Iterable[str] = (),
    drop: Sequence[str] = (),
    category: Sequence[str] = (),
    number: Sequence[str] = (),
    reserved: Mapping[str, str] | None = None,
    task_is_file_name: bool = False,
    missing: Sequence[str] = (),
    semicolons: bool = False,
    notes: list[str] | None = None,
) -> Preparation:
    """Look at every column of a frame and decide what becomes of it.

    untyped: columns that are text only because their file has no types. category, number: columns whose kind is said,
    not guessed. reserved: other columns that are no features, with the reason. missing: texts that count as nothing.
    semicolons: these separate the columns, so that commas are decimal signs. notes: what people should know is added.
    """
    frame, untyped = without_missing(as_arrow(frame), missing), set(untyped)
    asked = {**dict.fromkeys(drop, "as asked"), **(reserved or {})}
    learned: list[Column] = []
    looks: dict[str, Look] = {}
    for name in frame.column_names:
        if name in (task, target):
            continue
        if name in asked:
            learned.append(Dropped(name, asked[name]))
        else:
            column = frame.column(name)
            forced = "category" if name in category else "number" if name in number else None
            look = look_at(column, semicolons) if read.is_text(column.type) and name in untyped else None
            learned.append(_learn_column(name, column, look, forced))
            if look is not None and not isinstance(learned[-1], Category | Dropped):
                looks[name] = look
    if notes is not None:
        notes += notes_on_writing(looks)
    return Preparation(tuple(learned), task, target, task_is_file_name, tuple(missing))


def without_missing(frame: Any, missing: Sequence[str], names: Iterable[str] | None = None) -> Any:
    """An arrow table with nothing where one of these texts stands, in these columns (None: all)."""
    for i, name in enumerate(frame.column_names):
        if missing and (names is None or name in names):
            frame = frame.set_column(i, name, without(frame.column(i), tuple(missing)))
    return frame


def notes_on_writing(looks: Mapping[str, Look]) -> list[str]:
    """What was read otherwise than it is written, column by column: decimal commas, and words that count as missing."""
    commas = {name: look.example for name, look in looks.items() if look.comma}
    notes = []
    if commas:
        example = next(iter(commas.values()))
        notes.append(f"decimal commas, as in {example!r}, are read as such: {_listed(list(commas))}")
    for name, look in looks.items():
        if look.marked:
            cells = "cell that says" if look.marked == 1 else "cells that say"
            counts = "counts" if look.marked == 1 else "count"
            notes.append(f"column {name!r}: {look.marked:,} {cells} {_listed(look.marks)} {counts} as missing")
    return notes


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def as_arrow(frame: Any) -> Any:
    """A pyarrow table from what people hold columns in."""
    import pyarrow as pa

    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, Mapping):
        return pa.table(dict(frame))
    if hasattr(frame, "iloc"):
        return pa.Table.from_pandas(frame, preserve_index=False)
    return frame.to_arrow()


def _count(tally: Tally, name: str, what: str, count: Any) -> None:
    if tally is not None and count:
        tally[name, what] += int(count)


def _learn_column(name: str, column: Any, look: Look | None, forced: str | None) -> Column:
    kind = look.kind if look is not None else read.kind_of(column, untyped=False)
    if kind == NESTED:
        return Dropped(name, f"holds {column.type}, which is neither number, text nor date")
    if column.null_count == len(column):
        return Dropped(name, "empty")
    if forced == "number" or (kind == NUMBER and forced is None):
        comma = look.comma if look is not None and (look.comma or look.kind == NUMBER) else None
        x = read.numbers(column, name, comma)
        if forced is None and (why := _id_like(name, x)):
            return Dropped(name, why)
        return _learn_number(name, x, comma or None)
    if look is not None and look.almost and forced is None:
        raise look.refusal(f"column {name!r}", _ways_out(name, look.stray))
    if kind == DATE and forced is None:
        return _learn_date(name, read.dates(column, name))
    return _learn_category(name, read.texts(column), forced is not None)


def _ways_out(name: str, stray: str) -> str:
    column = shlex.quote(name)
    return (
        f"correct the file, or say --missing {shlex.quote(stray)} if that means missing, --drop {column} to leave the "
        f"column out, or --category {column} if its values are names"
    )


def _id_like(name: str, x: np.ndarray) -> str | None:
    """Whole numbers that never repeat, and run without gaps or are called an id: they name rows."""
    x = x[~np.isnan(x)]
    if len(x) < _FEW or (x != np.floor(x)).any() or len(np.unique(x)) < len(x):
        return None
    if x.max() - x.min() + 1 == len(x) or _ID_NAME.search(name):
        return "numbers the rows; to use it: --number"
    return None


def _learn_number(name: str, x: np.ndarray, comma: bool | None = None) -> Column:
    seen = x[~np.isnan(x)]
    if len(seen) == 0:
        return Dropped(name, "empty")
    if np.abs(seen).max() > LARGEST:
        raise ValueError(f"column {name!r} holds numbers as large as {np.abs(seen).max():.3g}; correct or drop it")
    flagged = len(seen) < len(x)
    if not flagged and seen.min() == seen.max():
        return Dropped(name, f"always {seen[0]:g}")
    from sklearn.impute import SimpleImputer  # here, as in _learn_category: a model that only predicts does not need it
    from sklearn.preprocessing import StandardScaler

    imputer = SimpleImputer(strategy="median").fit(x[:, None])
    scaler = StandardScaler().fit(imputer.transform(x[:, None]))
    return Number(name, float(imputer.statistics_[0]), float(scaler.mean_[0]), float(scaler.scale_[0]), flagged, comma)


def _learn_category(name: str, words: np.ndarray, forced: bool) -> Column:
    present = words[words != None]  # noqa: E711  (elementwise)
    distinct = len(set(present.tolist()))
    if distinct == 0:
        return Dropped(name, "empty")
    if not forced and distinct > _FEW and distinct > 0.5 * len(present):
        free = distinct > 0.9 * len(present)
        advice = ": free text is not used" if free else "; to use it: --category"
        return Dropped(name, f"text with {distinct:,} different values in {len(present):,} rows{advice}")
    if distinct == 1 and len(present) == len(words):
        return Dropped(name, f"always {present[0]!r}")
    from sklearn.preprocessing import OneHotEncoder

    # rare: fewer than ten rows, or than a hundredth of them where they are few
    rare = max(2, min(10, len(words) // 100))
    encoder = OneHotEncoder(min_frequency=rare, max_categories=MOST_CATEGORIES, handle_unknown="infrequent_if_exist")
    encoder.fit(words[:, None])
    infrequent = encoder.infrequent_categories_[0]
    together = set() if infrequent is None else set(infrequent.tolist())
    kept = tuple(category for category in encoder.categories_[0].tolist() if category not in together)
    if not kept:
        return Dropped(name, "text in which every value is rare")
    return Category(name, kept, bool(together))


def _learn_date(name: str, moments: np.ndarray) -> Column:
    seen = moments[~np.isnat(moments)]
    if len(seen) == 0:
        return Dropped(name, "empty")
    if seen.min() == seen.max() and len(seen) == len(moments):
        return Dropped(name, f"always {seen[0]}")
    first = str(seen.min())
    days = _learn_number(name, days_between(first, moments))
    if not isinstance(days, Number):
        return Dropped(name, days.words[1])
    days = Number(f"{name} days", days.fill, days.mean, days.scale, days.flagged)
    parts = {part: values for part, values in date_parts(seen).items() if values.min() < values.max()}
    if (seen.max() - seen.min()) < np.timedelta64(60, "D"):  # too short for a season
        parts = {part: values for part, values in parts.items() if part in _WEEKDAYS}
    return Date(name, first, days, tuple(parts))


def days_between(first: str, moments: np.ndarray) -> np.ndarray:
    """With fractions; NaN where there is no moment."""
    return np.asarray((moments - np.datetime64(first, "us")) / np.timedelta64(1, "D"))


def date_parts(moments: np.ndarray) -> dict[str, np.ndarray]:
    """The time of the year on a circle, and a 0-1 column per weekday; all zero where there is no moment."""
    missing = np.isnat(moments)
    known = np.where(missing, _DAY_ZERO, moments)
    year = known.astype("datetime64[Y]")
    angle = 2 * np.pi * ((known - year.astype("datetime64[us]")) / np.timedelta64(1, "D")) / _YEAR
    weekday = np.floor((known - _DAY_ZERO) / np.timedelta64(1, "D")).astype(int) % 7
    parts = {"year sine": np.sin(angle), "year cosine": np.cos(angle)}
    parts |= {day: (weekday == i).astype(float) for i, day in enumerate(_WEEKDAYS)}
    return {part: np.where(missing, 0.0, values) for part, values in parts.items()}
