"""Heart disease at four hospitals, as a federated study: FLamby's Fed-Heart-Disease.

FLamby's preprocessing and split; each hospital is a site of `study simulate` and measures its own test error. Beside
it: logistic regression of each hospital alone and on all rows, and the published accuracies. Beyond FLamby's split,
random splits with the same recipe.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split

from dmtrl.datasets import find_file
from dmtrl.federation.simulate import simulate
from dmtrl.federation.site.policy import Policy
from dmtrl.federation.study.study_file import parse_study
from dmtrl.report.content import Item, Text
from dmtrl.tables import columns as read
from dmtrl.tables import open_files
from dmtrl_lab.experiments.curves import Spread
from dmtrl_lab.experiments.experiment import Experiment, Figures, Records, Run, grid, table

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
DROPPED = ("slope", "ca", "thal")  # nearly empty at some hospitals
DUMMIES = {"cp": (2.0, 3.0, 4.0), "restecg": (1.0, 2.0)}  # levels with a column; the first level has none
FLAMBY = "FLamby"
# mean accuracy over the hospitals: du Terrail et al., "FLamby", NeurIPS 2022, logistic regression
PUBLISHED = {"alone": 0.730, "pooled": 0.735, "FedAvg": 0.685, "best federated strategy": 0.732}
OURS, BY_LOSS = "study simulate", 'study simulate, scoring = "loss"'
ALONE, POOLED = "logistic regression, each hospital alone", "logistic regression, all rows"
STRENGTHS = np.logspace(-3, 2, 11)


def runs(quick: bool) -> list[Run]:
    return grid(quick, 5 if quick else 30, split=[FLAMBY] if quick else [FLAMBY, *map(str, range(10))])


def measure(split: str, quick: bool) -> Figures:
    hospitals = read_hospitals(43 if split == FLAMBY else int(split))
    rows = [(one.X[one.train], one.y[one.train]) for one in hospitals.values()]
    pooled = logistic(np.vstack([X for X, _ in rows]), np.concatenate([y for _, y in rows]), STRENGTHS)
    alone = {name: logistic(X, y, STRENGTHS) for name, (X, y) in zip(hospitals, rows, strict=True)}
    facts, accuracy = _study_accuracy(hospitals, "", quick)
    _, by_loss = _study_accuracy(hospitals, 'scoring = "loss"', quick)
    return {
        OURS: accuracy,
        BY_LOSS: by_loss,
        ALONE: {name: _accuracy(alone[name], one) for name, one in hospitals.items()},
        POOLED: {name: _accuracy(pooled, one) for name, one in hospitals.items()},
        "rows": {name: len(one.y) for name, one in hospitals.items()},
        **facts,
    }


class Hospital:
    """One hospital after FLamby's preprocessing."""

    def __init__(self, names: list[str], X: np.ndarray, y: np.ndarray, train: np.ndarray):
        self.names, self.y, self.train = names, y, train
        spread = X[train].std(axis=0)
        self.X = (X - X[train].mean(axis=0)) / np.where(spread > 0, spread, 1.0)

    @classmethod
    def read(cls, name: str, seed: int) -> "Hospital":
        """Make dummies, split, and scale on the training rows."""
        columns = complete_columns(name)
        y = (columns.pop("num") > 0).astype(int)
        features: dict[str, np.ndarray] = {}
        for column, values in columns.items():
            dummies = {f"{column}_{level:g}": (values == level).astype(float) for level in DUMMIES.get(column, ())}
            features |= dummies or {column: values}
        stratify = y if np.bincount(y, minlength=2).min() > 2 else None
        train, _ = train_test_split(
            np.arange(len(y)), test_size=0.34, train_size=0.66, random_state=seed, shuffle=True, stratify=stratify
        )
        return cls(list(features), np.column_stack(list(features.values())), y, np.isin(np.arange(len(y)), train))

    def write(self, path: Path) -> Path:
        features = {name: self.X[:, j] for j, name in enumerate(self.names)}
        csv.write_csv(pa.table({**features, "disease": self.y, "test": (~self.train).astype(int)}), path)
        return path


def read_hospitals(seed: int) -> dict[str, Hospital]:
    return {name: Hospital.read(name, seed) for name in HOSPITALS}


def complete_columns(name: str) -> dict[str, np.ndarray]:
    """Return the columns of a hospital's file, without nearly empty columns and rows with missing values."""
    file = open_files([find_file(f"heart/{name}.csv")]).read().columns
    columns = {key: read.numbers(file.column(key), key) for key in file.column_names if key not in DROPPED}
    complete = ~np.isnan(np.column_stack(list(columns.values()))).any(axis=1)
    return {key: values[complete] for key, values in columns.items()}


def logistic(X: Any, y: np.ndarray, strengths: Sequence[float] | np.ndarray, max_folds: int = 5) -> Any:
    """Choose the strength by cross-validation, with as many folds as the smallest class allows; with one class, always
    predict it."""
    counts = np.unique(y, return_counts=True)[1]
    if len(counts) == 1:
        return DummyClassifier().fit(X, y)
    folds, model = min(max_folds, int(counts.min())), LogisticRegression(max_iter=1000)
    return model.fit(X, y) if folds < 2 else GridSearchCV(model, {"C": strengths}, cv=folds).fit(X, y)


def _accuracy(model: Any, hospital: Hospital) -> float:
    return float(np.mean(model.predict(hospital.X[~hospital.train]) == hospital.y[~hospital.train]))


def _study_accuracy(
    hospitals: Mapping[str, Hospital], option: str, quick: bool
) -> tuple[dict[str, Any], dict[str, float]]:
    """Run the study. Each hospital is a site that measures the error on its own test rows."""
    names = next(iter(hospitals.values())).names
    columns = "".join(f'[columns.{name}]\nkind = "number"\n' for name in names)
    grid = "lambda = [0.3, 0.03]\ncommon = [0.0, 1.0]\nfolds = 3\n" if quick else ""
    study = parse_study(STUDY.format(grid=grid, option=option, columns=columns).encode())
    with tempfile.TemporaryDirectory() as folder:
        files = {name: one.write(Path(folder) / f"{name}.csv") for name, one in hospitals.items()}
        # Switzerland has 30 training rows: fewer rows per weight than a site allows by default
        result = simulate(study, files, Path(folder) / "out", policy=Policy("", "", parameters_per_row=1.0))
    facts = {"lambda": result.reg_lambda, "common": result.common, "gap": result.relative_gap}
    return facts, {task.site: 1.0 - task.error for task in result.tasks if task.error is not None}


STUDY = """format = 1
name = "heart"
[target]
column = "disease"
kind = "classification"
negative = ["0"]
positive = ["1"]
[fit]
held_out = "test"
{option}
{grid}
{columns}"""


def items(records: Records) -> list[Item]:
    figures = {record.params["split"]: record.figures for record in records}
    flamby, others = figures[FLAMBY], [figures[split] for split in figures if split != FLAMBY]
    rows: list[dict[str, str]] = []
    for name in (OURS, BY_LOSS, ALONE, POOLED):
        rows.append(
            {
                "method": name,
                **{one: f"{flamby[name][one]:.3f}" if one in flamby[name] else "-" for one in HOSPITALS},
                "mean": f"{_mean(flamby[name]):.3f}",
                "mean, random splits": f"{Spread([_mean(one[name]) for one in others]):.3f}" if others else "",
            }
        )
    for name, value in PUBLISHED.items():
        rows.append({**dict.fromkeys(rows[0], ""), "method": f"published: {name}", "mean": f"{value:.3f}"})
    counts = ", ".join(f"{name} {flamby['rows'][name]}" for name in HOSPITALS)
    return [
        Text(
            "FLamby's Fed-Heart-Disease: its preprocessing and its split. Each hospital is one site and one task; no "
            f"row leaves it, and it measures the error on its own test rows. Rows: {counts}. All training rows of "
            "Switzerland have the disease, so its model always predicts it. The study chose "
            f"lambda {flamby['lambda']:.3g} and common {flamby['common']:g} by cross-validation. Data: Janosi, "
            "Steinbrunn, Pfisterer and Detrano, UCI heart disease (CC BY 4.0)."
        ),
        table(
            "Heart disease: accuracy on test rows",
            rows,
            "Mean: over the hospitals that have a figure. Random splits: mean ± standard deviation over "
            f"{len(others)} splits with the same recipe. The study chooses its strengths by the error rate or, with "
            "scoring, by the loss; logistic regression chooses its strength by the error rate. All do so on training "
            "rows. Published: the FLamby paper, logistic regression.",
        ),
    ]


def _mean(accuracy: Mapping[str, float]) -> float:
    return float(np.mean(list(accuracy.values())))


TITLE = "Heart disease at four hospitals, as a federated study"
SETTINGS = {"loss": "logistic", "lambdas": "default", "cv": 5, "flamby_seed": 43}
HEART = Experiment("heart", TITLE, runs, measure, items, SETTINGS)
