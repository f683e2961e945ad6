"""Render content as plotly figures, for the page and for notebooks.

Figures have no title, because the page shows it as HTML. Each panel of a grid or a heat map is a figure, so that a
narrow page can stack them. Plotly interprets HTML in labels and `%{...}` in hover templates, so names from users are
escaped by `_safe` and never used in a template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any, NamedTuple

import numpy as np

from dmtrl.report.content import ChartGrid, DotPlot, Figure, HeatMap, LineChart, Series
from dmtrl.report.theme import (
    FEW_POINTS,
    LABELLED_CELLS,
    LIGHT,
    NARROW_COLUMNS,
    axis_labels,
    colour_indices,
    decimal_ticks,
    label_at_right,
    shortened,
    wrapped,
)

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif'
DASHES = {"line": "solid", "dashes": "dash", "dots": "dot", "points": "solid"}
AXIS_LETTERS, WIDE_LETTERS = 14, 22  # characters of a label on an axis; the full name is shown on hover
SYMBOLS = ("circle", "diamond", "square", "triangle-up")
POINT = "<b>%{meta}</b><br>%{xaxis.title.text}: %{x:.6~g}<br>%{yaxis.title.text}: %{y:.6~g}<extra></extra>"
NAMED_POINT = POINT.replace("%{meta}", "%{customdata}")


class Panel(NamedTuple):
    """One plot: its title, empty if it is the only panel, and the plotly figure."""

    title: str
    figure: Any


def panels(item: Figure) -> list[Panel]:
    """The panels of an item in the light theme, each with a `plotly.graph_objects.Figure`."""
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise ImportError('Interactive plots need plotly: pip install "dmtrl[report]".') from error
    return [Panel(title, go.Figure(traces, layout)) for title, traces, layout in _RENDERERS[type(item)](item)]


_Drawn = list[tuple[str, list[dict[str, Any]], dict[str, Any]]]


def _line_chart(chart: LineChart) -> _Drawn:
    return [("", *_curves(chart, colour_indices(chart.series)))]


def _chart_grid(grid: ChartGrid) -> _Drawn:
    indices = colour_indices(series for chart in grid.charts for series in chart.series)
    narrow = min(grid.columns, len(grid.charts)) >= NARROW_COLUMNS
    return [(chart.title, *_curves(chart, indices, narrow)) for chart in grid.charts]


def _curves(
    chart: LineChart, indices: Mapping[str, int], narrow: bool = False
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    traces = [_trace(chart, series, indices[series.name]) for series in chart.series]
    layout = _layout()
    layout["xaxis"] |= _titled(chart.x_label) | _scale(chart, "x", narrow)
    layout["yaxis"] |= _titled(chart.y_label) | _scale(chart, "y")
    if chart.from_zero and not chart.log_x:
        layout["xaxis"]["rangemode"] = "tozero"
    layout["shapes"] = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height}
        | {"line": {"color": LIGHT.muted, "width": 1.2, "dash": "dash"}}
        for _, height in chart.references
    ]
    layout["annotations"] = [
        {"text": _safe(shortened(name, 40)), "xref": "paper", "yanchor": "bottom"}
        | ({"x": 1, "xanchor": "right"} if label_at_right(chart, height) else {"x": 0, "xanchor": "left"})
        | {"y": np.log10(height) if chart.log_y else height, "showarrow": False}
        | {"font": {"color": LIGHT.muted, "size": 12}}
        for name, height in chart.references
    ]
    return traces, layout


def _trace(chart: LineChart, series: Series, index: int) -> dict[str, Any]:
    x, y, keep = chart.drawn(series)
    colour = LIGHT.series[index % len(LIGHT.series)]
    # colours repeat after seven series: later series are dashed
    dash = DASHES[series.style] if series.style != "line" or index < len(LIGHT.series) else "dashdot"
    mode = "markers" if series.style == "points" else "lines+markers" if x.size <= FEW_POINTS else "lines"
    trace = {"type": "scatter", "name": _safe(series.name), "legendgroup": _safe(series.name), "x": x, "y": y}
    trace |= {"mode": mode, "line": {"color": colour, "width": 2.2, "dash": dash}}
    trace |= {"marker": {"color": colour, "size": 7}, "meta": _full(series.name), "hovertemplate": POINT}
    if series.names is not None:
        named = [_full(name) for name, drawn in zip(series.names, keep, strict=True) if drawn]
        trace |= {"customdata": named, "hovertemplate": NAMED_POINT}
    return trace


def _scale(chart: LineChart, axis: str, narrow: bool = False) -> dict[str, Any]:
    if not (chart.log_x if axis == "x" else chart.log_y):
        return {}
    values = [x if axis == "x" else y for x, y, *_ in (chart.drawn(series) for series in chart.series)]
    heights = [height for _, height in chart.references] if axis == "y" else []
    drawn = np.concatenate([*values, heights])
    scale: dict[str, Any] = {"type": "log", "exponentformat": "power"}
    if not drawn.size:
        return scale
    decades = np.log10(drawn.max()) - np.log10(drawn.min())
    # ticks at powers of ten, about seven at most, or at 1, 2, 5 if the axis spans less than about two powers (in a
    # narrow panel, less than one)
    scale["dtick"] = "D2" if decades < (1.0 if narrow else 2.3) else max(1, int(np.ceil(decades / 7)))
    if decades < 2.3 or decimal_ticks(drawn.min(), drawn.max()):
        return scale | {"tickformat": "~g"}
    return scale | {"tickfont": {"size": 10, "color": LIGHT.muted}}  # plotly draws powers larger than other ticks


def _heat_map(heat: HeatMap) -> _Drawn:
    square = heat.columns is None
    letters = AXIS_LETTERS if square else WIDE_LETTERS
    sides = [heat.labels if heat.columns is None else heat.columns, heat.labels]  # x, y
    names = [_distinct([_full(label) for label in labels]) for labels in sides]
    rows = heat.short or heat.labels
    ticks = [[_safe(word) for word in axis_labels(side, letters)] for side in (heat.columns or rows, rows)]
    steps = len(LIGHT.diverging) - 1
    gap = 1 if max(map(len, names)) <= LABELLED_CELLS else 0
    drawn: _Drawn = []
    for title, matrix in heat.panels:
        trace: dict[str, Any] = {
            "type": "heatmap",
            "z": np.round(np.asarray(matrix, dtype=float), 4).tolist(),  # as many digits as hovering shows
            "x": names[0],
            "y": names[1],
            "zmin": -heat.limit,
            "zmax": heat.limit,
            "colorscale": [[step / steps, colour] for step, colour in enumerate(LIGHT.diverging)],
            "hoverongaps": False,
            "showscale": False,
            "xgap": gap,
            "ygap": gap,
            "hovertemplate": "%{y}<br>%{x}<br><b>%{z:.4f}</b><extra></extra>",
        }
        layout = _layout()
        for axis, words, texts in zip(("xaxis", "yaxis"), names, ticks, strict=True):
            step = -(-len(words) // LABELLED_CELLS)
            layout[axis] |= {
                "type": "category",
                "showgrid": False,
                "tickcolor": LIGHT.background,
                "showline": False,
                "constrain": "domain",
                "tickmode": "array",
                "tickvals": words[::step],
                "ticktext": texts[::step],
                "tickfont": {"size": 11, "color": LIGHT.muted},
            }
        layout["xaxis"]["tickangle"] = -90 if max(map(len, ticks[0])) > 2 else 0
        layout["yaxis"] |= {"autorange": "reversed"} | ({"scaleanchor": "x"} if square else {})
        # page.js uses these to label as many rows as fit, and more after zooming in
        layout["meta"] = {"xaxis": ticks[0], "yaxis": ticks[1]}
        layout["plot_bgcolor"] = (
            LIGHT.background if np.isfinite(np.asarray(matrix, dtype=float)).all() else LIGHT.missing
        )
        layout["margin"] = {"l": 4, "r": 4, "t": 4, "b": 4}
        drawn.append((title, [trace], layout))
    return drawn


def _dot_plot(chart: DotPlot) -> _Drawn:
    names = _distinct([_full(name) for name in chart.rows])
    values = [np.asarray(dots, dtype=float) for _, dots in chart.dots]
    traces: list[dict[str, Any]] = []
    if len(values) > 1:
        joined = np.column_stack([values[0], values[1], np.full(len(names), np.nan)]).ravel()
        traces.append(
            {"type": "scatter", "x": joined, "y": [name for name in names for _ in range(3)], "mode": "lines"}
            | {"line": {"color": LIGHT.missing, "width": 3}, "hoverinfo": "skip", "zorder": 0}
        )
    for index, (name, _) in enumerate(chart.dots):
        marker = {"color": LIGHT.series[index % len(LIGHT.series)], "size": 9, "symbol": SYMBOLS[index % len(SYMBOLS)]}
        traces.append(
            {"type": "scatter", "mode": "markers", "name": _safe(name), "legendgroup": _safe(name), "marker": marker}
            | {"x": values[index], "y": names, "zorder": len(values) - index, "meta": _full(name)}
            | {"hovertemplate": "%{y}<br>%{meta}: <b>%{x:.6~g}</b><extra></extra>"}
        )
    if chart.marked:
        ring = {"color": LIGHT.ink, "size": 17, "symbol": "circle-open", "line": {"width": 2}}
        traces.append(
            {"type": "scatter", "mode": "markers", "name": _safe(chart.mark), "legendgroup": _safe(chart.mark)}
            | {"x": values[0][list(chart.marked)], "y": [names[place] for place in chart.marked], "marker": ring}
            | {"hoverinfo": "skip", "zorder": len(values) + 1}
        )
    layout = _layout()
    layout["xaxis"] |= _titled(chart.x_label) | {"showgrid": True}
    layout["yaxis"] |= {"type": "category", "categoryarray": names, "range": [len(names) - 0.5, -0.5]}
    layout["yaxis"] |= {"tickmode": "array"}
    layout["yaxis"] |= {"tickvals": names, "ticktext": [_safe(word) for word in axis_labels(chart.rows, 24)]}
    return [("", traces, layout)]


def _layout() -> dict[str, Any]:
    axis = {
        "gridcolor": LIGHT.grid,
        "gridwidth": 1,
        "linecolor": LIGHT.muted,
        "showline": True,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": LIGHT.muted,
        "tickfont": {"color": LIGHT.muted, "size": 12},
        "zeroline": False,
        "automargin": True,
    }
    return {
        "template": "none",
        "font": {"family": FONT, "size": 13, "color": LIGHT.ink},
        "paper_bgcolor": LIGHT.background,
        "plot_bgcolor": LIGHT.background,
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "hoverlabel": {
            "bgcolor": LIGHT.background,
            "bordercolor": LIGHT.muted,
            "font": {"family": FONT, "size": 13, "color": LIGHT.ink},
            "align": "left",
        },
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "hovermode": "closest",
        "xaxis": dict(axis, showgrid=False),
        # invisible ticks keep the labels away from the plot
        "yaxis": dict(axis, showline=False, tickcolor=LIGHT.background),
    }


def _titled(label: str) -> dict[str, Any]:
    return {"title": {"text": _safe(label), "font": {"color": LIGHT.ink, "size": 13}, "standoff": 10}}


def _safe(text: str) -> str:
    """Text escaped for the HTML of plotly labels."""
    return escape(shortened(text, 400), quote=False)


def _full(name: str) -> str:
    """A full name, wrapped, for hover labels, between marks that isolate its writing direction."""
    return "<br>".join(map(_safe, wrapped(f"\u2068{name}\u2069", 44)))


def _distinct(names: list[str]) -> list[str]:
    """Unique names: equal names would share a position on a category axis."""
    counts: dict[str, int] = {}
    distinct = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        distinct.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return distinct


_RENDERERS: dict[type, Callable[[Any], _Drawn]] = {
    LineChart: _line_chart,
    ChartGrid: _chart_grid,
    HeatMap: _heat_map,
    DotPlot: _dot_plot,
}
