"""The content of a report as plain data: a `Page` has sections with tables, charts and text.

The renderers (`interactive`, `static`, `page`) only read these classes, which validate their arguments. To add a kind
of content, add it to `Item` and to the `_RENDERERS` of each renderer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

STYLES = ("line", "dashes", "dots", "points")


@dataclass(frozen=True)
class Series:
    """One curve. Series with the same `group` share a colour. `names` label the points on hover."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "line"
    group: int | None = None
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        _require(self.style in STYLES, f"style must be one of {', '.join(STYLES)}, got {self.style!r}")
        for values in (self.y, self.names):
            _check_length(values, len(self.x), f"series {self.name!r}", "points")


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
        _check_figure(self.title, self.alt)
        _check_unique([series.name for series in self.series], f"chart {self.title!r}")

    def drawn(self, series: Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x and y of the points that can be drawn, and which they are: finite, and positive on a logarithmic axis."""
        x, y = np.asarray(series.x, dtype=float), np.asarray(series.y, dtype=float)
        keep = np.isfinite(x) & np.isfinite(y) & ((x > 0) | (not self.log_x)) & ((y > 0) | (not self.log_y))
        return x[keep], y[keep], keep


@dataclass(frozen=True)
class ChartGrid:
    """Small charts with one legend. A series has the same colour in all charts."""

    title: str
    charts: Sequence[LineChart]
    alt: str
    columns: int = 2
    caption: str = ""

    def __post_init__(self) -> None:
        _check_figure(self.title, self.alt)


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
        _check_figure(self.title, self.alt)
        _check_length(self.short, len(self.labels), f"heat map {self.title!r}", "labels")
        expected = (len(self.labels), len(self.labels if self.columns is None else self.columns))
        for name, matrix in self.panels:
            shape = np.shape(matrix)
            message = f"heat map {self.title!r}, panel {name!r}: the labels need the shape {expected}, got {shape}"
            _require(shape == expected, message)


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
        _check_figure(self.title, self.alt)
        _check_unique([name for name, _ in self.dots], f"dot plot {self.title!r}")
        for name, values in self.dots:
            _check_length(values, len(self.rows), f"dot plot {self.title!r}, {name!r}", "rows")


@dataclass(frozen=True)
class KeyFigures:
    """A few important facts: pairs of a name and a value, both as text."""

    title: str
    entries: Sequence[tuple[str, str]]
    caption: str = ""

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
        for number, row in enumerate(self.rows, start=1):
            _check_length(row, len(self.columns), f"table {self.title!r}, row {number}", "columns")


@dataclass(frozen=True)
class Text:
    """Paragraphs separated by blank lines. The only markup is **bold**, `code` and [label](address)."""

    text: str


Figure = LineChart | ChartGrid | HeatMap | DotPlot
Item = Figure | KeyFigures | Table | Text


@dataclass(frozen=True)
class Section:
    title: str
    items: Sequence[Item]


@dataclass(frozen=True)
class Page:
    """A report. `lead` summarises the results in a few sentences; `footer` describes how it was made."""

    title: str
    lead: str
    sections: Sequence[Section]
    footer: str = ""


def slug(title: str) -> str:
    """A short name of a-z, 0-9 and hyphens for a file or an anchor.

    If letters are lost (other scripts, long titles), a hash of the title is added, so that different titles have
    different names.
    """
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    lost = any(letter.isalnum() and not letter.isascii() for letter in unicodedata.normalize("NFKD", title))
    if words and len(words) <= 60 and not lost:
        return words
    return f"{words[:50].rstrip('-') or 'item'}-{sha256(title.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)


def _check_figure(title: str, alt: str) -> None:
    _require(bool(alt.strip()), f"{title!r} has no alt text; pass a description for readers who cannot see it as alt")


def _check_length(values: Sequence[object] | None, count: int, where: str, what: str) -> None:
    if values is not None:
        _require(
            len(values) == count, f"{where} has {len(values)} values for {count} {what}; the numbers must be equal"
        )


def _check_unique(names: Sequence[str], where: str) -> None:
    _require(len(set(names)) == len(names), f"{where} uses a name twice; names must be unique")
