"""The runners behind `make test-busy` and `make test-durations`."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support import durations
from support.waiting import wait_for

BUSY = Path(__file__).resolve().parents[1] / "support" / "busy.py"
READY = "import time; print('ready', flush=True); time.sleep(600)"


def busy(*words: str, **streams: int) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, str(BUSY), *words], text=True, **streams)  # type: ignore[call-overload,no-any-return]


@pytest.mark.subprocess
def test_every_run_beside_busy_loops_must_pass(tmp_path: Path) -> None:
    seen = str(tmp_path / "ran")
    second_fails = f"import pathlib, sys; path = pathlib.Path({seen!r}); sys.exit(path.exists() or path.touch())"
    command = (sys.executable, "-c", second_fails)
    with busy("--loops", "1", "--times", "2", "--", *command, stdout=subprocess.PIPE) as process:
        printed, _ = process.communicate()
    assert process.returncode == 1
    assert re.search(r"Run 1 beside 1 busy loops: \S+ minutes, passed", printed)
    assert re.search(r"Run 2 beside 1 busy loops: \S+ minutes, failed with exit code 1", printed)


@pytest.mark.subprocess
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_busy_loops_end_with_their_runner(how: signal.Signals) -> None:
    with busy("--loops", "2", "--times", "1", "--", sys.executable, "-c", READY, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        wait_for(lambda: process.stdout.readline() == "ready\n", "the command")  # type: ignore[union-attr]
        children = psutil.Process(process.pid).children()
        loops = [child for child in children if READY not in child.cmdline()]
        assert len(loops) == 2
        process.send_signal(how)
        process.wait()
        try:
            wait_for(lambda: not any(loop.is_running() and loop.status() != "zombie" for loop in loops), "their end")
        finally:
            for child in children:
                if child.is_running():
                    child.kill()


def test_durations_are_kept_for_tests_that_still_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tests" / "durations.json"
    file.parent.mkdir()
    (file.parent / "test_here.py").touch()
    monkeypatch.setattr(durations, "FILE", file)
    file.write_text(json.dumps({"tests/test_here.py::test_a": 3.0, "tests/test_gone.py::test_b": 9.0}))
    durations.write({"tests/test_here.py::test_c": 1.24, "tests/test_here.py::test_quick": 0.01})
    assert durations.read() == {"tests/test_here.py::test_a": 3.0, "tests/test_here.py::test_c": 1.2}
    durations.write({"tests/test_here.py::test_a": 0.01})
    assert durations.read() == {"tests/test_here.py::test_c": 1.2}, "it is quick now"


TIMED = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_long(number):
    pass

def test_short():
    pass
"""


def test_what_took_long_is_slow(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(test_timed=TIMED)
    pytester.makeini("[pytest]\nmarkers = slow")
    (pytester.path / "durations.json").write_text(json.dumps({"test_timed.py::test_long": 2 * durations.SLOW}))
    monkeypatch.setattr(durations, "FILE", pytester.path / "durations.json")
    result = pytester.runpytest_inprocess("-p", "support.durations", "-p", "no:cacheprovider", "-m", "not slow")
    result.assert_outcomes(passed=1, deselected=3)
