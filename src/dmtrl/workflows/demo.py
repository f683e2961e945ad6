"""The demo: 16 tasks with few rows each, fitted together, each alone, pooled, and by boosted trees.

The tasks are drawn like the paper's Synthetic 1, so the true relations are known. `paper=True` is the paper's size,
with so many rows that sharing hardly matters. `run_demo` fits, `demo_page` makes a page of the result, and `demo` does
both. The linear methods have the same loss and the same lambdas; every method chooses by cross-validation on
training rows.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_limits

from dmtrl.data.task_data import TaskData
from dmtrl.datasets import SyntheticTasks, make_synthetic
from dmtrl.estimators.comparison import Comparison
from dmtrl.estimators.cv import MTRLClassifierCV
from dmtrl.progress import NoProgress, Progress
from dmtrl.report.content import Page
from dmtrl.report.model_page import model_facts, page_from_facts
from dmtrl.report.model_page.held_out import ERROR_RATE, format_error
from dmtrl.report.page import write_page
from dmtrl.tables.output import check_output

LAMBDAS = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
FOLDS = 3
PAPER: dict[str, Any] = {"commons": (0.0,), "owns": (0.0,), "task_weight": "equal"}  # the objective of the paper
OPTIONS = PAPER | {"lambdas": LAMBDAS, "cv": FOLDS, "n_jobs": -1, "on_single_class": "constant"}
FEW = {"rows_per_task": 800, "d": 30}
QUICK = {"rows_per_task": 400, "d": 30}
TRAIN_ROWS = 40  # of each task, except in the paper's problem
TREES = {"max_leaf_nodes": [4, 15], "learning_rate": [0.05, 0.15]}  # the grid of the boosted trees
TOGETHER, ALONE, POOLED = "together, relations learned", "each task alone", "one model for all tasks"
BOOSTED = "boosted trees, task as a category"
SHORT = {TOGETHER: "together", ALONE: "alone", POOLED: "pooled", BOOSTED: "boosted trees"}


@dataclass(frozen=True)
class Fit:
    model: Any
    wrong: np.ndarray  # for each test row, whether the prediction is wrong
    seconds: float

    @property
    def error(self) -> float:
        return float(self.wrong.mean())


@dataclass(frozen=True)
class DemoResult:
    seed: int
    paper: bool  # whether it is the paper's problem
    problem: SyntheticTasks
    fits: dict[str, Fit]
    floor: float  # test error of the true weights
    recovery: float  # Pearson correlation between learned and true task correlations, over pairs of tasks

    @property
    def learned(self) -> Fit:
        return self.fits[TOGETHER]

    @property
    def description(self) -> str:
        m = len(self.problem.W)
        if self.paper:
            return f"The paper's Synthetic 1, {m} tasks that copy one of three parents or its opposite"
        return f"{m} tasks of {TRAIN_ROWS} training rows that copy one of three parents or its opposite"

    def advantage(self, other: str) -> tuple[float, float]:
        """Return the error rate of `other` minus that of the joint fit, and the paired standard error."""
        difference = self.fits[other].wrong.astype(float) - self.learned.wrong
        return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))


@dataclass(frozen=True)
class Demo:
    """The result, and the page that was written or the reason why not."""

    result: DemoResult
    page: Path | None
    notes: tuple[str, ...]


def demo(
    seed: int = 0,
    quick: bool = False,
    paper: bool = False,
    out: Path | None = None,
    progress: Progress | None = None,
) -> Demo:
    """Run the whole command. out: the page; None writes none."""
    if out is not None:
        check_output(out, force=True)
    result = run_demo(seed, quick, (progress or NoProgress()).stage, paper)
    if out is None:
        return Demo(result, None, ())
    try:
        return Demo(result, write_page(demo_page(result), out), ())
    except ImportError as missing:  # the demo itself needs no page
        return Demo(result, None, (f"no page was written: {missing}",))


def run_demo(
    seed: int = 0, quick: bool = False, on_stage: Callable[[str], object] = lambda text: None, paper: bool = False
) -> DemoResult:
    """Generate the tasks, fit them in several ways, and compare with the truth. on_stage: called at each stage."""
    on_stage("loading the compiled code, or compiling it")
    _fit(make_synthetic(rows_per_task=12, m=2, d=3), TOGETHER)
    problem = make_synthetic(kind=1, seed=seed, **(QUICK if quick else {} if paper else FEW))
    if not paper:
        problem = replace(problem, train=_first_rows(problem.train))
    fits = {}
    for name in (TOGETHER, ALONE, POOLED, *(() if paper else (BOOSTED,))):
        on_stage(f"{name}: choosing {'the trees' if name == BOOSTED else 'lambda'} by cross-validation")
        fits[name] = _fit_trees(problem) if name == BOOSTED else _fit(problem, name)
    recovery = problem.recovery(fits[TOGETHER].model.covariance_.correlation())
    scores = np.einsum("ij,ij->i", problem.test.X, problem.W[_task_numbers(problem.test)])
    floor = float(np.mean((scores > 0) != (problem.test.y > 0)))
    return DemoResult(seed, paper, problem, fits, floor, recovery)


def _first_rows(data: TaskData) -> TaskData:
    """Return the first TRAIN_ROWS rows of every task."""
    rows = np.concatenate([np.arange(a, min(a + TRAIN_ROWS, b)) for a, b in pairwise(data.starts)])
    return TaskData.from_long(data.X[rows], data.y[rows], _task_numbers(data)[rows])


def _task_numbers(data: TaskData) -> np.ndarray:
    """Return the task of each row, as a number from 0."""
    return np.repeat(np.arange(data.m), np.diff(data.starts))


def _fit(problem: SyntheticTasks, name: str) -> Fit:
    train, test = problem.train, problem.test
    relationship = "learned" if name == TOGETHER else "independent"
    tasks = [None if name == POOLED else _task_numbers(part) for part in (train, test)]
    began = time.perf_counter()
    model = MTRLClassifierCV(relationship=relationship, **OPTIONS).fit(train.X, train.y, tasks=tasks[0])
    return Fit(model, model.predict(test.X, tasks=tasks[1]) != test.y, time.perf_counter() - began)


def _fit_trees(problem: SyntheticTasks) -> Fit:
    """One ensemble for all tasks, with the task as a category."""
    rows = [np.column_stack([part.X, _task_numbers(part)]) for part in (problem.train, problem.test)]
    trees = HistGradientBoostingClassifier(categorical_features=[problem.W.shape[1]], random_state=0)
    began = time.perf_counter()
    with threadpool_limits(1):  # so few rows are slower with threads
        model = GridSearchCV(trees, TREES, cv=FOLDS).fit(rows[0], problem.train.y)
        wrong = model.predict(rows[1]) != problem.test.y
    return Fit(model, wrong, time.perf_counter() - began)


def demo_page(result: DemoResult) -> Page:
    """Return a page about the joint fit, with true and learned relations."""
    problem, fit = result.problem, result.learned
    m = len(problem.W)
    errors = {f"test error rate, {SHORT[name]}": one.error for name, one in result.fits.items()}
    errors["test error rate, true weights"] = result.floor
    facts = replace(
        model_facts(fit.model, comparison=_comparison(result)),
        names=[f"task {i + 1}" for i in range(m)],
        scaled=True,
        rows=len(problem.train.y),
        truth=problem.correlation,
        record=f"Made by dmtrl demo{' --paper' if result.paper else ''} with seed {result.seed}: "
        f"{result.description}. Each linear method chose one of {len(LAMBDAS)} lambdas by cross-validation; error "
        f"rates are on {len(problem.test.y):,} test rows.",
        more=[
            *((name, format_error(error, ERROR_RATE)) for name, error in errors.items()),
            ("correlation of learned and true relations", f"{result.recovery:.3f}"),
        ],
    )
    return page_from_facts(facts, f"dmtrl demo: {m} synthetic tasks")


def _comparison(result: DemoResult) -> Comparison:
    """Test error rates of each task. Harmed: worse together than alone in a paired one-sided test at 1 %."""
    rows = [slice(a, b) for a, b in pairwise(result.problem.test.starts)]
    together, alone, pooled = (
        np.array([result.fits[name].wrong[r].mean() for r in rows]) for name in (TOGETHER, ALONE, POOLED)
    )
    change = [(result.learned.wrong[r].astype(float) - result.fits[ALONE].wrong[r]) for r in rows]
    harmed = [bool(c.mean() > 2.326 * c.std(ddof=1) / np.sqrt(len(c)) and c.mean() > 0) for c in change]
    names = np.array([f"task {i + 1}" for i in range(len(rows))])
    return Comparison(names, together, alone, pooled, np.array(harmed), ERROR_RATE)
