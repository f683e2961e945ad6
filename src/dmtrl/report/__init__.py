"""Reports: tables, plots as files, and offline HTML pages."""

from dmtrl.report.content import (
    ChartGrid,
    DotPlot,
    HeatMap,
    Item,
    KeyFigures,
    LineChart,
    Page,
    Section,
    Series,
    Table,
    Text,
    slug,
)
from dmtrl.report.page import write_files, write_page

__all__ = [
    "ChartGrid",
    "DotPlot",
    "HeatMap",
    "Item",
    "KeyFigures",
    "LineChart",
    "Page",
    "Section",
    "Series",
    "Table",
    "Text",
    "slug",
    "write_files",
    "write_page",
]
