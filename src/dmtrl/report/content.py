"""The content of a report as plain data: a `Page` has sections with tables, charts and text.

The renderers (`interactive`, `static`, `page`) only read these classes, which validate their arguments. To add a kind
of content, add it to `Item` and to the `_RENDERERS` of each renderer.
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
    """One curve. `low` and `high` draw a band around it. Series with the same `group` share a colour. `names` label the
    points on hover."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "line"
    group: int | None = None
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        where = f"The series {_quoted(self.name)}"
        _check_not_empty(self.name, "A series has no name.")
        if self.style not in STYLES:
            raise ValueError(f"{where} has the style {self.style!r}; style must be one of {', '.join(STYLES)}")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"{where} has only one of low and high; pass both or neither")
        count = _numbers(self.x, f"{where}, x").size
        for label, values in (("y", self.y), ("low", self.low), ("high", self.high)):
            if values is not None and (size := _numbers(values, f"{where}, {label}").size) != count:
                raise ValueError(
                    f"{where} has {count} values of x but {size} of {label}; they must have the same length"
                )
        if self.names is not None and len(self.names) != count:
            raise ValueError(f"{where} has {count} points but {len(self.names)} names; they must have the same length")
        if count == 0:
            raise ValueError(f"{where} has no points")


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
    from_zero: bool = False  # whether the x axis starts at zero

    def __post_init__(self) -> None:
        where = _check_figure(self.title, self.alt, "line chart")
        if not self.series:
            raise ValueError(f"{where} has no series")
        _check_unique([series.name for series in self.series], f"{where} has two series named")
        for name, height in self.references:
            if not np.isfinite(height):
                raise ValueError(f"{where} has a reference line {_quoted(name)} at {height}, which is not finite")
            if self.log_y and height <= 0:
                raise ValueError(
                    f"{where} has a reference line {_quoted(name)} at {height:g}, which a logarithmic axis "
                    "cannot show; remove it or set log_y=False"
                )


@dataclass(frozen=True)
class ChartGrid:
    """Small charts with one legend. A series has the same colour in all charts."""

    title: str
    charts: Sequence[LineChart]
    alt: str
    columns: int = 2
    caption: str = ""

    def __post_init__(self) -> None:
        where = _check_figure(self.title, self.alt, "chart grid")
        if not self.charts:
            raise ValueError(f"{where} has no charts")
        if self.columns < 1:
            raise ValueError(f"{where} has {self.columns} columns; columns must be positive")


@dataclass(frozen=True)
class HeatMap:
    """Matrices side by side, all with the same row `labels`, coloured from -limit to limit.

    They are square with the same labels on both axes, unless `columns` has the labels of the columns. `short` has
    shorter row labels for the axis.
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
            raise ValueError(f"{where} has no panels")
        if not self.labels:
            raise ValueError(f"{where} has no labels")
        if not (np.isfinite(self.limit) and self.limit > 0):
            raise ValueError(f"{where} has the limit {self.limit}; limit must be positive")
        if self.short is not None and len(self.short) != len(self.labels):
            raise ValueError(
                f"{where} has {len(self.short)} short labels for {len(self.labels)} rows; the numbers must be equal"
            )
        if self.columns is not None and not self.columns:
            raise ValueError(f"{where} has no columns; pass None for a square matrix")
        expected = (len(self.labels), len(self.labels if self.columns is None else self.columns))
        for name, matrix in self.panels:
            if np.shape(matrix) != expected:
                raise ValueError(
                    f"{where}, panel {_quoted(name)}, has a matrix of shape {np.shape(matrix)} for {expected[0]} "
                    f"labels{'' if self.columns is None else f' and {expected[1]} columns'}; its shape must be "
                    f"{expected}"
                )


@dataclass(frozen=True)
class BarChart:
    """Groups of bars: one group for each category, with one bar for each entry of `bars`.

    `errors` maps the name of a bar to half the length of its error bars, one for each category.
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
            raise ValueError(f"{where} has no bars; pass at least one category and one set of bars")
        names = [name for name, _ in self.bars]
        _check_unique(names, f"{where} has two sets of bars named")
        if unknown := sorted(set(self.errors) - set(names)):
            raise ValueError(f"{where} has errors for {_quoted(unknown[0])}, which is not one of its bars")
        lengths = [(name, values, "heights") for name, values in self.bars]
        lengths += [(name, values, "errors") for name, values in self.errors.items()]
        for name, values, what in lengths:
            size = _numbers(values, f"{where}, {_quoted(name)}").size
            if size != len(self.categories):
                raise ValueError(
                    f"{where} has {size} {what} for {_quoted(name)} but {len(self.categories)} categories; "
                    "they must have the same length"
                )

    @property
    def has_error_bars(self) -> bool:
        """Whether any error is positive; error bars of length zero would be misleading."""
        return any((np.asarray(values, dtype=float) > 0).any() for values in self.errors.values())


@dataclass(frozen=True)
class DotPlot:
    """One line for each name in `rows`, with one dot for each entry of `dots`. A bar connects the first two.

    `marked` are the indices of rows with a ring around their first dot; `mark` is the meaning of the ring.
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
            raise ValueError(f"{where} has no dots; pass at least one row and one set of dots")
        _check_unique([name for name, _ in self.dots], f"{where} has two sets of dots named")
        for name, values in self.dots:
            if (size := _numbers(values, f"{where}, {_quoted(name)}").size) != len(self.rows):
                raise ValueError(
                    f"{where} has {size} dots for {_quoted(name)} but {len(self.rows)} rows; the numbers must be equal"
                )
        if self.marked and not self.mark.strip():
            raise ValueError(f"{where} has marked rows but no mark; pass the meaning of the ring as mark")
        if any(not 0 <= row < len(self.rows) for row in self.marked):
            raise ValueError(
                f"{where} has a marked row that does not exist; rows are numbered from 0 to {len(self.rows) - 1}"
            )


@dataclass(frozen=True)
class KeyFigures:
    """A few important facts: pairs of a name and a value, both as text."""

    title: str
    entries: Sequence[tuple[str, str]]
    caption: str = ""

    def __post_init__(self) -> None:
        _check_not_empty(self.title, "A set of key figures has no title.")
        if not self.entries:
            raise ValueError(f"The key figures {_quoted(self.title)} are empty")

    def table(self) -> Table:
        return Table(self.title, ["name", "value"], list(self.entries), self.caption)


@dataclass(frozen=True)
class Table:
    """Rows with named columns. Numbers are right-aligned. On a wide page, two `half` tables are side by side."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""
    half: bool = False

    def __post_init__(self) -> None:
        _check_not_empty(self.title, "A table has no title: say what it shows.")
        if not self.columns:
            raise ValueError(f"The table {_quoted(self.title)} has no columns")
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"The table {_quoted(self.title)} has {len(self.columns)} columns but {len(row)} cells in row "
                    f"{number}; each row must have one cell per column"
                )


@dataclass(frozen=True)
class Text:
    """Paragraphs separated by blank lines. The only markup is **bold**, `code` and [label](address)."""

    text: str


Figure = LineChart | ChartGrid | HeatMap | BarChart | DotPlot
Item = Figure | KeyFigures | Table | Text


@dataclass(frozen=True)
class Section:
    title: str
    items: Sequence[Item]

    def __post_init__(self) -> None:
        _check_not_empty(self.title, "A section has no title.")


@dataclass(frozen=True)
class Page:
    """A report. `lead` summarises the results in a few sentences; `footer` describes how it was made."""

    title: str
    lead: str
    sections: Sequence[Section]
    footer: str = ""

    def __post_init__(self) -> None:
        _check_not_empty(self.title, "A page has no title.")
        if not self.sections:
            raise ValueError(f"The page {_quoted(self.title)} has no sections")


def slug(title: str) -> str:
    """A short name of a-z, 0-9 and hyphens for a file or an anchor.

    If letters are lost (other scripts, long titles), a hash of the title is added, so that different titles have
    different names.
    """
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    lost = any(letter.isalnum() and letter.isascii() is False for letter in unicodedata.normalize("NFKD", title))
    if words and len(words) <= 60 and not lost:
        return words
    return f"{words[:50].rstrip('-') or 'item'}-{sha256(title.encode('utf-8', 'replace')).hexdigest()[:8]}"


def finite_points(series: Series, log_x: bool, log_y: bool) -> np.ndarray:
    """Which points of a series can be drawn: finite, and positive on a logarithmic axis."""
    x, y = np.asarray(series.x, dtype=float), np.asarray(series.y, dtype=float)
    keep = np.isfinite(x) & np.isfinite(y)
    if log_x:
        keep &= x > 0
    if log_y:
        keep &= y > 0
    return np.asarray(keep)


def _check_figure(title: str, alt: str, kind: str) -> str:
    _check_not_empty(title, f"A {kind} has no title.")
    where = f"The {kind} {_quoted(title)}"
    _check_not_empty(alt, f"{where} has no alt text; pass a description for readers who cannot see it as alt")
    return where


def _check_not_empty(text: str, message: str) -> None:
    if not text.strip():
        raise ValueError(message)


def _check_unique(names: Sequence[str], message: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{message} {_quoted(name)}; names must be unique")
        seen.add(name)


def _numbers(values: Sequence[float], where: str) -> np.ndarray:
    try:
        numbers = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: the values must be numbers") from None
    if numbers.ndim != 1:
        raise ValueError(f"{where}: expected a list of numbers, got an array of shape {numbers.shape}")
    return numbers


def _quoted(name: str) -> str:
    """A name in quotes, cut to 60 characters."""
    return repr(name if len(name) <= 60 else name[:57] + "...")
