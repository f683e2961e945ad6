"""Start-up, in fresh processes: imports, first fits with compiled kernels on disk, and first fits that compile.

A cold first fit begins with an empty cache of numba. The kinds of rows follow each other on the same cache, so each
figure is what that kind adds.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping

import numpy as np

from dmtrl.lab.experiments.experiment import Experiment, Figures, Records, Run, machines
from dmtrl.report.content import Item, Table, Text

PEERS = "import numpy, scipy, sklearn"
BASE = "numpy, scipy, scikit-learn"
IMPORTS = {
    BASE: PEERS,
    "import dmtrl": f"{PEERS}, dmtrl",
    "from dmtrl import MTRLRegressor": f"{PEERS}; from dmtrl import MTRLRegressor",
}
FIRST_FITS = {"MTRLRegressor": "y", "MTRLClassifier": "np.sign(y)"}
KINDS = {  # of rows, in the order of the cold fits
    "dense float64": "X",
    "dense float32": "X.astype(np.float32)",
    "CSR float64": "sparse.csr_matrix(X)",
    "CSR float32": "sparse.csr_matrix(X.astype(np.float32))",
}
TARGETS = {"import": "under 0.5 s", "first fit": "under 1 s", "cold": "at most 10 s", "further": "at most 5 s"}
_IMPORT = """
import time
began = time.process_time()
{statement}
print(time.process_time() - began)
"""
_FITS = """
import json, time
import numpy as np
from scipy import sparse
from dmtrl import {estimator}
rng = np.random.default_rng(0)
X, tasks = rng.standard_normal((2000, 20)), np.arange(2000) % 20
y = X @ rng.standard_normal(20) + rng.standard_normal(2000)
X, y = {X}, {y}
seconds = []
for _ in range(3):
    began = time.{clock}()
    {estimator}(reg_lambda=0.01).fit(X, y, tasks=tasks)
    seconds.append(time.{clock}() - began)
print(json.dumps(seconds))
"""


def runs(quick: bool) -> list[Run]:
    seconds = {"import": 30, "first fit": 20, "cold": 90}
    return [Run({"what": what, "quick": quick}, 4 if quick else seconds[what]) for what in list(seconds)[: 3 - quick]]


def measure(what: str, quick: bool) -> Figures:
    if what == "cold":
        return _cold_fits(KINDS)
    return _imports(quick) if what == "import" else _first_fits(quick)


def _run_fresh(code: str, **environment: str) -> str:
    """Return what a new process prints. BLAS there has one thread, because starting more would add noise."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"a fresh process exited with code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _fits(estimator: str, X: str = "X", clock: str = "process_time") -> str:
    return _FITS.format(estimator=estimator, X=X, y=FIRST_FITS[estimator], clock=clock)


def _imports(quick: bool) -> Figures:
    codes = {name: _IMPORT.format(statement=statement) for name, statement in IMPORTS.items()}
    for code in () if quick else codes.values():  # fills the file cache
        _run_fresh(code)
    seconds: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(1 if quick else 5):
        for name, code in codes.items():
            seconds[name].append(float(_run_fresh(code)))
    return {"seconds": seconds}


def _first_fits(quick: bool) -> Figures:
    names = list(FIRST_FITS)[: 1 if quick else None]
    for name in () if quick else names:  # fills numba's cache
        _run_fresh(_fits(name))
    first: dict[str, list[float]] = {name: [] for name in names}
    second: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(1 if quick else 3):
        for name in names:
            seconds = json.loads(_run_fresh(_fits(name)))
            first[name].append(seconds[0])
            second[name].append(min(seconds[1:]))
    return {"first": first, "second": second}


def _cold_fits(kinds: Mapping[str, str]) -> Figures:
    """Return the wall seconds of first fits, and of second ones. The estimator is MTRLClassifier."""
    figures = {}
    with tempfile.TemporaryDirectory() as cache:
        for kind, X in kinds.items():
            code = _fits("MTRLClassifier", X, "perf_counter")
            seconds = json.loads(_run_fresh(code, NUMBA_CACHE_DIR=cache))
            figures[kind] = {"first": seconds[0], "second": min(seconds[1:])}
    return figures


def table_rows(records: Records) -> list[list[str]]:
    rows = []
    by_what = {record.params["what"]: record.figures for record in records}
    if "import" in by_what:
        seconds = by_what["import"]["seconds"]
        base = np.array(seconds[BASE])
        rows.append([f"import of {BASE}", f"{np.median(base):.2f} s", _spread(base), ""])
        for name in list(IMPORTS)[1:]:
            over = np.array(seconds[name]) - base
            middle = np.median(seconds[name]) - np.median(base)
            rows.append([f"{name}, over that", f"{middle:.2f} s", _spread(over), TARGETS["import"]])
    for name in by_what.get("first fit", {}).get("first", {}):
        first, second = (np.array(by_what["first fit"][which][name]) for which in ("first", "second"))
        middle = np.median(first) - np.median(second)
        rows.append(
            [f"first fit of {name}, over the second", f"{middle:.2f} s", _spread(first - second), TARGETS["first fit"]]
        )
    for number, (kind, one) in enumerate(by_what.get("cold", {}).items()):
        start = f"cold first fit, {kind}" + (", after the ones above" if number else "")
        rows.append([start, f"{one['first']:.1f} s", "one run", TARGETS["further" if number else "cold"]])
    return rows


def _spread(values: np.ndarray) -> str:
    return f"{values.min():.2f} to {values.max():.2f}"


def items(records: Records) -> list[Item]:
    return [
        Text(f"Imports and first fits in fresh processes. Machine: {machines(records)}."),
        Table(
            "Start-up",
            ["measurement", "median", "range", "target"],
            table_rows(records),
            "Processor seconds of imports and of first fits that load compiled kernels from numba's cache on disk; "
            "wall seconds of cold first fits, which compile them, as the first fit in a new environment does.",
        ),
    ]


STARTUP = Experiment("bench startup", "Start-up", runs, measure, items, {"imports": IMPORTS, "kinds": KINDS})
