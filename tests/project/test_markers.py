"""Selections of tests by marker are true: who starts a process carries the marker, and `make` selects by markers."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from support.started import MARKERS, marker_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("command", "marker"),
    [
        ([sys.executable, "-c", "pass"], "subprocess"),
        (["/somewhere/bin/dmtrl", "demo"], "subprocess"),
        (["bash", "-c", "dmtrl demo"], "subprocess"),
        (["/site-packages/ray/core/src/ray/gcs/gcs_server", "--port=0"], "ray"),
        (["/site-packages/ray/core/src/ray/raylet/raylet"], "ray"),
        (["/usr/bin/chromedriver", "--port=1"], "browser"),
        ([sys.executable, "-u", "-m", "nvflare.private.fed.app.client.client_train"], "federation"),
        (["git", "rev-parse", "HEAD"], None),
    ],
)
def test_a_command_has_a_marker(command: list[str], marker: str | None) -> None:
    assert marker_of(command) == marker


PROGRAM = """
import multiprocessing, subprocess, sys
import pytest

def start():
    subprocess.run([sys.executable, "-c", ""], check=True)

@pytest.fixture(scope="module")
def shared():
    start()

def test_starts_one():
    start()

@pytest.mark.subprocess
def test_starts_one_with_its_marker():
    start()

@pytest.mark.subprocess
def test_is_the_first_with_the_fixture(shared):
    pass

def test_is_the_second_with_the_fixture(shared):
    pass

def test_spawns_one():
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()

def test_starts_none():
    pass
"""


@pytest.mark.subprocess
def test_a_test_that_starts_a_process_without_its_marker_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PROGRAM)
    pytester.makeini("[pytest]\nmarkers = subprocess")
    result = pytester.runpytest_inprocess("-p", "support.started", "-p", "no:cacheprovider", "-p", "no:xdist")
    failed = {line.partition("::")[2].split()[0] for line in result.outlines if line.startswith("ERROR test_a_test")}
    assert failed == {"test_starts_one", "test_is_the_second_with_the_fixture", "test_spawns_one"}
    result.assert_outcomes(passed=6, errors=3)


def makefile_value(name: str) -> str:
    found = re.search(rf"^{name} := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"the Makefile has no {name}"
    return found.group(1)


def test_the_fast_tests_start_nothing() -> None:
    left_out = set(re.findall(r"\w+", makefile_value("FAST"))) - {"not", "or"}
    assert left_out == {*MARKERS, "slow", "faults"}


def test_markers_are_described() -> None:
    pytest_options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    described = {line.partition(":")[0] for line in pytest_options["ini_options"]["markers"]}
    assert described == {*MARKERS, "slow", "faults", "data"}
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert {marker for marker in described if f"`{marker}`" not in page} == set()
