"""HTML for notebooks: small tables and heat maps, readable on light and dark backgrounds.

Objects that have a `_repr_html_` method build it from these functions. Styles are inline, because notebooks remove
style sheets from saved outputs, and every text is escaped.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

ALIKE, OPPOSED = "45, 106, 191", "199, 99, 28"  # red, green, blue; the diverging colours of report pages
MAX_CELLS = 30  # tasks on a side of a heat map; a larger one is a plot, not a table
MAX_ROWS = 30  # rows of a table
_CELL = "padding:2px 8px;text-align:{};border:0;"
_TABLE = "border-collapse:collapse;margin:0.3em 0;font-size:0.9em;"


def section(*parts: str) -> str:
    """Several pieces of HTML as one."""
    return f'<div class="dmtrl">{"".join(part for part in parts if part)}</div>'


def text(words: str, muted: bool = False) -> str:
    """One paragraph."""
    return f'<div style="margin:0.3em 0;{"opacity:0.7;" if muted else ""}">{escape(words)}</div>'


def facts(pairs: Iterable[tuple[str, Any]]) -> str:
    """A table of names and values, without a header."""
    rows = "".join(f"<tr>{_cell(name, 'left', 'opacity:0.7;')}{_cell(value, 'left')}</tr>" for name, value in pairs)
    return f'<table style="{_TABLE}"><tbody>{rows}</tbody></table>'


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], rest: str = "") -> str:
    """A table with a header. It ends after MAX_ROWS rows; `rest` says where the others are."""
    head = "".join(_cell(name, "left" if i == 0 else "right", tag="th") for i, name in enumerate(header))
    shown = rows if len(rows) <= MAX_ROWS else rows[:MAX_ROWS]
    body = "".join(
        f"<tr>{''.join(_cell(value, 'left' if i == 0 else 'right') for i, value in enumerate(row))}</tr>"
        for row in shown
    )
    more = f"{len(rows) - len(shown)} more rows{f': {rest}' if rest else ''}" if len(shown) < len(rows) else ""
    return (
        f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        f"{text(more, muted=True) if more else ''}"
    )


def heat_map(values: np.ndarray, names: Sequence[Any], labels: Sequence[Sequence[str]] | None = None) -> str:
    """A square table of numbers from -1 to 1: blue means alike, orange opposed. `labels` replace the numbers."""
    head = "".join(_cell(_short(name), "center", "font-weight:normal;", "th", str(name)) for name in names)
    lines = []
    for i, name in enumerate(names):
        cells = [_cell(_short(name), "right", "font-weight:normal;", "th", str(name))]
        for j, value in enumerate(np.asarray(values[i], dtype=float).tolist()):
            shown = f"{value:.2f}" if labels is None else labels[i][j]
            cells.append(_cell(shown, "center", f"background:{_colour(value)};", title=f"{name} and {names[j]}"))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div style="overflow-x:auto"><table style="{_TABLE}"><thead><tr><td style="border:0"></td>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def number(value: float) -> str:
    """A number as tables show it."""
    return "unknown" if np.isnan(value) else f"{value:.4g}"


def _cell(value: Any, align: str, style: str = "", tag: str = "td", title: str = "") -> str:
    hint = f' title="{escape(title)}"' if title else ""
    return f'<{tag} style="{_CELL.format(align)}{style}"{hint}>{escape(str(value))}</{tag}>'


def _short(name: Any) -> str:
    words = str(name)
    return words if len(words) <= 14 else f"{words[:13]}…"


def _colour(value: float) -> str:
    """Transparent near zero, so that the text stays readable: at most 60 % of the colour."""
    strength = 0.0 if np.isnan(value) else 0.6 * min(abs(value), 1.0)
    return f"rgba({ALIKE if value > 0 else OPPOSED}, {strength:.2f})"
