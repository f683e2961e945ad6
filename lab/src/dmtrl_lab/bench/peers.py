"""What the estimators are compared with: scikit-learn's models, fitted task by task, and the rows for both.

A peer minimises the mean loss of a task plus ridge / 2 |w|^2, where ridge = lambda m is what independent tasks have in
dmtrl. LIBLINEAR's models also penalise the intercept; the optimum that they are held to does, too.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.svm import LinearSVC, LinearSVR

from dmtrl.data.task_data import TaskData
from dmtrl.datasets import TaskSplit
from dmtrl.losses import get_loss
from dmtrl_lab.bench.zoo import draw_rows, estimator
from dmtrl_lab.experiments.early_stop import may_stop_early
from dmtrl_lab.experiments.problems import labels, load_problem, load_split, tasks_of, with_constant

TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
ITERATIONS = 5000
RANDOM = {  # tasks x rows x features, and the kind of features
    "190 x 10 x 500": "plain",
    "36 x 75 x 300": "correlated",
    "100 x 50 x 20": "plain",
    "1 x 60,000 x 200": "correlated",
    "1 x 35,000 x 10,000": "sparse",
}


def load_rows(name: str, loss: str, quick: bool) -> TaskSplit:
    """Load a data set of the paper, without a constant column, or draw one of the RANDOM ones."""
    if name in ("mnist", "mds"):
        return load_split(name, quick)
    if name in ("synthetic 1", "school"):
        task = load_problem(name, quick=quick)
        columns = slice(None, -1 if name == "school" else None)
        return TaskSplit(*(replace(part, X=part.X[:, columns].copy()) for part in (task.train, task.test)))
    m, n, d = (int(size.replace(",", "")) for size in name.split(" x "))
    if quick:
        m, n, d = min(m, 8), min(n, 200), min(d, 50)
    X, y, task_of_row = draw_rows(np.random.default_rng(0), np.full(m, n), d, RANDOM[name], loss)
    data = TaskData.from_long(X, y, task_of_row)
    return TaskSplit(data, data)


@dataclass(frozen=True)
class Peer:
    """A model of scikit-learn. `make(ridge, n, tol)` returns it for a task of n rows."""

    name: str
    make: Callable[[float, int, float], Any]
    penalised: bool = False  # the intercept
    dense_only: bool = False


def _logistic(solver: str) -> Callable[[float, int, float], Any]:
    return lambda ridge, n, tol: LogisticRegression(C=1 / (ridge * n), solver=solver, tol=tol, max_iter=ITERATIONS)


def _svc(loss: str, factor: float) -> Callable[[float, int, float], Any]:
    return lambda ridge, n, tol: LinearSVC(
        loss=loss, C=factor / (ridge * n), dual=True, tol=tol, max_iter=ITERATIONS, random_state=0
    )


def _svr(ridge: float, n: int, tol: float) -> Any:
    return LinearSVR(epsilon=0.1, C=1 / (ridge * n), tol=tol, max_iter=ITERATIONS, random_state=0)


PEERS: dict[str, list[Peer]] = {
    "squared": [Peer("Ridge", lambda ridge, n, tol: Ridge(alpha=ridge * n, tol=tol))],
    "logistic": [
        Peer("LogisticRegression, lbfgs", _logistic("lbfgs")),
        Peer("LogisticRegression, newton-cholesky", _logistic("newton-cholesky"), dense_only=True),
    ],
    "hinge": [Peer("LinearSVC", _svc("hinge", 1.0), penalised=True)],
    "squared_hinge": [Peer("LinearSVC", _svc("squared_hinge", 0.5), penalised=True)],
    "epsilon_insensitive": [Peer("LinearSVR", _svr, penalised=True)],
    "poisson": [
        Peer("PoissonRegressor", lambda ridge, n, tol: PoissonRegressor(alpha=ridge, tol=tol, max_iter=ITERATIONS))
    ],
}


def fit_tasks(peer: Peer, tasks: Sequence[tuple[Any, np.ndarray]], ridge: float, tol: float) -> list[Any]:
    """Fit one model per task. The rows are those of `tasks_of`, so that separating them is not timed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the accuracy is measured
        return [peer.make(ridge, len(y), tol).fit(X, y) for X, y in tasks]


def objective(
    data: TaskData, loss: str, ridge: float, coef: np.ndarray, intercept: np.ndarray, penalised: bool
) -> float:
    """Return the sum over tasks of the mean loss and the ridge penalty."""
    total = 0.5 * ridge * float((coef**2).sum() + (intercept**2).sum() * penalised)
    for (X, y), w, b in zip(tasks_of(data), coef.astype(float), intercept, strict=True):
        total += float(get_loss(loss).value(X @ w + b, y).mean())
    return total


def peer_objective(peer: Peer, data: TaskData, loss: str, ridge: float, models: list[Any]) -> float:
    coef = np.array([np.ravel(model.coef_) for model in models])
    intercept = np.array([float(np.ravel(model.intercept_)[0]) for model in models])
    return objective(data, loss, ridge, coef, intercept, peer.penalised)


def lower_bound(data: TaskData, loss: str, reg_lambda: float, penalised: bool, tol: float) -> float:
    """Return a bound of the objective of independent tasks, from a certified fit to a relative gap of `tol`."""
    rows = with_constant(data) if penalised else data
    how: dict[str, Any] = {"relationship": "independent", "fit_intercept": not penalised, "task_weight": "equal"}
    model = estimator(loss, reg_lambda=reg_lambda, tol=tol, **how)
    with may_stop_early():
        model.fit(rows.X, rows.y, tasks=labels(rows))
    value = objective(rows, loss, reg_lambda * data.m, model.coef_.reshape(data.m, -1), model.intercept_, False)
    return value - model.certificate_.relative_gap * abs(value)


@dataclass(frozen=True)
class Settled:
    """A peer with the loosest tolerance that reaches a relative gap, and the gap that it reaches."""

    peer: Peer
    tol: float
    gap: float


def settle(data: TaskData, loss: str, reg_lambda: float, gap: float) -> list[Settled]:
    """Tighten the tolerance of each peer of a loss until the gap of its own objective is small enough."""
    ridge, settled, tasks = reg_lambda * data.m, [], tasks_of(data)
    for peer in PEERS[loss]:
        if peer.dense_only and sparse.issparse(data.X):
            continue
        lower = lower_bound(data, loss, reg_lambda, peer.penalised, gap / 100)
        for tol in TOLERANCES:
            value = peer_objective(peer, data, loss, ridge, fit_tasks(peer, tasks, ridge, tol))
            reached = (value - lower) / abs(value)
            if reached <= gap:
                break
        settled.append(Settled(peer, tol, reached))
    return settled
