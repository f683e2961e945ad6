"""Reports without a browser: errors, names, tables, images, colours."""

import csv
import io
import itertools
import re
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmtrl.report.content import (
    ChartGrid,
    DotPlot,
    HeatMap,
    LineChart,
    Page,
    Section,
    Series,
    Table,
    Text,
    slug,
)
from dmtrl.report.files import csv_text, formatted_columns, is_right_aligned, markdown_text, parse_number
from dmtrl.report.interactive import panels
from dmtrl.report.page import _paragraphs, render_page, write_page
from dmtrl.report.theme import DARK, LIGHT, Theme, axis_labels, dark_colours, literal, single_line
from support.report_pages import HOSTILE, curves, full_page

ONE = Series("one", [1, 2], [3, 4])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Series("a", [1, 2], [1]), "1 values for 2 points"),
        (lambda: Series("a", [1], [1], style="wavy"), "style must be one of line, dashes, dots, points, got 'wavy'"),
        (lambda: Series("a", [1, 2], [1, 2], names=["b"]), "1 values for 2 points"),
        (lambda: LineChart("t", "x", "y", [ONE], alt=""), "no alt text"),
        (lambda: LineChart("t", "x", "y", [ONE, ONE], alt="a"), "chart 't' uses a name twice"),
        (lambda: HeatMap("t", [("p", np.eye(3))], ["a", "b"], alt="a"), r"the shape \(2, 2\), got \(3, 3\)"),
        (lambda: HeatMap("t", [("p", np.eye(2))], ["a", "b"], alt="a", columns=["c"]), r"the shape \(2, 1\)"),
        (lambda: HeatMap("t", [("p", np.eye(1))], ["a"], alt="a", short=["b", "c"]), "2 values for 1 labels"),
        (lambda: DotPlot("t", ["a"], [("b", [1, 2])], "x", alt="a"), "'b' has 2 values for 1 rows"),
        (lambda: DotPlot("t", ["a"], [("b", [1]), ("b", [2])], "x", alt="a"), "uses a name twice"),
        (lambda: Table("t", ["a", "b"], [[1, 2], [1]]), "row 2 has 1 values for 2 columns"),
    ],
)
def test_invalid_content_is_refused(make: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()  # type: ignore[operator]


@given(st.text())
def test_slug_is_valid_as_file_name_and_anchor(title: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug(title))
    assert len(slug(title)) <= 60
    assert slug(slug(title)) == slug(title)


def test_slugs_of_different_titles_differ() -> None:
    titles = ["Gap, λ = 1", "Gap, μ = 1", "العربية", "中文", "x" * 100, "x" * 101, "!", "?"]
    assert len({slug(title) for title in titles}) == len(titles)
    assert slug("Figure 3: the gap") == "figure-3-the-gap"


def test_only_finite_points_are_drawn() -> None:
    x, y = [1.0, 2, 3, np.nan, 5, 0], [1.0, np.nan, np.inf, 4, 5, 6]
    chart = LineChart("t", "x", "y", [Series("a", x, y)], alt="a", log_x=True)
    trace = panels(chart)[0].figure.data[0]
    assert list(trace.x) == [1.0, 5.0]
    assert list(trace.y) == [1.0, 5.0]


def test_a_chart_with_nothing_to_draw_is_drawn_empty() -> None:
    chart = LineChart("t", "x", "y", [Series("a", [1, 2], [0, np.nan])], alt="a", log_y=True)
    grid = ChartGrid("t", [chart, LineChart("u", "x", "y", [ONE], alt="a")], alt="a")
    heat = HeatMap("t", [("p", np.full((2, 2), np.nan))], ["same", "same"], alt="a")
    dots = DotPlot("t", ["a", "a"], [("b", [np.nan, 1])], "y", alt="a")
    for item in (chart, grid, heat, dots):
        assert panels(item)


def test_user_text_is_not_parsed_as_markup() -> None:
    for name in (*HOSTILE, "[press](https://example.org)", "**bold** `code`", "\\**x**", "a\n\nb"):
        for around in ("{}", "**{}**", "say {} and **{}**"):
            html = str(_paragraphs(around.replace("{}", literal(name))))
            assert not re.search(r"<(?!/?(p|strong)\b)", html), html
            assert html.count("<p") == 1
            text = unescape(re.sub(r"</?(p|strong)\b[^>]*>", "", html))
            assert text == around.replace("**", "").replace("{}", single_line(name)), html


def test_points_and_dots_have_names_and_marks() -> None:
    chart = LineChart(
        "t", "x", "y", [Series("s", [1, 2, 3], [1, np.nan, 3], "points", names=["a", "b", "<c>"])], alt="a"
    )
    trace = panels(chart)[0].figure.data[0]
    assert [name.strip("\u2068\u2069") for name in trace.customdata] == ["a", "&lt;c&gt;"], (
        "of the points that are drawn"
    )
    dots = DotPlot("t", ["a", "b"], [("p", [1, 2]), ("q", [3, 4])], "x", "a", [1], "worse")
    joined, p, q, ring = panels(dots)[0].figure.data
    assert joined.x[:2].tolist() == [1, 3]
    assert (p.marker.symbol, q.marker.symbol) == ("circle", "diamond"), "told apart without colour"
    assert list(ring.x) == [2]


def test_reference_label_is_at_the_end_away_from_the_curves() -> None:
    falling = LineChart(
        "t", "x", "y", [Series("s", [1, 2, 3, 4], [8.0, 4.0, 2.0, 1.0])], alt="a", references=[("r", 1.0)]
    )
    rising = LineChart(
        "t", "x", "y", [Series("s", [1, 2, 3, 4], [1.0, 2.0, 4.0, 8.0])], alt="a", references=[("r", 1.0)]
    )
    assert panels(falling)[0].figure.layout.annotations[0].x == 0
    assert panels(rising)[0].figure.layout.annotations[0].x == 1


def test_series_of_one_group_and_series_of_one_name_share_a_colour() -> None:
    series = [Series("a", [1], [1], group=1), Series("b", [1], [1]), Series("c", [1], [1], "dashes", group=1)]
    a, b, c = (trace.line.color for trace in panels(LineChart("t", "x", "y", series, alt="a"))[0].figure.data)
    assert a == c != b
    grid = ChartGrid("t", [curves("1", ("p", "q")), curves("2", ("q", "r"))], alt="a")
    first, second = ({t.name: t.line.color for t in panel.figure.data} for panel in panels(grid))
    assert first["q"] == second["q"]
    assert len({first["p"], first["q"], second["r"]}) == 3


def test_csv_round_trip_is_exact() -> None:
    numbers = np.random.default_rng(0).normal(size=20) * 10.0 ** np.arange(-10, 10)
    table = Table("t", ["a,b", "n"], [[f'{name}"', value] for name, value in zip("pqrst" * 4, numbers, strict=True)])
    rows = list(csv.reader(io.StringIO(csv_text(table))))
    assert rows[0] == ["a,b", "n"]
    assert [row[0] for row in rows[1:]] == [row[0] for row in table.rows]
    assert [float(row[1]) for row in rows[1:]] == numbers.tolist()


def test_markdown_has_one_line_per_row() -> None:
    table = Table("t", ["name", "value"], [[name, k + 0.5] for k, name in enumerate((*HOSTILE, "a|b", "line\nline"))])
    lines = markdown_text(table).strip().split("\n")[2:]
    assert len(lines) == 2 + len(table.rows)
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in lines)
    assert lines[1] == "| --- | ---: |"
    assert "<script" not in "".join(lines)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=6))
def test_a_number_is_never_shown_as_zero_or_far_from_itself(values: list[float]) -> None:
    column = formatted_columns(Table("t", ["a"], [[value] for value in values]))[0]
    for value, shown in zip(values, column, strict=True):
        read = float(shown.replace("−", "-"))
        assert (read == 0) == (value == 0)
        assert abs(read - value) <= max(5.1e-4 * max(map(abs, values)), 0) or abs(read - value) <= 5.1e-4 * abs(value)


@given(st.lists(st.text(max_size=40), min_size=1, max_size=30), st.integers(8, 24))
def test_axis_labels_fit_and_stay_distinct(labels: list[str], width: int) -> None:
    prefixed = ["School school" * 3 + label + " of the district" for label in labels]
    for given_labels in (labels, prefixed):
        words = axis_labels(given_labels, width)
        assert all(len(word) <= width for word in words)
        assert len(set(words)) == len({single_line(label) for label in given_labels})


def test_axis_labels_drop_common_words_but_keep_numbers_whole() -> None:
    schools = [f"School school{i}" for i in (1, 10, 11, 139)]
    assert axis_labels(schools, 13) == ["…1", "…10", "…11", "…139"]
    assert axis_labels(schools, 20) == schools, "what fits stays whole"
    assert axis_labels(["district north, pupils", "district south, pupils"], 10) == ["…north…", "…south…"]
    assert axis_labels(["a rather long name", "another rather long name"], 10) == ["a rather…", "another r…"]
    many = [f"School school{i}" for i in range(139)]
    heat = HeatMap("t", [("", np.eye(139))], many, alt="a")
    figure = panels(heat)[0].figure
    assert figure.layout.meta["yaxis"] == [f"…{i}" for i in range(139)]
    assert [name.strip("\u2068\u2069") for name in figure.data[0].y] == many, "hovering names them in full"


def test_columns_of_numbers_are_right_aligned() -> None:
    cells = ["> 12", "1.2e-03", "4.41 ± 0.11 %", "10.03 ± 0.12", "−3", "1,234.5", "≈ 0.5", 10, 2.5]
    values = [12, 1.2e-3, 4.41, 10.03, -3, 1234.5, 0.5, 10, 2.5]
    assert [parse_number(cell) for cell in cells] == values
    assert [parse_number(cell) for cell in ("", "-", "12 to 13", "1.2.3", "2020-01-01", "a1", True, None)] == [None] * 8
    rows = [["12", "> 12", "few", None], ["7", 10, "1", None], ["8", "not reached", "many", None]]
    table = Table("t", ["name", "rounds", "words", "nothing"], rows)
    assert [is_right_aligned(table, j) for j in range(4)] == [False, True, False, False], "digits alone may be a name"
    page = render_page(Page("p", "", [Section("s", [table])]))
    assert '<td class="number" data-key="12.0">&gt; 12</td>' in page
    assert '<td class="number">not reached</td>' in page


def test_few_points_are_marked_and_narrow_panels_have_few_ticks() -> None:
    few = Series("few", [0.004, 0.02, 0.3], [1, 2, 3])
    many = Series("many", [0.004, 0.01, 0.02, 0.3], [1, 2, 3, 4])
    chart = LineChart("t", "x", "y", [few, many], alt="a", log_x=True)
    assert [trace.mode for trace in panels(chart)[0].figure.data] == ["lines+markers", "lines"]
    for columns, dtick in ((1, "D2"), (2, "D2"), (3, 1)):
        grid = ChartGrid("t", [chart] * 3, alt="a", columns=columns)
        assert {panel.figure.layout.xaxis.dtick for panel in panels(grid)} == {dtick}
    short = LineChart("t", "x", "y", [Series("s", [0.02, 0.05], [1, 2])], alt="a", log_x=True)
    assert panels(ChartGrid("t", [short] * 3, alt="a", columns=3))[0].figure.layout.xaxis.dtick == "D2", (
        "no power there"
    )


def test_pages_are_written_only_where_they_can_be(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_page(full_page(), tmp_path / "missing" / "page.html")
    with pytest.raises(IsADirectoryError):
        write_page(full_page(), tmp_path)
    assert render_page(full_page()) == render_page(full_page())


def test_a_page_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_page(full_page(), target)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_errors_name_the_optional_package(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page("p", "", [Section("s", [Text("t"), curves("c")])])
    for package, call in (
        ("jinja2", lambda: render_page(page)),
        ("plotly.graph_objects", lambda: panels(curves("c"))),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(ImportError, match=r'pip install "dmtrl\[report\]"'):
                call()


# Machado, Oliveira and Fernandes (2009): how linear RGB looks without one kind of cone
BLINDNESS = {
    "none": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    t = TO_XYZ @ np.clip(rgb, 0, 1) / [0.95047, 1.0, 1.08883]
    f = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    dark, light = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_are_distinguishable_and_text_has_contrast(theme: Theme) -> None:
    for matrix in BLINDNESS.values():
        seen = [lab(np.asarray(matrix) @ linear(colour)) for colour in theme.series]
        # the well-known palette of Okabe and Ito has 16 here; a difference of about 2 can just be noticed
        assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) > 16
    assert all(contrast(colour, theme.background) >= 3 for colour in theme.series)
    assert all(contrast(colour, theme.background) >= 4.5 for colour in (theme.ink, theme.muted, theme.link))
    assert all(contrast(colour, theme.faint) >= 4.5 for colour in (theme.ink, theme.muted))


def test_every_light_colour_has_its_own_dark_colour() -> None:
    colours = [LIGHT.background, LIGHT.ink, LIGHT.muted, LIGHT.grid, LIGHT.missing, *LIGHT.series, *LIGHT.diverging]
    assert len(set(colours)) == len(colours)
    pairs = dark_colours()
    assert set(colours) <= set(pairs)
    figure = panels(curves("c"))[0].figure
    assert pairs[figure.layout.paper_bgcolor] == DARK.background
    assert pairs[figure.data[0].line.color] == DARK.series[0]
