"""Cross-validation with the default estimators, against scikit-learn's searches task by task.

The searches get the folds that dmtrl draws and as many candidates as its grid has, over the same range of lambda.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from dmtrl.data.folds import shuffled
from dmtrl.datasets import TaskSplit, load_mnist_tasks
from dmtrl.report.content import Item, Text
from dmtrl_lab.bench.peers import load_rows
from dmtrl_lab.bench.timing import interleaved
from dmtrl_lab.bench.zoo import estimator
from dmtrl_lab.experiments.early_stop import may_stop_early
from dmtrl_lab.experiments.experiment import Experiment, Figures, Record, Records, Run, machines, table
from dmtrl_lab.experiments.problems import TITLES, error_text, labels, prediction_error, tasks_of

CASES = {  # and estimated seconds
    ("school", "squared"): 60,
    ("synthetic 1", "logistic"): 120,
    ("synthetic 1", "hinge"): 240,
    ("mds", "logistic"): 300,
    ("mds", "hinge"): 200,
    ("mnist", "logistic"): 600,
    ("mnist", "hinge"): 600,
}
QUICK = (("school", "squared"), ("synthetic 1", "logistic"), ("synthetic 1", "hinge"))
MNIST_POSITIVES = 500  # of each digit
FOLDS, MAX_ROUNDS = 5, 500
WARM_UP = (1.0, 0.01, 1e-4, 1e-6)  # values of lambda: the local solvers depend on it
DEFAULT, THREADS = "default", "two threads"
PEERS = {"squared": "RidgeCV", "logistic": "LogisticRegressionCV", "hinge": "GridSearchCV of LinearSVC"}


def runs(quick: bool) -> list[Run]:
    return [
        Run({"problem": problem, "loss": loss, "quick": quick}, 5 if quick else CASES[problem, loss])
        for problem, loss in (QUICK if quick else CASES)
    ]


def _rows(problem: str, loss: str, quick: bool) -> TaskSplit:
    """Return the rows of `bench fit`, but of MNIST only some."""
    if problem == "mnist" and not quick:
        return load_mnist_tasks(max_positives=MNIST_POSITIVES)
    return load_rows(problem, loss, quick)


Folds = list[tuple[np.ndarray, np.ndarray]]


def task_folds(y: np.ndarray, task: int, stratified: bool) -> Folds:
    """Return the folds that a worker draws in the rows of a task: pairs of training and held-out rows."""
    order = shuffled(np.arange(len(y)), y if stratified else None, 0, task)
    return [(np.setdiff1d(order, held), np.sort(held)) for held in (order[k::FOLDS] for k in range(FOLDS))]


def search_tasks(
    tasks: Sequence[tuple[Any, np.ndarray]], folds: Sequence[Folds], loss: str, lambdas: np.ndarray, count: int
) -> list[Any]:
    """Fit scikit-learn's search to each task with `count` candidates over the range of `lambdas`."""
    grid = len(tasks) * np.geomspace(lambdas.max(), lambdas.min(), count)
    return [_search(loss, grid * len(y), mine).fit(X, y) for (X, y), mine in zip(tasks, folds, strict=True)]


def _search(loss: str, penalties: np.ndarray, folds: Folds) -> Any:
    if loss == "squared":
        return RidgeCV(penalties, cv=folds)
    if loss == "logistic":
        return LogisticRegressionCV(Cs=1 / penalties, cv=folds, scoring="accuracy", max_iter=1000)
    return GridSearchCV(LinearSVC(loss="hinge", random_state=0), {"C": 1 / penalties}, cv=folds)


def measure(problem: str, loss: str, quick: bool) -> Figures:
    split, peer = _rows(problem, loss, quick), PEERS[loss]
    data, test, tasks = split.train, split.test, labels(split.train)
    search = partial(estimator, loss, search=True)
    lambdas = [0.1, 0.01, 0.001] if quick else None
    model = partial(search, lambdas=lambdas, cv=FOLDS, max_rounds=MAX_ROUNDS)
    with threadpool_limits(1), may_stop_early():
        for threads in (1, 2):  # compiles what any candidate needs
            search(lambdas=WARM_UP, cv=2, max_rounds=3, n_jobs=threads).fit(data.X, data.y, tasks=tasks)
        ours = interleaved(
            {
                DEFAULT: lambda: model().fit(data.X, data.y, tasks=tasks),
                THREADS: lambda: model(n_jobs=2).fit(data.X, data.y, tasks=tasks),
            },
            1,
            warm_up=False,
        )
        fitted = ours.results[DEFAULT]
        tried = fitted.cv_results_
        candidates, rows = len(tried.lambdas) * len(tried.commons), tasks_of(data)
        folds = [task_folds(y, i, stratified=loss != "squared") for i, (_, y) in enumerate(rows)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", FutureWarning)  # of new defaults, which newer versions have
            alone = partial(search_tasks, rows, folds, loss, np.asarray(tried.lambdas), candidates)
            theirs = interleaved({peer: alone}, 1, warm_up=False)
    by_task = zip(theirs.results[peer], tasks_of(test), strict=True)
    predicted = {
        DEFAULT: fitted.predict(test.X, tasks=labels(test)),
        peer: np.concatenate([one.predict(X) for one, (X, _) in by_task]),
    }
    return {
        "seconds": ours.seconds | theirs.seconds,
        "processor": ours.processor | theirs.processor,
        "candidates": candidates,
        "gap": fitted.certificate_.relative_gap,
        "lambda": fitted.reg_lambda_,
        "common": fitted.common_strength_,
        "own": fitted.own_strength_,
        "same_choice": fitted.reg_lambda_ == ours.results[THREADS].reg_lambda_,
        "error": {name: prediction_error(test, z, loss) for name, z in predicted.items()},
    }


def table_row(record: Record) -> dict[str, object]:
    figures, loss, problem = record.figures, record.params["loss"], record.params["problem"]
    peer = PEERS[loss]
    seconds = {name: values[0] for name, values in figures["seconds"].items()}
    processor = {name: values[0] for name, values in figures["processor"].items()}
    other = "" if figures["same_choice"] else ", ANOTHER CHOICE"
    return {
        "data": TITLES[problem],
        "loss": loss,
        "candidates": figures["candidates"],
        "default, s": f"{processor[DEFAULT]:.3g}",
        "scikit-learn, s": f"{processor[peer]:.3g}",
        "ratio": f"{processor[peer] / processor[DEFAULT]:.2g}",
        "speed-up of two threads": f"{seconds[DEFAULT] / seconds[THREADS]:.2f}{other}",
        "test error": error_text(problem, figures["error"][DEFAULT]),
        "test error, scikit-learn": error_text(problem, figures["error"][peer]),
        "chosen lambda, common and own": ", ".join(f"{figures[name]:.2g}" for name in ("lambda", "common", "own")),
    }


def items(records: Records) -> list[Item]:
    return [
        Text(
            f"MTRLRegressorCV and MTRLClassifierCV with their default grids and {FOLDS} folds, the last fit included, "
            "against RidgeCV, LogisticRegressionCV and GridSearchCV of LinearSVC task by task, with the same folds, as "
            f"many candidates and their default tolerances. Machine: {machines(records)}."
        ),
        table(
            "Cross-validation and scikit-learn's searches task by task",
            [table_row(record) for record in records],
            "Processor seconds of one run each on one thread; the speed-up of two threads is that of elapsed time. "
            "Above one, dmtrl is faster. Test error: RMSE for squared loss, else the mean error rate over tasks. "
            f"MNIST: {2 * MNIST_POSITIVES:,} rows a task.",
        ),
    ]


TITLE = "Cross-validation with the default estimators"
CV = Experiment("bench cv", TITLE, runs, measure, items, {"folds": FOLDS, "max_rounds": MAX_ROUNDS, "seed": 0})
