"""dmtrl is a guest in the process: importing and using it changes nothing for other libraries."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

fcntl = pytest.importorskip("fcntl")
pytestmark = pytest.mark.subprocess

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]
PROGRAM = Path(__file__).parents[1] / "support" / "guest.py"
UNRELATED = """
from numba import njit

@njit
def plain(x):
    return x + 1

@njit(cache=True)
def cached(x):
    return x + 2
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the program prints. While it compiles functions of its own, this process holds all locks of dmtrl."""
    folder = tmp_path_factory.mktemp("guest")
    (folder / "unrelated.py").write_text(UNRELATED)
    threads = {f"{library}_NUM_THREADS": "2" for library in ("OPENBLAS", "MKL", "OMP")}
    environment = {**os.environ, **threads, "NUMBA_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(PROGRAM), str(folder)]
    with subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, stderr=-1, text=True) as program:
        assert program.stdout is not None
        begun = program.stdout.readline()
        held = [path.open("w") for path in (folder / "cache").rglob("dmtrl.lock")]
        for lock in held:
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            out, errors = program.communicate("go\n", timeout=600)
        except subprocess.TimeoutExpired:
            program.kill()
            raise
        finally:
            for lock in held:
                lock.close()
    assert begun == "ready\n", errors
    assert held, "no lock was there to be held"
    return json.loads(out)


def test_unrelated_functions_are_compiled_while_another_process_holds_the_locks(seen: Any) -> None:
    assert seen["answers"] == [2, 3, 3.5]
    assert seen["misses"] == 2, "the cached function was not compiled"


def test_unrelated_functions_touch_no_lock(seen: Any) -> None:
    assert seen["after"] == 0
    assert seen["of_fit"] > 0, "locks are not seen"


@pytest.mark.parametrize("after", ["import", "fit", "failing fit", "page and plot"])
def test_nothing_is_left_behind(after: str, seen: Any) -> None:
    before, now = seen["states"]["before"], seen["states"][after]
    assert [fact for fact in before if now[fact] != before[fact]] == []


def test_no_listener_is_registered(seen: Any) -> None:
    assert seen["states"]["failing fit"]["listeners"] == {}


def test_blas_has_one_thread_during_a_fit(seen: Any) -> None:
    before = seen["states"]["before"]["blas"]
    if not any(threads > 1 for _, threads in before):
        pytest.skip("BLAS has one thread, or a number that cannot be set")
    assert seen["inside"]
    assert all(threads == 1 for now in seen["inside"] for _, threads in now)
