"""Who solves one linear task: dmtrl, LIBLINEAR and Snap ML, each by its public way, and how fast each can be.

Room: bench. A contender is asked for ever tighter tolerances until it is near enough to the optimum; then the least
number of iterations is sought that is still enough. So nobody is charged for iterations that the quality asked for did
not need, and whoever does not get there is said not to.
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
from dmtrl.exceptions import NotConvergedWarning
from dmtrl.lab.bench.optimum import Optimum, Task
from dmtrl.solver.api import solve
from dmtrl.solver.settings import Settings

DMTRL, CERTIFIED, LIBLINEAR, SNAPML = "dmtrl", "dmtrl, certified", "LIBLINEAR", "Snap ML"
TOLERANCES = tuple(float(f"{t:.0e}") for t in np.geomspace(1.0, 1e-7, 15))
MANY = 20000
REFINEMENTS = 4


@dataclass(frozen=True)
class Way:
    """A setting of a contender: a solver's name, its tolerance and at most so many iterations."""

    solver: str
    tol: float
    iterations: int = MANY


@dataclass(frozen=True)
class Fit:
    w: np.ndarray
    iterations: int
    passes: float = float("nan")  # over the rows, where the contender tells


@dataclass(frozen=True)
class Found:
    """The fastest way that reached a quality, what it reached, and the fit. Where none did, `way` is None and the
    seconds are those of the nearest."""

    way: Way | None
    reached: float
    fit: Fit | None = None
    seconds: float = float("inf")


Solver = Callable[[Task, Way], Fit]


def dmtrl_fit(task: Task, way: Way) -> Fit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)  # what was reached is measured
        outcome = solve(
            TaskData.from_long(task.X, task.y),
            loss=task.loss,
            reg_lambda=task.lam,
            relationship="independent",
            settings=Settings(tol=way.tol, max_rounds=min(way.iterations, 1000)),
        )
    return Fit(outcome.W[0], len(outcome.history), sum(record.passes for record in outcome.history))


def liblinear_fit(task: Task, way: Way) -> Fit:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    common = {
        "C": 1.0 / (task.lam * len(task.y)),
        "tol": way.tol,
        "max_iter": way.iterations,
        "fit_intercept": False,
        "random_state": 0,
    }
    if way.solver == "hinge dual":
        model = LinearSVC(loss="hinge", dual=True, **common)
    else:
        model = LogisticRegression(solver="liblinear", dual=way.solver == "logistic dual", **common)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(task.X64, task.y)
    return Fit(model.coef_[0], int(np.max(model.n_iter_)))


@contextmanager
def _small_numbers_are_zero() -> Iterator[Any]:
    """Snap ML with the processor's state that it likes. Its library, compiled with fast-math, sets that for the thread
    that loads it: small numbers are zero from then on. For everybody else it is taken back."""
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    before = ctypes.create_string_buffer(256)
    libm.fegetenv(before)
    try:
        with warnings.catch_warnings():
            # it asks an old name of numpy for the processor's instructions; an error there would make it slower
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


def snapml_fit(task: Task, way: Way) -> Fit:
    common = {
        "regularizer": task.lam * len(task.y),
        "tol": way.tol,
        "max_iter": way.iterations,
        "n_jobs": 1,
        "fit_intercept": False,
        "random_state": 0,
    }
    with _small_numbers_are_zero() as snapml:
        if way.solver == "hinge dual":
            model = snapml.SupportVectorMachine(loss="hinge", **common)
        else:
            model = snapml.LogisticRegression(dual=way.solver == "logistic dual", **common)
        model.fit(task.X, task.y)
    return Fit(np.ravel(model.coef_).astype(float), int(np.max(model.n_iter_)))


FITS: Mapping[str, Solver] = {DMTRL: dmtrl_fit, CERTIFIED: dmtrl_fit, LIBLINEAR: liblinear_fit, SNAPML: snapml_fit}


def present() -> tuple[str, ...]:
    """The contenders whose package is installed."""
    return tuple(name for name in FITS if name != SNAPML or find_spec("snapml") is not None)


def absent() -> list[str]:
    """One sentence for each contender whose package is missing."""
    return [] if SNAPML in present() else [f'{SNAPML} is left out: pip install "dmtrl[bench]"']


def solvers(name: str, loss: str) -> tuple[str, ...]:
    """The ways of a contender to solve a loss; with more than one, the better is taken for each quality."""
    if name in (DMTRL, CERTIFIED):
        return ("default",)
    return ("hinge dual",) if loss == "hinge" else ("logistic dual", "logistic primal")


def fastest(name: str, task: Task, best: Optimum, qualities: Iterable[float], limit: float) -> dict[float, Found]:
    """For each relative suboptimality, the fastest way found. A solver is given up when a fit took longer than `limit`
    seconds."""
    FITS[name](_few_rows(task), Way(solvers(name, task.loss)[0], 0.1, 5))  # compiles and imports
    search = _Search(FITS[name], task, best, limit)
    found: dict[float, Found] = {}
    for eps in sorted(qualities, reverse=True):
        if name == CERTIFIED:  # stops on its own proof, as a user would run it
            candidates = [search.run(Way("default", eps))]
        else:
            # what dmtrl proves it has reached, so there is no need to ask it for less than the quality
            tolerances = [eps * slack for slack in (30, 10, 3, 1)] if name == DMTRL else TOLERANCES
            candidates = [search.least(solver, eps, tolerances, name != DMTRL) for solver in solvers(name, task.loss)]
        good = [one for one in candidates if one.reached <= eps]
        found[eps] = (
            min(good, key=lambda one: one.seconds)
            if good
            else replace(min(candidates, key=lambda one: one.reached), way=None)
        )
    return found


def _few_rows(task: Task) -> Task:
    """Some rows of both classes."""
    rows = np.sort(np.concatenate([np.flatnonzero(task.y == label)[:50] for label in (-1.0, 1.0)]))
    return replace(task, X=task.X[rows], X64=task.X64[rows], y=task.y[rows], lam=1.0 / len(rows))


class _Search:
    def __init__(self, fit: Solver, task: Task, best: Optimum, limit: float):
        self._fit, self._task, self._best, self._limit = fit, task, best, limit
        self._done: dict[Way, Found] = {}
        self._asked: dict[tuple[str, float], Way] = {}
        self._given_up: set[str] = set()

    def run(self, way: Way) -> Found:
        if way not in self._done:
            began = time.process_time()
            fit = self._fit(self._task, way)
            seconds = time.process_time() - began
            reached = self._task.objective(fit.w) / self._best.value - 1.0
            self._done[way] = Found(way, reached, fit, seconds)
            if seconds > 0.5 * self._limit:
                self._given_up.add(way.solver)
        return self._done[way]

    def least(self, solver: str, eps: float, tolerances: Iterable[float], fewer: bool) -> Found:
        """The loosest tolerance that is good enough; then, between its iterations and those of the tolerance before,
        the least number of them."""
        enough, before = None, Found(None, np.inf)
        for tol in tolerances:
            if solver in self._given_up and (solver, tol) not in self._asked:
                break
            # a tolerance below what its precision allows would never end it: so many iterations as there is time for
            way = self._asked.setdefault((solver, tol), Way(solver, tol, self._affordable(before)))
            one = self.run(way)
            if one.reached <= eps:
                enough = one
                break
            before = one
        if enough is None:
            return before
        return self._fewer(enough, before, eps) if fewer else enough

    def _affordable(self, before: Found) -> int:
        if before.fit is None:
            return 100
        return int(np.clip(self._limit * before.fit.iterations / max(before.seconds, 1e-6), 100, MANY))

    def _fewer(self, enough: Found, before: Found, eps: float) -> Found:
        """Iterations between too few and enough, guessed from the rate between both, at most so often."""
        low, error = (0, 1.0) if before.fit is None else (before.fit.iterations, before.reached)
        for _ in range(REFINEMENTS):
            assert enough.fit is not None
            assert enough.way is not None
            high = enough.fit.iterations
            if high <= max(1.1 * low, low + 1) or enough.seconds > 1.5 * self._limit:
                break
            rate = np.log(max(error / eps, 1.01)) / np.log(max(error, 2 * eps) / max(enough.reached, 1e-3 * eps))
            guess = min(max(low + int(np.ceil(1.03 * rate * (high - low))), low + 1), high - 1)
            one = self.run(replace(enough.way, iterations=guess))
            if one.reached <= eps:
                enough = one
            else:
                low, error = guess, one.reached
        return enough
