"""Report room, bottom floor: what a report says, as plain data. No plotting library is imported here.

A report is a :class:`Page` of :class:`Section` s, and a section holds tables, charts and text. The renderers next door
(`interactive`, `static`, `page`) only read these records, so a table or figure is computed once and drawn in any form.
Every record checks itself when it is made: a chart that cannot be drawn is refused where it was written, not where it
is drawn. A new kind of content is added here, to `Item`, and to each renderer's table of drawing functions.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

STYLES = ("line", "dashes", "dots", "points")


@dataclass(frozen=True)
class Series:
    """One curve. `low` and `high` draw a band around it; series with the same `group` share a colour. `names`: what
    each point is called when it is hovered over."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "line"
    group: int | None = None
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        where = f"The series {_shown(self.name)}"
        _check_words(self.name, "A series has no name: name what its points are.")
        if self.style not in STYLES:
            raise ValueError(f"{where} has the style {self.style!r}: choose one of {', '.join(STYLES)}.")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"{where} has only one edge of a band: give both low and high, or neither.")
        count = _numbers(self.x, f"{where}, x").size
        for label, values in (("y", self.y), ("low", self.low), ("high", self.high)):
            if values is not None and (size := _numbers(values, f"{where}, {label}").size) != count:
                raise ValueError(f"{where} has {count} values of x but {size} of {label}: give one for each x.")
        if self.names is not None and len(self.names) != count:
            raise ValueError(f"{where} has {count} points but {len(self.names)} names: give one for each point.")
        if count == 0:
            raise ValueError(f"{where} has no points: leave it out.")


@dataclass(frozen=True)
class LineChart:
    """Curves over one pair of axes. `references` are horizontal lines, each with a name."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    alt: str
    log_x: bool = False
    log_y: bool = False
    caption: str = ""
    references: Sequence[tuple[str, float]] = ()
    from_zero: bool = False  # whether the x axis begins at zero

    def __post_init__(self) -> None:
        where = _check_figure(self.title, self.alt, "line chart")
        if not self.series:
            raise ValueError(f"{where} has no series: give at least one.")
        _check_unique([series.name for series in self.series], f"{where} has two series named")
        for name, height in self.references:
            if not np.isfinite(height):
                raise ValueError(f"{where} has a reference line {_shown(name)} at {height}: give a finite height.")
            if self.log_y and height <= 0:
                raise ValueError(
                    f"{where} has a reference line {_shown(name)} at {height:g}, which a logarithmic axis cannot show: "
                    "leave it out or set log_y=False."
                )


@dataclass(frozen=True)
class ChartGrid:
    """Small multiples with one legend: a series has the same colour wherever its name appears."""

    title: str
    charts: Sequence[LineChart]
    alt: str
    columns: int = 2
    caption: str = ""

    def __post_init__(self) -> None:
        where = _check_figure(self.title, self.alt, "chart grid")
        if not self.charts:
            raise ValueError(f"{where} has no charts: give at least one.")
        if self.columns < 1:
            raise ValueError(f"{where} has {self.columns} columns: give at least one.")


@dataclass(frozen=True)
class HeatMap:
    """Matrices side by side, all with the same row `labels`, coloured from -limit to limit.

    They are square with the same labels on both sides, unless the columns have labels of their own in `columns`.
    `short` are words for the rows that fit on an axis, where the labels are long.
    """

    title: str
    panels: Sequence[tuple[str, np.ndarray]]
    labels: Sequence[str]
    alt: str
    caption: str = ""
    limit: float = 1.0
    columns: Sequence[str] | None = None
    short: Sequence[str] | None = None

    def __post_init__(self) -> None:
        where = _check_figure(self.title, self.alt, "heat map")
        if not self.panels:
            raise ValueError(f"{where} has no panels: give at least one matrix.")
        if not self.labels:
            raise ValueError(f"{where} has no labels: give one for each row.")
        if not (np.isfinite(self.limit) and self.limit > 0):
            raise ValueError(f"{where} has the colour limit {self.limit}: give a positive number.")
        if self.short is not None and len(self.short) != len(self.labels):
            raise ValueError(
                f"{where} has {len(self.short)} short labels for {len(self.labels)} rows: give one for each."
            )
        if self.columns is not None and not self.columns:
            raise ValueError(f"{where} has no columns: give at least one, or None for those of the rows.")
        expected = (len(self.labels), len(self.labels if self.columns is None else self.columns))
        for name, matrix in self.panels:
            if np.shape(matrix) != expected:
                raise ValueError(
                    f"{where}, panel {_shown(name)}, has a matrix of shape {np.shape(matrix)} for {expected[0]} "
                    f"labels{'' if self.columns is None else f' and {expected[1]} columns'}: give a matrix of shape "
                    f"{expected}."
                )


@dataclass(frozen=True)
class BarChart:
    """Groups of bars: one group for each category, one bar in it for each entry of `bars`.

    `errors` gives, under a bar's name, the half length of the whisker on each category.
    """

    title: str
    categories: Sequence[str]
    bars: Sequence[tuple[str, Sequence[float]]]
    y_label: str
    alt: str
    errors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    caption: str = ""

    def __post_init__(self) -> None:
        where = _check_figure(self.title, self.alt, "bar chart")
        if not self.categories or not self.bars:
            raise ValueError(f"{where} has no bars: give at least one category and one set of bars.")
        names = [name for name, _ in self.bars]
        _check_unique(names, f"{where} has two sets of bars named")
        if unknown := sorted(set(self.errors) - set(names)):
            raise ValueError(f"{where} has errors for {_shown(unknown[0])}, which is not among its bars.")
        lengths = [(name, values, "heights") for name, values in self.bars]
        lengths += [(name, values, "errors") for name, values in self.errors.items()]
        for name, values, what in lengths:
            size = _numbers(values, f"{where}, {_shown(name)}").size
            if size != len(self.categories):
                raise ValueError(
                    f"{where} has {size} {what} for {_shown(name)} but {len(self.categories)} categories: "
                    "give one for each category."
                )

    @property
    def has_whiskers(self) -> bool:
        """Whether any error is more than nothing: whiskers of no length on every bar would only look like a claim."""
        return any((np.asarray(values, dtype=float) > 0).any() for values in self.errors.values())


@dataclass(frozen=True)
class DotPlot:
    """One line for each name in `rows`, and on it one dot for each entry of `dots`; the first two are joined.

    `marked` are the places of rows that get a ring around their first dot; `mark` says what the ring means.
    """

    title: str
    rows: Sequence[str]
    dots: Sequence[tuple[str, Sequence[float]]]
    x_label: str
    alt: str
    marked: Sequence[int] = ()
    mark: str = ""
    caption: str = ""

    def __post_init__(self) -> None:
        where = _check_figure(self.title, self.alt, "dot plot")
        if not self.rows or not self.dots:
            raise ValueError(f"{where} has no dots: give at least one row and one set of dots.")
        _check_unique([name for name, _ in self.dots], f"{where} has two sets of dots named")
        for name, values in self.dots:
            if (size := _numbers(values, f"{where}, {_shown(name)}").size) != len(self.rows):
                raise ValueError(
                    f"{where} has {size} dots for {_shown(name)} but {len(self.rows)} rows: give one for each row."
                )
        if self.marked and not self.mark.strip():
            raise ValueError(f"{where} marks rows without saying why: give the meaning in mark.")
        if any(not 0 <= place < len(self.rows) for place in self.marked):
            raise ValueError(f"{where} marks a row that is not there: they go from 0 to {len(self.rows) - 1}.")


@dataclass(frozen=True)
class KeyFigures:
    """A few facts to be seen at a glance: pairs of what it is and how much, both as text."""

    title: str
    entries: Sequence[tuple[str, str]]
    caption: str = ""

    def __post_init__(self) -> None:
        _check_words(self.title, "A set of key figures has no title: say what they are about.")
        if not self.entries:
            raise ValueError(f"The key figures {_shown(self.title)} are empty: give at least one pair.")

    def table(self) -> Table:
        return Table(self.title, ["what", "value"], list(self.entries), self.caption)


@dataclass(frozen=True)
class Table:
    """Rows under named columns. Numbers are right-aligned; strings are shown as they are. A `half` table leaves the
    other half of a wide page to the next one."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""
    half: bool = False

    def __post_init__(self) -> None:
        _check_words(self.title, "A table has no title: say what it shows.")
        if not self.columns:
            raise ValueError(f"The table {_shown(self.title)} has no columns: give at least one.")
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"The table {_shown(self.title)} has {len(self.columns)} columns but {len(row)} cells in row "
                    f"{number}: give one cell for each column."
                )


@dataclass(frozen=True)
class Text:
    """Paragraphs separated by blank lines; plain, with **bold**, `code` and [label](address) only."""

    text: str


Figure = LineChart | ChartGrid | HeatMap | BarChart | DotPlot
Item = Figure | KeyFigures | Table | Text


@dataclass(frozen=True)
class Section:
    title: str
    items: Sequence[Item]

    def __post_init__(self) -> None:
        _check_words(self.title, "A section has no title: say what it is about.")


@dataclass(frozen=True)
class Page:
    """A whole report: `lead` says in a few sentences what was found; `footer` how it was made."""

    title: str
    lead: str
    sections: Sequence[Section]
    footer: str = ""

    def __post_init__(self) -> None:
        _check_words(self.title, "A page has no title: say what it is about.")
        if not self.sections:
            raise ValueError(f"The page {_shown(self.title)} has no sections: give at least one.")


def slug(title: str) -> str:
    """A short name made of a-z, 0-9 and hyphens, fit for a file or an anchor.

    A title that loses letters on the way (Greek, Arabic, 200 characters ...) gets a tail that depends on the whole
    title, so that different titles keep different names.
    """
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    lost = any(letter.isalnum() and letter.isascii() is False for letter in unicodedata.normalize("NFKD", title))
    if words and len(words) <= 60 and not lost:
        return words
    return f"{words[:50].rstrip('-') or 'item'}-{sha256(title.encode('utf-8', 'replace')).hexdigest()[:8]}"


def finite_points(series: Series, log_x: bool, log_y: bool) -> np.ndarray:
    """Which points of a series can be drawn: finite, and positive where the axis is logarithmic."""
    x, y = np.asarray(series.x, dtype=float), np.asarray(series.y, dtype=float)
    keep = np.isfinite(x) & np.isfinite(y)
    if log_x:
        keep &= x > 0
    if log_y:
        keep &= y > 0
    return np.asarray(keep)


def _check_figure(title: str, alt: str, kind: str) -> str:
    _check_words(title, f"A {kind} has no title: say what is seen.")
    where = f"The {kind} {_shown(title)}"
    _check_words(alt, f"{where} has no alternative text: describe in alt what it shows, for readers who cannot see it.")
    return where


def _check_words(words: str, complaint: str) -> None:
    if not words.strip():
        raise ValueError(complaint)


def _check_unique(names: Sequence[str], complaint: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{complaint} {_shown(name)}: give each its own name.")
        seen.add(name)


def _numbers(values: Sequence[float], where: str) -> np.ndarray:
    try:
        numbers = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: these are not numbers.") from None
    if numbers.ndim != 1:
        raise ValueError(f"{where}: expected a list of numbers, got an array of shape {numbers.shape}.")
    return numbers


def _shown(name: str) -> str:
    """A name in quotes, cut to a length that leaves the sentence readable."""
    return repr(name if len(name) <= 60 else name[:57] + "...")
