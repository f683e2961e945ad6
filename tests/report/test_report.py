"""Report pages in a real browser: drawn, offline, accessible, at any width, and deaf to hostile names."""

from pathlib import Path

import numpy as np
import pytest

from dmtrl.report.page import write_page
from support.browser import DRAWN, Browser, hover_cell, hover_point
from support.report_pages import HOSTILE, LABELS, correlation, full_page, hostile_page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(full_page(), tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(hostile_page(), tmp_path_factory.mktemp("hostile") / "report.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_drawn_without_network_or_console_errors(browser: Browser, page: Path, scheme: str) -> None:
    browser.open(page, scheme=scheme)
    browser.wait_for(DRAWN, "all plots")
    assert len(browser.find_all(".plot")) == 1 + 1 + 4 + 1 + 1 + 2 + 1 + 1
    assert browser.console() == []
    assert browser.requests() == []
    traces = "return [...document.querySelectorAll('.plot')].map(p => p.querySelectorAll('.trace, .hm').length)"
    assert all(count > 0 for count in browser.run(traces))
    white = browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert white == (scheme == "light")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("return document.documentElement.dataset.theme") == "light", "paper is white"
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("return document.documentElement.dataset.theme") == scheme


def test_request_recorder_sees_a_request(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "leak.html").write_text("<img src='http://127.0.0.1:9/pixel.png'>", encoding="utf-8")
    browser.open(tmp_path / "leak.html")
    assert browser.requests() == ["http://127.0.0.1:9/pixel.png"]
    assert browser.console() != []


def test_policy_forbids_other_scripts_and_requests(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run(
        """
        const script = document.createElement("script");
        script.textContent = "window.pwned = 1";
        document.body.append(script);
        const image = document.createElement("img");
        image.src = "http://127.0.0.1:9/pixel.png";
        document.body.append(image);
        """
    )
    assert browser.run("return window.pwned") is None
    assert any("Content Security Policy" in message for message in browser.console())


def test_hovering_names_the_curve_and_its_point(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.wait_for(DRAWN, "all plots")
    said = hover_point(browser, "gaps-fall", 60, float(np.exp(-60 / 20)))
    assert "slow" in said
    assert "rounds: 60" in said
    assert f"gap: {np.exp(-60 / 20):.6g}" in said


def test_hovering_names_the_pair_and_its_value(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.wait_for(DRAWN, "all plots")
    said = hover_cell(browser, "sixteen", 1, 3, 11)
    assert LABELS[3] in said
    assert LABELS[11] in said
    assert f"{correlation(16)[3, 11]:.4f}".replace("-", "−") in said.replace("-", "−")
    # no room for labels on the axes, so hovering is the only way to know the pair
    said = hover_cell(browser, "many", 0, 100, 7)
    assert "task 100" in said
    assert "task 7" in said
    assert f"{correlation(139)[100, 7]:.4f}".replace("-", "−") in said.replace("-", "−")


def test_tables_are_sorted_by_click_and_by_keyboard(browser: Browser, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    def names() -> list[str]:
        return [cell.text for cell in browser.find_all("#numbers tbody td:first-child")]

    browser.open(page)
    headings = browser.find_all("#numbers th")
    buttons = browser.find_all("#numbers th button")
    buttons[1].click()
    assert names() == ["two", "nine", "ten", "hundred"]
    assert headings[1].get_attribute("aria-sort") == "ascending"
    buttons[1].send_keys(Keys.ENTER)
    assert names() == ["hundred", "ten", "nine", "two"]
    assert headings[1].get_attribute("aria-sort") == "descending"
    buttons[2].send_keys(Keys.SPACE)
    assert names() == ["two", "hundred", "ten", "nine"], "a cell without a value comes last"
    assert headings[1].get_attribute("aria-sort") is None
    buttons[2].click()
    assert names() == ["ten", "hundred", "two", "nine"], "also when the order is turned"
    buttons[0].click()
    assert names() == ["hundred", "nine", "ten", "two"]


def test_button_exchanges_light_and_dark_also_in_plots(browser: Browser, page: Path) -> None:
    def colours() -> tuple[str, str, str]:
        background = "getComputedStyle(document.body).backgroundColor"
        plot = "getComputedStyle(document.querySelector('.plot .main-svg')).backgroundColor"
        line = "getComputedStyle(document.querySelector('.plot .js-line')).stroke"
        return tuple(browser.run(f"return [{background}, {plot}, {line}]"))

    browser.open(page, scheme="light")
    browser.wait_for(DRAWN, "all plots")
    before = colours()
    assert before[0] == before[1], "a plot stands on the colour of the page"
    assert before[0] == "rgb(255, 255, 255)"
    browser.find("#theme").click()
    after = colours()
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert after[0] == after[1]
    browser.find("#theme").click()
    assert colours() == before
    browser.run("localStorage.clear()")


def test_legend_hides_a_series_in_every_panel(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.wait_for(DRAWN, "all plots")
    lines = "return document.querySelectorAll('#four-panels .js-line').length"
    assert browser.run(lines) == 4 * 3
    button = browser.find("#four-panels .legend button:nth-child(2)")
    assert button.text == "slow"
    button.click()
    assert browser.run(lines) == 4 * 2
    assert browser.find("#four-panels .legend button:nth-child(2)").get_attribute("aria-pressed") == "false"
    browser.find("#four-panels .legend button:nth-child(2)").click()
    assert browser.run(lines) == 4 * 3


@pytest.mark.parametrize("which", ["page", "hostile"])
def test_page_never_scrolls_sideways(browser: Browser, which: str, request: pytest.FixtureRequest) -> None:
    browser.open(request.getfixturevalue(which), width=360, height=800)
    for width in (360, 1280, 700, 320):
        browser.resize(width, 800)
        browser.wait_for(DRAWN, "all plots")
        # a plot follows its place; only the box of a table may hold more than it shows
        browser.wait_for(
            "return [...document.querySelectorAll('.plot')]"
            ".every(p => Math.abs(p.querySelector('.main-svg').clientWidth - p.clientWidth) <= 1)",
            f"plots that follow the window to {width}",
        )
        assert browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [width, width]


def test_plots_and_tables_have_accessible_names(browser: Browser, page: Path) -> None:
    browser.open(page)
    tree = browser.command("Accessibility.getFullAXTree")["nodes"]
    seen = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]]
    assert ("image", "Falling curves.") in seen
    assert ("image", "learned. Two matrices.") in seen
    assert ("table", "Numbers") in seen
    assert ("navigation", "Contents") in seen
    assert [role for role, name in seen if role in ("image", "button", "link", "table", "region") and not name] == []
    anchors = [link.get_attribute("href").split("#")[1] for link in browser.find_all("nav a")]
    assert anchors == [heading.get_attribute("id") for heading in browser.find_all("h2")]
    assert len(browser.find_all("figcaption")) >= len(browser.find_all("figure .panels"))


def test_hostile_names_are_shown_and_never_run(browser: Browser, hostile: Path) -> None:
    browser.open(hostile)
    browser.wait_for(DRAWN, "all plots")
    heat = browser.find_all(".square .plot")[0].get_attribute("data-plot")
    said = hover_cell(browser, heat, 0, 0, 2)
    assert "<script>" in said
    assert "<img" in said
    chart = browser.find_all(".wide .plot")[0].get_attribute("data-plot")
    said = hover_point(browser, chart, 2, 8)  # of the seventh series, whose name looks like a template
    assert HOSTILE[6].replace(" ", "") in said.replace(" ", ""), "broken into lines, but letter by letter"
    assert HOSTILE[1] in said
    assert browser.run("return window.pwned") is None
    assert browser.console() == []
    assert browser.requests() == []
    assert len(browser.find_all("script")) == 2, "plotly and that of the page; the data has been read"
    assert browser.find_all("img, iframe, main u, main i:not(.scale i), [onerror], [onload], a[href^=javascript]") == []
    assert browser.find("h1").text == HOSTILE[0]
    legend = [
        button.get_attribute("textContent")
        for button in browser.find_all("figure .legend")[0].find_elements("css selector", "button")
    ]
    for shown, name in zip(legend, HOSTILE, strict=True):
        assert shown == " ".join("".join(c for c in name.replace("\n", " ") if c >= " " and c != "\ud800").split())
    # nothing between the signs of a name is read as plotly's small HTML or as a place in a template
    assert browser.run("return document.querySelectorAll('.plot a, .plot script, .plot img').length") == 0
