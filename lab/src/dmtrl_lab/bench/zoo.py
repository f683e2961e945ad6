"""Random problems of the kinds that users have, fitted by the default estimators.

Beside them: strong common parts, and deviations from a shared part (rows with offsets, levels that are shrunk more
where a task has few rows). A problem is determined by its seed, so a bad one can be run alone:
`dmtrl-lab bench zoo --only SEED`.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from inspect import signature
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from dmtrl.data.task_data import TaskData
from dmtrl.estimators.cv import MTRLClassifierCV, MTRLRegressorCV
from dmtrl.estimators.mtrl import MTRLClassifier, MTRLRegressor
from dmtrl.exceptions import NotConvergedWarning
from dmtrl.losses import BUILTIN, REGRESSION, get_loss
from dmtrl.report.content import Item, Table, Text
from dmtrl.solver.api import solve
from dmtrl.solver.execution import Execution
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings
from dmtrl_lab.experiments.experiment import Experiment, Figures, Records, Run, grid, table

PROBLEMS, QUICK_PROBLEMS = 300, 6  # of the default estimators, for each of the SEEDS
DEFAULT, LEVELS, STRONG, STRONGEST = "default", "offsets and levels", "common 100", "common 1000"
KINDS = {DEFAULT: 0, STRONG: 1000, STRONGEST: 2000, LEVELS: 3000}  # added to the seeds of a kind
OTHER_PROBLEMS, QUICK_OTHERS = 60, 1  # of each other kind, for each of the SEEDS
COMMONS = {STRONG: 100.0, STRONGEST: 1000.0}
SEEDS = (0, 10_000, 20_000)  # where the seeds of three independent sets of problems start
CELLS, QUICK_CELLS = 1_000_000, 4_000  # upper bounds of m n d
TOL, MAX_ROUNDS, TARGETS = 1e-3, 500, "90 % within 40 rounds, the worst within 150, all certified or refused"
WORST = 10


@dataclass(frozen=True)
class Spec:
    """What a seed stands for: m tasks of n/2 to n rows (at least 10), d features of a kind, a loss and lambda."""

    seed: int
    m: int
    n: int
    d: int
    features: str
    loss: str
    reg_lambda: float
    kind: str = DEFAULT


def kind_of(seed: int) -> str:
    """Return the kind of problem that a seed stands for."""
    return max((kind for kind in KINDS if KINDS[kind] <= seed % SEEDS[1]), key=KINDS.__getitem__)


def draw_spec(seed: int, cells: int = CELLS) -> Spec:
    """Draw sizes and lambda log-uniformly, and the sizes again until m n d is at most `cells`."""
    rng = np.random.default_rng(seed)

    def size(low: int, high: int) -> int:
        return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))

    features, loss = str(rng.choice(list(FEATURES))), str(rng.choice(list(BUILTIN)))
    reg_lambda = float(f"{10 ** rng.uniform(-5, 0):.2g}")
    m, n, d = size(3, 150), size(10, 200), size(5, 500)
    while m * n * d > cells:
        m, n, d = size(3, 150), size(10, 200), size(5, 500)
    return Spec(seed, m, n, d, features, loss, reg_lambda, kind_of(seed))


def make_rows(spec: Spec) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return X, y and the task of each row."""
    rng = np.random.default_rng([spec.seed, 1])
    sizes = rng.integers(max(10, spec.n // 2), spec.n + 1, size=spec.m)
    return draw_rows(rng, sizes, spec.d, spec.features, spec.loss)


def draw_rows(
    rng: np.random.Generator, sizes: np.ndarray, d: int, features: str, loss: str
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return X, y and the task of each row, for tasks of the given sizes.

    The weights of a task are a part that all tasks share, a part of rank three and a part of its own. A third of the
    variance of the scores is noise.
    """
    m, starts = len(sizes), np.concatenate([[0], np.cumsum(sizes)])
    X = FEATURES[features](rng, int(starts[-1]), d)
    spread = (X.multiply(X) if sparse.issparse(X) else (X - X.mean(axis=0)) ** 2).mean(axis=0)
    low_rank = rng.standard_normal((m, 3)) @ rng.standard_normal((3, d)) / np.sqrt(3)
    W = rng.standard_normal(d) + low_rank + 0.3 * rng.standard_normal((m, d))
    W = W / np.sqrt(np.asarray(spread).ravel() + 1e-12)
    score = np.concatenate([X[a:b] @ w for (a, b), w in zip(pairwise(starts), W, strict=True)])
    score = (score - score.mean()) / score.std() + np.repeat(rng.standard_normal(m), sizes)
    score += 0.7 * rng.standard_normal(len(score))
    return X, _labels(loss, score, starts, rng), np.repeat(np.arange(m), sizes)


def _labels(loss: str, score: np.ndarray, starts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if loss == "poisson":
        return rng.poisson(np.exp(np.clip(score, -3.0, 3.0))).astype(float)
    if get_loss(loss).kind == REGRESSION:
        return np.asarray(10 ** rng.uniform(-1, 2) * (score + rng.uniform(-5, 5)))
    y = np.where(score > 0, 1.0, -1.0)
    y[starts[:-1]], y[starts[:-1] + 1] = -1.0, 1.0  # both classes in every task
    return y


def _correlated(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    mix = rng.standard_normal((d, d)) / (1.0 + np.arange(d))[:, None]
    return np.asarray(rng.standard_normal((n, d)) @ mix)


def _sparse(rng: np.random.Generator, n: int, d: int) -> Any:
    density = float(np.clip(10 ** rng.uniform(-2, -0.5), 2.0 / d, min(1.0, 100.0 / d)))
    return sparse.random(
        n, d, density, format="csr", random_state=rng, data_rvs=lambda k: 1.0 + rng.exponential(size=k)
    )


FEATURES: dict[str, Callable[[np.random.Generator, int, int], Any]] = {
    "plain": lambda rng, n, d: rng.standard_normal((n, d)),
    "correlated": _correlated,
    "offset": lambda rng, n, d: rng.standard_normal((n, d)) + rng.uniform(-20, 20, size=d),
    "binary": lambda rng, n, d: (rng.random((n, d)) < rng.uniform(0.02, 0.5, size=d)).astype(float),
    "scaled": lambda rng, n, d: rng.standard_normal((n, d)) * 10 ** rng.uniform(-2, 2, size=d),
    "sparse": _sparse,
}


def estimator(loss: str, *, search: bool = False, **parameters: Any) -> Any:
    """Return the estimator of a loss; with `search` the one that chooses lambda by cross-validation."""
    regressor, classifier = (MTRLRegressorCV, MTRLClassifierCV) if search else (MTRLRegressor, MTRLClassifier)
    return (regressor if get_loss(loss).kind == REGRESSION else classifier)(loss=loss, **parameters)


def with_offsets(spec: Spec) -> tuple[TaskData, np.ndarray]:
    """Return standardised rows whose offsets are what one ridge regression predicts, and a ridge for each task's level.

    The ridge of task i is kappa omega_i / n_i with omega_i proportional to n_i, as task_weight="rows" has it; kappa is
    the variance of noise over that of levels, from 0.1 to 100.
    """
    X, y, task = make_rows(spec)
    X = StandardScaler(with_mean=not sparse.issparse(X)).fit_transform(X)
    score = np.log1p(y) if spec.loss == "poisson" else y
    data = TaskData.from_long(X, y, task, offset=Ridge().fit(X, score).predict(X))
    kappa = 10 ** np.random.default_rng([spec.seed, 2]).uniform(-1, 2)
    return data, np.full(data.m, kappa * data.m / len(y))


def _solve_levels(spec: Spec, max_rounds: int) -> Callable[[], Figures]:
    data, ridge = with_offsets(spec)
    problem = Problem.of(data, loss=spec.loss, reg_lambda=spec.reg_lambda, task_weight="rows", intercept_ridge=ridge)
    execution = Execution(settings=Settings(tol=TOL, max_rounds=max_rounds))

    def run() -> Figures:
        outcome = solve(problem, execution)
        passes = sum(one.passes for one in outcome.history)
        return {"rounds": len(outcome.history), "gap": outcome.certificate.relative_gap, "passes": passes}

    return run


def _fit_estimator(spec: Spec, max_rounds: int) -> Callable[[], Figures]:
    X, y, task = make_rows(spec)
    more: dict[str, Any] = {}
    if spec.kind in COMMONS:
        more["common"] = COMMONS[spec.kind]
        if "shared_model" in signature(MTRLRegressor).parameters:
            more["shared_model"] = None  # a shared part that is fitted first would leave the common part nothing to do
    model = estimator(spec.loss, reg_lambda=spec.reg_lambda, tol=TOL, max_rounds=max_rounds, **more)

    def run() -> Figures:
        model.fit(X, y, tasks=task)
        passes = sum(one["passes"] for one in model.history_)
        return {"rounds": model.n_rounds_, "gap": model.certificate_.relative_gap, "passes": passes}

    return run


def fit_problem(spec: Spec, max_rounds: int = MAX_ROUNDS) -> Figures:
    """Fit a problem and return rounds, gap, passes and seconds, or the reason of a refusal."""
    run = (_solve_levels if spec.kind == LEVELS else _fit_estimator)(spec, max_rounds)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        try:
            figures = run()
        except ValueError as error:
            return {"refused": str(error), "rounds": 0, "seconds": time.perf_counter() - began}
    return {**figures, "certified": figures["gap"] <= TOL, "seconds": time.perf_counter() - began}


def runs(quick: bool) -> list[Run]:
    found = []
    for start in SEEDS[:1] if quick else SEEDS:
        for kind, first in KINDS.items():
            plain = kind == DEFAULT
            count = (QUICK_PROBLEMS if plain else QUICK_OTHERS) if quick else PROBLEMS if plain else OTHER_PROBLEMS
            found += grid(quick, 0.5, seed=range(start + first, start + first + count))
    return found


def measure(seed: int, quick: bool = False) -> Figures:
    spec = draw_spec(seed, QUICK_CELLS if quick else CELLS)
    fit_problem(spec, max_rounds=2)  # compiles
    return {**asdict(spec), **fit_problem(spec)}


def items(records: Records) -> list[Item]:
    figures = [record.figures for record in records]
    groups: list[tuple[str, list[Figures]]] = [("all", figures)]
    groups += [(f"kind: {kind}", [one for one in figures if one["kind"] == kind]) for kind in KINDS]
    starts = [one["seed"] // SEEDS[1] * SEEDS[1] for one in figures]
    groups += [
        (f"seeds from {start:,}", [one for one, its in zip(figures, starts, strict=True) if its == start])
        for start in sorted(set(starts))
    ]
    groups += [(f"features: {kind}", [one for one in figures if one["features"] == kind]) for kind in FEATURES]
    groups += [(f"loss: {loss}", [one for one in figures if one["loss"] == loss]) for loss in BUILTIN]
    refusals = sorted({one["refused"] for one in figures if "refused" in one})
    return [
        Text(
            f"{len(figures)} random problems: 3 to 150 tasks of 10 to 200 rows, 5 to 500 features, lambda from 1e-5 "
            f"to 1, one thread, tol {TOL:g}, at most {MAX_ROUNDS} rounds. Targets: {TARGETS}. Default: the default "
            "estimators. Common 100, common 1000: the same with a strong common part. Offsets and levels: `solve` on "
            "rows whose offsets are the predictions of one ridge regression, with intercepts that are shrunk more "
            "where a task has few rows."
        ),
        table(
            "Rounds and seconds of random problems",
            [{"problems": name, **_summary(group)} for name, group in groups if group],
            "Seconds are in all, without compile time. Rounds are of the problems that were not refused.",
        ),
        worst_problems("The worst problems", figures, "One of them: dmtrl-lab bench zoo --only SEED"),
        *(Text(f"Refused: {reason}") for reason in refusals),
    ]


def _summary(figures: Sequence[Figures]) -> dict[str, object]:
    fitted = [one for one in figures if "refused" not in one]
    rounds = [one["rounds"] for one in fitted] or [0]
    middle, most = np.quantile(rounds, [0.5, 0.9], method="inverted_cdf")
    return {
        "count": len(figures),
        "rounds, median": int(middle),
        "90 %": int(most),
        "worst": max(rounds),
        "not certified": sum(not one["certified"] for one in fitted),
        "refused": len(figures) - len(fitted),
        "seconds": f"{sum(one['seconds'] for one in figures):.1f}",
    }


def worst_problems(title: str, figures: Sequence[Figures], caption: str) -> Table:
    """Return a table of the problems with most rounds."""
    rows = []
    for one in sorted(figures, key=lambda one: (-one["rounds"], -one["seconds"]))[:WORST]:
        refused = "refused" in one
        rows.append(
            {
                **{name: one[name] for name in ("seed", "kind", "m", "n", "d", "features", "loss")},
                "lambda": f"{one['reg_lambda']:g}",
                "rounds": "refused" if refused else one["rounds"],
                "gap": "" if refused else f"{one['gap']:.1e}",
                "passes": "" if refused else f"{one['passes']:.0f}",
                "seconds": "" if refused else f"{one['seconds']:.2f}",
            }
        )
    return table(title, rows, caption)


def one_problem(seed: int) -> Table:
    """Run one problem of the full version and return it as a table."""
    figures = measure(seed)
    return worst_problems(f"Problem {seed}", [figures], figures.get("refused", ""))


SETTINGS = {"tol": TOL, "max_rounds": MAX_ROUNDS, "cells": CELLS}
ZOO = Experiment("bench zoo", "Random problems", runs, measure, items, SETTINGS)
