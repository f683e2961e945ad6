"""The default cross-validated estimator against one fit of a mixed-effects model, on many groups with few rows.

GPBoost and statsmodels fit a random intercept by maximum likelihood and choose nothing by cross-validation, so they do
less. All run in turn in one process, on one thread; compile time is excluded.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dmtrl.estimators.cv import MTRLRegressorCV
from dmtrl.report.content import Item, Text
from dmtrl_lab.baselines.grouped import Package, fit_random_intercept, fit_statsmodels, with_constant
from dmtrl_lab.bench.timing import interleaved, ratio
from dmtrl_lab.experiments.early_stop import may_stop_early
from dmtrl_lab.experiments.experiment import Experiment, Figures, Record, Records, Run, machines, table

DEFAULT, THREADS, GPBOOST, STATSMODELS = "default", "two threads", "GPBoost", "statsmodels"
PEERS = {GPBOOST: Package("gpboost"), STATSMODELS: Package("statsmodels")}
# groups x rows x features, with the seconds that a run takes and the number of repeats
SIZES = {"500 x 6 x 50": (60, 3), "4,700 x 6 x 50": (300, 1)}
LARGE = {"100,000 x 5 x 10": (1200, 1)}
QUICK_SIZE = "20 x 6 x 5"
MOST_GROUPS = {GPBOOST: 10**9, STATSMODELS: 1000}  # beyond which a peer takes too long
RANK, LEVEL, DEVIATION, NOISE = 3, 0.7, 0.3, 1.0  # of the weights; standard deviations


def make_groups(groups: int, rows: int, d: int, seed: int = 0) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Return X, y and the group of each row, for training and for testing.

    A row's mean is a shared linear function, a level of its group, and a deviation of its group's weights, of low rank.
    """
    rng = np.random.default_rng(seed)
    shared, levels = rng.standard_normal(d) / np.sqrt(d), LEVEL * rng.standard_normal(groups)
    mix, directions = rng.standard_normal((groups, RANK)), rng.standard_normal((RANK, d)) / np.sqrt(RANK * d)

    def draw() -> tuple[np.ndarray, ...]:
        group = np.repeat(np.arange(groups), rows)
        X = rng.standard_normal((len(group), d))
        deviation = np.einsum("ij,ij->i", X @ directions.T, mix[group])
        noise = NOISE * rng.standard_normal(len(group))
        return X, X @ shared + levels[group] + DEVIATION * deviation + noise, group

    return draw(), draw()


def _fit_ours(X: np.ndarray, y: np.ndarray, group: np.ndarray, n_jobs: int | None = None) -> Any:
    with may_stop_early():
        return MTRLRegressorCV(n_jobs=n_jobs).fit(X, y, tasks=group)


def _predict_statsmodels(fitted: Any, X: np.ndarray, group: np.ndarray) -> np.ndarray:
    effects = fitted.random_effects
    levels = np.array([float(np.ravel(effects[one])[0]) for one in range(len(effects))])
    return np.asarray(with_constant(X) @ np.asarray(fitted.fe_params) + levels[group])


FIT: dict[str, Callable[..., Any]] = {
    DEFAULT: _fit_ours,
    THREADS: partial(_fit_ours, n_jobs=2),
    GPBOOST: fit_random_intercept,
    STATSMODELS: fit_statsmodels,
}
PREDICT: dict[str, Callable[[Any, np.ndarray, np.ndarray], np.ndarray]] = {
    DEFAULT: lambda fitted, X, group: np.asarray(fitted.predict(X, tasks=group)),
    GPBOOST: lambda fitted, X, group: np.asarray(fitted.predict(X_pred=with_constant(X), group_data_pred=group)["mu"]),
    STATSMODELS: _predict_statsmodels,
}


def _sizes(size: str) -> tuple[int, int, int]:
    groups, rows, d = (int(one.replace(",", "")) for one in size.split(" x "))
    return groups, rows, d


def _peers(size: str) -> list[str]:
    """Return the peers that are installed and can fit so many groups."""
    return [name for name, package in PEERS.items() if not package.missing() and _sizes(size)[0] <= MOST_GROUPS[name]]


def runs(quick: bool) -> list[Run]:
    """The peers are a part of the key: when one is installed, a size is measured again."""
    sizes = {QUICK_SIZE: (2, 2)} if quick else SIZES
    return [Run({"size": size, "peers": _peers(size), "quick": quick}, seconds) for size, (seconds, _) in sizes.items()]


def runs_with_large(quick: bool) -> list[Run]:
    large = [] if quick else [Run({"size": one, "peers": _peers(one), "quick": quick}, LARGE[one][0]) for one in LARGE]
    return [*runs(quick), *large]


def measure(size: str, peers: list[str], quick: bool) -> Figures:
    groups, rows, d = _sizes(size)
    small, _ = make_groups(min(groups, 30), rows, d)
    train, (X, y, group) = make_groups(groups, rows, d)
    names = [DEFAULT, THREADS, *peers]
    with threadpool_limits(1):
        for name in names:
            FIT[name](*small)  # compiles, and loads libraries
        competitors = {name: partial(FIT[name], *train) for name in names}
        repeats = 2 if quick else (SIZES | LARGE)[size][1]
        timed = interleaved(competitors, repeats, warm_up=False)
        fitted = timed.results[DEFAULT]
        predicted = {name: PREDICT[name](timed.results[name], X, group) for name in (DEFAULT, *peers)}
    return {
        "seconds": timed.seconds,
        "processor": timed.processor,
        "error": {name: float(((y - mean) ** 2).mean()) for name, mean in predicted.items()},
        "gap": fitted.certificate_.relative_gap,
        "same_bits": bool(np.array_equal(fitted.coef_, timed.results[THREADS].coef_)),
        "chosen": {"lambda": fitted.reg_lambda_, "common": fitted.common_strength_, "own": fitted.own_strength_},
    }


def table_row(record: Record) -> dict[str, object]:
    figures = record.figures
    processor, seconds, error = figures["processor"], figures["seconds"], figures["error"]
    row: dict[str, object] = {
        "groups x rows x features": record.params["size"],
        "default, s": f"{np.median(processor[DEFAULT]):.3g}",
        "two threads, s": f"{np.median(seconds[THREADS]):.3g}" + ("" if figures["same_bits"] else ", OTHER BITS"),
    }
    for name in PEERS:
        measured = name in processor
        row[f"{name}, s"] = f"{np.median(processor[name]):.3g}" if measured else ""
        row[f"{name} / default"] = f"{ratio(processor[name], processor[DEFAULT]):.2g}" if measured else ""
    row["test error"] = f"{error[DEFAULT]:.3f}"
    row |= {f"test error, {name}": f"{error[name]:.3f}" if name in error else "" for name in PEERS}
    return row


def items(records: Records) -> list[Item]:
    reasons = {name: reason for name, package in PEERS.items() if (reason := package.missing())}
    return [
        Text(
            "MTRLRegressorCV with default parameters, the search and the last fit, against one fit of a linear mixed "
            "model with a random intercept. Rows: a shared linear function, a level of each group, and small "
            f"deviations of its weights. Machine: {machines(records)}."
        ),
        *(Text(f"Left out: {name} ({reason}).") for name, reason in reasons.items()),
        table(
            "Many groups with few rows: time of a default search and of a mixed model",
            [table_row(record) for record in records],
            "Processor seconds on one thread, medians, without compile time; two threads: elapsed seconds. Ratios with "
            "the range of single repeats; above one, dmtrl is faster. Test error: mean squared error on as many new "
            f"rows of the same groups; the variance of the noise is {NOISE**2:g}. An empty cell: not installed, or too "
            f"slow (statsmodels: beyond {MOST_GROUPS[STATSMODELS]:,} groups).",
        ),
    ]


TITLE = "Many groups with few rows"
GROUPED = Experiment("bench grouped", TITLE, runs, measure, items, {"estimators": "default", "seed": 0})
