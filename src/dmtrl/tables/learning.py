"""Decide what becomes of each column of a table: a number, a category, a date, words, or not used.

The values that a Preparation keeps are those of scikit-learn's transformers (SimpleImputer, StandardScaler,
OneHotEncoder, TfidfVectorizer).
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dmtrl.exceptions import Note, Setting
from dmtrl.tables import columns as read
from dmtrl.tables.cells import DATE, NESTED, NUMBER, CellSummary, summarize_cells
from dmtrl.tables.dates import ISO, DateFormat
from dmtrl.tables.names import quoted, require_one_role
from dmtrl.tables.preparation import (
    WEEKDAYS,
    Category,
    Column,
    Date,
    Dropped,
    Number,
    Preparation,
    Words,
    as_arrow,
    date_parts,
    days_since,
    without_missing,
)

LARGEST = 1e100  # squares of larger numbers overflow
MAX_CATEGORIES = 100  # columns of one category
MAX_WORDS = 1000  # features of one column of texts
HASHED_WORDS = 1024
TEXT_KINDS = ("tfidf", "hash")
_ID_NAME = re.compile(r"(^|[_\-. ])(id|ids|uuid|guid|key|index|rownum|row_number|unnamed_\d+)$", re.IGNORECASE)
_FEW = 50  # fewer values do not show whether a column identifies rows
SEASON = np.timedelta64(60, "D")  # shorter periods show no time of year


@dataclass(frozen=True)
class Choices:
    """What the user wants of certain columns.

    drop: columns to leave out. category, number: columns to use as such, whatever they look like. date: columns of
    dates, each with its format or None. text: columns of texts whose words are features, each with "tfidf" or "hash".
    """

    drop: Sequence[str] = ()
    category: Sequence[str] = ()
    number: Sequence[str] = ()
    date: Mapping[str, str | None] = field(default_factory=dict)
    text: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for text in self.date.values():
            if text is not None:
                DateFormat(text)
        for name, kind in self.text.items():
            if kind not in TEXT_KINDS:
                raise ValueError(f"the text column {name!r} must be {' or '.join(TEXT_KINDS)}, got {kind!r}")
        require_one_role(self.pairs)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(option, column) of every choice."""
        options = ("drop", "category", "number", "date", "text")
        return [(option, name) for option in options for name in dict.fromkeys(getattr(self, option))]


def learn(
    frame: Any,
    task: str,
    target: str,
    *,
    untyped: Iterable[str] = (),
    choices: Choices | None = None,
    reserved: Mapping[str, str] | None = None,
    task_is_file_name: bool = False,
    missing: Sequence[str] = (),
    semicolons: bool = False,
    fill: str = "median",
    notes: list[str] | None = None,
) -> Preparation:
    """Learn a Preparation from a pyarrow, pandas or polars frame, or a dict of columns.

    choices: what the user decided about columns. untyped: columns that are text only because their file has no types.
    reserved: columns that are not features, with the reason. missing: texts that count as missing. semicolons: whether
    these separate the columns of the file; then commas are decimal signs. fill: "median" or "mean", which replaces
    missing numbers. notes: remarks for the user are appended.
    """
    frame, untyped = without_missing(as_arrow(frame), missing), set(untyped)
    choices = choices or Choices()
    forced = {name: option for option, name in choices.pairs}
    left_out = {**dict.fromkeys(choices.drop, "as requested"), **(reserved or {})}
    names = [name for name in frame.column_names if name not in (task, target)]
    summaries = {
        name: summarize_cells(frame.column(name), semicolons)
        for name in names
        if name in untyped and name not in left_out and read.is_text(frame.column(name).type)
    }
    summaries = _settle_dates(summaries)
    learned = [
        Dropped(name, left_out[name])
        if name in left_out
        else _learn_column(name, frame.column(name), summaries.get(name), forced.get(name), choices, fill)
        for name in names
    ]
    if notes is not None:
        parsed = {column.name for column in learned if isinstance(column, Number | Date)}
        notes += reading_notes({name: summaries[name] for name in summaries if name in parsed}, choices.date)
        notes += _left_out_notes(learned)
    return Preparation(tuple(learned), task, target, task_is_file_name, tuple(missing))


def _settle_dates(summaries: Mapping[str, CellSummary]) -> dict[str, CellSummary]:
    """Dates that can have the day or the month first follow the other dates of the table, if those are clear."""
    clear = {s.date_format for s in summaries.values() if s.kind == DATE and s.other_format is None}
    return {
        name: replace(summary, date_format=summary.other_format, other_format=None)
        if summary.other_format in clear and summary.date_format not in clear
        else replace(summary, other_format=None)
        if summary.other_format is not None and summary.date_format in clear
        else summary
        for name, summary in summaries.items()
    }


def reading_notes(summaries: Mapping[str, CellSummary], given: Iterable[str] = ()) -> list[str]:
    """Remarks on columns with decimal commas, with dates that could be other days, and with words that count as
    missing. given: columns whose date format the user passed."""
    commas = {name: summary.example for name, summary in summaries.items() if summary.decimal_comma}
    notes: list[str] = []
    if commas:
        example = next(iter(commas.values()))
        notes.append(f"decimal commas, as in {example!r}, are read as decimal points: {quoted(list(commas), 3)}")
    for name, summary in summaries.items():
        if summary.other_format is not None and name not in given:
            day = "day" if str(summary.date_format).startswith("%d") else "month"
            words = f"column {name!r}: dates such as {summary.example!r} are ambiguous and are read with the {day} "
            other = Setting("date", f"{name}={summary.other_format}")
            notes.append(Note(words, "first; if that is wrong, pass ", other))
        if summary.n_missing:
            cells = "1 cell with" if summary.n_missing == 1 else f"{summary.n_missing:,} cells with"
            count = "counts" if summary.n_missing == 1 else "count"
            notes.append(f"column {name!r}: {cells} {quoted(summary.missing_words, 3)} {count} as missing")
    return notes


def _left_out_notes(columns: Iterable[Column]) -> list[str]:
    """Remarks on columns that look like texts or identifiers, and how to use them."""
    notes: list[str] = []
    dropped = [column for column in columns if isinstance(column, Dropped) and column.keep is not None]
    texts = [column.name for column in dropped if column.keep == "text"]
    if texts:
        text, category = Setting("text", texts[0]), Setting("category", texts[0])
        words = f"left out, free text: {quoted(texts, 3)}; to use its words, pass "
        notes.append(Note(words, text, ", and to use its values as they are, ", category))
    for keep in ("number", "category"):
        names = [column.name for column in dropped if column.keep == keep]
        if names:
            words = f"left out, identifiers: {quoted(names, 3)}; to use one anyway, pass "
            notes.append(Note(words, Setting(keep, names[0])))
    return notes


def _learn_column(
    name: str, column: Any, summary: CellSummary | None, forced: str | None, choices: Choices, fill: str
) -> Column:
    kind = summary.kind if summary is not None else read.kind_of(column)
    if kind == NESTED:
        return Dropped(name, f"holds {column.type}, which is neither number, text nor date")
    if forced == "text":
        return _learn_words(name, read.texts(column), choices.text[name])
    if forced == "date":
        given = choices.date[name] or (summary.date_format if summary is not None else None)
        return _learn_date(name, read.dates(column, name, given), fill, given)
    if forced == "number" or (kind == NUMBER and forced is None):
        comma = None
        if summary is not None and (summary.decimal_comma or kind == NUMBER):
            comma = summary.decimal_comma
        x = read.numbers(column, name, comma)
        if forced is None and identifies_rows(name, x):
            return Dropped(name, "identifies rows", "number")
        return _learn_number(name, x, fill, comma or None)
    if summary is not None and summary.mostly and forced is None:
        raise summary.mixed_error(name)
    if kind == DATE and forced is None:
        format = None if summary is None else summary.date_format
        return _learn_date(name, read.dates(column, name, format), fill, format)
    return learn_category(name, read.texts(column), forced is not None)


def identifies_rows(name: str, x: np.ndarray) -> bool:
    """Whether whole numbers never repeat, and run without gaps or are named like an id."""
    x = x[~np.isnan(x)]
    if len(x) < _FEW or x[0] != np.floor(x[0]) or (x != np.floor(x)).any() or len(np.unique(x)) < len(x):
        return False
    return bool(x.max() - x.min() + 1 == len(x) or _ID_NAME.search(name))


def _learn_number(name: str, x: np.ndarray, fill: str, comma: bool | None = None) -> Number | Dropped:
    present = x[~np.isnan(x)]
    if len(present) == 0:
        return Dropped(name, "empty")
    if np.abs(present).max() > LARGEST:
        raise ValueError(f"column {name!r} holds numbers as large as {np.abs(present).max():.3g}; correct or drop it")
    flagged = len(present) < len(x)
    if not flagged and present.min() == present.max():
        return Dropped(name, f"always {present[0]:g}")
    value = float(np.median(present) if fill == "median" else present.mean())
    filled = np.where(np.isnan(x), value, x)
    mean = float(filled.mean())
    centred = filled - mean
    variance = float((centred**2).mean() - centred.mean() ** 2)
    n, eps = len(x), np.finfo(float).eps
    constant = variance <= n * eps * variance + (n * mean * eps) ** 2  # as StandardScaler decides
    return Number(name, value, mean, 1.0 if constant else math.sqrt(variance), flagged, comma)


def number_from_moments(name: str, rows: int, present: int, mean: float, squares: float) -> Number | Dropped:
    """A number from sums over the present cells; squares: of their distances from the mean, which replaces missing
    cells."""
    if present == 0:
        return Dropped(name, "empty")
    scale = math.sqrt(squares / rows)
    constant = scale <= 1e-12 * abs(mean)  # rounding of the mean
    if constant and present == rows:
        return Dropped(name, f"always {mean:g}")
    return Number(name, float(mean), float(mean), 1.0 if constant else scale, present < rows)


def learn_category(name: str, words: np.ndarray, forced: bool) -> Column:
    """Decide from texts, with None for missing cells. forced: whatever they look like."""
    present = words[words != None]  # noqa: E711  (elementwise)
    distinct = len(set(present.tolist()))
    if distinct == 0:
        return Dropped(name, "empty")
    if not forced and distinct > _FEW:
        share, words_each = distinct / len(present), np.median([len(text.split()) for text in present[:1000].tolist()])
        text = f"{distinct:,} different values in {len(present):,} rows"
        if share > (0.2 if words_each >= 3 else 0.5):
            if words_each >= 2:
                return Dropped(name, f"free text: {text}", "text")
            return Dropped(name, f"text: {text}", "category")
    if distinct == 1 and len(present) == len(words):
        return Dropped(name, f"always {present[0]!r}")
    from sklearn.preprocessing import OneHotEncoder

    # rare: fewer than ten rows, or, in small tables, than a hundredth of the rows
    rare = max(2, min(10, len(words) // 100))
    encoder = OneHotEncoder(min_frequency=rare, max_categories=MAX_CATEGORIES, handle_unknown="infrequent_if_exist")
    encoder.fit(words[:, None])
    infrequent = encoder.infrequent_categories_[0]
    others = set() if infrequent is None else set(infrequent.tolist())
    kept = tuple(category for category in encoder.categories_[0].tolist() if category not in others)
    if not kept:
        return Dropped(name, "text in which every value is rare")
    return Category(name, kept, bool(others), tuple(sorted(others - {None})))


def _learn_words(name: str, words: np.ndarray, kind: str) -> Column:
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [text or "" for text in words]
    if not any(texts):
        return Dropped(name, "empty")
    if kind == "hash":
        return Words(name, (), (), HASHED_WORDS)
    rare = max(2, min(10, len(texts) // 100))
    vectorizer = TfidfVectorizer(min_df=rare, max_features=MAX_WORDS)
    try:
        vectorizer.fit(texts)
    except ValueError:  # no term is left
        return Dropped(name, f"no word occurs in {rare} rows")
    vocabulary = tuple(vectorizer.get_feature_names_out().tolist())
    return Words(name, vocabulary, tuple(vectorizer.idf_.tolist()), len(vocabulary))


def _learn_date(name: str, moments: np.ndarray, fill: str, format: str | None) -> Column:
    present = moments[~np.isnat(moments)]
    if len(present) == 0:
        return Dropped(name, "empty")
    if present.min() == present.max() and len(present) == len(moments):
        return Dropped(name, f"always {present[0]}")
    first = str(present.min())
    days = _learn_number(f"{name} days", days_since(first, moments), fill)
    if isinstance(days, Dropped):
        return Dropped(name, days.why)
    parts = {part: values for part, values in date_parts(present).items() if values.min() < values.max()}
    if present.max() - present.min() < SEASON:
        parts = {part: values for part, values in parts.items() if part in WEEKDAYS}
    return Date(name, first, days, tuple(parts), None if format == ISO else format)
