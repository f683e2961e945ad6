"""A pytest plugin: a test that starts a process has to carry the marker that says so.

The markers `ray`, `federation`, `browser` and `subprocess` are what `make test-fast` and other selections (`-m`) leave
out, so they have to be true. An audit hook sees every process that Python starts, and attributes it to the running test
or, while a fixture with a wider scope is set up, also to every later test that uses this fixture. A test without the
marker fails at its end. The fixture `browser` adds its marker by itself.
"""

import multiprocessing.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

import pytest

MARKERS = ("ray", "federation", "browser", "subprocess")

# in this process; the markers that the running test needs, and the fixtures that are being set up
_needed: set[str] = set()
_setting_up: list[pytest.FixtureDef[Any]] = []
_of_fixture: dict[pytest.FixtureDef[Any], set[str]] = {}
_running: list[pytest.Item] = []


def marker_of(command: Sequence[str | bytes | PurePath]) -> str | None:
    """Return the marker for a command: None for small programs that run no code of this project, such as git."""
    words = [os.fsdecode(word) for word in command]
    program = PurePath(words[0]).name
    if program.startswith(("raylet", "gcs_server")):
        return "ray"
    if program.startswith(("chrom", "google-chrome")):
        return "browser"
    if any("nvflare.private" in word for word in words):
        return "federation"
    if program.startswith(("python", "dmtrl", "bash", "sh", "systemd-run", "lint-imports")):
        return "subprocess"
    return None


def note(marker: str | None) -> None:
    """A process was started that needs this marker."""
    if marker is None or not _running:
        return
    _needed.add(marker)
    for fixture in _setting_up:
        _of_fixture.setdefault(fixture, set()).add(marker)


def missing(item: pytest.Item) -> list[str]:
    """The markers that the running test needs and does not carry. One for a cluster, a federation or a browser
    stands for its other processes too."""
    carried = {marker for marker in MARKERS if item.get_closest_marker(marker) is not None}
    return sorted(marker for marker in _needed - carried if marker != "subprocess" or not carried)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and _running:
        executable, words = arguments[:2]
        words = [words] if isinstance(words, str | bytes | os.PathLike) else list(words)
        note(marker_of([executable or words[0], *words[1:]]))
    elif event == "os.fork" and _running:
        note("subprocess")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(sys, "_dmtrl_audited"):  # a hook cannot be removed, and pytest may run inside pytest
        sys._dmtrl_audited = True  # type: ignore[attr-defined]
        sys.addaudithook(_audit)
        spawn = multiprocessing.util.spawnv_passfds

        def noted(path: Any, *arguments: Any) -> Any:  # raises no event of its own
            note(marker_of([path]))
            return spawn(path, *arguments)

        multiprocessing.util.spawnv_passfds = noted


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    _setting_up.append(fixturedef)
    try:
        return (yield)
    finally:
        _setting_up.pop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    outer = (_running.copy(), _needed.copy())
    _running[:] = [item]
    _needed.clear()
    try:
        return (yield)
    finally:
        _running[:], before = outer
        _needed.clear()
        _needed.update(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        used = getattr(item, "_fixtureinfo", None)
        for fixtures in used.name2fixturedefs.values() if used is not None else ():
            for fixture in fixtures:
                _needed.update(_of_fixture.get(fixture, ()))
        lacking = missing(item)
        if lacking:
            pytest.fail(f"this test starts processes and lacks the marker {', '.join(lacking)}", pytrace=False)
