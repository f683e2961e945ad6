"""Centralised MTRL: Zhang and Yeung's alternation on the full multi-task kernel matrix, on one machine.

The Gram matrix of all rows (n x n) is computed once; the multi-task kernel multiplies it by Sigma[task of row, task of
column].
"""

import os
import time
import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve

from dmtrl.data.task_data import TaskData
from dmtrl.exceptions import NotConvergedWarning
from dmtrl.losses import Loss, scalar
from dmtrl.solver.outcome import Watch
from dmtrl.worker import kernels
from dmtrl_lab.baselines import compiled
from dmtrl_lab.baselines.alternating import Fitted, Problem, Schedule, WStep, alternate

_GIB = 2.0**30
_BLOCK = 1024  # rows of the Gram matrix at a time
_ACTIVE_SHARE = 0.25  # of all rows: up to here, rows that moved get extra passes
_INNER_PASSES = 50  # at most, over the rows that moved


class NotEnoughMemoryError(MemoryError):
    """The kernel matrix does not fit into memory. Nothing was allocated."""


def centralised_mtrl(
    data: TaskData,
    loss: str | Loss,
    reg_lambda: float,
    *,
    omega_steps: int = 10,
    w_tol: float = 1e-4,
    max_passes: int = 10_000,
    smoothing: float = 1e-7,
    relationship: Any = "learned",
    seed: int = 0,
    memory_limit: float | None = None,
    watch: Watch | None = None,
) -> Fitted:
    """Multi-task relationship learning on the n x n kernel matrix of the rows of all tasks.

    The W-step is solved in the dual: for squared loss by one linear system of size n (Cholesky), for the other
    built-in losses by coordinate ascent in shuffled order until the relative W-step gap is at most `w_tol`. After
    each W-step Sigma is updated from W, smoothed as in `Settings`. If `relationship` is a covariance, only W is
    learned. Raises NotEnoughMemoryError if the matrix exceeds `memory_limit` bytes (default: the available memory).
    `watch(record, W)` is called after every improvement of W.
    """
    began = time.perf_counter()
    if not w_tol > 0:
        raise ValueError(f"w_tol must be positive, got {w_tol!r}")
    problem = Problem(data, loss, reg_lambda, relationship)
    direct = problem.loss.id == scalar.SQUARED
    schedule = Schedule(omega_steps, 1 if direct else max_passes, w_tol, smoothing)
    # float32 saves memory; the gap of coordinate ascent is computed from X in float64, so its rounding does no harm
    dtype = np.float64 if direct else np.float32
    matrices = 2 if direct else 1 + _ACTIVE_SHARE**2  # the factor, or the part of the rows that move
    _check_memory(np.dtype(dtype).itemsize * matrices * len(data.y) ** 2, len(data.y), memory_limit)
    gram = gram_matrix(data.X, dtype)
    improve: WStep = partial(_solve_system, gram) if direct else partial(_ascend, gram, seed)
    fitted = alternate(problem, "kernel cholesky" if direct else "kernel ascent", improve, schedule, watch, began)
    ends = [record for record in fitted.history if record.omega] or fitted.history[-1:]
    worst = max(record.w_gap for record in ends)
    if worst > w_tol:
        warnings.warn(
            f"a W-step stopped after {schedule.passes} passes at a relative gap of {worst:.2g} "
            f"(w_tol={w_tol:g}); raise max_passes or w_tol, or choose a stronger lambda",
            NotConvergedWarning,
            stacklevel=2,
        )
    return fitted


def gram_matrix(X: Any, dtype: type) -> np.ndarray:
    """Return X X^T, computed in blocks of rows to save memory."""
    n = X.shape[0]
    X = X.astype(dtype, copy=False)
    gram = np.empty((n, n), dtype=dtype)
    for first in range(0, n, _BLOCK):
        rows = slice(first, first + _BLOCK)
        if sparse.issparse(X):
            (X[rows] @ X.T).toarray(out=gram[rows])
        else:
            np.matmul(X[rows], X.T, out=gram[rows])
    return gram


def available_memory() -> float | None:
    """Return the bytes that can be allocated without swapping, or None if unknown."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(float(line.split()[1]) * 1024)
    except OSError:
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            found.append(float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE"))
    group = Path("/sys/fs/cgroup")  # meminfo does not include a container's limit
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        if limit != "max":
            found.append(float(limit) - float((group / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def _check_memory(needed: float, n: int, memory_limit: float | None) -> None:
    available = available_memory() if memory_limit is None else float(memory_limit)
    if available is not None and needed > available:
        raise NotEnoughMemoryError(
            f"centralised MTRL on {n:,} rows needs {needed / _GIB:.2f} GiB for its kernel matrix, but only "
            f"{available / _GIB:.2f} GiB are available; use dmtrl.solve or ssdca, which need no such matrix, or fewer "
            "rows"
        )


def _ascend(gram: np.ndarray, seed: int, problem: Problem, number: int) -> float:
    """A pass over all rows, then passes over the rows that moved, on their part of the Gram matrix."""
    units, n = problem.units, len(problem.alpha)
    z = np.empty(n)
    compiled.predictions(units, np.ascontiguousarray(problem.W), z)

    def one_pass(units: kernels.UnitRows, alpha: np.ndarray, z: np.ndarray, gram: np.ndarray, inner: int) -> np.ndarray:
        order = np.arange(len(alpha))
        task = np.repeat(np.arange(problem.data.m), np.diff(units.starts))
        moved = compiled.gram_pass(units, task, alpha, z, gram, problem.sigma, order, seed, number, inner)
        return np.sort(order[:moved])

    active = one_pass(units, problem.alpha, z, gram, 0)
    if len(active) > _ACTIVE_SHARE * n:  # most rows still move
        return 1.0
    few = units._replace(
        y=units.y[active], p=units.p[active], q=units.q[active], starts=np.searchsorted(active, units.starts)
    )
    alpha, z, gram = problem.alpha[active], z[active], gram[np.ix_(active, active)]
    done = 0
    while done < _INNER_PASSES and len(active) > 0:
        done += 1
        if len(one_pass(few, alpha, z, gram, done)) == 0:
            break
    problem.alpha[active] = alpha
    return 1.0 + done * len(active) / n


def _solve_system(gram: np.ndarray, problem: Problem, number: int) -> float:
    """Squared loss: (I + P^1/2 K P^1/2 / lambda) P^1/2 alpha = P^1/2 y with K = Sigma times Gram, entry by entry."""
    root = np.sqrt(problem.units.p)
    system = np.empty_like(gram)
    for i, (first, last) in enumerate(pairwise(problem.data.starts)):
        rows = slice(first, last)
        np.multiply(gram[rows], problem.sigma[i][problem.task] * root, out=system[rows])
        system[rows] *= root[rows, None]
    system.ravel()[:: len(system) + 1] += 1.0
    # LAPACK factors the transposed view without a copy
    solved = cho_solve(cho_factor(system.T, overwrite_a=True, check_finite=False), root * problem.units.y)
    problem.alpha[:] = np.divide(solved, root, out=np.zeros_like(root), where=root > 0)
    return 1.0
