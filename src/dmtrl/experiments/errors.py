"""The MNIST and MDS table: test error of learning together, alone and pooled.

Room: experiments. One file for both, because it is one table. Each method chooses lambda by cross-validation on
training rows only, from the same grid; the error is the mean over tasks of the share of wrong signs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dmtrl.baselines import NotEnoughMemoryError, centralised_mtrl
from dmtrl.data import TaskData
from dmtrl.datasets import TaskSplit, load_mnist_tasks
from dmtrl.experiments import paper
from dmtrl.experiments.curves import Spread
from dmtrl.experiments.problems import mds_split
from dmtrl.experiments.records import Record
from dmtrl.experiments.runner import Experiment, Run
from dmtrl.report.content import BarChart, Section, Table, Text
from dmtrl.selection import MTRLClassifierCV

TOGETHER, ALONE, POOLED, CENTRAL = "together", "each task alone", "one model for all", "centralised MTRL"
SPLITS = 5


class _Setting:
    """A data set with the model's settings for it."""

    def __init__(
        self, name: str, load: Callable[[int, bool], TaskSplit], model: Mapping[str, Any], why: str, seconds: float
    ):
        self.name, self.load, self.model, self.why, self.seconds = name, load, model, why, seconds

    def runs(self, quick: bool) -> list[Run]:
        splits = range(1 if quick else SPLITS)
        return [Run({"split": split, "quick": quick}, 4 if quick else self.seconds) for split in splits]

    def measure(self, split: int, quick: bool) -> Mapping[str, Any]:
        data = self.load(split, quick)
        figures: dict[str, Any] = {}
        for name, how in {
            TOGETHER: {},
            ALONE: {"relationship": "independent", "commons": (0.0,)},
            POOLED: {},
        }.items():
            began = time.perf_counter()
            model = MTRLClassifierCV(**{**self.model, **how, **({"cv": 2} if quick else {})}, n_jobs=-1)
            tasks = [None if name == POOLED else labels(part) for part in (data.train, data.test)]
            model.fit(data.train.X, data.train.y, tasks=tasks[0])
            predicted = model.predict(data.test.X, tasks=tasks[1])
            figures[name] = {
                "error": mean_error(data.test, predicted),
                "lambda": model.reg_lambda_,
                "tau": model.common_strength_,
                "gap": model.certificate_.relative_gap,
                "seconds": time.perf_counter() - began,
            }
        figures["rows"], figures["test_rows"] = len(data.train.y), len(data.test.y)
        figures["tasks"], figures["features"] = data.train.m, data.train.X.shape[1]
        figures[CENTRAL] = self._centralised(data, figures[TOGETHER]["lambda"], quick)
        return figures

    def _centralised(self, data: TaskSplit, reg_lambda: float, quick: bool) -> str:
        """In words: whether the paper's centralised MTRL runs here at all."""
        if quick:
            return "not tried"
        try:
            centralised_mtrl(data.train, "hinge", reg_lambda, omega_steps=1, max_passes=1, w_tol=0.5)
        except NotEnoughMemoryError as refusal:
            return str(refusal)
        return "fits in memory"

    def section(self, records: Sequence[Record]) -> Section:
        figures = [record.figures for record in records]
        first = figures[0]
        tasks, rows, features = paper.DATA_TABLE[self.name]
        reported = {TOGETHER: "DMTRL", ALONE: "single-task"}
        lines = []
        for name in (TOGETHER, ALONE, POOLED):
            errors = Spread([f[name]["error"] for f in figures])
            theirs = paper.ERROR_TABLE[self.name].get(reported.get(name, ""))
            lambdas = sorted({f"{f[name]['lambda']:.1g}" for f in figures})
            lines.append(
                [
                    name,
                    "" if theirs is None else f"{theirs[0]:.1%} ± {theirs[1]:.2%}",
                    f"{errors:.2%}",
                    ", ".join(lambdas),
                    f"{np.mean([f[name]['seconds'] for f in figures]):.0f}",
                ]
            )
        title = TITLES[self.name]
        return Section(
            title,
            [
                Text(
                    f"{self.why} Ours: {first['tasks']} tasks, {first['rows'] + first['test_rows']:,} rows, "
                    f"{first['features']:,} "
                    f"features; the paper: {tasks} tasks, {rows:,} rows, {features:,} features."
                ),
                BarChart(
                    f"{title}: test error",
                    [TOGETHER, ALONE, POOLED],
                    [
                        (
                            "ours",
                            [
                                float(np.mean([f[name]["error"] for f in figures])) * 100
                                for name in (TOGETHER, ALONE, POOLED)
                            ],
                        )
                    ],
                    "test error, %",
                    f"Bars of the test error on {title}: together, each task alone, one model for all.",
                ),
                Table(
                    f"{title}: paper and ours",
                    ["method", "error, paper", "error", "lambda chosen", "seconds, choosing and fitting"],
                    lines,
                    f"Mean ± deviation over {len(figures)} splits; every fit is certified to a relative gap of 0.1 %. "
                    f"Centralised MTRL: the paper reports out of memory; here: {first[CENTRAL]}.",
                ),
            ],
        )


def labels(data: TaskData) -> np.ndarray:
    return np.repeat(data.names, np.diff(data.starts))


def mean_error(test: TaskData, predicted: np.ndarray) -> float:
    """The share of wrong answers, averaged over tasks."""
    wrong = test.y != predicted
    return float(np.mean([wrong[a:b].mean() for a, b in zip(test.starts[:-1], test.starts[1:], strict=True)]))


def _mnist_split(split: int, quick: bool) -> TaskSplit:
    return load_mnist_tasks(seed=split, max_positives=150 if quick else None)


TITLES = {"mnist": "MNIST: ten digits, one against the rest", "mds": "MDS: sentiment of reviews in 22 product domains"}

_MNIST = _Setting(
    "mnist",
    _mnist_split,
    {"loss": "hinge", "lambdas": [1e-3, 3e-4, 1e-4], "commons": (0.0,), "cv": 3, "tol": 1e-3},
    "One task per digit with as many images of other digits drawn at random, 12,000 training rows a task; the "
    "official division "
    "into training and test images, so splits differ in the negatives drawn.",
    120,
)
_MDS = _Setting(
    "mds",
    mds_split,
    {
        "loss": "logistic",
        "lambdas": np.logspace(-2, -5.5, 8).tolist(),
        "commons": (0.0, 0.1, 1.0),
        "cv": 4,
        "fit_intercept": False,
    },
    "The full collection could not be had: this is a subset with fewer and other rows, balanced classes, and tf-idf "
    "with "
    "logarithmic counts, so its figures stand beside the paper's for orientation only. Three of ten folds are the "
    "test part.",
    150,
)

MNIST = Experiment("mnist", _MNIST.runs, _MNIST.measure, _MNIST.section)
MDS = Experiment("mds", _MDS.runs, _MDS.measure, _MDS.section)
