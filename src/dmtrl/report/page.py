"""Report room: a page of content becomes one HTML file that opens from disk without a network.

Everything is inside the file: plotly.js, style, script and data. A content security policy lets only these very
scripts run (by their SHA-256) and forbids every request, so neither a task's name nor a mistake here can do more.
The look is `page.html.jinja` and `page.css`, what moves is `page.js`; this file only gathers and escapes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dmtrl.report.content import ChartGrid, DotPlot, Figure, HeatMap, KeyFigures, LineChart, Page, Table, Text, slug
from dmtrl.report.files import (
    is_number,
    named_items,
    read_as_number,
    shown_columns,
    to_the_right,
    write_atomic,
    write_files,
)
from dmtrl.report.interactive import Panel, panels
from dmtrl.report.theme import DARK, LIGHT, exchange, lies_down

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = ["render_page", "write_files", "write_page"]

_NEEDS = 'A report page needs jinja2 and plotly: pip install "dmtrl[report]".'
SHORT, SHORT_NUMBER = 16, 24  # letters of a cell, or of one among numbers, that is not broken into lines
LONG_TABLE = 20  # rows; a longer table scrolls in a box of its own and can be searched
# what may stand in text: a sign after a backslash is itself; then `code`, for nothing inside it is read further
_MARKUP = re.compile(
    r"\\(?P<sign>[\\`*\[])|`(?P<code>[^`\n]+)`|\*\*(?P<bold>(?:\\.|[^\\])+?)\*\*"
    r"|\[(?P<label>[^\]\n]+)\]\((?P<address>[^()\s]+)\)"
)
_ADDRESS = re.compile(r"(https?://|mailto:|#)[^\s]*|(?!//)[\w.][\w./-]*(#[\w-]*)?", re.IGNORECASE)


def write_page(page: Page, path: str | os.PathLike[str]) -> Path:
    """Write the page as one HTML file; the path. In the end the whole file is there, or what was there before."""
    return write_atomic(path, render_page(page).encode("utf-8", "replace"))


def require_packages() -> None:
    """Refuse early, before long work whose outcome a page is to show, if the page could not be written."""
    try:
        import jinja2  # noqa: F401
        import plotly.offline  # noqa: F401
    except ImportError as error:
        raise ImportError(_NEEDS) from error


def render_page(page: Page) -> str:
    """The HTML of the page."""
    require_packages()
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    room = files("dmtrl.report")
    scripts = [_lines(get_plotlyjs()), _lines(room.joinpath("page.js").read_text(encoding="utf-8"))]
    for script in scripts:
        if re.search(r"</script|<!--", script, re.IGNORECASE):
            raise ValueError("This version of plotly.js cannot stand inside an HTML file: install another plotly.")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["paragraphs"] = _paragraphs
    template = environment.from_string(room.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    plots = {name: panels(item) for name, item in named_items(page) if not isinstance(item, (KeyFigures, Table, Text))}
    figures = {name: [panel.figure.to_plotly_json() for panel in shown] for name, shown in plots.items()}
    return template.render(
        page=page,
        short=SHORT,
        light=LIGHT,
        dark=DARK,
        sections=_sections(page, plots),
        css=Markup(room.joinpath("page.css").read_text(encoding="utf-8")),
        scripts=[Markup(script) for script in scripts],
        policy=" ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts),
        data=Markup(_json({"plots": figures, "dark": exchange(LIGHT, DARK)})),
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


def _item(name: str, item: Any, plots: Mapping[str, list[Panel]]) -> dict[str, Any]:
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
    """How many pixels high a plot is; squares follow their width."""
    if isinstance(item, ChartGrid):
        return 280
    if isinstance(item, HeatMap) and item.columns is not None:
        return min(180 + 20 * len(item.labels), 760)
    if isinstance(item, DotPlot):
        return 80 + 22 * len(item.rows)
    if isinstance(item, (LineChart, HeatMap)) or not lies_down(item.categories):
        return 400
    two_lines = max(map(len, item.categories)) > 24
    return 90 + len(item.categories) * max(38 if two_lines else 26, 16 * len(item.bars) + 8)


def _table(table: Table) -> dict[str, Any]:
    columns = shown_columns(table)
    right = [to_the_right(table, j) for j in range(len(table.columns))]

    def shown_cell(i: int, j: int, cell: object) -> tuple[str, str, bool]:
        """What is read, what it is sorted by, and whether it stands to the right."""
        text = columns[j][i]
        return text, _sort_key(cell, right[j]), is_number(cell) or (right[j] and len(text) <= SHORT_NUMBER)

    rows = [[shown_cell(i, j, cell) for j, cell in enumerate(row)] for i, row in enumerate(table.rows)]
    return {"columns": list(zip(table.columns, right, strict=True)), "rows": rows}


def _sort_key(cell: object, among_numbers: bool) -> str:
    """What the page sorts a number by, with all its digits; other cells are sorted by what is read in them."""
    value = read_as_number(cell) if among_numbers or is_number(cell) else None
    return repr(value) if value is not None and np.isfinite(value) else ""


def _json(data: dict[str, Any]) -> str:
    """JSON that no HTML parser can mistake for the end of its script element."""
    from plotly.utils import PlotlyJSONEncoder

    text = json.dumps(data, cls=PlotlyJSONEncoder, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _lines(script: str) -> str:
    # the browser hashes a script after turning every line end into \n
    return "\n" + script.replace("\r\n", "\n").replace("\r", "\n").strip("\n") + "\n"


def _paragraphs(text: str) -> Markup:
    from markupsafe import Markup

    parts = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    return Markup("\n").join(Markup('<p dir="auto">{}</p>').format(_inline(part)) for part in parts)


def _inline(text: str) -> Markup:
    """Bold, code and links of one paragraph; everything else is escaped."""
    from markupsafe import Markup, escape

    def pieces() -> Iterable[Markup]:
        end = 0
        for match in _MARKUP.finditer(text):
            yield escape(text[end : match.start()])
            end = match.end()
            if match["sign"]:
                yield escape(match["sign"])
            elif match["code"]:
                yield Markup("<code>{}</code>").format(match["code"])
            elif match["bold"]:
                yield Markup("<strong>{}</strong>").format(_inline(match["bold"]))
            elif _ADDRESS.fullmatch(match["address"]):
                yield Markup('<a href="{}" rel="noreferrer">{}</a>').format(match["address"], match["label"])
            else:  # an address of another kind, such as javascript:, stays text
                yield escape(match[0])
        yield escape(text[end:])

    return Markup("").join(pieces())
