"""Start-up, in fresh processes: imports, first fits with compiled kernels on disk, and first fits that compile.

A cold first fit begins with an empty cache of numba. The kinds of rows follow each other on the same cache, so each
figure is what that kind adds.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dmtrl.report.content import Item, Table, Text
from dmtrl_lab.experiments.experiment import Experiment, Figures, Records, Run, machines

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
    if what == "import":
        return {"seconds": _repeated({name: _IMPORT.format(statement=one) for name, one in IMPORTS.items()}, quick, 5)}
    return _first_fits(quick) if what == "first fit" else _cold_fits(KINDS)


def _run_fresh(code: str, **environment: str) -> str:
    """Return what a new process prints. BLAS there has one thread, because starting more would add noise."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"a fresh process exited with code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _fits(estimator: str, X: str = "X", clock: str = "process_time") -> str:
    return _FITS.format(estimator=estimator, X=X, y=FIRST_FITS[estimator], clock=clock)


def _first_fits(quick: bool) -> Figures:
    found = _repeated({name: _fits(name) for name in list(FIRST_FITS)[: 1 if quick else None]}, quick, 3)
    return {
        "first": {name: [seconds[0] for seconds in each] for name, each in found.items()},
        "second": {name: [min(seconds[1:]) for seconds in each] for name, each in found.items()},
    }


def _repeated(codes: Mapping[str, str], quick: bool, repeats: int) -> dict[str, list[Any]]:
    """Return what each program prints in several runs, in turn, after one that fills the caches of files and numba."""
    found: dict[str, list[Any]] = {name: [] for name in codes}
    for _ in range(1 if quick else 1 + repeats):
        for name, code in codes.items():
            found[name].append(json.loads(_run_fresh(code)))
    return {name: values if quick else values[1:] for name, values in found.items()}


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
        rows.append([f"import of {BASE}", *_difference(seconds[BASE], [0.0]), ""])
        for name in list(IMPORTS)[1:]:
            rows.append([f"{name}, over that", *_difference(seconds[name], seconds[BASE]), TARGETS["import"]])
    fits = by_what.get("first fit", {"first": {}})
    for name, first in fits["first"].items():
        times = _difference(first, fits["second"][name])
        rows.append([f"first fit of {name}, over the second", *times, TARGETS["first fit"]])
    for number, (kind, one) in enumerate(by_what.get("cold", {}).items()):
        start = f"cold first fit, {kind}" + (", after the ones above" if number else "")
        rows.append([start, f"{one['first']:.1f} s", "one run", TARGETS["further" if number else "cold"]])
    return rows


def _difference(seconds: Sequence[float], base: Sequence[float]) -> tuple[str, str]:
    """Return the difference of medians, and the range of differences."""
    each = np.array(seconds) - base
    return f"{np.median(seconds) - np.median(base):.2f} s", f"{each.min():.2f} to {each.max():.2f}"


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
