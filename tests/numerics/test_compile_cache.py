"""What is compiled, when, how often, and with which bits; stale machine code is removed wherever numba keeps it."""

import importlib
import os
import pkgutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

import dmtrl
from dmtrl.numerics.compile_cache import _SharedCache, discard_stale


def compiled_functions() -> set[Any]:
    names = [module.name for module in pkgutil.walk_packages(dmtrl.__path__, "dmtrl.") if ".flare" not in module.name]
    return {
        value
        for name in names
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, Dispatcher) and value.py_func.__module__.startswith("dmtrl.")
    }


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
from dmtrl import Problem, TaskData, solve
X, tasks = np.random.default_rng(0).standard_normal((150, 12)), np.repeat(np.arange(6), 25)
for loss in sys.argv[1:]:
    data = TaskData.from_long(X, np.sign(X.sum(axis=1)), tasks)
    W = solve(Problem.of(data, loss=loss, reg_lambda=0.01)).W
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


_SAVING = """
import sys, time
from pathlib import Path
from numba.core.caching import IndexDataCacheFile
from dmtrl.numerics import compile_cache

folder, first = Path(sys.argv[1]), sys.argv[2] == "first"
save_index, save = IndexDataCacheFile._save_index, compile_cache._SharedCache.save_overload

def wait_for(fact):
    while not (folder / fact).exists():
        time.sleep(0.01)

def wait_in_the_middle(file, overloads):
    (folder / "first has read the index").touch()
    wait_for("second saves")
    save_index(file, overloads)

def announce(cache, sig, data):
    (folder / "second has compiled").touch()
    wait_for("first has read the index")
    (folder / "second saves").touch()
    save(cache, sig, data)

sys.path.insert(0, str(folder))
from shared import double
if first:
    IndexDataCacheFile._save_index = wait_in_the_middle
    wait_for("second has compiled")
    double(1)
else:
    compile_cache._SharedCache.save_overload = announce
    double(1.5)
"""
_LOADING = """
import sys
sys.path.insert(0, sys.argv[1])
from shared import double
assert (double(1), double(1.5)) == (2, 3.0)
print(sum(double.stats.cache_hits.values()))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fcntl")
@pytest.mark.subprocess
def test_processes_that_save_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """The second one saves another kind of the same function after the first one has read the index."""
    (tmp_path / "shared.py").write_text(
        "from dmtrl.numerics.compile_cache import KERNEL, njit\n\n@njit(**KERNEL)\ndef double(x):\n    return x + x\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    run = partial(subprocess.run, env=environment, capture_output=True, text=True, check=True, timeout=600)
    with ThreadPoolExecutor(2) as pool:
        commands = [[sys.executable, "-c", _SAVING, str(tmp_path), which] for which in ("first", "second")]
        list(pool.map(run, commands))
    assert run([sys.executable, "-c", _LOADING, str(tmp_path)]).stdout.split() == ["2"]


def test_functions_of_dmtrl_use_the_shared_cache() -> None:
    """Those that keep a cache; others keep none."""
    caches = {type(function._cache) for function in compiled_functions()}
    assert caches == {NullCache, _SharedCache}


def test_every_compiled_function_has_its_own_flags() -> None:
    """Else its bits would depend on which caller was compiled first."""
    found = compiled_functions()
    assert len(found) > 60
    assert [f.py_func.__name__ for f in found if not {"fastmath", "error_model"} <= f.targetoptions.keys()] == []
