"""How often intervals are right: prediction intervals on new rows, and intervals of correlations of unrelated tasks.

Prediction intervals: the share of test rows of School's splits, and of simulated hospitals with different noise, that
lie in their 90 % interval. Correlations: fourteen tasks in seven pairs with the same weights, and orthogonal weights
between pairs, so that 84 pairs of tasks are unrelated; the share of these whose 90 % interval does not contain zero.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dmtrl.estimators.cv import MTRLRegressorCV
from dmtrl.report.content import Item, Text
from dmtrl_lab.experiments.experiment import Experiment, Figures, Records, Run, select, table
from dmtrl_lab.experiments.problems import Rows, Split, school_rows

COVERAGE = 0.9
SCHOOL, HOSPITALS, RELATIONS = "School", "simulated hospitals", "unrelated tasks"
# rows of a task, standard deviation of the noise, and correlation of neighbouring features
PROBLEMS = ((15, 2.0, 0.0), (40, 2.0, 0.0), (100, 2.0, 0.0), (40, 6.0, 0.0), (40, 2.0, 0.7), (100, 2.0, 0.7))
SPLITS, DRAWS, SEEDS = 10, 10, 20
FIRST = 100  # seed: the constants of the intervals were chosen on the seeds below


def runs(quick: bool) -> list[Run]:
    found = [({"data": SCHOOL, "seed": seed}, 15.0) for seed in range(1 if quick else SPLITS)]
    found += [({"data": HOSPITALS, "seed": seed}, 2.0) for seed in range(1 if quick else DRAWS)]
    found += [
        ({"data": RELATIONS, "rows": rows, "noise": noise, "neighbours": neighbours, "seed": seed}, 8.0)
        for rows, noise, neighbours in (PROBLEMS[:1] if quick else PROBLEMS)
        for seed in range(FIRST, FIRST + (1 if quick else SEEDS))
    ]
    return [Run({**params, "quick": quick}, 3.0 if quick else seconds) for params, seconds in found]


def measure(data: str, seed: int, quick: bool, **problem: Any) -> Figures:
    if data == RELATIONS:
        return _level(seed, quick, **problem)
    train, test = school_rows(seed, 30 if quick else None) if data == SCHOOL else _hospitals(seed)
    grid: dict[str, Any] = {"lambdas": [0.2, 0.6, 1.8], "cv": 3} if quick else {}
    model = MTRLRegressorCV(**grid, n_jobs=-1).fit(train.X, train.y, tasks=train.task)
    ends = model.predict_interval(test.X, test.task, coverage=COVERAGE)
    inside = (ends[:, 0] <= test.y) & (test.y <= ends[:, 1])
    per_task = np.array([inside[test.task == task].mean() for task in np.unique(test.task)])
    return {
        "coverage": float(inside.mean()),
        "per_task": float(per_task.mean()),
        "width": float(np.median(ends[:, 1] - ends[:, 0])),
        "spread": float(np.std(test.y)),
    }


def _hospitals(seed: int) -> Split:
    """Four hospitals with as many rows as those of the heart data, of different noise and with a heavy tail."""
    rng = np.random.default_rng(seed)
    sizes, noise = np.array([199, 172, 30, 85]), np.array([1.0, 0.6, 1.5, 0.8])
    weights = rng.normal(size=13) + 0.4 * rng.normal(size=(4, 13))

    def draw(rows: np.ndarray) -> Rows:
        tasks = np.repeat(np.arange(4), rows)
        X = rng.normal(size=(len(tasks), 13))
        y = (X * weights[tasks]).sum(axis=1) + noise[tasks] * rng.standard_t(5, size=len(tasks))
        return Rows(X, y, tasks)

    return draw(sizes), draw(np.full(4, 1000))


def families(
    seed: int, rows: int, features: int, noise: float, neighbours: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """X, y, tasks and weights of fourteen tasks in seven pairs; the weights of different pairs are orthogonal.

    neighbours: the correlation of neighbouring features, to the power of the distance for others.
    """
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(features, 7)))[0].T * np.sqrt(features)
    weights, tasks = np.repeat(directions, 2, axis=0), np.repeat(np.arange(14), rows)
    distance = np.abs(np.subtract.outer(np.arange(features), np.arange(features)))
    X = rng.normal(size=(len(tasks), features)) @ np.linalg.cholesky(neighbours**distance).T
    return X, (X * weights[tasks]).sum(axis=1) + noise * rng.normal(size=len(tasks)), tasks, weights


def _level(seed: int, quick: bool, rows: int, noise: float, neighbours: float) -> Figures:
    X, y, tasks, _ = families(seed, rows, 10, noise, neighbours)
    grid: dict[str, Any] = {"lambdas": [1.0, 0.1], "commons": [0.0], "owns": [0.0], "cv": 3} if quick else {}
    model = MTRLRegressorCV(**grid, n_jobs=-1).fit(X, y, tasks=tasks)
    found = model.correlation_intervals(X, y, tasks, n_groups=10 if quick else 30).without_zero
    pair = np.arange(14) // 2
    above = np.triu(np.ones((14, 14), dtype=bool), 1)
    unrelated, related = above & (pair[:, None] != pair), above & (pair[:, None] == pair)
    return {"unrelated": float(found[unrelated].mean()), "related": float(found[related].mean())}


def _mean(values: Sequence[float]) -> str:
    error = f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{error}"


def items(records: Records) -> list[Item]:
    predictions: list[dict[str, object]] = []
    relations: list[dict[str, object]] = []
    for data in (SCHOOL, HOSPITALS):
        mine = [record.figures for record in select(records, data=data)]
        width = np.mean([figures["width"] / figures["spread"] for figures in mine])
        predictions.append(
            {
                "data": data,
                "runs": len(mine),
                "coverage of rows": _mean([figures["coverage"] for figures in mine]),
                "mean coverage of tasks": _mean([figures["per_task"] for figures in mine]),
                "median width / standard deviation of y": f"{width:.2f}",
            }
        )
    for rows, noise, neighbours in PROBLEMS:
        mine = [one.figures for one in select(records, rows=rows, noise=noise, neighbours=neighbours)]
        if mine:  # the quick mode has one of the problems
            relations.append(
                {
                    "rows of a task": f"{rows:g}",
                    "noise": f"{noise:g}",
                    "correlation of features": f"{neighbours:g}",
                    "runs": len(mine),
                    "unrelated pairs": _mean([figures["unrelated"] for figures in mine]),
                    "related pairs": _mean([figures["related"] for figures in mine]),
                }
            )
    return [
        Text("How often 90 % intervals of default estimators are right, mean ± standard error over runs."),
        table(
            "Coverage of prediction intervals",
            predictions,
            "School: test rows of the published splits. Hospitals: 1,000 new rows of each of four tasks.",
        ),
        table(
            "Correlation intervals without zero",
            relations,
            "Fourteen tasks, ten features, squared loss; the correlation is that of neighbouring features. Unrelated "
            "pairs have orthogonal weights and should be at 0.1; for related pairs, more is better.",
        ),
    ]


INTERVALS = Experiment("intervals", "Intervals", runs, measure, items, {"coverage": COVERAGE})
