"""The page about a model: its numbers are the model's, its pictures work in a real browser, at 16 to 2,000 tasks."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import SharedData
from dmtrl import RFF, Certificate, MTRLClassifier, MTRLRegressor, TaskCovariance
from dmtrl.report.content import HeatMap, KeyFigures, Table
from dmtrl.report.model_page import ModelFacts, model_facts, model_page, page_from_facts, write_model_page
from dmtrl.report.model_page.facts import percent
from dmtrl.report.model_page.relations import MAX_CELLS, relations
from dmtrl.report.page import render_page
from support.browser import DRAWN, Browser, hover_cell
from support.model_pages import families, fitted, items, made_up_comparison, table, words
from support.report_pages import HOSTILE


class Made:
    """A model, what it was compared by, and its page on disk and as content."""

    def __init__(self, model: Any, folder: Path, name: str, comparison: Any = None, data: tuple[Any, ...] = ()):
        self.model, self.comparison = model, comparison
        self.page = model_page(model, *data, comparison=comparison)
        self.path = write_model_page(model, folder / f"{name}.html", *data, comparison=comparison)
        self.dense = model.covariance_.correlation()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model-pages")


@pytest.fixture(scope="module")
def sixteen(folder: Path) -> Made:
    X, y, tasks, _ = families(16)
    model = MTRLRegressor(reg_lambda=0.01).fit(X, y, tasks=tasks)
    return Made(model, folder, "16", model.compare(X, y, tasks), (X, y, tasks))


@pytest.fixture(scope="module")
def school(folder: Path, shared_data: SharedData) -> Made:
    """The 139 schools; where they are not at hand, as many made-up tasks."""
    path = shared_data.folder / "school.npz"
    if path.exists():
        with np.load(path) as file:
            X, y, task = file["X"].astype(float), file["y"].astype(float), file["task"]
        names = np.array([f"school {i}" for i in range(task.max() + 1)])
        scale = X.std(axis=0)
        model = MTRLRegressor().fit((X - X.mean(axis=0)) / np.where(scale > 0, scale, 1), y, tasks=names[task])
    else:
        model = fitted(139)
    return Made(model, folder, "139", made_up_comparison(model.tasks_))


@pytest.fixture(scope="module")
def thousands(folder: Path) -> Made:
    model = fitted(2000, rows=8, d=8)
    return Made(model, folder, "2000", made_up_comparison(model.tasks_))


@pytest.mark.parametrize("which", ["sixteen", "school", "thousands"])
def test_page_works_offline_at_any_number_of_tasks(
    browser: Browser, which: str, request: pytest.FixtureRequest
) -> None:
    made: Made = request.getfixturevalue(which)
    browser.open(made.path)
    browser.wait_for(DRAWN, "all plots")
    assert browser.console() == []
    assert browser.requests() == []
    heat = items(made.page, HeatMap)[0]
    ((_, matrix),) = heat.panels
    plot = browser.find(".square .plot").get_attribute("data-plot")
    for row, column in ((0, 1), (len(matrix) - 1, len(matrix) // 2)):
        said = hover_cell(browser, plot, 0, row, column).replace("\u2068", "").replace("\u2069", "")
        letters = said.replace(" ", "")  # long names are broken into lines
        assert letters.startswith(heat.labels[row].replace(" ", ""))
        assert heat.labels[column].replace(" ", "") in letters
        assert float(re.search(r"[−-]?\d\.\d{4}$", said)[0].replace("−", "-")) == pytest.approx(  # type: ignore[index]
            matrix[row, column], abs=1e-4
        )
    drawn = browser.run("return [...document.querySelectorAll('.square .ytick text')].map(t => t.textContent)")
    assert 10 <= len(drawn) <= 60, "names on the axis are thinned, not gone"
    assert [title for title in browser.run(TABLES) if title[1] > 20] == [
        title for title in browser.run(TABLES) if title[2]
    ]
    for width in (360, 1280):
        browser.resize(width, 800)
        browser.wait_for(
            "return [...document.querySelectorAll('.plot')]"
            ".every(p => Math.abs(p.querySelector('.main-svg').clientWidth - p.clientWidth) <= 1)",
            "plots that follow the window",
        )
        assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.console() == []


# title, rows, and whether it can be searched
TABLES = """return [...document.querySelectorAll('figure.table')].map(
  f => [f.querySelector('h3').textContent, f.querySelectorAll('tbody tr').length, Boolean(f.querySelector('.find'))])"""


def test_zooming_in_names_every_row(browser: Browser, school: Made) -> None:
    browser.open(school.path)
    browser.wait_for(DRAWN, "all plots")
    ticks = "return [...document.querySelectorAll('.square .ytick text')].map(t => t.textContent)"
    before = browser.run(ticks)
    assert len(before) < 139
    browser.run(
        "const plot = document.querySelector('.square .plot');"
        "return Plotly.relayout(plot, {'xaxis.range': [19.5, 39.5], 'yaxis.range': [39.5, 19.5]}).then(() => 1)"
    )
    browser.wait_for(f"return (() => {{ {ticks} }})().length === 20", "the names of 20 rows")
    assert browser.run(ticks) == [label[:14] for label in items(school.page, HeatMap)[0].labels[20:40]]
    assert browser.console() == []


def test_long_tables_are_searched_and_sorted(browser: Browser, thousands: Made) -> None:
    browser.open(thousands.path)
    assert ["Closest tasks", 2000, True] in browser.run(TABLES)
    names = "return [...document.querySelectorAll('#closest-tasks tbody tr')].filter(r => !r.hidden)"
    field = browser.find("#closest-tasks .find input")
    field.send_keys("shop 0017")
    shown = browser.run(f"{names}.map(r => r.textContent)")
    assert 1 <= len(shown) < 2000
    assert all("shop 0017" in row for row in shown)
    assert browser.find("#closest-tasks .find output").text == f"{len(shown):,} of 2,000 rows"
    field.clear()
    field.send_keys(" ")
    assert len(browser.run(f"{names}.map(r => 1)")) == 2000
    browser.find("#errors-and-gains th:nth-child(5) button").click()
    gains = browser.run(
        "return [...document.querySelectorAll('#errors-and-gains td:nth-child(5)')].map(c => Number(c.dataset.key))"
    )
    comparison = thousands.comparison
    assert gains == sorted((comparison.alone - comparison.together).tolist())


def test_page_shows_the_figures_of_the_model(browser: Browser, sixteen: Made) -> None:
    browser.open(sixteen.path, scheme="dark")
    browser.wait_for(DRAWN, "all plots")
    model, certificate = sixteen.model, sixteen.model.certificate_
    text = browser.find("main").text
    said = re.search(
        r"model is ([\d.]+), and the optimum is at least ([\d.]+), so the model is within ([\d.]+) %", text
    )
    assert said is not None
    assert [float(n) for n in said.groups()[:2]] == pytest.approx([certificate.primal, certificate.dual], rel=1e-5)
    assert certificate.relative_gap <= float(said[3]) / 100 <= 1.1 * certificate.relative_gap + 1e-12
    assert "says nothing about the error on new rows" in text
    figures = dict(zip(*(_texts(browser, f".key-figures {tag}") for tag in ("dt", "dd")), strict=False))
    assert figures["tasks"] == "16"
    assert figures["rows"] == "320"
    assert figures["features"] == "6"
    assert float(figures["lambda"]) == model.reg_lambda_
    place = {name: i for i, name in enumerate(model.tasks_.tolist())}
    for title, sign in (("most-alike", 1), ("most-opposed", -1)):
        rows = _rows(browser, title)
        values = [sixteen.dense[place[one], place[other]] for one, other, _ in rows]
        assert [value for _, _, value in rows] == pytest.approx(values)
        above = sign * sixteen.dense[np.triu_indices(16, 1)]
        assert [sign * value for value in values] == pytest.approx(sorted(above, reverse=True)[: len(values)])
    errors = _rows(browser, "errors-and-gains")
    assert [row[0] for row in errors] == sorted(
        model.tasks_, key=lambda task: (sixteen.comparison.together - sixteen.comparison.alone)[place[task]]
    )
    for task, together, alone, pooled, gain, _ in errors:
        found = sixteen.comparison
        i = place[task]
        assert [together, alone, pooled] == pytest.approx([found.together[i], found.alone[i], found.pooled[i]])
        assert gain == pytest.approx(found.alone[i] - found.together[i])
    drawn = browser.run("return [...document.querySelectorAll('#convergence .plot')].map(p => p.calcdata[0].at(-1).y)")
    assert drawn == pytest.approx([model.history_[-1]["gap"]] * 3)


def _texts(browser: Browser, selector: str) -> list[str]:
    return [element.text for element in browser.find_all(selector)]


def _rows(browser: Browser, name: str) -> list[list[Any]]:
    """The cells of a table: numbers with all their digits, the rest as text."""
    found: list[list[Any]] = browser.run(
        "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)].map(row => [...row.cells].map("
        "cell => cell.dataset.key === undefined ? cell.textContent : Number(cell.dataset.key)))",
        name,
    )
    return found


def test_related_tasks_are_adjacent_and_coefficients_match_the_model(sixteen: Made) -> None:
    family = dict(zip(sixteen.model.tasks_.tolist(), families(16)[3], strict=True))
    heat, coefficients = items(sixteen.page, HeatMap)
    shown = [family[label] for label in heat.labels]
    assert np.count_nonzero(np.diff(shown)) == len(set(shown)) - 1
    assert coefficients.labels == heat.labels, "both heat maps have one order"
    place = {name: i for i, name in enumerate(sixteen.model.tasks_.tolist())}
    columns = [int(name.split()[1]) for name in coefficients.columns]
    expected = sixteen.model.coef_[np.ix_([place[label] for label in heat.labels], columns)]
    assert np.array_equal(coefficients.panels[0][1], expected)
    groups = table(sixteen.page, "Groups")
    assert {family[name] for row in groups.rows for name in row[2].split(", ")} == {  # type: ignore[attr-defined]
        member for member in shown if shown.count(member) > 1
    }


def test_many_tasks_are_shown_as_groups_without_a_dense_matrix(
    thousands: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "form 150 groups" in thousands.page.lead
    heat = items(thousands.page, HeatMap)[0]
    assert np.shape(heat.panels[0][1]) == (MAX_CELLS, MAX_CELLS)
    assert thousands.path.stat().st_size < 12e6
    found = relations(model_facts(thousands.model))
    for g in (0, 77, 149):
        own = thousands.dense[np.ix_(found.cells[g], found.cells[3])]
        assert heat.panels[0][1][g, 3] == pytest.approx(own.mean(), abs=1e-9)
    assert sorted(np.concatenate(found.cells)) == list(range(2000))
    monkeypatch.setattr(import_module("dmtrl.relationship.covariance"), "DENSE_LIMIT", 1000)
    with pytest.raises(ValueError, match="too large for an array"):
        thousands.model.covariance_.dense()
    assert model_page(thousands.model).lead == model_page(thousands.model).lead


def test_without_data_the_page_says_what_to_do(sixteen: Made) -> None:
    page = model_page(sixteen.model)
    assert "dmtrl report MODEL DATA" in words(page)
    assert not any(item.title == "Errors and gains" for item in items(page, Table))
    X, y, tasks, _ = families(16)
    counted = model_page(sixteen.model, X, y, tasks, comparison=False)
    assert ("rows", "320") in items(counted, KeyFigures)[0].entries, "data without the several fits of a comparison"
    assert "dmtrl report MODEL DATA" in words(counted)


def test_the_title_names_what_is_known(sixteen: Made) -> None:
    assert sixteen.page.title == "Models of 16 related tasks"
    assert model_page(sixteen.model, title="Shops").title == "Shops"


def test_tables_show_where_they_scroll(browser: Browser, sixteen: Made) -> None:
    browser.open(sixteen.path, width=360)
    browser.wait_for(DRAWN, "all plots")
    more = "return document.querySelector('#errors-and-gains .edges').dataset.more"
    browser.wait_for(f"return (() => {{ {more} }})() === 'right'", "a shadow at the right")
    browser.run("document.querySelector('#errors-and-gains .scroll').scrollLeft = 20")
    browser.wait_for(f"return (() => {{ {more} }})() === 'left right'", "shadows on both sides")
    browser.resize(1280, 900)
    browser.wait_for(f"return (() => {{ {more} }})() === ''", "no shadow where all is shown")


def test_one_task() -> None:
    X, y, _, _ = families(1)
    model = MTRLRegressor().fit(X, y)
    page = model_page(model, X, y)
    assert "only one task" in words(page)
    assert [item.title for item in items(page, HeatMap)] == ["Coefficients"]


def test_three_classes() -> None:
    X, y, tasks, _ = families(3)
    model = MTRLClassifier().fit(X, np.digitize(y, [-0.5, 0.5]), tasks=tasks)
    page = model_page(model, X, np.digitize(y, [-0.5, 0.5]), tasks)
    assert len(items(page, HeatMap)[0].labels) == 3  # the tasks
    assert len(table(page, "Errors and gains").rows) == 3
    named = {str(row[0]) for row in table(page, "Coefficients by feature").rows}
    assert {"feature 0 (0)", "feature 0 (2)"} <= named  # a coefficient for each feature and class


def test_mapped_features_have_no_coefficient_section() -> None:
    X, y, tasks, _ = families(3)
    page = model_page(MTRLRegressor(feature_map=RFF(20)).fit(X, y, tasks=tasks))
    assert "do not belong to features of the data" in words(page)
    assert [item.title for item in items(page, HeatMap)] == ["Correlation of tasks"]


def test_no_history_unrelated_tasks_and_a_fit_that_stopped_early() -> None:
    X, y, tasks, _ = families(4)
    model = MTRLRegressor(relationship="independent").fit(X, y, tasks=tasks)
    model.history_ = []
    page = model_page(model)
    assert "no record of its rounds" in words(page)
    assert "No two tasks are related" in words(page)
    assert "given, not learned" in words(page)
    with pytest.warns(UserWarning, match="max_rounds"):
        short = MTRLRegressor(max_rounds=1).fit(X, y, tasks=tasks)
    assert "stopped before it reached the requested 0.1 %" in words(model_page(short))


@pytest.mark.parametrize(
    ("covariance", "sentence"),
    [
        (TaskCovariance.identity(200), "No two tasks are related"),
        (TaskCovariance(np.full((200, 1), 200**-0.5), np.ones(1), 0.0), "All 200 tasks are alike"),
    ],
)
def test_very_many_tasks_in_one_group(covariance: TaskCovariance, sentence: str) -> None:
    names = [f"task {i}" for i in range(200)]
    coef = np.random.default_rng(0).normal(size=(200, 3))
    facts = ModelFacts(
        names, covariance, True, Certificate(2.0, 1.999), 1e-3, "squared", 0.1, 0.0, 3, list("abc"), coef
    )
    page = page_from_facts(facts, "One group")
    assert sentence in page.lead
    (coefficients,) = items(page, HeatMap)
    assert coefficients.panels[0][1][0] == pytest.approx(coef.mean(axis=0)[np.argsort(-np.abs(coef).mean(axis=0))])
    assert render_page(page)


def test_hostile_names_are_shown_and_never_run(browser: Browser, tmp_path: Path) -> None:
    names = [*(name.encode("utf-8", "ignore").decode() for name in HOSTILE), "[press](https://example.org) **bold**"]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(len(names) * 6, 2))
    y = X[:, 0] * np.repeat(rng.choice([-1, 1], len(names)), 6)
    model = MTRLRegressor().fit(X, y, tasks=np.repeat(np.array(names), 6))
    model.feature_names_in_ = np.array(names[:2], dtype=object)
    comparison = made_up_comparison(model.tasks_)
    browser.open(write_model_page(model, tmp_path / "hostile.html", comparison=comparison), width=360)
    browser.wait_for(DRAWN, "all plots")
    assert browser.run("return window.pwned") is None
    assert browser.console() == []
    assert browser.requests() == []
    assert browser.run("return document.documentElement.scrollWidth") == 360
    links = [link.get_attribute("href") for link in browser.find_all("main a")]
    assert len(links) == 1, "the page's own, and none made of a name"
    assert browser.find_all("img, iframe, [onerror], [onload], main td *") == []
    shown = browser.run(
        "return [...document.querySelectorAll('#errors-and-gains td:first-child')].map(c => c.textContent)"
    )
    assert sorted(shown) == sorted(name.replace("\0", "") for name in model.tasks_.tolist()), "HTML has no sign zero"
    hurt = [name for name, is_hurt in zip(model.tasks_, comparison.hurts, strict=True) if is_hurt]
    assert re.sub(r"\s+", "", hurt[0]) in re.sub(r"\s+", "", browser.find("main").get_attribute("textContent"))


@pytest.mark.parametrize("share", [0.0, 3e-12, 1.23e-6, 8.4e-4, 0.000996, 0.0999, 0.5, 1.0, 7.7])
def test_a_percentage_is_never_rounded_down(share: float) -> None:
    shown = percent(share)
    if shown.startswith("less than"):
        assert share < 1e-10
    else:
        assert share <= float(shown.removesuffix(" %")) / 100 + 1e-15 <= 1.11 * share + 2e-15


def test_theme_button_changes_every_colour_of_dot_plots(browser: Browser, school: Made) -> None:
    look: Callable[[], Any] = lambda: browser.run(  # noqa: E731
        "const plot = document.querySelector('#tasks-with-the-largest-and-the-smallest-gain .plot');"
        "return plot.data.map(trace => (trace.marker || trace.line).color)"
    )
    browser.open(school.path, scheme="light")
    browser.wait_for(DRAWN, "all plots")
    before = look()
    browser.find("#theme").click()
    after = look()
    assert len(before) == 5, "joining lines, three ways, rings"
    assert all(old != new for old, new in zip(before, after, strict=True))
    browser.run("localStorage.clear()")
