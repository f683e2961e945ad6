"""Held-out errors by task weight and by own part, which the defaults were chosen by.

    python tests/support/part_measurements.py regression|classification|school|mnist

`regression` and `classification` are simulated: thirty tasks with 3 to 400 rows in three families, six seeds. `school`
uses the first three published splits, `mnist` a hundred images of a digit and a hundred others per task, four draws.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from dmtrl import MTRLClassifierCV, MTRLRegressorCV
from dmtrl.datasets import load_mnist_tasks, load_school
from dmtrl.exceptions import NotConvergedWarning

Errors = dict[str, list[float]]  # by setting, one for each repetition
GAMMAS = (0.0, 0.5, 1.0)
SEARCHES: dict[str, dict[str, Any]] = {
    "no own part": {"owns": (0.0,)},
    "own 0 or 3 (default)": {},
    "own 0 or 10": {"owns": (0.0, 10.0)},
    "each alone": {"relationship": "independent", "commons": (0.0,), "owns": (0.0,)},
}


def simulated(classes: bool) -> Errors:
    errors: Errors = {}
    for seed in range(6):
        rng = np.random.default_rng(seed)
        m, d = 30, 12
        W = rng.normal(size=(3, d))[np.arange(m) % 3] * np.where(rng.random(m) < 0.3, -1, 1)[:, None]
        W += 0.3 * rng.normal(size=(m, d))
        sizes = np.round(np.exp(rng.uniform(np.log(3), np.log(400), m))).astype(int)
        task, new = np.repeat(np.arange(m), sizes), np.repeat(np.arange(m), 300)
        X, X_new = rng.normal(size=(len(task), d)), rng.normal(size=(len(new), d))
        y, y_new = (X * W[task]).sum(axis=1), (X_new * W[new]).sum(axis=1)
        search: Any = MTRLRegressorCV
        if classes:
            y = y + 1.5 * rng.logistic(size=len(y)) > 0
            y_new = y_new + 1.5 * rng.logistic(size=len(y_new)) > 0
            search = lambda **how: MTRLClassifierCV(on_single_class="constant", **how)  # noqa: E731
        else:
            y = y + 3.0 * rng.normal(size=len(y))
        for gamma in GAMMAS:
            grid = {"lambdas": np.geomspace(3e-3, 10, 8), "commons": (0.0, 1.0), "owns": (0.0,)}
            model = search(task_weight=gamma, **grid).fit(X, y, tasks=task)
            wrong = (model.predict(X_new, tasks=new) - y_new.astype(float)) ** 2
            mean = np.bincount(new, wrong) / 300
            errors.setdefault(f"gamma {gamma:g}", []).append(float((mean if classes else np.sqrt(mean)).mean()))
    return errors


def school() -> Errors:
    data, errors = load_school(), Errors()
    X, y, task = data.X[:, :-1].astype(float), data.y.astype(float), data.task
    for train, test in data.splits[:3]:
        scaled = StandardScaler().fit(X[train]).transform(X)
        for gamma in GAMMAS:
            grid = {"lambdas": np.geomspace(0.03, 30, 7), "commons": (1.0,), "owns": (0.0,)}
            model = MTRLRegressorCV(task_weight=gamma, **grid).fit(scaled[train], y[train], tasks=task[train])
            left = model.predict(scaled[test], tasks=task[test]) - y[test]
            errors.setdefault(f"gamma {gamma:g}", []).append(float(np.sqrt((left**2).mean())))
    return errors


def mnist() -> Errors:
    errors: Errors = {}
    for seed in range(4):
        data, rng = load_mnist_tasks(seed=seed), np.random.default_rng(seed)
        X, y, tasks = [], [], []
        for part, most in ((data.train, 100), (data.test, 750)):
            task = np.repeat(np.arange(part.m), np.diff(part.starts))
            kinds = [np.flatnonzero((task == k) & (part.y == label)) for k in range(part.m) for label in (-1, 1)]
            rows = np.sort(np.concatenate([rng.permutation(kind)[:most] for kind in kinds]))
            X, y, tasks = [*X, part.X[rows]], [*y, part.y[rows]], [*tasks, task[rows]]
        for name, how in SEARCHES.items():
            model = MTRLClassifierCV(**how).fit(X[0], y[0], tasks=tasks[0])
            wrong = model.predict(X[1], tasks=tasks[1]) != y[1]
            errors.setdefault(name, []).append(float(wrong.mean()))
    return errors


MEASUREMENTS: dict[str, Callable[[], Errors]] = {
    "regression": lambda: simulated(classes=False),
    "classification": lambda: simulated(classes=True),
    "school": school,
    "mnist": mnist,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore", NotConvergedWarning)
    for name in sys.argv[1:]:
        print(name)
        found = MEASUREMENTS[name]()
        first = np.array(next(iter(found.values())))
        for setting, values in found.items():
            away = np.array(values) - first
            print(
                f"  {setting:22} {np.mean(values):.4f}, away from the first "
                f"{away.mean():+.4f} ± {away.std(ddof=1) / np.sqrt(len(away)):.4f}"
            )
