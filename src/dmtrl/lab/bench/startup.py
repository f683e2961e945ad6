"""Start-up: the cost of an import, of the first fit over the second, and the speed-up from a second thread.

Imports and first fits run in fresh processes, interleaved with what they are compared with. Compiled kernels are in
numba's cache on disk.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dmtrl.lab.bench.tasks import low_rank_tasks
from dmtrl.lab.bench.timing import interleaved, ratio
from dmtrl.lab.experiments.records import Record
from dmtrl.lab.experiments.runner import Experiment, Run
from dmtrl.report.content import Section, Table, Text
from dmtrl.solver.api import solve
from dmtrl.solver.settings import Settings

PEERS = "import numpy, scipy, sklearn"
IMPORTS = {
    "numpy, scipy, scikit-learn": PEERS,
    "import dmtrl": f"{PEERS}, dmtrl",
    "from dmtrl import MTRLRegressor": f"{PEERS}; from dmtrl import MTRLRegressor",
}
TARGETS = {"import": "under 0.5", "first fit": "under 1", "threads": "at least 1.7"}
_IMPORT = """
import time
began = time.process_time()
{statement}
print(time.process_time() - began)
"""
_FITS = """
import json, time
import numpy as np
from dmtrl import {estimator}
rng = np.random.default_rng(0)
X, tasks = rng.standard_normal((2000, 20)), np.arange(2000) % 20
y = X @ rng.standard_normal(20) + rng.standard_normal(2000)
y = np.sign(y) if {classes} else y
seconds = []
for _ in range(3):
    began = time.process_time()
    {estimator}(reg_lambda=0.01).fit(X, y, tasks=tasks)
    seconds.append(time.process_time() - began)
print(json.dumps(seconds))
"""


def runs(quick: bool) -> list[Run]:
    seconds = {"import": 30, "first fit": 20, "threads": 40}
    quickly = {"import": 5, "first fit": 3, "threads": 1}
    return [Run({"what": what, "quick": quick}, (quickly if quick else seconds)[what]) for what in seconds]


def measure(what: str, quick: bool) -> Mapping[str, Any]:
    return {"import": _imports, "first fit": _first_fits, "threads": _threads}[what](quick)


def _run_fresh(code: str) -> str:
    """Return what a new process prints. BLAS there has one thread, because starting more would add noise."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"a fresh process exited with code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _imports(quick: bool) -> Mapping[str, Any]:
    codes = {name: _IMPORT.format(statement=statement) for name, statement in IMPORTS.items()}
    for code in () if quick else codes.values():  # fills the file cache
        _run_fresh(code)
    seconds: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(1 if quick else 5):
        for name, code in codes.items():
            seconds[name].append(float(_run_fresh(code)))
    return {"seconds": seconds}


def _first_fits(quick: bool) -> Mapping[str, Any]:
    names = {"MTRLRegressor": False} if quick else {"MTRLRegressor": False, "MTRLClassifier": True}
    codes = {name: _FITS.format(estimator=name, classes=classes) for name, classes in names.items()}
    for code in () if quick else codes.values():  # fills numba's cache
        _run_fresh(code)
    first: dict[str, list[float]] = {name: [] for name in codes}
    second: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(1 if quick else 3):
        for name, code in codes.items():
            seconds = json.loads(_run_fresh(code))
            first[name].append(seconds[0])
            second[name].append(min(seconds[1:]))
    return {"first": first, "second": second}


def _threads(quick: bool) -> Mapping[str, Any]:
    """The same partition on one thread and on two: the same work, so the same bits."""
    figures: dict[str, Any] = {}
    for loss in ("hinge", "logistic"):
        data = low_rank_tasks(16, 100, rows=300 if quick else 12_000)
        fit = partial(
            solve, data, loss=loss, reg_lambda=1e-4, workers=8, settings=Settings(tol=1e-2 if quick else 1e-3)
        )
        timed = interleaved(
            {"one": partial(fit, n_jobs=1), "two": partial(fit, n_jobs=2)}, repeats=2 if quick else 7, warm_up=True
        )
        same = bool(np.array_equal(timed.results["one"].W, timed.results["two"].W))
        figures[loss] = {**timed.seconds, "same": same, "cores": os.cpu_count()}
    return figures


def table_rows(records: Sequence[Record]) -> list[list[str]]:
    rows = []
    by_what = {record.params["what"]: record.figures for record in records}
    if "import" in by_what:
        seconds = by_what["import"]["seconds"]
        base = np.array(seconds["numpy, scipy, scikit-learn"])
        rows.append(["import of numpy, scipy and scikit-learn", f"{np.median(base):.2f} s", _spread(base), ""])
        for name in list(IMPORTS)[1:]:
            over = np.array(seconds[name]) - base
            middle = np.median(seconds[name]) - np.median(base)
            rows.append([f"{name}, over that", f"{middle:.2f} s", _spread(over), f"{TARGETS['import']} s"])
    for name in by_what.get("first fit", {}).get("first", {}):
        first, second = (np.array(by_what["first fit"][which][name]) for which in ("first", "second"))
        middle = np.median(first) - np.median(second)
        target = f"{TARGETS['first fit']} s"
        rows.append([f"first fit of {name}, over the second", f"{middle:.2f} s", _spread(first - second), target])
    for loss, figures in by_what.get("threads", {}).items():
        times, low, high = ratio(figures["one"], figures["two"])
        same = "same bits" if figures["same"] else "DIFFERENT BITS"
        spread = f"{low:.2f} to {high:.2f}, {same}"
        rows.append([f"two threads against one, {loss} loss", f"{times:.2f} times", spread, TARGETS["threads"]])
    return rows


def _spread(values: np.ndarray) -> str:
    return f"{values.min():.2f} to {values.max():.2f}"


def section(records: Sequence[Record]) -> Section:
    return Section(
        "Start-up",
        [
            Text("Imports and first fits in fresh processes, in processor seconds; threads in wall time."),
            Table(
                "Start-up and threads",
                ["measurement", "median", "range", "target"],
                table_rows(records),
                "A first fit loads compiled kernels from numba's cache on disk; the very first on a machine compiles "
                "them. Threads: 16 tasks of 12,000 rows (quick: 300) on 8 workers. On a busy machine, or with a single "
                "core, a second thread brings no speed-up.",
            ),
        ],
    )


STARTUP = Experiment("bench startup", runs, measure, section, {"imports": IMPORTS})
