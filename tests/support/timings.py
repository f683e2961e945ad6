"""Processor seconds of a few fits, to show that a change of the code changed no speed.

Run it with the source of two commits on the same machine, in turn, and compare what it prints:

    DMTRL_DATA=... PYTHONPATH=src python tests/support/timings.py
"""

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl import Execution, MTRLClassifier, MTRLRegressor, MTRLRegressorCV, Problem, Settings, TaskData, solve
from dmtrl.datasets import make_synthetic

REPEATS = 3


def jobs() -> dict[str, Callable[[], Any]]:
    with np.load(Path(os.environ["DMTRL_DATA"]) / "school.npz") as file:
        train = file["train_1"]
        X, y, task = file["X"][train, :27].astype(float), file["y"][train].astype(float), file["task"][train]
    X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-9)
    school = TaskData.from_long(X, y - y.mean(), task)
    synthetic = make_synthetic(1).train
    tasks = np.repeat(np.arange(synthetic.m), np.diff(synthetic.starts))
    many, rough = make_synthetic(1, m=3000, rows_per_task=20, d=50).train, Execution(settings=Settings(tol=1e-2))
    return {
        "School, MTRLRegressor": lambda: MTRLRegressor().fit(X, y, tasks=task),
        "School, MTRLRegressorCV, 3 lambdas, 3 folds": lambda: MTRLRegressorCV(lambdas=[1.0, 0.1, 0.01], cv=3).fit(
            X, y, tasks=task
        ),
        "Synthetic 1, MTRLClassifier, hinge": lambda: MTRLClassifier("hinge").fit(
            synthetic.X, synthetic.y, tasks=tasks
        ),
        "School, solve, squared": lambda: solve(Problem.of(school, loss="squared", reg_lambda=0.1)),
        "Synthetic 1, solve, logistic": lambda: solve(Problem.of(synthetic, loss="logistic", reg_lambda=1e-3)),
        "3000 tasks, solve, hinge": lambda: solve(Problem.of(many, loss="hinge", reg_lambda=1e-2), rough),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name, job in jobs().items():
        job()  # compiles
        seconds = []
        for _ in range(REPEATS):
            began = time.process_time()
            job()
            seconds.append(time.process_time() - began)
        print(f"{min(seconds):.3f}  {name}", flush=True)
