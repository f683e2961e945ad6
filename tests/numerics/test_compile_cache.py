"""What is compiled, when, how often, and with which bits; stale machine code is removed wherever numba keeps it."""

import importlib
import os
import pkgutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

import dmtrl
from dmtrl.numerics.compile_cache import discard_stale


def test_only_stale_machine_code_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "elsewhere"))
    source, inlined = tmp_path / "worker" / "kernels.py", tmp_path / "scalar.py"
    folders = [tmp_path / "worker" / "__pycache__", tmp_path / "elsewhere" / "worker_0123"]
    for folder in folders:
        folder.mkdir(parents=True)
        for name, changed in (("kernels.f-1.py311.nbi", 1), ("kernels.g-2.py311.1.nbc", 3), ("other.f-1.py311.nbi", 1)):
            (folder / name).touch()
            os.utime(folder / name, (changed, changed))
    inlined.touch()
    os.utime(inlined, (2, 2))
    discard_stale(str(source), str(inlined))
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {"kernels.g-2.py311.1.nbc", "other.f-1.py311.nbi"}


_FITS = """
import sys
import numpy as np
from dmtrl import TaskData, solve
X, tasks = np.random.default_rng(0).standard_normal((150, 12)), np.repeat(np.arange(6), 25)
for loss in sys.argv[1:]:
    W = solve(TaskData.from_long(X, np.sign(X.sum(axis=1)), tasks), loss=loss, reg_lambda=0.01).W
print(W.tobytes().hex())
"""


@pytest.mark.subprocess
def test_messages_and_bits_of_compiled_kernels(tmp_path: Path) -> None:
    """A process says once that it compiles, and the next is silent. The bits do not depend on what was compiled before:
    numba compiles a function with the flags of its first caller unless it has its own."""
    bits, said = [], []
    for cache, losses in (("both", ["logistic", "hinge"]), ("both", ["hinge"]), ("one", ["hinge"])):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / cache)}
        command = [sys.executable, "-c", _FITS, *losses]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        bits.append(done.stdout)
        said.append(done.stderr.count("compiling for this kind of rows"))
    assert bits[0] == bits[1] == bits[2]
    assert said == [1, 0, 1]


_FIT = """
import numpy as np
from dmtrl import MTRLRegressor
X, tasks = np.random.default_rng(0).standard_normal((40, 3)), np.repeat([0, 1], 20)
MTRLRegressor().fit(X, X.sum(axis=1), tasks=tasks)
"""
_COMPILED = """
from numba.core import event
with event.install_recorder("numba:compile") as recorder:
    exec(open(0).read())
for _, compilation in recorder.buffer:
    dispatcher = compilation.data["dispatcher"]
    if compilation.is_start and dispatcher.targetoptions.get("nogil"):
        print(dispatcher.py_func.__name__, compilation.data["args"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fcntl")
@pytest.mark.subprocess
def test_processes_that_start_together_compile_a_kernel_once(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", _COMPILED]
    run = partial(subprocess.run, command, env=environment, input=_FIT, capture_output=True, text=True, check=True)
    with ThreadPoolExecutor(2) as pool:
        done = [future.result() for future in [pool.submit(run) for _ in range(2)]]
    compiled = [line for process in done for line in process.stdout.splitlines()]
    assert len(compiled) == len(set(compiled)) > 1


_LOCKED = """
import fcntl, os, sys, tempfile
from numba import jit, njit
from numba.core import event
import dmtrl.numerics.compile_cache

class Watch(event.Listener):
    def on_start(self, compilation):
        [lock] = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("dmtrl-compile")]
        with open(os.path.join(tempfile.gettempdir(), lock)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                print("free")
            except BlockingIOError:
                print("locked")

    def on_end(self, compilation):
        pass

event.register("numba:compile", Watch())

@njit
def inner(x):
    return x + 1

@njit(cache=True)
def with_cache(x):
    return inner(x)

@njit
def without_cache(x):
    return x + 2

@njit
def later(x):
    return x + 3

@njit
def mixed(x):
    return later(with_cache(x))

@jit(forceobj=True, looplift=True)
def lifted(n):
    total = 0
    for i in range(n):
        total += i
    return str(total)

with_cache(1), without_cache(1), mixed(1.0), lifted(10)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fcntl")
@pytest.mark.subprocess
def test_only_functions_with_a_cache_are_compiled_one_at_a_time(tmp_path: Path) -> None:
    """A function with a cache, an inner one that is compiled for it, one without a cache; another one without a cache,
    the one with a cache that it calls, the inner one of that, and one without a cache; a lifted loop."""
    (tmp_path / "watched.py").write_text(_LOCKED)
    command = [sys.executable, str(tmp_path / "watched.py")]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["locked", "locked", "free", "free", "locked", "locked", "free", "free", "free"]


_INTERRUPTED = """
import fcntl, os, signal, sys, tempfile
from numba import njit
import dmtrl.numerics.compile_cache as compile_cache

@njit(cache=True)
def with_cache(x):
    return x + 1

@njit
def without_cache(x):
    return x + 2

def interrupt(*_):
    raise KeyboardInterrupt

lock = open(compile_cache._one_at_a_time._name, "w")
fcntl.flock(lock, fcntl.LOCK_EX)
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    with_cache(1)
except KeyboardInterrupt:
    print("interrupted")
fcntl.flock(lock, fcntl.LOCK_UN)
without_cache(1), with_cache(1.0)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("free", compile_cache._one_at_a_time._depth)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fcntl")
@pytest.mark.subprocess
def test_an_interrupt_while_another_process_compiles_leaves_no_lock(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(_INTERRUPTED)
    command = [sys.executable, str(tmp_path / "interrupted.py")]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["interrupted", "free", "0"]


def test_every_compiled_function_has_its_own_flags() -> None:
    """Else its bits would depend on which caller was compiled first."""
    names = [module.name for module in pkgutil.walk_packages(dmtrl.__path__, "dmtrl.") if ".flare" not in module.name]
    found = {
        value
        for name in names
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, Dispatcher) and value.py_func.__module__.startswith("dmtrl.")
    }
    assert len(found) > 60
    assert [f.py_func.__name__ for f in found if not {"fastmath", "error_model"} <= f.targetoptions.keys()] == []
