"""Render a page as one offline HTML file with plotly.js, style, script and data, the large parts compressed.

A content security policy allows only these scripts (by their SHA-256) and no requests, so that names in the data
cannot run code.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dmtrl.report.content import ChartGrid, DotPlot, Figure, HeatMap, Item, KeyFigures, Page, Table, Text, slug
from dmtrl.report.files import (
    formatted_columns,
    is_number,
    is_right_aligned,
    named_items,
    parse_number,
    write_atomic,
)
from dmtrl.report.interactive import Panel, panels
from dmtrl.report.theme import DARK, LIGHT, dark_colours

if TYPE_CHECKING:
    from markupsafe import Markup

SHORT, SHORT_NUMBER = 16, 24  # a cell with fewer characters is not wrapped, in a text or a number column
LONG_TABLE = 20  # rows; a longer table has its own scroll bar and a search field
# Markup in text. A backslash escapes a character. `code` comes before the rest because it has no markup inside.
_MARKUP = re.compile(
    r"\\(?P<escaped>[\\`*\[])|`(?P<code>[^`\n]+)`|\*\*(?P<bold>(?:\\.|[^\\])+?)\*\*"
    r"|\[(?P<label>[^\]\n]+)\]\((?P<address>[^()\s]+)\)"
)
# Characters that HTML changes or that could end a script; the last seven bits of their replacements are the same.
_HTML_SAFE = {code: code + 256 for code in (0, ord("\r"), ord("<"))}
_ADDRESS = re.compile(r"(https?://|mailto:|#)[^\s]*|(?!//)[\w.][\w./-]*(#[\w-]*)?", re.IGNORECASE)


def write_page(page: Page, path: str | os.PathLike[str]) -> Path:
    """Write the page as one HTML file and return its path. If that fails, an existing file is unchanged."""
    return write_atomic(path, render_page(page).encode("utf-8", "replace"))


def require_packages() -> None:
    """Raise ImportError if the packages that a page needs are not installed."""
    try:
        import jinja2  # noqa: F401
        import plotly.offline  # noqa: F401
    except ImportError as error:
        raise ImportError('A report page needs jinja2 and plotly: pip install "dmtrl[report]".') from error


def render_page(page: Page) -> str:
    """The HTML of the page."""
    require_packages()
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    folder = files("dmtrl.report")
    library, script = _lines(get_plotlyjs()), _lines(folder.joinpath("page.js").read_text(encoding="utf-8"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["paragraphs"] = _paragraphs
    template = environment.from_string(folder.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    plots = {name: panels(item) for name, item in named_items(page) if not isinstance(item, (KeyFigures, Table, Text))}
    figures = {name: [panel.figure.to_plotly_json() for panel in shown] for name, shown in plots.items()}
    return template.render(
        page=page,
        short=SHORT,
        light=LIGHT,
        dark=DARK,
        sections=_sections(page, plots),
        css=Markup(folder.joinpath("page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        library=_packed(library),
        policy=" ".join(map(_hash, (library, script))),
        data=_packed(_json({"plots": figures, "dark": dark_colours()})),
    )


def _sections(page: Page, plots: Mapping[str, list[Panel]]) -> list[dict[str, Any]]:
    names = iter(named_items(page))
    taken: set[str] = set()
    sections = []
    for section in page.sections:
        anchor = "section-" + slug(section.title)
        while anchor in taken:
            anchor += "-2"
        taken.add(anchor)
        items = [_item(*next(names), plots) for _ in section.items]
        sections.append({"title": section.title, "anchor": anchor, "items": items})
    return sections


def _item(name: str, item: Item, plots: Mapping[str, list[Panel]]) -> dict[str, Any]:
    if isinstance(item, Text):
        return {"kind": "text", "text": item.text}
    shared = {"name": name, "title": item.title, "caption": item.caption}
    if isinstance(item, KeyFigures):
        return shared | {"kind": "key figures", "entries": item.entries}
    if isinstance(item, Table):
        return shared | {"kind": "table", "long": len(item.rows) > LONG_TABLE, "half": item.half, **_table(item)}
    titles = [panel.title for panel in plots[name]]
    labels = [item.alt if len(titles) == 1 or not title else f"{title}. {item.alt}" for title in titles]
    if isinstance(item, ChartGrid):
        labels = [f"{chart.title}. {chart.alt}" for chart in item.charts]
    square = isinstance(item, HeatMap) and item.columns is None
    shape = "square" if square else "tall" if _height(item) > 400 else "wide"
    columns = min(len(titles), item.columns if isinstance(item, ChartGrid) else 3)
    return shared | {
        "kind": "figure",
        "alt": item.alt,
        "panels": list(zip(titles, labels, strict=True)),
        "shape": shape,
        "columns": columns,
        "height": _height(item),
        "scale": (-item.limit, item.limit) if isinstance(item, HeatMap) else None,
    }


def _height(item: Figure) -> int:
    """The height of a plot in pixels; square plots follow their width."""
    if isinstance(item, ChartGrid):
        return 280
    if isinstance(item, HeatMap) and item.columns is not None:
        return min(180 + 20 * len(item.labels), 760)
    if isinstance(item, DotPlot):
        return 80 + 22 * len(item.rows)
    return 400


def _table(table: Table) -> dict[str, Any]:
    columns = formatted_columns(table)
    right = [is_right_aligned(table, j) for j in range(len(table.columns))]

    def shown_cell(i: int, j: int, cell: object) -> tuple[str, str, bool]:
        """The text of a cell, its sort key, and whether it is right-aligned."""
        text = columns[j][i]
        return text, _sort_key(cell, right[j]), is_number(cell) or (right[j] and len(text) <= SHORT_NUMBER)

    rows = [[shown_cell(i, j, cell) for j, cell in enumerate(row)] for i, row in enumerate(table.rows)]
    return {"columns": list(zip(table.columns, right, strict=True)), "rows": rows}


def _sort_key(cell: object, among_numbers: bool) -> str:
    """The sort key of a number, with all digits; other cells are sorted by their text."""
    value = parse_number(cell) if among_numbers or is_number(cell) else None
    return repr(value) if value is not None and np.isfinite(value) else ""


def _json(data: dict[str, Any]) -> str:
    from plotly.utils import PlotlyJSONEncoder

    return json.dumps(data, cls=PlotlyJSONEncoder, separators=(",", ":"))


class _Packed(NamedTuple):
    """Compressed bytes as text that HTML leaves alone, seven bits in each character; and how many bytes they are."""

    text: Markup
    size: int


@lru_cache(2)
def _packed(text: str) -> _Packed:
    """A text, compressed with gzip. page.js unpacks it; the browser runs a script only if the policy has its hash."""
    from markupsafe import Markup

    packed = gzip.compress(text.encode(), mtime=0)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8))
    groups = np.concatenate([bits, np.zeros(-len(bits) % 7, np.uint8)]).reshape(-1, 7)
    characters = (groups @ (1 << np.arange(6, -1, -1)).astype(np.uint8)).astype(np.uint8)
    return _Packed(Markup(characters.tobytes().decode("ascii").translate(_HTML_SAFE)), len(packed))


@lru_cache(2)
def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _lines(script: str) -> str:
    # browsers convert line ends to \n before they hash a script
    return "\n" + script.replace("\r\n", "\n").replace("\r", "\n").strip("\n") + "\n"


def _paragraphs(text: str) -> Markup:
    from markupsafe import Markup

    parts = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    return Markup("\n").join(Markup('<p dir="auto">{}</p>').format(_inline(part)) for part in parts)


def _inline(text: str) -> Markup:
    """One paragraph with bold, code and links; everything else is escaped."""
    from markupsafe import Markup, escape

    def pieces() -> Iterable[Markup]:
        end = 0
        for match in _MARKUP.finditer(text):
            yield escape(text[end : match.start()])
            end = match.end()
            if match["escaped"]:
                yield escape(match["escaped"])
            elif match["code"]:
                yield Markup("<code>{}</code>").format(match["code"])
            elif match["bold"]:
                yield Markup("<strong>{}</strong>").format(_inline(match["bold"]))
            elif _ADDRESS.fullmatch(match["address"]):
                yield Markup('<a href="{}" rel="noreferrer">{}</a>').format(match["address"], match["label"])
            else:  # other addresses, such as javascript:, stay text
                yield escape(match[0])
        yield escape(text[end:])

    return Markup("").join(pieces())
