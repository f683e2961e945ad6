"""One size of `dmtrl-lab bench scale` or `memory`, in its own process.

`python -m dmtrl_lab.bench.scale_run '{"kind": "solve", "m": 1000, ...}'` prints one JSON object. Peak memory is the
maximum resident size minus the resident size after imports and a small problem that compiles everything. It includes
the data.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import dmtrl  # whose estimators are imported when they are used
from dmtrl.data.task_data import TaskData
from dmtrl.engines import LocalOptions
from dmtrl.solver.api import solve
from dmtrl.solver.execution import Execution
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings

GAP = 1e-2
LAMBDAS = {"squared": 0.03, "hinge": 0.01, "logistic": 1e-4}
RANK = 5  # of the true weights
NOISE = 0.5  # the signal has size one
ENTRIES = 60  # of a sparse row
_PIECE = 1 << 12  # rows created at a time


def memory() -> tuple[int, int]:
    """Return the resident bytes now, and their maximum so far."""
    try:  # preferred to getrusage, whose maximum may be that of the parent process
        lines = Path("/proc/self/status").read_text().splitlines()
        sizes = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.startswith("Vm")}
        return sizes["VmRSS"], sizes["VmHWM"]
    except OSError:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return most, most


def make(
    m: int, rows: int, d: int, dtype: str, loss: str, *, mixed: bool = False, thin: bool = False
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return X, y and the task of each row; weights have rank RANK. mixed: random order of tasks. thin: X is sparse."""
    rng, n = np.random.default_rng(0), m * rows
    codes = np.repeat(np.arange(m), rows)
    if mixed:
        rng.shuffle(codes)
    mix, directions = rng.standard_normal((m, RANK)), rng.standard_normal((RANK, d))
    y = np.empty(n, dtype=dtype)
    X: Any = sparse.csr_matrix((n, d), dtype=dtype) if thin else np.empty((n, d), dtype=dtype)
    if thin:
        X.data, X.indices = np.empty(n * ENTRIES, dtype=dtype), np.empty(n * ENTRIES, dtype=np.int32)
        X.indptr = np.arange(0, n * ENTRIES + 1, ENTRIES, dtype=np.int32)
    for start in range(0, n, _PIECE):
        part = slice(start, min(start + _PIECE, n))
        weights = mix[codes[part]] / np.sqrt(RANK)
        signal = _thin_rows(X, part, weights, directions, rng) if thin else _rows(X, part, weights, directions, rng)
        signal += NOISE * rng.standard_normal(len(signal))
        y[part] = signal if loss == "squared" else np.where(signal > 0, 1.0, -1.0)
    return X, y, codes


def _rows(X: np.ndarray, part: slice, mix: np.ndarray, directions: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    rng.standard_normal(out=X[part], dtype=X.dtype)
    return np.einsum("ij,ij->i", X[part] @ directions.T, mix) / np.sqrt(X.shape[1])


def _thin_rows(X: Any, part: slice, mix: np.ndarray, directions: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Fill sparse rows with one entry in each of ENTRIES ranges of columns, in order; their length is about one."""
    count, d = part.stop - part.start, X.shape[1]
    width = d // ENTRIES
    columns = np.arange(0, ENTRIES * width, width) + rng.integers(width, size=(count, ENTRIES))
    values = rng.standard_normal((count, ENTRIES)) / np.sqrt(ENTRIES)
    entries = slice(part.start * ENTRIES, part.stop * ENTRIES)
    X.data[entries], X.indices[entries] = values.ravel(), columns.ravel()
    seen = np.stack([np.einsum("ij,ij->i", values, direction[columns]) for direction in directions], axis=1)
    return np.asarray((seen * mix).sum(axis=1))


def size(X: Any, *more: np.ndarray) -> int:
    """Return the bytes of the data."""
    parts = [X.data, X.indices, X.indptr] if sparse.issparse(X) else [X]
    return sum(int(part.nbytes) for part in (*parts, *more))


def run(
    kind: str, m: int, rows: int, d: int, dtype: str, loss: str = "squared", thin: bool = False, **_: Any
) -> dict[str, Any]:
    """Run `dmtrl.solve` on rows sorted by task; the kind "fit" is the default estimator on rows in random order."""

    def once(m: int, rows: int) -> dict[str, Any]:
        began = time.perf_counter()
        X, y, tasks = make(m, rows, d, dtype, loss, mixed=kind == "fit", thin=thin)
        if kind == "fit":
            estimator = dmtrl.MTRLRegressor if loss == "squared" else dmtrl.MTRLClassifier
            made = time.perf_counter()
            model = estimator(loss=loss, reg_lambda=LAMBDAS[loss], tol=GAP, n_jobs=-1).fit(X, y, tasks=tasks)
            return {
                "seconds": {"fit": time.perf_counter() - made},
                "data": size(X, y, tasks),
                "weights": 8 * model.coef_.size,
                "rounds": model.n_rounds_,
                "gap": model.certificate_.relative_gap,
            }
        data = TaskData(X, y, None, np.arange(m + 1) * rows, np.arange(m))
        outcome = solve(
            Problem.of(data, loss=loss, reg_lambda=LAMBDAS[loss]),
            Execution(LocalOptions(n_jobs=-1), settings=Settings(tol=GAP)),
        )
        return {
            "seconds": time.perf_counter() - began,
            "data": size(X, y),
            "weights": outcome.W.nbytes,
            "rounds": len(outcome.history),
            "gap": outcome.certificate.relative_gap,
            "round": float(np.mean([record.seconds for record in outcome.history])),
        }

    once(3, min(rows, 50))
    before = memory()[0]
    figures = once(m, rows)
    return {**figures, "peak": memory()[1] - before}


if __name__ == "__main__":
    print(json.dumps(run(**json.loads(sys.argv[1]))))
