"""Pictures of figures: every kind can be drawn, the bytes do not depend on the caller, names cannot harm."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from dmtrl.report.content import ChartGrid, DotPlot, Figure, HeatMap, LineChart, Page, Section, Series, Table
from dmtrl_lab.experiments.pictures import render, write_files
from support.report_pages import curves, full_page, hostile_page

ONE = Series("one", [1, 2], [3, 4])
NOTHING = LineChart("t", "x", "y", [Series("a", [1, 2], [0, np.nan])], alt="a", log_y=True)


@pytest.mark.parametrize(
    "item",
    [
        LineChart("t", "x", "y", [Series("a", [1.0, np.nan, 0], [1.0, 4, 6])], alt="a", log_x=True),
        NOTHING,
        ChartGrid("t", [NOTHING, LineChart("u", "x", "y", [ONE], alt="a")], alt="a"),
        ChartGrid("t", [LineChart("u", "x", "y", [ONE], alt="a", log_x=True)] * 3, alt="a", columns=3),
        HeatMap("t", [("p", np.full((2, 2), np.nan))], ["same", "same"], alt="a"),
        DotPlot("t", ["a", "a"], [("b", [np.nan, 1])], "y", alt="a"),
        DotPlot("t", ["a", "b"], [("p", [1, 2]), ("q", [3, 4])], "x", "a", [1], "worse"),
    ],
)
def test_figures_with_missing_or_no_values_are_drawn(item: Figure) -> None:
    assert ElementTree.fromstring(render(item)).tag.endswith("svg")


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "dmtrl\[plot\]"'):
        render(curves("c"))


@pytest.mark.subprocess
def test_pictures_do_not_depend_on_the_settings_of_the_caller(tmp_path: Path) -> None:
    import matplotlib

    chart = full_page().sections[0].items[1]
    first = render(chart)  # type: ignore[arg-type]
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "other"}):
        before = dict(matplotlib.rcParams)
        assert render(chart) == first  # type: ignore[arg-type]
        assert dict(matplotlib.rcParams) == before
    code = """
import sys
from support.report_pages import full_page
from dmtrl_lab.experiments.pictures import render
sys.stdout.buffer.write(render(full_page().sections[0].items[1]))
assert "matplotlib.pyplot" not in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, check=True)
    assert run.stdout == first


def test_pictures_are_well_formed_with_hostile_names(tmp_path: Path) -> None:
    for number, page in enumerate((full_page(), hostile_page())):
        for path in write_files(page, tmp_path / str(number)):
            if path.suffix == ".svg":
                root = ElementTree.fromstring(path.read_bytes())
                assert root.attrib["width"] == "576pt", "800 pixels"
                assert not [e for e in root.iter() if e.tag.endswith(("script", "foreignObject", "}a"))]


def test_written_files_have_unique_names(tmp_path: Path) -> None:
    twice = Page("p", "", [Section("s", [Table("Same", ["a"], [[1]]), Table("Same", ["a"], [[2]]), curves("Same")])])
    paths = write_files(twice, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["same.csv", "same.md", "same-2.csv", "same-2.md", "same-3.svg"]
    assert (tmp_path / "new" / "folder" / "same-2.csv").read_text() == "a\n2\n"
    assert sorted(paths) == sorted((tmp_path / "new" / "folder").iterdir()), "nothing else is left behind"
