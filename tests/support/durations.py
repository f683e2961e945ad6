"""A pytest plugin: how long each test takes, from tests/durations.json.

The longest files start first, so that no process is left alone with one at the end. Tests above SLOW seconds get the
marker `slow`, so that `make test-fast` leaves them out. `make test-durations` measures again, and writes the file.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.started import MARKERS

FILE = Path(__file__).resolve().parents[1] / "durations.json"
SLOW = 2.0  # seconds, of all parameters of a test together
RECORDED = 0.2  # seconds; tests that take less are not in the file
_OPTION = "--record-durations"


def key_of(nodeid: str) -> str:
    """The name of a test without its parameters."""
    return nodeid.partition("[")[0]


def read() -> dict[str, float]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def write(measured: dict[str, float]) -> None:
    """Replace what the file says about the measured tests, and forget tests in files that no longer exist."""
    root = FILE.parents[1]
    kept = {key: seconds for key, seconds in read().items() if (root / key.partition("::")[0]).exists()}
    merged = {key: round(seconds, 1) for key, seconds in (kept | measured).items() if seconds >= RECORDED}
    FILE.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_OPTION, action="store_true", help="write the measured times to tests/durations.json")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = read()
    files: dict[Path, float] = defaultdict(float)
    for item in items:
        if known.get(key_of(item.nodeid), 0.0) > SLOW:
            item.add_marker("slow")
    for key, path in {key_of(item.nodeid): item.path for item in items}.items():
        files[path] += known.get(key, 0.0)
    items.sort(key=lambda item: -files[item.path])


def _processor_seconds() -> float:
    """Of this process and its children that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


class Recorder:
    """Measures each test: processor seconds, which do not depend on what else runs on the machine. A test that starts
    other processes may wait for them: it is measured by the clock."""

    def __init__(self) -> None:
        self.measured: dict[str, float] = defaultdict(float)
        self._began = (0.0, 0.0)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self._began = (time.monotonic(), _processor_seconds())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: Any = yield
        if call.when == "teardown":
            clock, processor = time.monotonic() - self._began[0], _processor_seconds() - self._began[1]
            waits = any(item.get_closest_marker(marker) for marker in MARKERS)
            report.user_properties.append(("seconds", clock if waits else processor))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "seconds":
                self.measured[key_of(report.nodeid)] += float(str(value))

    def pytest_sessionfinish(self) -> None:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            write(self.measured)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(_OPTION):
        config.pluginmanager.register(Recorder())
