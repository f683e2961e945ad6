"""Colours and labels that both plotting libraries share.

All colours of `LIGHT` differ, because the page replaces each with its counterpart in `DARK`. Series colours are
distinguishable with every kind of colour blindness and have a contrast of at least 3:1. Tests check this.
"""

from __future__ import annotations

import os.path
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dmtrl.report.content import LineChart, Series


@dataclass(frozen=True)
class Theme:
    background: str
    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]
    diverging: tuple[str, ...]  # from the most negative to the most positive value
    missing: str
    faint: str  # a slightly different background: table headings, code
    link: str


LIGHT = Theme(
    background="#ffffff",
    ink="#1c2128",
    muted="#5b6470",
    grid="#e3e6ea",
    series=("#2c69c1", "#c8621a", "#00561c", "#74097d", "#1d9fc2", "#ac8a50", "#4a4f57"),
    diverging=("#7f2704", "#c7631c", "#f0b98d", "#fafaf8", "#9dc0ea", "#2d6abf", "#0b2e66"),
    missing="#d0d4da",
    faint="#f5f6f8",
    link="#2459a8",
)
DARK = Theme(
    background="#14181f",
    ink="#e8ebf0",
    muted="#9aa4b2",
    grid="#2b323d",
    series=("#1982c9", "#bd6b54", "#63fea1", "#aa779f", "#59beef", "#ecbd52", "#c9ced6"),
    diverging=("#ffc9a3", "#d9773a", "#7a4122", "#1b2029", "#224f80", "#3f93de", "#bfdefc"),
    missing="#454d59",
    faint="#1b212a",
    link="#7db8f0",
)
FEW_POINTS = 3  # a curve with at most this many points gets markers
NARROW_COLUMNS = 3  # with this many panels side by side, each has little space for ticks
LABELLED_CELLS = 40  # labels on an axis of a heat map; on the page, hovering shows the others


def dark_colours() -> dict[str, str]:
    """The counterpart in DARK of each colour of LIGHT that plots use."""
    light, dark = (
        (theme.background, theme.ink, theme.muted, theme.grid, theme.missing, *theme.series, *theme.diverging)
        for theme in (LIGHT, DARK)
    )
    return dict(zip(light, dark, strict=True))


def colour_indices(series: Iterable[Series]) -> dict[str, int]:
    """A number for each series name, from 0 in order of appearance. Series of one group share a number."""
    seen: dict[object, int] = {}
    indices: dict[str, int] = {}
    for one in series:
        key: object = one.name if one.group is None else one.group
        # a series has the same colour in all panels of a grid
        indices.setdefault(one.name, seen.setdefault(key, len(seen)))
    return indices


def single_line(text: str) -> str:
    """The text on one line, without control characters."""
    visible = "".join(
        " " if c in "\t\r\n" else c for c in str(text) if c in "\t\r\n" or unicodedata.category(c) not in ("Cc", "Cs")
    )
    return re.sub(r" {2,}", " ", visible).strip()


def literal(text: str) -> str:
    """A user's text with its markup characters escaped, for use in a Text, caption or lead."""
    return re.sub(r"([\\`*\[])", r"\\\1", single_line(text))


def shortened(text: str, width: int) -> str:
    text = single_line(text)
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def format_number(value: float, digits: int = 6) -> str:
    """The number with a typographic minus sign."""
    text = f"{value:.{digits}g}"
    return text if "e" in text else text.replace("-", "−")


def axis_labels(labels: Sequence[str], width: int) -> list[str]:
    """Axis labels of at most `width` characters; different labels stay different.

    Labels are cut at the end if that keeps them different. Otherwise an ellipsis replaces the words that all labels
    share, then the middle of long labels. As a last resort, labels are numbered.
    """
    texts = [single_line(label) for label in labels]
    count = len(set(texts))
    rest = _without_common(texts)
    for cut in (
        [shortened(text, width) for text in texts],
        [shortened(core, width) for core in rest],
        [_middle_cut(core, width) for core in rest],
        [_middle_cut(text, width) for text in texts],
    ):
        if len(set(cut)) == count:
            return cut
    place = {text: str(i) for i, text in enumerate(dict.fromkeys(texts), start=1)}
    return [f"{shortened(text, max(width - len(place[text]) - 1, 1))} {place[text]}" for text in texts]


def _without_common(texts: Sequence[str]) -> list[str]:
    """The texts with an ellipsis instead of the words that all of them begin or end with."""
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < 2:
        return list(texts)
    head = _whole_words(distinct)
    tail = _whole_words([text[head:][::-1] for text in distinct])
    return [("…" if head else "") + text[head : len(text) - tail] + ("…" if tail else "") for text in texts]


def _whole_words(texts: Sequence[str]) -> int:
    """The length of the common prefix that ends at a word or number boundary."""
    common = os.path.commonprefix(texts)  # noqa: RUF071 - characters are compared, not parts of paths
    for end in range(len(common), 0, -1):
        numbered = common[end - 1].isalpha() and all(text[end : end + 1].isdigit() for text in texts)
        if numbered or not common[end - 1].isalnum():
            return end
    return 0


def _middle_cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail].rstrip()}…{text[len(text) - tail :].lstrip()}"


def wrapped(text: str, width: int) -> list[str]:
    """The text wrapped to at most three lines; an ellipsis replaces the rest."""
    return textwrap.wrap(single_line(text), width, max_lines=3, placeholder=" …") or [""]


def label_at_right(chart: LineChart, height: float) -> bool:
    """Whether the label of a reference line belongs at the right: the end with more distance from the curves."""
    places, distances = [], []
    for series in chart.series:
        x, y, _ = chart.drawn(series)
        places.append(np.log(x) if chart.log_x else x)
        distances.append(np.abs(np.log(y / height) if chart.log_y else y - height))
    place, distance = np.concatenate(places), np.concatenate(distances)
    if not place.size:
        return True
    third = (place.max() - place.min()) / 3
    left, right = distance[place <= place.min() + third], distance[place >= place.max() - third]
    return bool(right.min() >= left.min())


def decimal_ticks(low: float, high: float) -> bool:
    """Whether a logarithmic axis shows decimal numbers (0.01, 100) instead of powers of ten."""
    return low > 5e-4 and high < 2e5
