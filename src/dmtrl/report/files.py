"""Tables as CSV and Markdown, the names of a page's items, and atomic writes."""

from __future__ import annotations

import csv
import io
import math
import numbers
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

import numpy as np

from dmtrl.report.content import Item, Page, Table, Text, slug
from dmtrl.report.theme import single_line
from dmtrl.storage import whole_file

EMPTY = "–"  # a cell with None or NaN


def named_items(page: Page) -> Iterator[tuple[str, Item]]:
    """Each item of the page with a unique name: the slug of its title, numbered if titles repeat."""
    taken: set[str] = set()
    for section in page.sections:
        for item in section.items:
            stem = "text" if isinstance(item, Text) else slug(item.title)
            name, number = stem, 2
            while name in taken:
                name, number = f"{stem}-{number}", number + 1
            taken.add(name)
            yield name, item


def write_atomic(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write a file. If that fails, an existing file is unchanged."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; pass the name of a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {target.parent}; create it first")
    with whole_file(target) as file:
        file.write(content)
    return Path(path)


def is_number(cell: object) -> TypeGuard[numbers.Real]:
    return isinstance(cell, numbers.Real) and not isinstance(cell, (bool, np.bool_))


def formatted_columns(table: Table) -> list[list[str]]:
    """The cells as text, column by column. The floats of a column have the same number of decimals."""
    return [_formatted_column([row[j] for row in table.rows]) for j in range(len(table.columns))]


def csv_text(table: Table) -> str:
    """The table as CSV, with all digits of its numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([["" if _is_empty(cell) else _exact(cell) for cell in row] for row in table.rows])
    return out.getvalue()


def markdown_text(table: Table) -> str:
    """The table as Markdown, with numbers right-aligned."""
    columns = [[_markdown_cell(cell) for cell in column] for column in formatted_columns(table)]
    heads = [_markdown_cell(str(name)) for name in table.columns]
    rules = ["---:" if is_right_aligned(table, j) else "---" for j in range(len(heads))]
    rows = zip(*columns, strict=True) if table.rows else ()
    lines = ["| " + " | ".join(cells) + " |" for cells in (heads, rules, *rows)]
    return (
        f"**{_markdown_cell(table.title)}**\n\n"
        + "\n".join(lines)
        + "\n"
        + (f"\n{table.caption}\n" if table.caption else "")
    )


def is_right_aligned(table: Table, column: int) -> bool:
    """Whether most non-empty cells of a column are numbers. Strings of digits may be names, so a column that has only
    these is left-aligned."""
    cells = [row[column] for row in table.rows if row[column] is not None]
    numeric = [cell for cell in cells if parse_number(cell) is not None]
    return 2 * len(numeric) > len(cells) and not all(isinstance(cell, str) and cell.isdigit() for cell in numeric)


_AMOUNT = r"[+−-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d))(?:[eE][+−-]?\d+)?"
_NUMBER = re.compile(rf"[<>≤≥≈~]?\s*(?P<amount>{_AMOUNT})\s*%?(?:\s*±\s*{_AMOUNT}\s*%?)?")


def parse_number(cell: object) -> float | None:
    """The value of a number or of text such as "> 12", "1.2e-03" or "4.41 ± 0.11 %", else None."""
    if is_number(cell):
        return float(cell)
    match = _NUMBER.fullmatch(cell.strip()) if isinstance(cell, str) else None
    return None if match is None else float(match["amount"].replace(",", "").replace("−", "-"))


def _formatted_column(cells: Sequence[object]) -> list[str]:
    floats = [float(cell) for cell in cells if is_number(cell) and not isinstance(cell, numbers.Integral)]
    decimals = _decimals([value for value in floats if np.isfinite(value)])
    return [_formatted(cell, decimals) for cell in cells]


def _decimals(values: Sequence[float]) -> int | None:
    """Decimals that show the largest value with four digits; None if the smallest would be shown as zero."""
    sizes = [abs(value) for value in values if value != 0]
    if not sizes:
        return 0
    most = max(0, 3 - int(np.floor(np.log10(max(sizes)))))
    if max(sizes) >= 1e6 or max(sizes) < 1e-2 or min(sizes) < 10.0**-most:
        return None
    return next((k for k in range(most) if all(round(value, k) == value for value in values)), most)


def _formatted(cell: object, decimals: int | None) -> str:
    if _is_empty(cell):
        return EMPTY
    if isinstance(cell, (bool, np.bool_)):
        return "yes" if cell else "no"
    if not is_number(cell):
        return str(cell)
    if isinstance(cell, numbers.Integral):
        return str(int(cell)).replace("-", "−")
    value = float(cell)
    if not np.isfinite(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:.4g}" if decimals is None else f"{value:.{decimals}f}"
    return text.replace("-", "−") if "e" not in text else text


def _exact(cell: object) -> str:
    if is_number(cell) and not isinstance(cell, numbers.Integral):
        return repr(float(cell))
    return str(cell)


def _is_empty(cell: object) -> bool:
    return cell is None or (is_number(cell) and math.isnan(cell))


def _markdown_cell(text: str) -> str:
    for char in "\\|*_`[]":
        text = text.replace(char, "\\" + char)
    return single_line(text).replace("&", "&amp;").replace("<", "&lt;")
