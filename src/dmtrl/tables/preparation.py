"""How columns become features of a linear model.

A Preparation keeps only numbers and words, so a model file needs no pickle and a loaded model computes the same bits.
Numbers: missing values become the median and set a flag; then mean 0 and standard deviation 1. Categories: one 0-1
column each, or a single one if there are two; rare and unknown ones share a column. Dates: days since the first one,
the time of year as sine and cosine, and the weekday. Texts, on request: the tf-idf of their words. `learning` decides
what becomes of each column.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dmtrl.tables import columns as read
from dmtrl.tables.arrow import pa
from dmtrl.tables.cells import without
from dmtrl.tables.names import quoted

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_YEAR = 365.2425
_DAY_ZERO = np.datetime64("1970-01-05", "us")  # a Monday
_BLOCK = 256  # columns that are computed before they are copied into the matrix of features


@dataclass
class Replacements:
    """The values that needed a replacement, counted over several calls of `transform`.

    counts: cells by column and what was done. unknown: by column, the levels that were not in the fit and their cells.
    """

    rows: int = 0
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    unknown: dict[str, Counter[str]] = field(default_factory=dict)
    done: dict[str, str] = field(default_factory=dict)  # what became of the unknown levels of a column

    def add(self, name: str, what: str, count: Any) -> None:
        if count:
            self.counts[name, what] += int(count)

    def notes(self) -> list[str]:
        """A sentence for each column, with the levels that the fit did not see."""
        notes = [f"column {name!r}: {count:,} {what}" for (name, what), count in self.counts.items()]
        for name, levels in self.unknown.items():
            such = quoted([level for level, _ in levels.most_common()], 3)
            which, advice = f"{levels.total():,} of {self.rows:,} cells", ""
            if 2 * levels.total() > self.rows:
                which = f"most cells ({levels.total():,} of {self.rows:,})"
                advice = "; check that this is the same column, coded as in the fit"
            notes.append(
                f"column {name!r}: {which} hold levels that were not in the fit: {such}; {self.done[name]}{advice}"
            )
        return notes


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

    def values(self, column: Any, tally: Replacements) -> np.ndarray:
        x = read.numbers(column, self.name, self.comma)
        if not self.flagged:
            tally.add(self.name, f"missing, replaced by {self.fill:g}", np.isnan(x).sum())
        return self.of_numbers(x)

    def of_numbers(self, x: np.ndarray) -> np.ndarray:
        missing = np.isnan(x)
        scaled = (np.where(missing, self.fill, x) - self.mean) / self.scale
        return np.column_stack([scaled, missing]) if self.flagged else scaled[:, None]


@dataclass(frozen=True)
class Category:
    """A 0-1 column for each category (None means missing). other: one more column for all other values.

    Two columns would be opposites of each other, so the first of two is left out. rare: other values of the fit.
    """

    name: str
    categories: tuple[str | None, ...]
    other: bool
    rare: tuple[str, ...] = ()

    @property
    def first(self) -> int:
        """The first category that has a column."""
        return int(len(self.categories) + self.other == 2)

    @property
    def features(self) -> list[str]:
        named = [f"{self.name} = {'(missing)' if c is None else c}" for c in self.categories]
        return [*named, *([f"{self.name} = (other)"] if self.other else [])][self.first :]

    @property
    def summary(self) -> tuple[str, str]:
        rest = "rare and unknown ones share a column" if self.other else "unknown ones have none"
        if self.first:
            return "category", f"two values, one column; 0 for {self._reference}"
        return "category", f"one column each; {rest}"

    @property
    def _reference(self) -> str:
        return "missing" if self.categories[0] is None else repr(self.categories[0])

    def values(self, column: Any, tally: Replacements) -> np.ndarray:
        words = read.texts(column)
        number = {category: i for i, category in enumerate(self.categories)}
        n = len(self.categories)
        codes = np.fromiter((number.get(word, n) for word in words), dtype=int, count=len(words))
        if (codes == n).any():
            self._count(words[codes == n], tally)
        return np.eye(n + 1)[codes][:, self.first : n + self.other]

    def _count(self, words: np.ndarray, tally: Replacements) -> None:
        found = Counter(words.tolist())
        done = "have no effect"
        if self.other:
            done = "count as rare ones"
        elif self.first:
            done = f"count as {self._reference}"
        if not self.other:
            tally.add(self.name, f"missing cells {done}", found[None])
        del found[None]
        for level in found.keys() & set(self.rare):
            del found[level]
        if found:
            tally.unknown.setdefault(self.name, Counter()).update(found)
            tally.done[self.name] = f"they {done}"


@dataclass(frozen=True)
class Words:
    """The words of a text as features: their tf-idf or, without a vocabulary, hashed into `width` features."""

    name: str
    vocabulary: tuple[str, ...]
    idf: tuple[float, ...]
    width: int

    @property
    def features(self) -> list[str]:
        if not self.vocabulary:
            return [f"{self.name} #{i}" for i in range(self.width)]
        return [f"{self.name}: {word}" for word in self.vocabulary]

    @property
    def summary(self) -> tuple[str, str]:
        return "text", f"tf-idf of {len(self.vocabulary):,} words" if self.vocabulary else "hashed words"

    def values(self, column: Any, tally: Replacements) -> Any:
        """A CSR matrix."""
        from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer

        texts = [text or "" for text in read.texts(column)]
        if not self.vocabulary:
            return HashingVectorizer(n_features=self.width).transform(texts)
        vectorizer = TfidfVectorizer(vocabulary={word: i for i, word in enumerate(self.vocabulary)})
        vectorizer.idf_ = np.array(self.idf)
        return vectorizer.transform(texts)


@dataclass(frozen=True)
class Date:
    """Days since `first`, and those of the time of year and the weekday that are in `parts`.

    format: how the file of the fit writes its dates; None: as ISO dates, or in a column of dates.
    """

    name: str
    first: str
    days: Number
    parts: tuple[str, ...]
    format: str | None = None

    @property
    def features(self) -> list[str]:
        return [*self.days.features, *(f"{self.name} {part}" for part in self.parts)]

    @property
    def summary(self) -> tuple[str, str]:
        done = [f"days since {self.first[:10]}" + (f" (read as {self.format})" if self.format else "")]
        done += ["time of year (sine, cosine)"] if "year sine" in self.parts else []
        done += ["weekday"] if set(WEEKDAYS) & set(self.parts) else []
        return "date", ", ".join(done)

    def values(self, column: Any, tally: Replacements) -> np.ndarray:
        moments = read.dates(column, self.name, self.format)
        parts = date_parts(moments)
        chosen = [parts[part] for part in self.parts]
        if not self.days.flagged:
            tally.add(self.name, "missing", np.isnat(moments).sum())
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
    """A column that is not used, and why. keep: the option that uses it anyway: "text", "category", "number"."""

    name: str
    why: str
    keep: str | None = None
    features = ()

    @property
    def summary(self) -> tuple[str, str]:
        return "left out", self.why


Column = Number | Category | Date | Words | Block | Dropped


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

    def transform(self, frame: Any, block: Any = None, tally: Replacements | None = None) -> Any:
        """The features of a pyarrow, pandas or polars frame, or of a dict of columns: (n, d) floats, as a CSR matrix if
        a column of texts is used.

        tally: counts the values that needed a replacement.
        """
        if block is not None:
            return block
        used = [column for column in self.columns if not isinstance(column, Dropped | Block)]
        frame = as_arrow(frame)
        present = set(frame.column_names)
        absent = next((column.name for column in used if column.name not in present), None)
        if absent is not None:
            raise ValueError(f"the model needs the column {absent!r}, which the data lacks")
        rows = frame.num_rows
        frame = without_missing(frame.select([column.name for column in used]), self.missing)
        tally = Replacements() if tally is None else tally
        tally.rows += rows
        if any(isinstance(column, Words) for column in used):
            from scipy import sparse

            parts = [sparse.csr_matrix(column.values(frame.column(column.name), tally)) for column in used]
            return sparse.hstack(parts, format="csr")
        X = np.empty((rows, sum(len(column.features) for column in used)))
        at = 0
        for start in range(0, len(used), _BLOCK):
            some = used[start : start + _BLOCK]
            values = np.concatenate([column.values(frame.column(column.name), tally) for column in some], axis=1)
            X[:, at : at + values.shape[1]] = values
            at += values.shape[1]
        return X


def as_arrow(frame: Any) -> Any:
    """A pyarrow table from a pyarrow, pandas or polars frame, or from a dict of columns."""
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, Mapping):
        return pa.table(dict(frame))
    if hasattr(frame, "iloc"):
        return pa.Table.from_pandas(frame, preserve_index=False)
    return frame.to_arrow()


def without_missing(frame: Any, missing: Sequence[str]) -> Any:
    """An arrow table with null instead of these texts."""
    if not missing:
        return frame
    return pa.table({name: without(frame.column(name), missing) for name in frame.column_names})


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
