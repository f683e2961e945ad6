"""Render content as SVG or PNG images with matplotlib.

The same content gives the same bytes: text is drawn as outlines of a font that matplotlib includes, and no date is
written. pyplot is not used, so that figures and settings of the caller do not change.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.report.content import BarChart, ChartGrid, DotPlot, Figure, HeatMap, LineChart, Series, finite_points
from dmtrl.report.files import write_atomic
from dmtrl.report.theme import (
    FEW_POINTS,
    LABELLED_CELLS,
    LIGHT,
    NARROW_COLUMNS,
    axis_labels,
    colour_indices,
    decimal_ticks,
    label_at_right,
    needs_horizontal_bars,
    shortened,
    single_line,
    wrapped,
)

WIDTH = 8.0  # inches, at 100 dots an inch
DASHES: Mapping[str, Any] = {"line": "-", "dashes": (0, (5, 2)), "dots": (0, (1, 1.6)), "points": ""}
MARKERS = ("o", "D", "s", "^")
DIRECT_SERIES, DIRECT_LETTERS = 8, 26  # at most this many curves, with names this long, are labelled at their ends
STYLE: Any = {  # Any: mypy would require literal names of settings
    "font.family": ["DejaVu Sans"],
    "font.size": 10.5,
    "text.parse_math": False,  # a task name may contain a dollar sign
    "text.color": LIGHT.ink,
    "axes.edgecolor": LIGHT.muted,
    "axes.labelcolor": LIGHT.ink,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.linewidth": 0.8,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titlepad": 8,
    "figure.titlesize": 12,
    "figure.titleweight": "bold",
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.08,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": LIGHT.grid,
    "grid.linewidth": 0.8,
    "xtick.color": LIGHT.muted,
    "ytick.color": LIGHT.muted,
    "ytick.left": False,
    "ytick.minor.left": False,
    "xtick.minor.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "figure.facecolor": LIGHT.background,
    "savefig.facecolor": LIGHT.background,
    "svg.hashsalt": "dmtrl",
    "svg.fonttype": "path",
}


def save(item: Figure, path: str | os.PathLike[str]) -> Path:
    """Draw the item to a .svg or .png file and return its path."""
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"cannot save {path.name}: the name must end in .svg or .png")
    return write_atomic(path, render(item, path.suffix[1:]))


def render(item: Figure, form: str = "svg") -> bytes:
    """The bytes of the image, as "svg" or "png"."""
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise ImportError('images need matplotlib: pip install "dmtrl[report]".') from error
    out = io.BytesIO()
    with ExitStack() as stack:
        stack.enter_context(matplotlib.rc_context())
        stack.enter_context(warnings.catch_warnings())
        matplotlib.rcdefaults()  # the style of the caller must not change the image
        matplotlib.rcParams.update(STYLE)
        # characters that the font lacks are drawn with the fonts of the viewer, see below
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        canvas = Canvas(figsize=(WIDTH, 4.2), dpi=100, layout="constrained")
        _RENDERERS[type(item)](item, canvas)
        if not _font_has_all_glyphs(canvas):
            matplotlib.rcParams["svg.fonttype"] = "none"
        metadata = (
            {"Date": None, "Title": single_line(item.title)} if form == "svg" else {"Title": single_line(item.title)}
        )
        canvas.savefig(out, format=form, dpi=100 if form == "svg" else 200, metadata=metadata)
    return out.getvalue()


def _line_chart(chart: LineChart, canvas: Any) -> None:
    axes = canvas.subplots()
    _set_title(canvas, chart.title)
    handles = _curves(axes, chart, colour_indices(chart.series))
    if len(handles) == 1:
        return  # one curve needs no legend
    if not _label_ends(canvas, axes, chart, handles):
        _legend(canvas, handles)


def _chart_grid(grid: ChartGrid, canvas: Any) -> None:
    columns = min(grid.columns, len(grid.charts))
    rows = -(-len(grid.charts) // columns)
    canvas.set_size_inches(WIDTH, 0.9 + (2.5 if columns > 1 else 3.0) * rows)
    canvas.get_layout_engine().set(wspace=0.05, hspace=0.06)
    _set_title(canvas, grid.title)
    indices = colour_indices(series for chart in grid.charts for series in chart.series)
    handles: dict[str, Any] = {}
    places = canvas.subplots(rows, columns, squeeze=False).ravel()
    for axes, chart in zip(places, grid.charts, strict=False):
        axes.set_title("\n".join(wrapped(chart.title, 80 // columns)))
        drawn = _curves(axes, chart, indices, columns >= NARROW_COLUMNS)
        handles |= {name: line for name, line in drawn.items() if name not in handles}
    for axes in places[len(grid.charts) :]:
        axes.set_axis_off()
    if len(handles) > 1:
        _legend(canvas, handles)


def _curves(axes: Any, chart: LineChart, indices: Mapping[str, int], narrow: bool = False) -> dict[str, Any]:
    axes.set_xscale("log" if chart.log_x else "linear")
    axes.set_yscale("log" if chart.log_y else "linear")
    handles = {series.name: _curve(axes, chart, series, indices[series.name]) for series in chart.series}
    for axis, logarithmic in ((axes.xaxis, chart.log_x), (axes.yaxis, chart.log_y)):
        if logarithmic:
            _set_log_ticks(axis, narrow and axis is axes.xaxis)
    axes.set_xlabel("\n".join(wrapped(chart.x_label, 60)))
    axes.set_ylabel("\n".join(wrapped(chart.y_label, 40)))
    axes.margins(x=0.02)
    if chart.from_zero and not chart.log_x:
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    for name, height in chart.references:
        axes.axhline(height, color=LIGHT.muted, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        right = label_at_right(chart, height)
        axes.annotate(
            shortened(name, 40),
            (int(right), height),
            xycoords=axes.get_yaxis_transform(),
            xytext=(-2 if right else 2, 3),
            textcoords="offset points",
            ha="right" if right else "left",
            fontsize=9,
            color=LIGHT.muted,
        )
    return handles


def _set_log_ticks(axis: Any, narrow: bool) -> None:
    """Ticks of a logarithmic axis: powers of ten, or 1, 2, 5 if it spans few powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    short = high / low < (10 if narrow else 200)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short else (1.0,), numticks=12 if short else 8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value, plain=decimal_ticks(low, high))))


def _power(value: float, plain: bool) -> str:
    exponent = int(np.floor(np.log10(value) + 1e-9))
    if plain or exponent in (0, 1):
        return f"{value:.6g}"
    # mathtext is off, so that names may contain a dollar sign
    digits = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    lead = round(value / 10.0**exponent)
    return f"10{digits}" if lead == 1 else f"{lead}·10{digits}"


def _curve(axes: Any, chart: LineChart, series: Series, index: int) -> Any:
    keep = finite_points(series, chart.log_x, chart.log_y)
    x, y = np.asarray(series.x, dtype=float)[keep], np.asarray(series.y, dtype=float)[keep]
    colour = LIGHT.series[index % len(LIGHT.series)]
    if series.low is not None and series.high is not None:
        low, high = np.asarray(series.low, dtype=float)[keep], np.asarray(series.high, dtype=float)[keep]
        if chart.log_y:
            low = np.where(low > 0, low, y.min() if y.size else 1.0)
        axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
    dash = DASHES[series.style]
    if series.style == "line" and index >= len(LIGHT.series):
        dash = (0, (6, 2, 1, 2))
    marker = "o" if series.style == "points" or x.size <= FEW_POINTS else ""
    (line,) = axes.plot(x, y, color=colour, linestyle=dash or "none", marker=marker, markersize=4.5)
    return line


def _label_ends(canvas: Any, axes: Any, chart: LineChart, handles: Mapping[str, Any]) -> bool:
    """Label each curve at its right end. False if there are too many names, or long ones, or curves that end early."""
    names = [single_line(name) for name in handles]
    ends: list[Any] = [line.get_xydata()[-1] if len(line.get_xydata()) else None for line in handles.values()]
    if len(names) > DIRECT_SERIES or max(map(len, names)) > DIRECT_LETTERS or any(end is None for end in ends):
        return False
    canvas.draw_without_rendering()
    points = axes.transData.transform(np.asarray(ends))
    box = axes.get_window_extent()
    if (points[:, 0] < box.x0 + 0.9 * box.width).any():
        return False
    size = 9.5
    heights = _spread(points[:, 1], 1.45 * size * canvas.dpi / 72, box.y0, box.y1)
    per_point = canvas.dpi / 72
    for name, line, end, point, height in zip(names, handles.values(), ends, points, heights, strict=True):
        axes.annotate(
            name,
            tuple(end),
            xytext=((box.x1 - point[0]) / per_point + 16, (height - point[1]) / per_point),
            textcoords="offset points",
            va="center",
            fontsize=size,
            color=line.get_color(),
            arrowprops={"arrowstyle": "-", "color": line.get_color(), "linewidth": 0.8, "alpha": 0.6, "shrinkB": 3},
            annotation_clip=False,
        )
    return True


def _spread(wanted: np.ndarray, distance: float, bottom: float, top: float) -> np.ndarray:
    """Heights in the order of `wanted`, at least `distance` apart, and closest to `wanted` by least squares.

    After subtracting `distance` times the rank, this is isotonic regression, solved by pooling adjacent violators.
    """
    order = np.argsort(wanted, kind="stable")
    blocks: list[tuple[float, int]] = []
    for rank, height in enumerate(wanted[order]):
        blocks.append((height - rank * distance, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (right, n), (left, k) = blocks.pop(), blocks.pop()
            blocks.append(((left * k + right * n) / (k + n), k + n))
    level = np.concatenate([np.full(count, mean) for mean, count in blocks])
    level = np.clip(level, bottom, max(bottom, top - (len(wanted) - 1) * distance))
    heights = np.empty(len(wanted))
    heights[order] = level + distance * np.arange(len(wanted))
    return heights


def _heat_map(heat: HeatMap, canvas: Any) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("diverging", LIGHT.diverging).with_extremes(bad=LIGHT.missing)
    columns = min(len(heat.panels), 3)
    rows = -(-len(heat.panels) // columns)
    words_of_rows = heat.short or heat.labels
    side = (WIDTH - 1.2) / columns if columns > 1 else 5.0
    if heat.columns is not None:  # the number of rows sets the height
        side = min(max(0.22 * len(heat.labels), 1.5) + 1.2, 9.0)
    canvas.set_size_inches(WIDTH, 0.8 + (side + 0.3) * rows)
    _set_title(canvas, heat.title)
    places = canvas.subplots(rows, columns, squeeze=False).ravel()
    for place, (axes, (name, matrix)) in enumerate(zip(places, heat.panels, strict=False)):
        values = np.ma.masked_invalid(np.asarray(matrix, dtype=float))
        image = axes.imshow(values, cmap=colours, vmin=-heat.limit, vmax=heat.limit, interpolation="nearest")
        axes.set_aspect("equal" if heat.columns is None else "auto")
        axes.set_title("\n".join(wrapped(name, 72 // columns)))
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        for axis, labels, seen in (
            (axes.xaxis, heat.columns or words_of_rows, True),
            (axes.yaxis, words_of_rows, place % columns == 0),
        ):
            step = -(-len(labels) // (LABELLED_CELLS // columns))
            words = axis_labels(labels, 12 if heat.columns is None else 22)[::step]
            turned = 90 if axis is axes.xaxis and max(map(len, words)) > 2 else 0
            shown = words if seen else [""] * len(words)
            axis.set_ticks(range(0, len(labels), step), shown, rotation=turned, fontsize=8)
        axes.tick_params(length=0)
    for axes in places[len(heat.panels) :]:
        axes.set_axis_off()
    bar = canvas.colorbar(image, ax=places.tolist(), shrink=0.6, aspect=24, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=9)


def _bar_chart(chart: BarChart, canvas: Any) -> None:
    horizontal = needs_horizontal_bars(chart.categories)
    places, width = np.arange(len(chart.categories)), 0.76 / len(chart.bars)
    if horizontal:
        canvas.set_size_inches(WIDTH, 1.4 + len(places) * max(0.32, 0.2 * len(chart.bars)))
    axes = canvas.subplots()
    _set_title(canvas, chart.title)
    handles: dict[str, Any] = {}
    for index, (name, heights) in enumerate(chart.bars):
        values = np.asarray(heights, dtype=float)
        values = np.where(np.isfinite(values), values, np.nan)
        middle = places + (index - (len(chart.bars) - 1) / 2) * width
        colour = LIGHT.series[index % len(LIGHT.series)]
        draw = axes.barh if horizontal else axes.bar
        bars = draw(middle, values, width * 0.92, color=colour)
        errors = np.asarray(chart.errors[name], dtype=float) if name in chart.errors and chart.has_error_bars else None
        if errors is not None:
            error_bar = {"xerr": errors} if horizontal else {"yerr": errors}
            ends = (values, middle) if horizontal else (middle, values)
            axes.errorbar(*ends, **error_bar, fmt="none", ecolor=LIGHT.ink, elinewidth=1, capsize=2.5)
        elif len(chart.categories) * len(chart.bars) <= 16:
            axes.bar_label(
                bars, fmt=lambda value: f"{value:.3g}".replace("-", "−"), padding=2, fontsize=8.5, color=LIGHT.muted
            )
        handles[name] = bars
    names = axis_labels(chart.categories, 66) if horizontal else chart.categories
    words = ["\n".join(wrapped(name, 34 if horizontal else max(8, 76 // len(places)), lines=2)) for name in names]
    set_ticks, set_label = (axes.set_yticks, axes.set_xlabel) if horizontal else (axes.set_xticks, axes.set_ylabel)
    set_ticks(places, words, color=LIGHT.ink)
    set_label("\n".join(wrapped(chart.y_label, 50)))
    axes.tick_params(axis="y" if horizontal else "x", length=0)
    if horizontal:
        axes.margins(x=0.1)  # space for the numbers at the ends of the bars
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
    if len(handles) > 1:
        _legend(canvas, handles)


def _dot_plot(chart: DotPlot, canvas: Any) -> None:
    places = np.arange(len(chart.rows))
    canvas.set_size_inches(WIDTH, 1.4 + 0.24 * len(places))
    axes = canvas.subplots()
    _set_title(canvas, chart.title)
    values = [np.asarray(dots, dtype=float) for _, dots in chart.dots]
    if len(values) > 1:
        axes.hlines(places, values[0], values[1], color=LIGHT.missing, linewidth=2.5, zorder=1)
    handles: dict[str, Any] = {}
    for index, (name, _) in enumerate(chart.dots):
        style = {"color": LIGHT.series[index % len(LIGHT.series)], "marker": MARKERS[index % len(MARKERS)]}
        handles[name] = axes.scatter(values[index], places, s=36, zorder=2 + len(values) - index, **style)
    if chart.marked:
        ringed = list(chart.marked)
        ring = {"facecolors": "none", "edgecolors": LIGHT.ink, "linewidths": 1.4}
        handles[chart.mark] = axes.scatter(values[0][ringed], places[ringed], s=120, zorder=9, **ring)
    axes.set_yticks(places, axis_labels(chart.rows, 28), color=LIGHT.ink, fontsize=9)
    axes.set_xlabel("\n".join(wrapped(chart.x_label, 60)))
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    if len(handles) > 1:
        _legend(canvas, handles)


def _set_title(canvas: Any, title: str) -> None:
    # at the left edge of the image, so that the titles of several images are aligned
    canvas.suptitle("\n".join(wrapped(title, 68)), x=0.01, ha="left")


def _legend(canvas: Any, handles: Mapping[str, Any]) -> None:
    names = [shortened(name, 60) for name in handles]
    columns = max(1, min(len(names), int(92 / (max(map(len, names)) + 7))))
    # a long legend increases the height of the image, not of the plot
    canvas.set_size_inches(canvas.get_figwidth(), canvas.get_figheight() + 0.24 * (-(-len(names) // columns) - 1))
    canvas.legend(
        list(handles.values()), names, loc="outside lower left", ncols=columns, handlelength=2.4, fontsize=9.5
    )


def _font_has_all_glyphs(canvas: Any) -> bool:
    from matplotlib.text import Text

    letters = {letter for text in canvas.findobj(Text) for letter in text.get_text()}
    return letters <= _font_characters() | {"\n"}


@cache
def _font_characters() -> frozenset[str]:
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    return frozenset(map(chr, FT2Font(findfont("DejaVu Sans")).get_charmap()))


_RENDERERS: dict[type, Callable[[Any, Any], None]] = {
    LineChart: _line_chart,
    ChartGrid: _chart_grid,
    HeatMap: _heat_map,
    BarChart: _bar_chart,
    DotPlot: _dot_plot,
}
