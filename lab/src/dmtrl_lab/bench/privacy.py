"""What privacy costs: the error of the three private modes over epsilon, compared with fits without noise.

Rows are scaled with public ranges only. The baselines: each site alone (nothing leaves it, so it needs no noise), one
model for all sites from noisy averaged gradients in the manner of DP-FedAvg, and the same multi-task problem without
noise. lambda is stated, as in a private study.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_limits

from dmtrl.data.task_data import TaskData
from dmtrl.datasets import load_school
from dmtrl.federation.protection.noise.accounting import mu_of, sigma_of
from dmtrl.federation.protection.noise.coordinator import PrivateProblem, ask_in_process, fit
from dmtrl.federation.protection.noise.moments import clip_rows
from dmtrl.federation.study.privacy_terms import MOMENTS, NEWTON, RELEASES, ROUNDS, Privacy
from dmtrl.losses import AnyLoss, get_loss
from dmtrl.losses.builtin import huber
from dmtrl.report.content import Item, Table, Text
from dmtrl.solver.api import solve
from dmtrl.solver.problem import Problem
from dmtrl_lab.experiments.experiment import Experiment, Figures, Records, Run, grid, select
from dmtrl_lab.experiments.heart import DUMMIES, HOSPITALS, complete_columns

EPSILONS, DELTA, COMMON = (0.5, 1.0, 2.0, 4.0, 8.0), 1e-5, 1.0
A, B, C = "A, moments", "B, newton", "C, rounds"
FEDAVG, ALONE, CLEAR = "one model, noisy averages", "each site alone", "without noise"
SIZES = (200, 1000, 5000, 20_000)
SCHOOLS = (139, 20, 5)  # sites into which the 139 schools are pooled
_ROUNDS = 20  # of noisy averages


@dataclass(frozen=True)
class Sites:
    """Rows of sites, scaled with public ranges. `label_bound`: public bound of |y|; `smooth`: the loss of B and C."""

    train: list[tuple[np.ndarray, np.ndarray]]
    test: list[tuple[np.ndarray, np.ndarray]]
    row_norm: float
    label_bound: float
    smooth: AnyLoss
    reg_lambda: float
    classes: bool

    def error(self, W: np.ndarray) -> float:
        """Error rate or root mean squared error over all test rows."""
        z = np.concatenate([X @ w[:-1] + w[-1] for (X, _), w in zip(self.test, W, strict=True)])
        y = np.concatenate([y for _, y in self.test])
        return float(np.mean(y * z <= 0)) if self.classes else float(np.sqrt(np.mean((y - z) ** 2)))


def runs(quick: bool) -> list[Run]:
    if quick:
        return grid(True, 10, data=["simulated"], size=[100], repeats=[1])
    cases = [("simulated", size, 3 if size <= 1000 else 1, 40) for size in SIZES]
    cases += [*(("School", size, 1, 40) for size in SCHOOLS), ("heart", 4, 5, 20)]
    return [Run({"data": data, "size": size, "repeats": n, "quick": False}, s) for data, size, n, s in cases]


def measure(data: str, size: int, repeats: int, quick: bool) -> Figures:
    sites = {"simulated": simulated, "School": school, "heart": heart}[data](size)
    epsilons = (1.0, 8.0) if quick else EPSILONS
    with threadpool_limits(1):
        private = {
            name: {
                f"{epsilon:g}": float(np.mean([sites.error(fitted(sites, epsilon, seed)) for seed in range(repeats)]))
                for epsilon in epsilons
            }
            for name, fitted in NOISY.items()
        }
        known = {ALONE: sites.error(alone(sites)), CLEAR: sites.error(clear(sites))}
    rows = int(np.median([len(y) for _, y in sites.train]))
    return {**private, **known, "rows": rows, "sites": len(sites.train)}


def private_fit(mode: str, sites: Sites, epsilon: float, seed: int) -> np.ndarray:
    """The weights of one of the three modes."""
    loss = get_loss("squared") if mode == MOMENTS else sites.smooth
    slope = sites.label_bound if mode == MOMENTS else loss.lipschitz
    privacy = Privacy(mode, epsilon, DELTA, sites.row_norm, slope, RELEASES[mode])
    names = [str(i) for i in range(len(sites.train))]
    problem = PrivateProblem(privacy, loss, names, sites.train[0][0].shape[1], sites.reg_lambda, COMMON)
    noise = np.random.default_rng([seed, 1]).standard_normal
    data = TaskData.from_list(sites.train)
    label = float(np.abs(data.y).max())  # an experiment may read it from the data; a site does not
    return fit(problem, ask_in_process(privacy, loss, data, noise, label)).W


def noisy_average(sites: Sites, epsilon: float, seed: int) -> np.ndarray:
    """One model for all sites: in every round each site releases the noisy gradient of its loss, and the server takes a
    step along the mean over sites. The models of the last half of the rounds are averaged."""
    rng, loss, mu = np.random.default_rng([seed, 2]), sites.smooth, mu_of(epsilon, DELTA)
    rows = [(np.column_stack([clip_rows(X, sites.row_norm), np.ones(len(X))]), y) for X, y in sites.train]
    norm = math.hypot(sites.row_norm, 1.0)
    step = 2.0 / (loss.smoothness * norm**2)
    w, mean = np.zeros(rows[0][0].shape[1]), np.zeros(rows[0][0].shape[1])
    for t in range(_ROUNDS):
        gradients = []
        for X, y in rows:
            std = sigma_of(2.0 * loss.lipschitz * norm / len(y), mu, _ROUNDS)
            slope = loss.slope(X @ w, y)  # type: ignore[attr-defined]
            gradients.append(-(slope @ X) / len(y) + std * rng.standard_normal(len(w)))
        w = w - step * np.mean(gradients, axis=0)
        if t >= _ROUNDS // 2:
            mean += w / (_ROUNDS - _ROUNDS // 2)
    return np.tile(mean, (len(rows), 1))


NOISY: dict[str, Callable[[Sites, float, int], np.ndarray]] = {
    A: partial(private_fit, MOMENTS),
    B: partial(private_fit, NEWTON),
    C: partial(private_fit, ROUNDS),
    FEDAVG: noisy_average,
}


def alone(sites: Sites) -> np.ndarray:
    """Ridge or logistic regression of each site, its strength chosen by cross-validation."""
    W = []
    for X, y in sites.train:
        if not sites.classes:
            model = RidgeCV(np.logspace(-2, 3, 11)).fit(X, y)
            W.append(np.append(model.coef_, model.intercept_))
        elif min(np.sum(y > 0), np.sum(y < 0)) < 5:
            W.append(np.append(np.zeros(X.shape[1]), np.sign(y.sum())))
        else:
            found = GridSearchCV(LogisticRegression(max_iter=500), {"C": np.logspace(-2, 3, 6)}, cv=5).fit(X, y)
            W.append(np.append(found.best_estimator_.coef_[0], found.best_estimator_.intercept_))
    return np.array(W)


def clear(sites: Sites) -> np.ndarray:
    """The multi-task problem without noise and without clipping."""
    loss = sites.smooth if sites.classes else get_loss("squared")
    data = TaskData.from_list(sites.train)
    return solve(Problem.of(data, loss=loss, reg_lambda=sites.reg_lambda, common=COMMON, intercept_ridge=1e-6)).W


def simulated(size: int) -> Sites:
    """Eight sites with `size` rows of ten features in [-1, 1]; two directions in which the sites differ."""
    rng, d, m = np.random.default_rng(0), 10, 8
    common, basis = 2.0 * rng.standard_normal(d), rng.standard_normal((2, d))
    parts: list[list[tuple[np.ndarray, np.ndarray]]] = [[], []]
    for _ in range(m):
        w = common + rng.standard_normal(2) @ basis
        for part, rows in zip(parts, (size, 2000), strict=True):
            X = rng.uniform(-1, 1, (rows, d))
            part.append((X, np.where(rng.random(rows) < 1 / (1 + np.exp(-X @ w - 0.5)), 1.0, -1.0)))
    return Sites(parts[0], parts[1], 1.8, 1.0, get_loss("logistic"), 0.003, classes=True)


def school(size: int) -> Sites:
    """The School data, first split; schools are pooled into `size` sites by their number."""
    data = load_school()
    X, y = data.X[:, :-1].astype(float), data.y.astype(float) - 35.5
    X[:, 3], X[:, 4] = (X[:, 3] - 50) / 50, (X[:, 4] - 25) / 25  # percentages of pupils; all others are 0 or 1
    site = data.task % size
    parts = [[(X[rows][site[rows] == k], y[rows][site[rows] == k]) for k in range(size)] for rows in data.splits[0]]
    return Sites(parts[0], parts[1], 2.2, 34.5, huber(10.0), 0.03, classes=False)


NUMBERS = {"age": (29, 77), "trestbps": (80, 200), "chol": (0, 600), "thalach": (60, 210), "oldpeak": (-3, 7)}
FLAGS = ("sex", "fbs", "exang")


def heart(size: int) -> Sites:
    """The four hospitals, rows without missing values; every third row is for the test."""
    parts: list[list[tuple[np.ndarray, np.ndarray]]] = [[], []]
    for name in HOSPITALS[:size]:
        columns = complete_columns(name)
        X = [(columns[key] - (low + high) / 2) / ((high - low) / 2) for key, (low, high) in NUMBERS.items()]
        X += [columns[key] for key in FLAGS]
        X += [(columns[key] == level).astype(float) for key, levels in DUMMIES.items() for level in levels]
        y = np.where(columns["num"] > 0, 1.0, -1.0)
        order = np.random.default_rng(0).permutation(len(y))
        for part, rows in zip(parts, (order[len(order) // 3 :], order[: len(order) // 3]), strict=True):
            part.append((np.column_stack(X)[rows], y[rows]))
    return Sites(parts[0], parts[1], 1.5, 1.0, get_loss("logistic"), 0.03, classes=True)


TITLES = {
    "simulated": "Simulated sites: error rate",
    "School": "School: root mean squared error",
    "heart": "Heart disease at four hospitals: error rate",
}


def items(records: Records) -> list[Item]:
    found: list[Item] = [
        Text(
            f"Error over epsilon at delta {DELTA:g}, for the replacement of one row of a site: the error rate on new "
            "rows, and for School the root mean squared error. Mean over draws of the noise. Mode A uses squared loss "
            "(on labels -1 and 1 where there are classes), B and C logistic loss or, for School, huber loss with "
            "delta 10. lambda is 0.003 for simulated rows and 0.03 else. Each site alone chooses its strength by "
            "cross-validation and needs no noise, because nothing leaves it."
        )
    ]
    for data, title in TITLES.items():
        rows, epsilons, digits = [], list[str](), ".2f" if data == "School" else ".3f"
        for figures in (record.figures for record in select(records, data=data)):
            epsilons = list(figures[A])
            where = f"{figures['sites']} sites of {figures['rows']:,} rows"
            rows += [[where, m, *(format(figures[m][e], digits) for e in epsilons)] for m in NOISY]
            rows += [[where, m, *[format(figures[m], digits)] * len(epsilons)] for m in (ALONE, CLEAR)]
            worse = [e for e in epsilons if min(figures[m][e] for m in (A, B, C)) > figures[ALONE]]
            if worse:
                words = f"with epsilon {', '.join(worse)} the best private mode is worse than each site alone"
                found.append(Text(f"{title.split(':')[0]}, {where}: {words}: the sites are too small for it."))
        if rows:
            found.append(Table(title, ["sites", "method", *(f"epsilon {e}" for e in epsilons)], rows))
    return found


PRIVACY = Experiment("bench privacy", "Privacy", runs, measure, items, {"epsilons": list(EPSILONS), "delta": DELTA})
