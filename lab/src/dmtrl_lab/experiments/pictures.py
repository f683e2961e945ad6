"""Write the content of a page as files: each figure as an SVG image, each table as CSV and Markdown.

The pictures of the documentation come from here; matplotlib draws them.

The same content gives the same bytes: no date is written, and pyplot and the settings of the caller are not used. Text
stays text, so that names in every script are shown with the fonts of the viewer.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.report.content import ChartGrid, DotPlot, Figure, HeatMap, KeyFigures, LineChart, Page, Series, Table, Text
from dmtrl.report.files import csv_text, markdown_text, named_items, write_atomic
from dmtrl.report.theme import (
    FEW_POINTS,
    LABELLED_CELLS,
    LIGHT,
    axis_labels,
    colour_indices,
    label_at_right,
    shortened,
    single_line,
    wrapped,
)

WIDTH = 8.0  # inches, at 100 dots an inch
DASHES: Mapping[str, Any] = {"line": "-", "dashes": (0, (5, 2)), "dots": (0, (1, 1.6)), "points": "none"}
MARKERS = ("o", "D", "s", "^")
STYLE: Any = {  # Any: mypy would require literal names of settings
    "font.family": ["DejaVu Sans"],
    "text.parse_math": False,  # a task name may contain a dollar sign
    "text.color": LIGHT.ink,
    "axes.labelcolor": LIGHT.ink,
    "axes.edgecolor": LIGHT.muted,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.titlesize": 12,
    "figure.titleweight": "bold",
    "grid.color": LIGHT.grid,
    "xtick.color": LIGHT.muted,
    "ytick.color": LIGHT.muted,
    "legend.frameon": False,
    "svg.hashsalt": "dmtrl",
    "svg.fonttype": "none",
}


def write_files(page: Page, folder: str | os.PathLike[str]) -> list[Path]:
    """Write each figure as SVG and each table as .csv and .md to the folder. Returns the paths in page order."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, item in named_items(page):
        item = item.table() if isinstance(item, KeyFigures) else item
        if isinstance(item, Table):
            written += [write_atomic(folder / f"{name}.csv", csv_text(item).encode("utf-8", "replace"))]
            written += [write_atomic(folder / f"{name}.md", markdown_text(item).encode("utf-8", "replace"))]
        elif not isinstance(item, Text):
            written.append(write_atomic(folder / f"{name}.svg", render(item)))
    return written


def render(item: Figure) -> bytes:
    """The bytes of an SVG image."""
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise ImportError('images need matplotlib: pip install "dmtrl[plot]".') from error
    out = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # the style of the caller must not change the image
        matplotlib.rcParams.update(STYLE)
        # the font with which matplotlib measures text lacks some characters
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        canvas = Canvas(figsize=(WIDTH, 4.2), dpi=100, layout="constrained")
        canvas.suptitle("\n".join(wrapped(item.title, 68)), x=0.01, ha="left")
        handles = _RENDERERS[type(item)](item, canvas)
        if len(handles) > 1:
            _legend(canvas, handles)
        canvas.savefig(out, format="svg", metadata={"Date": None, "Title": single_line(item.title)})
    return out.getvalue()


def _legend(canvas: Any, handles: Mapping[str, Any]) -> None:
    names = [shortened(name, 60) for name in handles]
    columns = max(1, min(len(names), int(92 / (max(map(len, names)) + 7))))
    # a long legend increases the height of the image, not of the plot
    canvas.set_size_inches(WIDTH, canvas.get_figheight() + 0.24 * (-(-len(names) // columns)))
    canvas.legend(list(handles.values()), names, loc="outside lower left", ncols=columns)


def _panels(canvas: Any, count: int, columns: int, height: float) -> Any:
    """Axes for `count` panels, side by side in `columns`."""
    columns = min(columns, count)
    rows = -(-count // columns)
    canvas.set_size_inches(WIDTH, 0.8 + height * rows)
    places = canvas.subplots(rows, columns, squeeze=False).ravel()
    for axes in places[count:]:
        axes.set_axis_off()
    return places[:count]


def _line_chart(chart: LineChart, canvas: Any) -> dict[str, Any]:
    return _curves(canvas.subplots(), chart, colour_indices(chart.series))


def _chart_grid(grid: ChartGrid, canvas: Any) -> dict[str, Any]:
    indices = colour_indices(series for chart in grid.charts for series in chart.series)
    handles: dict[str, Any] = {}
    for axes, chart in zip(_panels(canvas, len(grid.charts), grid.columns, 2.8), grid.charts, strict=True):
        axes.set_title("\n".join(wrapped(chart.title, 80 // grid.columns)))
        handles = _curves(axes, chart, indices) | handles
    return handles


def _curves(axes: Any, chart: LineChart, indices: Mapping[str, int]) -> dict[str, Any]:
    axes.set_xscale("log" if chart.log_x else "linear")
    axes.set_yscale("log" if chart.log_y else "linear")
    handles = {series.name: _curve(axes, chart, series, indices[series.name]) for series in chart.series}
    for axis, logarithmic in ((axes.xaxis, chart.log_x), (axes.yaxis, chart.log_y)):
        if logarithmic:
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
    axes.set_xlabel("\n".join(wrapped(chart.x_label, 60)))
    axes.set_ylabel("\n".join(wrapped(chart.y_label, 40)))
    if chart.from_zero and not chart.log_x:
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    for name, height in chart.references:
        axes.axhline(height, color=LIGHT.muted, linewidth=1, linestyle="--", zorder=1)
        right = label_at_right(chart, height)
        where = {"ha": "right" if right else "left", "va": "bottom", "transform": axes.get_yaxis_transform()}
        axes.text(0.99 if right else 0.01, height, shortened(name, 40), fontsize=9, color=LIGHT.muted, **where)
    return handles


def _curve(axes: Any, chart: LineChart, series: Series, index: int) -> Any:
    x, y, _ = chart.drawn(series)
    colour = LIGHT.series[index % len(LIGHT.series)]
    # colours repeat after seven series: later series are dashed
    dash = "-." if series.style == "line" and index >= len(LIGHT.series) else DASHES[series.style]
    marker = "o" if series.style == "points" or x.size <= FEW_POINTS else ""
    (line,) = axes.plot(x, y, color=colour, linestyle=dash, linewidth=2, marker=marker, markersize=4.5)
    return line


def _heat_map(heat: HeatMap, canvas: Any) -> dict[str, Any]:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("diverging", LIGHT.diverging).with_extremes(bad=LIGHT.missing)
    columns = min(len(heat.panels), 3)
    square = heat.columns is None
    side = (WIDTH - 1.2) / max(columns, 1.4) if square else min(max(0.22 * len(heat.labels), 1.5) + 1.2, 9.0)
    places = _panels(canvas, len(heat.panels), columns, side + 0.3)
    rows = heat.short or heat.labels
    for place, (axes, (name, matrix)) in enumerate(zip(places, heat.panels, strict=True)):
        values = np.ma.masked_invalid(np.asarray(matrix, dtype=float))
        image = axes.imshow(values, cmap=colours, vmin=-heat.limit, vmax=heat.limit, interpolation="nearest")
        axes.set_aspect("equal" if square else "auto")
        axes.set_title("\n".join(wrapped(name, 72 // columns)))
        axes.grid(visible=False)
        for axis, labels in ((axes.xaxis, heat.columns or rows), (axes.yaxis, rows)):
            step = -(-len(labels) // (LABELLED_CELLS // columns))
            words = axis_labels(labels, 12 if square else 22)[::step]
            turned = 90 if axis is axes.xaxis and max(map(len, words)) > 2 else 0
            shown = words if axis is axes.xaxis or place % columns == 0 else [""] * len(words)
            axis.set_ticks(range(0, len(labels), step), shown, rotation=turned, fontsize=8)
    canvas.colorbar(image, ax=places.tolist(), shrink=0.6, aspect=24, pad=0.02)
    return {}


def _dot_plot(chart: DotPlot, canvas: Any) -> dict[str, Any]:
    places = np.arange(len(chart.rows))
    canvas.set_size_inches(WIDTH, 1.4 + 0.24 * len(places))
    axes = canvas.subplots()
    values = [np.asarray(dots, dtype=float) for _, dots in chart.dots]
    if len(values) > 1:
        axes.hlines(places, values[0], values[1], color=LIGHT.missing, linewidth=2.5, zorder=1)
    handles: dict[str, Any] = {}
    for index, (name, _) in enumerate(chart.dots):
        style = {"color": LIGHT.series[index % len(LIGHT.series)], "marker": MARKERS[index % len(MARKERS)]}
        handles[name] = axes.scatter(values[index], places, s=36, zorder=2 + len(values) - index, **style)
    if chart.marked:
        ringed = list(chart.marked)
        ring = {"facecolors": "none", "edgecolors": LIGHT.ink}
        handles[chart.mark] = axes.scatter(values[0][ringed], places[ringed], s=120, zorder=9, **ring)
    axes.set_yticks(places, axis_labels(chart.rows, 28), fontsize=9)
    axes.set_xlabel("\n".join(wrapped(chart.x_label, 60)))
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    return handles


_RENDERERS: dict[type, Callable[[Any, Any], dict[str, Any]]] = {
    LineChart: _line_chart,
    ChartGrid: _chart_grid,
    HeatMap: _heat_map,
    DotPlot: _dot_plot,
}
