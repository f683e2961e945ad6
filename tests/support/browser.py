"""A real browser for the tests of report pages: headless Chromium, driven by selenium, with its network watched.

Use the `browser` fixture. Chromium and its driver come from the system (Debian: chromium, chromium-driver); without
them the tests are skipped with a reason, except in continuous integration (CI=true), where that is a failure.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
# whether every plot of a report page has been drawn
DRAWN = "return [...document.querySelectorAll('.plot')].every(plot => plot.querySelector('.main-svg'))"
OFFLINE = ("file:", "data:", "blob:", "about:")


class Browser:
    """One window. `open` starts afresh: what was logged and requested before is forgotten."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        self.resize(width, height)
        wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}  # else clicks hit a moving page
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.command("Emulation.setEmulatedMedia", features=features)
        self.driver.get("about:blank")
        self.console(), self.requests()
        self.driver.get(path.resolve().as_uri())
        self.wait_for("return document.readyState === 'complete' && !document.getElementById('library')", "the page")

    def resize(self, width: int, height: int) -> None:
        # the window of a headless Chromium has a smallest width; the viewport has none
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def command(self, name: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def hover(self, x: float, y: float) -> None:
        """Move the mouse to a point of the viewport."""
        for place in (x - 2, x):
            self.command("Input.dispatchMouseEvent", type="mouseMoved", x=place, y=y)
            time.sleep(0.12)  # plotly looks at the mouse every 0.05 s, and the next cell may be 3 pixels away

    def wait_for(self, script: str, what: str) -> Any:
        """Wait until the script returns something true; its answer."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 60).until(lambda driver: driver.execute_script(script), f"waited for {what}")

    def console(self) -> list[str]:
        """What the console has said since the last call, warnings and errors alike."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """Every address asked for since the last call that is not inside the page or on this disk."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        addresses = [params["request"]["url"] for params in sent]
        sockets = [event["params"]["url"] for event in events if event["method"] == "Network.webSocketCreated"]
        return [address for address in addresses + sockets if not address.startswith(OFFLINE)]

    def screenshot(self, path: Path, whole: bool = True) -> Path:
        import base64

        taken = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))
        return path


def hover_cell(browser: Browser, plot: str, panel: int, row: int, column: int) -> str:
    """Hover over one cell of a heat map; what the label says."""
    x, y = browser.run(
        """
        const plot = document.querySelector(`[data-plot="${arguments[0]}"][data-panel="${arguments[1]}"]`);
        plot.scrollIntoView({block: "center", behavior: "instant"});
        const {xaxis, yaxis} = plot._fullLayout, box = plot.getBoundingClientRect();
        return [box.x + xaxis._offset + xaxis.c2p(arguments[3]), box.y + yaxis._offset + yaxis.c2p(arguments[2])];
        """,
        plot,
        panel,
        row,
        column,
    )
    browser.hover(x, y)
    label = ".hoverlayer .hovertext"
    return str(
        browser.wait_for(
            f'const label = document.querySelector(\'[data-plot="{plot}"][data-panel="{panel}"] {label}\');'
            "return label && label.textContent",
            "the hover label",
        )
    )


def hover_point(browser: Browser, plot: str, x: float, y: float) -> str:
    """Hover over a point of a chart with one panel, given in its data's units; what the label says."""
    place = browser.run(
        """
        const plot = document.querySelector(`[data-plot="${arguments[0]}"]`);
        plot.scrollIntoView({block: "center", behavior: "instant"});
        const {xaxis, yaxis} = plot._fullLayout, box = plot.getBoundingClientRect();
        return [box.x + xaxis._offset + xaxis.d2p(arguments[1]), box.y + yaxis._offset + yaxis.d2p(arguments[2])];
        """,
        plot,
        x,
        y,
    )
    browser.hover(*place)
    label = f"document.querySelector('[data-plot=\"{plot}\"] .hoverlayer .hovertext')"
    return str(browser.wait_for(f"return {label} && {label}.textContent", "the hover label"))


def start(folder: Path) -> Iterator[Browser]:
    """The generator behind the `browser` fixture; `folder` holds the fresh profile."""
    chromium, chromedriver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        reason = "Chromium and its driver are not installed (Debian: apt-get install chromium chromium-driver)."
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # naming the driver keeps selenium from looking for one on the network
    driver = webdriver.Chrome(options=options, service=Service(executable_path=chromedriver))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
