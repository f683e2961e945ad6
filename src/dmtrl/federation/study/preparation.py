"""Scaling, imputation and category levels from the sums of all sites.

A site computes its part with `cell_counts`, `spread`, `feature_sums` and `norms`; the coordinator adds the parts up and
gets the Preparation that `tables.learning.learn` would find on all rows together, with the mean instead of the median
in place of missing numbers: a median is not a sum.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from dmtrl.data.coordinates import Coordinates
from dmtrl.estimators.base import SHIFT_INVARIANT
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.study.study_file import SITE, Study, StudyColumn
from dmtrl.protocol.study import (
    Begin,
    CellCounts,
    FeatureSums,
    Norms,
    Spread,
)
from dmtrl.tables import columns as read
from dmtrl.tables.learning import SEASON, learn_category, number_from_moments
from dmtrl.tables.preparation import (
    WEEKDAYS,
    Category,
    Column,
    Date,
    Dropped,
    Number,
    Preparation,
    date_parts,
    days_since,
)

PARTS = ("year sine", "year cosine", *WEEKDAYS)
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Number, Category, Date, Dropped)}


def first_day(column: StudyColumn) -> str:
    """The day from which the days of a date column are counted: the first one of its range."""
    assert column.range is not None
    return str(np.datetime64(column.range[0], "us"))


def _moment_columns(column: StudyColumn, cells: Any) -> list[np.ndarray]:
    """What is summed of a column, with NaN for missing cells: a number itself; of a date the days and their parts."""
    if column.kind == "number":
        return [read.numbers(cells, column.name)]
    moments = read.dates(cells, column.name)
    missing, parts = np.isnat(moments), date_parts(moments)
    return [days_since(first_day(column), moments), *(np.where(missing, np.nan, parts[part]) for part in PARTS)]


def _moments(study: Study, table: Any) -> list[np.ndarray]:
    columns = [column for column in study.used if column.kind != "category"]
    return [values for column in columns for values in _moment_columns(column, table.column(column.name))]


def cell_counts(study: Study, table: Any) -> CellCounts:
    """A site's counts and sums, over the rows of the fit."""
    moments, levels = _moments(study, table), []
    for column in study.used:
        if column.kind == "category":
            number = {level: i for i, level in enumerate([*column.levels, None])}
            words = read.texts(table.column(column.name))
            codes = np.fromiter((number.get(word, len(number)) for word in words), dtype=int, count=len(words))
            levels.append(np.bincount(codes, minlength=len(number) + 1))
    return CellCounts(
        present=np.array([np.count_nonzero(~np.isnan(values)) for values in moments], dtype=np.int64),
        sums=np.array([values[~np.isnan(values)].sum() for values in moments], dtype=float),
        levels=np.concatenate(levels).astype(np.int64) if levels else np.zeros(0, dtype=np.int64),
    )


def spread(study: Study, table: Any, means: np.ndarray) -> Spread:
    """A site's sums of squared distances from the means of all sites."""
    moments = _moments(study, table)
    if not are_finite(means, (len(moments),)):
        raise RefusedBySiteError(f"the coordinator must send {len(moments)} finite means, one for each number or date")
    squares = [((values[~np.isnan(values)] - mean) ** 2).sum() for values, mean in zip(moments, means, strict=True)]
    return Spread(squares=np.array(squares, dtype=float))


def feature_sums(X: np.ndarray, y: np.ndarray) -> FeatureSums:
    """A site's sums of the prepared features and of the target."""
    return FeatureSums(features=X.sum(axis=0), target=float(y.sum()))


def norms(X: np.ndarray, y: np.ndarray, x_centre: np.ndarray, y_centre: float) -> Norms:
    """A site's sums of squared distances from the centres of all sites."""
    return Norms(features=float(((X - x_centre) ** 2).sum()), target=float(((y - y_centre) ** 2).sum()))


def means_of(counts: Sequence[CellCounts]) -> np.ndarray:
    """The mean of each number over all sites; 0 where every cell is missing."""
    return _total([count.sums for count in counts]) / np.maximum(_total([count.present for count in counts]), 1)


def prepare(study: Study, rows: int, counts: Sequence[CellCounts], spreads: Sequence[Spread]) -> Preparation:
    """The Preparation of all sites together, from their counts and sums. rows: of all sites."""
    means, squares = means_of(counts), _total([one.squares for one in spreads])
    present = np.sum([count.present for count in counts], axis=0)
    levels = np.sum([count.levels for count in counts], axis=0)
    columns: list[Column] = []
    at = level_at = 0
    for column in study.columns:
        if column.kind == "ignored":
            columns.append(Dropped(column.name, "as requested"))
        elif column.kind == "category":
            n = len(column.levels) + 2
            columns.append(_category(column, levels[level_at : level_at + n]))
            level_at += n
        elif column.kind == "number":
            columns.append(number_from_moments(column.name, rows, int(present[at]), means[at], squares[at]))
            at += 1
        else:
            parts = slice(at, at + column.moments)
            columns.append(_date(column, rows, present[parts], means[parts], squares[parts]))
            at = parts.stop
    return Preparation(tuple(columns), *roles_of(study))


def roles_of(study: Study) -> tuple[str, str, bool, tuple[str, ...]]:
    """The fields of a Preparation that the study says: task, target, whether tasks are sites, and missing texts."""
    return study.tasks.by, study.target.column, study.tasks.by == SITE, study.missing


def _category(column: StudyColumn, counts: np.ndarray) -> Column:
    """Learned from a column that has each level as often as all sites together."""
    *known, other = counts.tolist()
    words = np.repeat(np.array([*column.levels, None], dtype=object), known)
    learned = learn_category(column.name, words, forced=True)
    if other and isinstance(learned, Category):
        return replace(learned, other=True)
    return learned


def _date(column: StudyColumn, rows: int, present: np.ndarray, means: np.ndarray, squares: np.ndarray) -> Column:
    days = number_from_moments(f"{column.name} days", rows, int(present[0]), means[0], squares[0])
    if isinstance(days, Dropped):
        return Dropped(column.name, days.why)
    assert column.range is not None
    season = np.datetime64(column.range[1]) - np.datetime64(column.range[0]) >= SEASON
    varies = squares[1:] > 1e-9 * max(int(present[0]), 1)
    parts = [part for part, some in zip(PARTS, varies, strict=True) if some and (season or part in WEEKDAYS)]
    return Date(column.name, first_day(column), days, tuple(parts))


def centres_of(study: Study, rows: int, sums: Sequence[FeatureSums]) -> tuple[np.ndarray, float]:
    """The centres of features and target, for a free intercept."""
    y_centre = math.fsum(one.target for one in sums) / rows if study.loss.name in SHIFT_INVARIANT else 0.0
    return _total([one.features for one in sums]) / rows, y_centre


def coordinates_of(rows: int, x_centre: np.ndarray, y_centre: float, parts: Sequence[Norms]) -> Coordinates:
    """The coordinates of the problem, as `Coordinates.for_rows` finds them on all rows together."""
    scale = math.sqrt(math.fsum(part.target for part in parts) / rows) or 1.0
    return Coordinates(x_centre, y_centre, intercept=True, y_scale=scale)


def mean_square(rows: int, coordinates: Coordinates, parts: Sequence[Norms]) -> float:
    """The mean squared norm of a row in these coordinates."""
    at_centre = coordinates.rows(coordinates.x_centre[None])  # zero, but for a constant column
    return math.fsum(part.features for part in parts) / rows + float((at_centre**2).sum())


def coordinates_to_json(coordinates: Coordinates) -> str:
    """Coordinates without x_centre, which travels as an array."""
    return json.dumps({name: value for name, value in vars(coordinates).items() if name != "x_centre"})


def _total(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The sum over sites, rounded once, so that it does not depend on their order."""
    return np.array([math.fsum(values) for values in np.stack(parts, axis=1)], dtype=float)


def coordinates_from(begin: Begin) -> Coordinates:
    """The coordinates of a problem."""
    try:
        return Coordinates(x_centre=begin.x_centre, **json.loads(begin.coordinates))
    except (ValueError, TypeError) as error:
        raise ValueError(f"the coordinator sent coordinates that this dmtrl cannot read: {error}") from None


def to_json(preparation: Preparation) -> str:
    """A Preparation as text for a message. Floats keep every bit."""
    columns = [{"kind": type(column).__name__, **asdict(column)} for column in preparation.columns]
    return json.dumps({**vars(preparation), "columns": columns}, separators=(",", ":"))


def from_json(text: str) -> Preparation:
    """The Preparation of a message."""
    try:
        values = json.loads(text)
        columns = tuple(_from_dict(column) for column in values.pop("columns"))
        return Preparation(columns, **{**values, "missing": tuple(values["missing"])})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the coordinator sent a preparation that this dmtrl cannot read: {error}") from None


def _from_dict(values: dict[str, Any]) -> Column:
    kind = _KINDS[values.pop("kind")]
    for name in ("categories", "rare", "parts"):
        if name in values:
            values[name] = tuple(values[name])
    if "days" in values:
        values["days"] = Number(**values["days"])
    column: Column = kind(**values)
    return column


def check_against(study: Study, preparation: Preparation) -> None:
    """Refuse a preparation that asks for more than the study: another column, kind, level, task or missing text.

    Levels and parts of dates are listed once at most, so that there are no more features than were approved.
    """
    listed = {column.name: column for column in study.columns}
    if [column.name for column in preparation.columns] != list(listed):
        raise RefusedBySiteError("the coordinator sent a preparation with other columns than the study")
    asked = preparation.task, preparation.target, preparation.task_is_file_name, preparation.missing
    if asked != roles_of(study):
        raise RefusedBySiteError("the coordinator sent a preparation with another task, target or missing texts")
    for column in preparation.columns:
        if not _fits(listed[column.name], column):
            raise RefusedBySiteError(
                f"the coordinator prepared the column {column.name!r} in another way than the study"
            )


def _fits(declared: StudyColumn, column: Column) -> bool:
    if isinstance(column, Number):
        return declared.kind == "number" and _is_plain(column)
    if isinstance(column, Category):
        allowed = declared.kind == "category" and type(column.other) is bool
        return allowed and _is_part((*column.categories, *column.rare), {*declared.levels, None})
    if isinstance(column, Date):
        allowed = declared.kind == "date" and column.first == first_day(declared) and _is_plain(column.days)
        allowed = allowed and column.format is None
        return allowed and _is_part(column.parts, set(PARTS))
    return isinstance(column, Dropped)


def _is_plain(number: Number) -> bool:
    """Whether a Number has finite numbers and a positive scale."""
    values = number.fill, number.mean, number.scale
    finite = all(are_finite(value, ()) for value in values)
    return finite and number.scale > 0 and number.comma is None and type(number.flagged) is bool


def _is_part(chosen: Sequence[Any], of: set[Any]) -> bool:
    return len(set(chosen)) == len(chosen) and set(chosen) <= of


def check_centres(study: Study, width: int, x_centre: np.ndarray, y_centre: float) -> None:
    """Refuse centres that are not one finite number per feature and, if the loss allows it, one of the target."""
    shifted = y_centre == 0 or study.loss.name in SHIFT_INVARIANT
    if not (are_finite(x_centre, (width,)) and are_finite(y_centre, ()) and shifted):
        raise RefusedBySiteError("the coordinator sent centres that do not fit the study")


def check_coordinates(study: Study, width: int, coordinates: Coordinates) -> None:
    """Refuse coordinates of another kind than those of a study."""
    check_centres(study, width, coordinates.x_centre, coordinates.y_centre)
    scaled = are_finite(coordinates.y_scale, ()) and coordinates.y_scale > 0
    if not (coordinates.intercept is True and coordinates.column is False and scaled):
        raise RefusedBySiteError("the coordinator sent coordinates that do not fit the study")


def are_finite(values: Any, shape: tuple[int, ...]) -> bool:
    """Whether `values` is a number, or an array of numbers, of this shape, without NaN and infinity."""
    array = np.asarray(values)
    return array.dtype.kind in "iuf" and array.shape == shape and bool(np.isfinite(array).all())
