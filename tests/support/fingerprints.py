"""Digests of many small fits, to show that a change of the code changed no bit of any result.

Run it with the source of two commits on the same machine and compare what it prints:

    PYTHONPATH=src python tests/support/fingerprints.py
"""

import hashlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl import (
    Execution,
    LocalOptions,
    MTRLClassifier,
    MTRLClassifierCV,
    MTRLRegressor,
    MTRLRegressorCV,
    Problem,
    Settings,
    TaskData,
    solve,
)

REGRESSION = ("squared", "absolute", "huber", "epsilon_insensitive", "quantile", "poisson")
CLASSIFICATION = ("hinge", "smoothed_hinge", "squared_hinge", "logistic")


def rows(m: int = 6, n: int = 25, d: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, noisy scores and tasks of a problem with two families of tasks."""
    rng = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(m), n)
    W = np.outer(np.where(np.arange(m) % 2, 1.0, -0.7), rng.normal(size=d)) + 0.2 * rng.normal(size=(m, d))
    X = rng.normal(size=(m * n, d))
    return X, (X * W[tasks]).sum(axis=1) + 0.3 * rng.normal(size=m * n), tasks


def labels(score: np.ndarray, loss: str) -> np.ndarray:
    if loss in CLASSIFICATION:
        return np.where(score > 0, 1.0, -1.0)
    return np.round(np.exp(np.clip(score, -3, 2))) if loss == "poisson" else score


def problems() -> Iterator[tuple[str, Any]]:
    """A name and something that fits; what it returns has weights and a certificate."""
    X, score, tasks = rows()
    for loss in (*REGRESSION, *CLASSIFICATION):
        data = TaskData.from_long(X, labels(score, loss), tasks)
        for workers in (1, 3):
            yield (
                f"solve {loss} workers={workers}",
                lambda d=data, k=loss, w=workers: solve(
                    Problem.of(d, loss=k, reg_lambda=0.01), Execution(LocalOptions(w))
                ),
            )
    data = TaskData.from_long(X, labels(score, "logistic"), tasks)
    fast = Execution(settings=Settings(max_rounds=40))
    variants: dict[str, tuple[dict[str, Any], Execution]] = {
        "common": ({"common": 1.0}, Execution()),
        "independent": ({"relationship": "independent"}, Execution()),
        "shared": ({"relationship": "shared", "common": 0.3}, Execution()),
        "shards": ({}, Execution(LocalOptions(workers=4, shards=2))),
        "threads": ({}, Execution(LocalOptions(workers=4, n_jobs=2))),
        "paper": ({}, Execution(settings=Settings.paper(T=4, P=4))),
        "dual": ({}, Execution(settings=Settings(method="dual", max_rounds=60))),
        "dual eta": ({}, Execution(settings=Settings(method="dual", max_rounds=60, eta=0.8))),
        "uniform": ({}, Execution(settings=Settings(sampling="uniform", max_passes=2, max_rounds=40))),
        "steps": ({}, Execution(settings=Settings(steps=7, max_rounds=40))),
        "newton": ({}, Execution(settings=Settings(local_solver="newton"))),
    }
    for name, (what, how) in variants.items():
        problem = Problem.of(data, loss="logistic", reg_lambda=0.01, **what)
        yield f"solve {name}", lambda p=problem, e=how: solve(p, e)
    for loss in ("hinge", "squared"):
        y = labels(score, loss)
        thin = np.where(np.abs(X) > 1.0, X, 0.0)
        pictures = np.kron(thin, np.eye(1, 8))
        kinds: dict[str, Any] = {
            "csr": sparse.csr_matrix(thin),
            "float32": X.astype(np.float32),
            "csr float32": sparse.csr_matrix(thin.astype(np.float32)),
            "mostly zero": pictures,
            "mostly zero float32": pictures.astype(np.float32),
        }
        for kind, rows_of_kind in kinds.items():
            task_data = TaskData.from_long(rows_of_kind, y, tasks)
            problem = Problem.of(task_data, loss=loss, reg_lambda=0.01)
            yield f"solve {loss} {kind}", lambda p=problem: solve(p, fast)
    y = labels(score, "logistic")
    weight = 1.0 + (np.arange(len(y)) % 3)
    three = np.digitize(score, [-1.0, 1.0])
    yield "MTRLRegressor", lambda: MTRLRegressor(max_rounds=200).fit(X, score, tasks=tasks, sample_weight=weight)
    yield "MTRLRegressor rff", lambda: MTRLRegressor(feature_map="rff", max_rounds=50).fit(X, score, tasks=tasks)
    yield "MTRLRegressor sparse", lambda: MTRLRegressor().fit(sparse.csr_matrix(X), score, tasks=tasks)
    yield "MTRLClassifier", lambda: MTRLClassifier(n_jobs=2).fit(X, y, tasks=tasks)
    yield "MTRLClassifier hinge", lambda: MTRLClassifier("hinge", max_rounds=200).fit(X, y, tasks=tasks)
    yield "MTRLClassifier three classes", lambda: MTRLClassifier(max_rounds=200).fit(X, three, tasks=tasks)
    yield "MTRLRegressorCV", lambda: MTRLRegressorCV(lambdas=[1.0, 0.1, 0.01], cv=3).fit(X, score, tasks=tasks)
    yield "MTRLClassifierCV", lambda: MTRLClassifierCV(lambdas=[0.1, 0.01], cv=3).fit(X, y, tasks=tasks)


def digest(result: Any) -> str:
    """Of the weights, the certificate and the gap of every round."""
    weights = result.W if hasattr(result, "W") else np.column_stack([result.coef_.ravel(), result.coef_.ravel()])
    certificate = result.certificate if hasattr(result, "certificate") else result.certificate_
    history = result.history if hasattr(result, "history") else result.history_
    gaps = [record["gap"] if isinstance(record, dict) else record.gap for record in history]
    numbers = [np.ascontiguousarray(weights), np.array([certificate.primal, certificate.dual]), np.array(gaps)]
    return hashlib.sha256(b"".join(array.tobytes() for array in numbers)).hexdigest()[:16]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name, fit in problems():
        print(f"{digest(fit())}  {name}", flush=True)
