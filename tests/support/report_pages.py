"""Pages for the tests of reports: one with every kind of content, one with hostile text."""

import numpy as np

from dmtrl.report.content import (
    ChartGrid,
    DotPlot,
    HeatMap,
    KeyFigures,
    LineChart,
    Page,
    Section,
    Series,
    Table,
    Text,
)

ROUNDS = np.arange(1, 101)
LABELS = [f"school {i:02d}" for i in range(16)]
HOSTILE = (
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    '<img src=x onerror="window.pwned=1">',
    "\"><svg onload='window.pwned=1'>",
    '<a href="javascript:window.pwned=1">press</a>',
    "<!--<script>window.pwned=1//",
    "{{ 7 * 7 }} {% raw %} %{x} %{customdata[0]}",
    "$\\frac{1}{0}$ &lt;b&gt; \\u003c &amp; `**`",
    "מחוז הצפון <b>\u202eabc",
    "控制\x00\x08\x1b\ud800 characters\nand lines",
    "a name of two hundred characters " * 6,
    "nospace" * 30,
)


def correlation(size: int, seed: int = 0) -> np.ndarray:
    weights = np.random.default_rng(seed).normal(size=(size, 5))
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    return np.asarray(weights @ weights.T)


def curves(title: str, names: tuple[str, ...] = ("fast", "slow", "slower")) -> LineChart:
    series = [Series(name, ROUNDS, np.exp(-ROUNDS / (10.0 * k))) for k, name in enumerate(names, start=1)]
    return LineChart(title, "rounds", "gap", series, alt="Falling curves.", log_y=True, references=[("tol", 1e-3)])


def full_page() -> Page:
    """Everything a page can hold."""
    line = Series("line", ROUNDS, ROUNDS * 1.0)
    chart = LineChart("Lines and points", "x", "y", [line, Series("points", [1, 50], [3, 4], "points")], alt="A line.")
    rows = [["ten", 10, 0.5, True], ["nine", 9, np.nan, False], ["hundred", 100, 0.125, None], ["two", 2, -3.25, True]]
    figures = [
        curves("Gaps fall"),
        chart,
        ChartGrid("Four panels", [curves(f"data set {k}") for k in range(4)], alt="Four panels."),
        DotPlot("Dots", ["x", "y", "z"], [("p", [1, 2, 3]), ("q", [2, np.nan, 1])], "error", "Dots.", [2], "worse"),
        DotPlot("Long names", [f"a rather long name {k}" for k in range(12)], [("gain", range(12))], "gain", "Dots."),
    ]
    heats = [
        HeatMap("Sixteen", [("true", np.eye(16)), ("learned", correlation(16))], LABELS, alt="Two matrices."),
        HeatMap("Many", [("all", correlation(139))], [f"task {k}" for k in range(139)], alt="A large matrix."),
        HeatMap(
            "Oblong",
            [("", np.eye(16)[:, :5])],
            LABELS,
            "A part.",
            short=list("abcdefghijklmnop"),
            columns=list("vwxyz"),
        ),
    ]
    return Page(
        "A report",
        "What was **found**.\n\nIn `code` and [a link](https://example.org/a?b=1&c=2).",
        [
            Section("Figures", [Text("One paragraph.\n\nAnother."), *figures, KeyFigures("Facts", [("tasks", "16")])]),
            Section(
                "Tables", [Table("Numbers", ["name", "count", "score", "good"], rows, "A caption."), _wide_table()]
            ),
            Section("Relations", heats),
        ],
        "Made by a test.",
    )


def _wide_table() -> Table:
    rows = np.random.default_rng(0).normal(size=(8, 20)).tolist()
    return Table("A wide table", [f"a long heading {k}" for k in range(20)], rows)


def hostile_page() -> Page:
    """Every place for a user's words holds one that means harm, or that a careless page would break on."""
    words = "\n\n".join(HOSTILE) + "\n\n[press](javascript:window.pwned=1) **<i>bold</i>** `<u>code</u>`"
    size = len(HOSTILE)
    sections = []
    for k, name in enumerate(HOSTILE):
        series = [Series(other, [1, 2, 3], [i + 1, i + 2, i + 3]) for i, other in enumerate(HOSTILE)]
        items = {
            0: LineChart(name, HOSTILE[1], HOSTILE[2], series, HOSTILE[3], caption=words, references=[(HOSTILE[2], 2)]),
            1: HeatMap(name, [(name, correlation(size))], HOSTILE, name, name),
            2: DotPlot(
                name, HOSTILE, [(name, range(size)), ("other " + name, range(size))], HOSTILE[4], name, caption=name
            ),
            3: Table(name, HOSTILE, [HOSTILE, [None] * size], name),
            4: ChartGrid(name, [LineChart(name, name, name, series, name)], name),
            5: DotPlot(
                name, HOSTILE, [(name, range(size)), ("other " + name, [1] * size)], name, name, [0], HOSTILE[2]
            ),
            6: KeyFigures(name, [(other, other) for other in HOSTILE], name),
            7: HeatMap(name, [(name, correlation(size)[:, :5])], HOSTILE, name, name, columns=HOSTILE[:5]),
        }
        sections.append(Section(name, [Text(words), items[k]] if k in items else [Text(words)]))
    return Page(HOSTILE[0], words, sections, words)
