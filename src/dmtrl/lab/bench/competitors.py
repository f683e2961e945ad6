"""Solvers of one linear task: dmtrl, LIBLINEAR and Snap ML through their public interfaces, and their fastest options.

The search tightens a solver's tolerance until it is close enough to the optimum, then looks for the smallest sufficient
number of iterations. So no solver is charged for iterations that the quality does not need.
"""

import ctypes
import ctypes.util
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from dmtrl.data.task_data import TaskData
from dmtrl.lab.bench.optimum import Optimum, Task
from dmtrl.lab.experiments.early_stop import may_stop_early
from dmtrl.solver.api import solve
from dmtrl.solver.settings import Settings

DMTRL, CERTIFIED, LIBLINEAR, SNAPML = "dmtrl", "dmtrl, certified", "LIBLINEAR", "Snap ML"
TOLERANCES = tuple(float(f"{t:.0e}") for t in np.geomspace(1.0, 1e-7, 15))
MANY = 20000
REFINEMENTS = 4


@dataclass(frozen=True)
class Options:
    """Options of a competitor: its solver, tolerance and maximum number of iterations."""

    solver: str
    tol: float
    iterations: int = MANY


@dataclass(frozen=True)
class Fit:
    w: np.ndarray
    iterations: int
    passes: float = float("nan")  # over the rows, if known


@dataclass(frozen=True)
class Result:
    """The fastest options that reached a quality, the relative suboptimality they reached, and the fit.

    If none reached it, `options` is None and the rest describes the closest attempt.
    """

    options: Options | None
    reached: float
    fit: Fit | None = None
    seconds: float = float("inf")


Solver = Callable[[Task, Options], Fit]


def dmtrl_fit(task: Task, options: Options) -> Fit:
    with may_stop_early():
        outcome = solve(
            TaskData.from_long(task.X, task.y),
            loss=task.loss,
            reg_lambda=task.lam,
            relationship="independent",
            settings=Settings(tol=options.tol, max_rounds=min(options.iterations, 1000)),
        )
    return Fit(outcome.W[0], len(outcome.history), sum(record.passes for record in outcome.history))


def liblinear_fit(task: Task, options: Options) -> Fit:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    common = {
        "C": 1.0 / (task.lam * len(task.y)),
        "tol": options.tol,
        "max_iter": options.iterations,
        "fit_intercept": False,
        "random_state": 0,
    }
    if options.solver == "hinge dual":
        model = LinearSVC(loss="hinge", dual=True, **common)
    else:
        model = LogisticRegression(solver="liblinear", dual=options.solver == "logistic dual", **common)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(task.X64, task.y)
    return Fit(model.coef_[0], int(np.max(model.n_iter_)))


@contextmanager
def _snapml_floating_point() -> Iterator[Any]:
    """Yield snapml with its floating-point environment, and restore the previous one afterwards.

    Its library is compiled with fast-math: loading it makes the thread treat denormal numbers as zero.
    """
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    before = ctypes.create_string_buffer(256)
    libm.fegetenv(before)
    try:
        with warnings.catch_warnings():
            # it uses a deprecated name in numpy to detect CPU features; an error there would make it slower
            warnings.simplefilter("ignore", DeprecationWarning)
            import snapml  # type: ignore[import-untyped]
        if not _SNAPML_STATE:
            _SNAPML_STATE.append(ctypes.create_string_buffer(256))
            libm.fegetenv(_SNAPML_STATE[0])
        libm.fesetenv(_SNAPML_STATE[0])
        yield snapml
    finally:
        libm.fesetenv(before)


_SNAPML_STATE: list[Any] = []


def snapml_fit(task: Task, options: Options) -> Fit:
    common = {
        "regularizer": task.lam * len(task.y),
        "tol": options.tol,
        "max_iter": options.iterations,
        "n_jobs": 1,
        "fit_intercept": False,
        "random_state": 0,
    }
    with _snapml_floating_point() as snapml:
        if options.solver == "hinge dual":
            model = snapml.SupportVectorMachine(loss="hinge", **common)
        else:
            model = snapml.LogisticRegression(dual=options.solver == "logistic dual", **common)
        model.fit(task.X, task.y)
    return Fit(np.ravel(model.coef_).astype(float), int(np.max(model.n_iter_)))


FITS: Mapping[str, Solver] = {DMTRL: dmtrl_fit, CERTIFIED: dmtrl_fit, LIBLINEAR: liblinear_fit, SNAPML: snapml_fit}


def installed() -> tuple[str, ...]:
    """Return the competitors whose package is installed."""
    return tuple(name for name in FITS if name != SNAPML or find_spec("snapml") is not None)


def not_installed() -> list[str]:
    """Return a sentence for each competitor whose package is missing."""
    return [] if SNAPML in installed() else [f'{SNAPML} is left out: pip install "dmtrl[bench]"']


def solvers(name: str, loss: str) -> tuple[str, ...]:
    """Return the solvers of a competitor for a loss. For each quality, the fastest of them counts."""
    if name in (DMTRL, CERTIFIED):
        return ("default",)
    return ("hinge dual",) if loss == "hinge" else ("logistic dual", "logistic primal")


def fastest(name: str, task: Task, best: Optimum, qualities: Iterable[float], limit: float) -> dict[float, Result]:
    """Return the fastest options for each relative suboptimality. A fit longer than `limit` seconds ends the search."""
    FITS[name](_few_rows(task), Options(solvers(name, task.loss)[0], 0.1, 5))  # compiles and imports
    search = _Search(FITS[name], task, best, limit)
    found: dict[float, Result] = {}
    for eps in sorted(qualities, reverse=True):
        if name == CERTIFIED:  # stops at its own certificate, as in normal use
            candidates = [search.run(Options("default", eps))]
        else:
            # dmtrl reaches what it certifies, so a tolerance below the quality is never needed
            tolerances = [eps * slack for slack in (30, 10, 3, 1)] if name == DMTRL else TOLERANCES
            candidates = [search.least(solver, eps, tolerances, name != DMTRL) for solver in solvers(name, task.loss)]
        good = [one for one in candidates if one.reached <= eps]
        found[eps] = (
            min(good, key=lambda one: one.seconds)
            if good
            else replace(min(candidates, key=lambda one: one.reached), options=None)
        )
    return found


def _few_rows(task: Task) -> Task:
    """Return some rows of both classes."""
    rows = np.sort(np.concatenate([np.flatnonzero(task.y == label)[:50] for label in (-1.0, 1.0)]))
    return replace(task, X=task.X[rows], X64=task.X64[rows], y=task.y[rows], lam=1.0 / len(rows))


class _Search:
    """The fits of one competitor on one task, cached by their options."""

    def __init__(self, fit: Solver, task: Task, best: Optimum, limit: float):
        self._fit, self._task, self._best, self._limit = fit, task, best, limit
        self._done: dict[Options, Result] = {}
        self._tried: dict[tuple[str, float], Options] = {}
        self._given_up: set[str] = set()

    def run(self, options: Options) -> Result:
        if options not in self._done:
            began = time.process_time()
            fit = self._fit(self._task, options)
            seconds = time.process_time() - began
            reached = self._task.objective(fit.w) / self._best.value - 1.0
            self._done[options] = Result(options, reached, fit, seconds)
            if seconds > 0.5 * self._limit:
                self._given_up.add(options.solver)
        return self._done[options]

    def least(self, solver: str, eps: float, tolerances: Iterable[float], fewer: bool) -> Result:
        """Find the loosest sufficient tolerance, then, if `fewer`, the smallest sufficient number of iterations."""
        enough, before = None, Result(None, np.inf)
        for tol in tolerances:
            if solver in self._given_up and (solver, tol) not in self._tried:
                break
            # a tolerance below the solver's precision is never met, so limit the iterations
            options = self._tried.setdefault((solver, tol), Options(solver, tol, self._affordable(before)))
            one = self.run(options)
            if one.reached <= eps:
                enough = one
                break
            before = one
        if enough is None:
            return before
        return self._fewer(enough, before, eps) if fewer else enough

    def _affordable(self, before: Result) -> int:
        if before.fit is None:
            return 100
        return int(np.clip(self._limit * before.fit.iterations / max(before.seconds, 1e-6), 100, MANY))

    def _fewer(self, enough: Result, before: Result, eps: float) -> Result:
        """Interpolate between too few and enough iterations, at most REFINEMENTS times."""
        low, error = (0, 1.0) if before.fit is None else (before.fit.iterations, before.reached)
        for _ in range(REFINEMENTS):
            assert enough.fit is not None
            assert enough.options is not None
            high = enough.fit.iterations
            if high <= max(1.1 * low, low + 1) or enough.seconds > 1.5 * self._limit:
                break
            rate = np.log(max(error / eps, 1.01)) / np.log(max(error, 2 * eps) / max(enough.reached, 1e-3 * eps))
            guess = min(max(low + int(np.ceil(1.03 * rate * (high - low))), low + 1), high - 1)
            one = self.run(replace(enough.options, iterations=guess))
            if one.reached <= eps:
                enough = one
            else:
                low, error = guess, one.reached
        return enough
