"""Cross-validation with the default estimators, against scikit-learn's searches task by task.

The searches get the folds that dmtrl draws and as many candidates as its grid has, over the same range of lambda.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from dmtrl.data.task_data import TaskData
from dmtrl.datasets import TaskSplit, load_mnist_tasks
from dmtrl.estimators.cv import MTRLClassifierCV, MTRLRegressorCV
from dmtrl.lab.bench.peers import load_rows, tasks_of
from dmtrl.lab.bench.timing import interleaved
from dmtrl.lab.experiments.early_stop import may_stop_early
from dmtrl.lab.experiments.problems import TITLES, labels, mean_error_rate
from dmtrl.lab.experiments.records import Record, machines
from dmtrl.lab.experiments.runner import Experiment, Run
from dmtrl.losses import REGRESSION, get_loss
from dmtrl.report.content import Section, Table, Text

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


def task_folds(y: np.ndarray, task: int, stratified: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the folds that a worker draws in the rows of a task: pairs of training and held-out rows."""
    order = np.random.default_rng([0, task]).permutation(len(y))
    if stratified:
        order = order[np.argsort(y[order], kind="stable")]
    return [(np.setdiff1d(order, held), np.sort(held)) for held in (order[k::FOLDS] for k in range(FOLDS))]


Folds = list[tuple[np.ndarray, np.ndarray]]


def with_folds(data: TaskData, loss: str) -> list[tuple[tuple[Any, np.ndarray], Folds]]:
    """Return the rows and the folds of each task."""
    tasks = tasks_of(data)
    return [(rows, task_folds(rows[1], i, stratified=loss != "squared")) for i, rows in enumerate(tasks)]


def search_tasks(
    tasks: Sequence[tuple[tuple[Any, np.ndarray], Folds]], loss: str, lambdas: np.ndarray, count: int
) -> list[Any]:
    """Fit scikit-learn's search to each task with `count` candidates over the range of `lambdas`."""
    models = []
    grid = len(tasks) * np.geomspace(lambdas.max(), lambdas.min(), count)
    for (X, y), folds in tasks:
        models.append(_search(loss, grid * len(y), folds).fit(X, y))
    return models


def _search(loss: str, penalties: np.ndarray, folds: Folds) -> Any:
    if loss == "squared":
        return RidgeCV(penalties, cv=folds)
    if loss == "logistic":
        return LogisticRegressionCV(Cs=1 / penalties, cv=folds, scoring="accuracy", max_iter=1000)
    return GridSearchCV(LinearSVC(loss="hinge", random_state=0), {"C": 1 / penalties}, cv=folds)


def measure(problem: str, loss: str, quick: bool) -> Mapping[str, Any]:
    split = _rows(problem, loss, quick)
    data, test, tasks = split.train, split.test, labels(split.train)
    regression = get_loss(loss).kind == REGRESSION
    make: Any = MTRLRegressorCV if regression else MTRLClassifierCV
    lambdas = [0.1, 0.01, 0.001] if quick else None
    model = partial(make, loss=loss, lambdas=lambdas, cv=FOLDS, max_rounds=MAX_ROUNDS)
    with threadpool_limits(1), may_stop_early():
        for threads in (1, 2):  # compiles what any candidate needs
            make(loss=loss, lambdas=WARM_UP, cv=2, max_rounds=3, n_jobs=threads).fit(data.X, data.y, tasks=tasks)
        ours = interleaved(
            {
                DEFAULT: lambda: model().fit(data.X, data.y, tasks=tasks),
                THREADS: lambda: model(n_jobs=2).fit(data.X, data.y, tasks=tasks),
            },
            1,
            warm_up=False,
        )
        fitted = ours.results[DEFAULT]
        path = fitted.cv_path_
        candidates = len(path.lambdas) * len(path.commons)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", FutureWarning)  # of new defaults, which newer versions have
            search = partial(search_tasks, with_folds(data, loss), loss, np.asarray(path.lambdas), candidates)
            theirs = interleaved({PEERS[loss]: search}, 1, warm_up=False)
    alone = theirs.results[PEERS[loss]]
    predictions: dict[str, Callable[[], np.ndarray]] = {
        DEFAULT: lambda: fitted.predict(test.X, tasks=labels(test)),
        PEERS[loss]: lambda: np.concatenate(
            [one.predict(X) for one, (X, _) in zip(alone, tasks_of(test), strict=True)]
        ),
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
        "error": {name: _error(test, predict(), regression) for name, predict in predictions.items()},
    }


def _error(test: TaskData, predicted: np.ndarray, regression: bool) -> float:
    if regression:
        return float(np.sqrt(np.mean((test.y - predicted) ** 2)))
    return mean_error_rate(test, test.y != predicted)


def table_row(params: Mapping[str, Any], figures: Mapping[str, Any]) -> list[object]:
    peer = PEERS[params["loss"]]
    seconds = {name: values[0] for name, values in figures["seconds"].items()}
    processor = {name: values[0] for name, values in figures["processor"].items()}
    how = ".3f" if params["loss"] == "squared" else ".2%"
    return [
        TITLES[params["problem"]],
        params["loss"],
        figures["candidates"],
        f"{processor[DEFAULT]:.3g}",
        f"{processor[peer]:.3g}",
        f"{processor[peer] / processor[DEFAULT]:.2g}",
        f"{seconds[DEFAULT] / seconds[THREADS]:.2f}" + ("" if figures["same_choice"] else ", ANOTHER CHOICE"),
        f"{figures['error'][DEFAULT]:{how}}",
        f"{figures['error'][peer]:{how}}",
        f"{figures['lambda']:.2g}, {figures['common']:.2g}, {figures['own']:.2g}",
    ]


def section(records: Sequence[Record]) -> Section:
    columns = ["data", "loss", "candidates", "default, s", "scikit-learn, s", "ratio", "speed-up of two threads"]
    columns += ["test error", "test error, scikit-learn", "chosen lambda, common and own"]
    return Section(
        "Cross-validation with the default estimators",
        [
            Text(
                f"MTRLRegressorCV and MTRLClassifierCV with their default grids and {FOLDS} folds, the last fit "
                "included, against RidgeCV, LogisticRegressionCV and GridSearchCV of LinearSVC task by task, with the "
                f"same folds, as many candidates and their default tolerances. Machine: {machines(records)}."
            ),
            Table(
                "Cross-validation and scikit-learn's searches task by task",
                columns,
                [table_row(record.params, record.figures) for record in records],
                "Processor seconds of one run each on one thread; the speed-up of two threads is that of elapsed time. "
                "Above one, dmtrl is faster. Test error: RMSE for squared loss, else the mean error rate over tasks. "
                f"MNIST: {2 * MNIST_POSITIVES:,} rows a task.",
            ),
        ],
    )


CV = Experiment("bench cv", runs, measure, section, {"folds": FOLDS, "max_rounds": MAX_ROUNDS, "seed": 0})
