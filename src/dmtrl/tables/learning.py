"""Decide what becomes of each column of a table: a number, a category, a date, or not used.

scikit-learn's transformers (SimpleImputer, StandardScaler, OneHotEncoder) learn the values that a Preparation keeps.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dmtrl.tables import columns as read
from dmtrl.tables.cells import DATE, NESTED, NUMBER, CellSummary, summarize_cells
from dmtrl.tables.names import listed
from dmtrl.tables.preparation import (
    WEEKDAYS,
    Category,
    Column,
    Date,
    Dropped,
    Number,
    Preparation,
    as_arrow,
    date_parts,
    days_since,
    without_missing,
)

LARGEST = 1e100  # squares of larger numbers overflow
MAX_CATEGORIES = 100  # columns of one category
_ID_NAME = re.compile(r"(^|[_\-. ])(id|ids|uuid|guid|key|index|rownum|row_number|unnamed_\d+)$", re.IGNORECASE)
_FEW = 50  # fewer values do not show whether a column identifies rows
SEASON = np.timedelta64(60, "D")  # shorter periods show no time of year


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
    fill: str = "median",
    notes: list[str] | None = None,
) -> Preparation:
    """Learn a Preparation from a pyarrow, pandas or polars frame, or a dict of columns.

    untyped: columns that are text only because their file has no types. drop: columns to leave out. category, number:
    columns to use as such, whatever they look like. reserved: other columns that are not features, with the reason.
    missing: texts that count as missing. semicolons: whether these separate the columns of the file; then commas are
    decimal signs. fill: "median" or "mean", which replaces missing numbers. notes: remarks for the user are appended.
    """
    frame, untyped = without_missing(as_arrow(frame), missing), set(untyped)
    left_out = {**dict.fromkeys(drop, "as requested"), **(reserved or {})}
    learned: list[Column] = []
    summaries: dict[str, CellSummary] = {}
    for name in frame.column_names:
        if name in (task, target):
            continue
        if name in left_out:
            learned.append(Dropped(name, left_out[name]))
            continue
        column = frame.column(name)
        forced = "category" if name in category else "number" if name in number else None
        summary = summarize_cells(column, semicolons) if read.is_text(column.type) and name in untyped else None
        learned.append(_learn_column(name, column, summary, forced, fill))
        if summary is not None and not isinstance(learned[-1], Category | Dropped):
            summaries[name] = summary
    if notes is not None:
        notes += reading_notes(summaries)
    return Preparation(tuple(learned), task, target, task_is_file_name, tuple(missing))


def reading_notes(summaries: Mapping[str, CellSummary]) -> list[str]:
    """Remarks on columns with decimal commas, and with words that count as missing."""
    commas = {name: summary.example for name, summary in summaries.items() if summary.decimal_comma}
    notes = []
    if commas:
        example = next(iter(commas.values()))
        notes.append(f"decimal commas, as in {example!r}, are read as decimal points: {_quoted(list(commas))}")
    for name, summary in summaries.items():
        if summary.n_missing:
            cells = "1 cell with" if summary.n_missing == 1 else f"{summary.n_missing:,} cells with"
            count = "counts" if summary.n_missing == 1 else "count"
            notes.append(f"column {name!r}: {cells} {_quoted(summary.missing_words)} {count} as missing")
    return notes


def _quoted(names: Sequence[str]) -> str:
    return listed([repr(name) for name in names], 3)


def _learn_column(name: str, column: Any, summary: CellSummary | None, forced: str | None, fill: str) -> Column:
    kind = summary.kind if summary is not None else read.kind_of(column, untyped=False)
    if kind == NESTED:
        return Dropped(name, f"holds {column.type}, which is neither number, text nor date")
    if forced == "number" or (kind == NUMBER and forced is None):
        comma = None
        if summary is not None and (summary.decimal_comma or kind == NUMBER):
            comma = summary.decimal_comma
        x = read.numbers(column, name, comma)
        if forced is None and identifies_rows(name, x):
            return Dropped(name, "identifies rows; declare it a number to use it")
        return _learn_number(name, x, fill, comma or None)
    if summary is not None and summary.mostly and forced is None:
        raise summary.mixed_error(name)
    if kind == DATE and forced is None:
        return _learn_date(name, read.dates(column, name), fill)
    return learn_category(name, read.texts(column), forced is not None)


def identifies_rows(name: str, x: np.ndarray) -> bool:
    """Whether whole numbers never repeat, and run without gaps or are named like an id."""
    x = x[~np.isnan(x)]
    if len(x) < _FEW or (x != np.floor(x)).any() or len(np.unique(x)) < len(x):
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
    from sklearn.impute import SimpleImputer  # imported here because prediction does not need it
    from sklearn.preprocessing import StandardScaler

    imputer = SimpleImputer(strategy=fill).fit(x[:, None])
    scaler = StandardScaler().fit(imputer.transform(x[:, None]))
    return Number(name, float(imputer.statistics_[0]), float(scaler.mean_[0]), float(scaler.scale_[0]), flagged, comma)


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
    if not forced and distinct > _FEW and distinct > 0.5 * len(present):
        is_free_text = distinct > 0.9 * len(present)
        advice = ": free text is not used" if is_free_text else "; declare it a category to use it"
        return Dropped(name, f"text with {distinct:,} different values in {len(present):,} rows{advice}")
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
    return Category(name, kept, bool(others))


def _learn_date(name: str, moments: np.ndarray, fill: str) -> Column:
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
    return Date(name, first, days, tuple(parts))
