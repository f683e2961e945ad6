"""The MNIST and MDS table: error rates of joint, single-task and pooled learning.

Each method chooses lambda by cross-validation on the training rows, from the same grid.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmtrl.estimators.cv import MTRLClassifierCV
from dmtrl.report.content import Item, Text
from dmtrl_lab.experiments import paper
from dmtrl_lab.experiments.curves import Spread
from dmtrl_lab.experiments.experiment import Experiment, Figures, Params, Records, Run, grid, table
from dmtrl_lab.experiments.problems import labels, load_split, prediction_error

TOGETHER, ALONE, POOLED = "joint", "single-task", "pooled"
THE_PAPERS: dict[str, Any] = {"owns": (0.0,), "task_weight": "equal"}  # the objective of the paper
HOW: dict[str, dict[str, Any]] = {TOGETHER: {}, ALONE: {"relationship": "independent", "commons": (0.0,)}, POOLED: {}}
NAME_IN_PAPER = {TOGETHER: "DMTRL", ALONE: "single-task"}
CENTRAL = {"method": "centralised MTRL", "error rate, paper": "out of memory", "error rate": "see Convergence"}
SPLITS = 5


@dataclass(frozen=True)
class _Setting:
    """A data set, the model's settings for it, and the methods to compare."""

    name: str
    title: str
    model: Mapping[str, Any]
    methods: Sequence[str]
    description: str

    def experiment(self, **more: object) -> Experiment:
        settings: Params = {**self.model, **more, "solver_seed": 0}
        return Experiment(self.name, self.title, _runs, self.measure, self.items, settings)

    def measure(self, split: int, quick: bool) -> Figures:
        data = load_split(self.name, quick, split)
        smaller = {"cv": 2, "lambdas": self.model["lambdas"][::2]} if quick else {}
        rows = len(data.train.y) + len(data.test.y)
        figures: dict[str, Any] = {"rows": rows, "tasks": data.train.m, "features": data.train.X.shape[1]}
        for name in self.methods:
            began = time.perf_counter()
            model = MTRLClassifierCV(**{**self.model, **HOW[name], **smaller}, n_jobs=-1)
            tasks = [None if name == POOLED else labels(part) for part in (data.train, data.test)]
            model.fit(data.train.X, data.train.y, tasks=tasks[0])
            predicted = model.predict(data.test.X, tasks=tasks[1])
            figures[name] = {
                "error": prediction_error(data.test, predicted, self.model["loss"]),
                "lambda": model.reg_lambda_,
                "common": model.common_strength_,
                "gap": model.certificate_.relative_gap,
                "seconds": time.perf_counter() - began,
            }
        return figures

    def items(self, records: Records) -> list[Item]:
        figures = [record.figures for record in records]
        lines = [self._row(name, [f[name] for f in figures]) for name in self.methods]
        first, (tasks, rows, features) = figures[0], paper.DATA_TABLE[self.name]
        return [
            Text(
                f"{self.description} Ours: {first['tasks']} tasks, {first['rows']:,} rows, {first['features']:,} "
                f"features; the paper: {tasks} tasks, {rows:,} rows, {features:,} features."
            ),
            table(
                f"{self.title}: the paper's results and ours",
                [*lines, {**dict.fromkeys(lines[0], ""), **CENTRAL}],
                f"Mean ± standard deviation over {len(figures)} split{'s' if len(figures) > 1 else ''} of the mean "
                "error rate over tasks. Each method chose lambda on the training rows; seconds include this. Every fit "
                "is certified to a relative gap of 0.1 %.",
            ),
        ]

    def _row(self, name: str, figures: Sequence[Figures]) -> dict[str, str]:
        reported = paper.ERROR_TABLE[self.name].get(NAME_IN_PAPER.get(name, ""))
        lambdas = sorted({float(f"{f['lambda']:.1g}") for f in figures})
        return {
            "method": name,
            "error rate, paper": "" if reported is None else f"{reported[0]:.1%} ± {reported[1]:.2%}",
            "error rate": f"{Spread([f['error'] * 100 for f in figures]):.2f} %",
            "chosen lambda": ", ".join(f"{x:g}" for x in lambdas),
            "seconds": f"{np.mean([f['seconds'] for f in figures]):.0f}",
        }


def _runs(quick: bool) -> list[Run]:
    return grid(quick, 2 if quick else 120, split=range(1 if quick else SPLITS))


MNIST = _Setting(
    "mnist",
    "MNIST: ten digits, one against the rest",
    {"loss": "hinge", "lambdas": [1e-3, 3e-4, 1e-4], "commons": (0.0,), "cv": 3, **THE_PAPERS},
    (TOGETHER, ALONE),
    "One task per digit, against as many random images of other digits: 12,000 training rows per task. The division "
    "into training and test images is the official one, so splits differ only in the negatives.",
).experiment()
MDS = _Setting(
    "mds",
    "MDS: sentiment of product reviews by domain",
    {
        "loss": "logistic",
        "lambdas": np.logspace(-2, -5.5, 8).tolist(),
        "commons": (0.0, 1.0, 10.0),
        "cv": 4,
        "fit_intercept": False,
        **THE_PAPERS,
    },
    (TOGETHER, ALONE, POOLED),
    "The full data set is no longer available. This is a subset with fewer and other rows, balanced classes and "
    "sublinear tf-idf, so compare its figures with the paper's with caution. Three of ten folds are for testing.",
).experiment(test_folds="2 split + 0, 1, 2")
