"""Many groups with few rows: the default estimators against mixed-effects models on nine well-known tables.

Known tasks: the folds of a table hold out rows. New tasks: they hold out whole tasks. Errors are mean squared errors,
or log losses of 0/1 targets, over all held-out rows.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np

from dmtrl.datasets import find_file
from dmtrl.estimators.cv import MTRLClassifierCV, MTRLRegressorCV
from dmtrl.report.content import Item, Text
from dmtrl_lab.baselines.grouped import LGBM, LMM, METHODS, POOLED, SLOPES, TREES, GroupedRows
from dmtrl_lab.experiments.early_stop import may_stop_early
from dmtrl_lab.experiments.experiment import Experiment, Figures, Record, Records, Run, grid, machines, select, table

KNOWN, NEW = "known", "new"
FOLD_COLUMNS = {KNOWN: "fold", NEW: "task_fold"}
FOLDS, QUICK_FOLDS = 5, 2
TABLES = {  # and estimated seconds of a fit of dmtrl; the others take less
    "radon": 2,
    "hsb82": 10,
    "exam": 5,
    "chem97": 60,
    "egsingle": 30,
    "orthodont": 1,
    "sleepstudy": 1,
    "contraception": 5,
    "guimmun": 10,
}
BINARY = ("contraception", "guimmun")
QUICK_TABLES = ("sleepstudy", "contraception")
OURS = "dmtrl"
OTHERS = {KNOWN: (POOLED, LMM, SLOPES, TREES, LGBM), NEW: (POOLED, LMM, TREES)}
BEST_OF = {KNOWN: (LMM, SLOPES), NEW: (POOLED, LMM)}  # the verdict is against the best of these
LEVEL = {KNOWN: 0.005, NEW: 0.01}  # a relative difference of at most this is no difference
MOST_BEHIND = 0.02
LEAST_PROBABILITY = 1e-12
DIGITS = 4  # of an error


@dataclass(frozen=True)
class GroupedTable:
    """A table with numbers alone: text is one-hot, without the first level, after the columns of numbers."""

    X: np.ndarray
    y: np.ndarray
    task: np.ndarray  # numbers from 0
    folds: Mapping[str, np.ndarray]  # of known and of new tasks
    binary: bool

    def split(self, kind: str, fold: int) -> tuple[GroupedRows, np.ndarray]:
        """Return the rows of a fold, standardised with its training rows, and the targets that are held out."""
        test = self.folds[kind] == fold
        X = self.X[~test]
        mean, scale = X.mean(axis=0), X.std(axis=0)
        scaled = (self.X - mean) / np.where(scale > 0, scale, 1.0)
        rows = GroupedRows(scaled[~test], self.y[~test], self.task[~test], scaled[test], self.task[test], self.binary)
        return rows, self.y[test]


def read_table(name: str) -> GroupedTable:
    import pandas

    frame = pandas.read_csv(find_file(f"grouped/{name}.csv"))
    if frame.isna().to_numpy().any():
        raise ValueError(f"grouped/{name}.csv has missing values; the tables of this experiment have none")
    features = frame.drop(columns=["task", "y", *FOLD_COLUMNS.values()])
    return GroupedTable(
        pandas.get_dummies(features, drop_first=True, dtype=float).to_numpy(dtype=float),
        frame["y"].to_numpy(dtype=float),
        np.unique(frame["task"].to_numpy(), return_inverse=True)[1],
        {kind: frame[column].to_numpy() for kind, column in FOLD_COLUMNS.items()},
        name in BINARY,
    )


def estimators() -> dict[str, dict[str, Any]]:
    """Return the names of our columns with their parameters: the defaults first, then other shared parts."""
    parameter = signature(MTRLRegressorCV).parameters.get("shared_model")
    others = [] if parameter is None else [one for one in ("linear", None) if one != parameter.default]
    return {OURS: {}} | {f"{OURS}, shared_model={one!r}": {"shared_model": one} for one in others}


def fit_ours(rows: GroupedRows, parameters: Mapping[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    """Return predictions of the default estimators, and what they chose."""
    kind: Any = MTRLClassifierCV if rows.binary else MTRLRegressorCV
    known = signature(kind).parameters
    options: dict[str, Any] = {"n_jobs": -1, **parameters}
    if known["unknown_tasks"].default == "raise":
        options["unknown_tasks"] = "shared"
    if "on_single_class" in known:
        options["on_single_class"] = "constant"  # a community may have one class
    with may_stop_early():
        model = kind(**options).fit(rows.X, rows.y, tasks=rows.group)
    predicted = np.asarray(
        model.predict_proba(rows.X_new, tasks=rows.group_new)[:, 1]
        if rows.binary
        else model.predict(rows.X_new, tasks=rows.group_new)
    )
    chosen = {"lambda": model.reg_lambda_, "common": model.common_strength_, "own": model.own_strength_}
    return predicted, {**chosen, "gap": model.certificate_.relative_gap}


def losses(y: np.ndarray, predicted: np.ndarray, binary: bool) -> np.ndarray:
    """Return the squared error or the log loss of each row."""
    if not binary:
        return (y - predicted) ** 2
    p = np.clip(predicted, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    return -np.where(y > 0, np.log(p), np.log1p(-p))


def runs(quick: bool) -> list[Run]:
    """One run for each table, kind of split, fold and method that is installed. Ours come first."""
    found = []
    for name in QUICK_TABLES if quick else TABLES:
        for split, others in OTHERS.items():
            installed = [other for other in others if METHODS[other].package.missing() is None]
            for model in (*estimators(), *installed):
                seconds = 1.0 if quick or model in METHODS else TABLES[name]
                folds = range(QUICK_FOLDS if quick else FOLDS)
                found += grid(quick, seconds, table=[name], split=[split], model=[model], fold=folds)
    return found


def measure(table: str, split: str, model: str, fold: int, quick: bool) -> Figures:
    rows, y = read_table(table).split(split, fold)
    began = time.perf_counter()
    chosen: dict[str, Any] = {}
    if model in METHODS:
        predicted = METHODS[model].predict(rows)
    else:
        try:
            predicted, chosen = fit_ours(rows, estimators()[model])
        except ValueError as error:
            return {"refused": str(error), "rows": len(y)}
    seconds = time.perf_counter() - began
    return {"error": float(losses(y, predicted, rows.binary).mean()), "rows": len(y), "seconds": seconds, **chosen}


@dataclass(frozen=True)
class Error:
    """The error of a method on the folds of a table, in its own units."""

    folds: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, records: Records) -> "Error | None":
        """Return None if there are no records, or one of them was refused."""
        if not records or any(_refused(record) for record in records):
            return None
        figures = [record.figures for record in sorted(records, key=lambda one: one.params["fold"])]
        return cls(np.array([one["error"] for one in figures]), np.array([one["rows"] for one in figures], dtype=float))

    @property
    def mean(self) -> float:
        """Over all held-out rows."""
        return float(self.folds @ self.rows / self.rows.sum())

    @property
    def standard_error(self) -> float:
        """Over folds."""
        return float(self.folds.std(ddof=1) / np.sqrt(len(self.folds)))

    def against(self, other: "Error") -> tuple[float, float]:
        """Return the difference to another method, and the standard error of it over folds, relative to the other."""
        difference = Error(self.folds - other.folds, self.rows)
        return difference.mean / other.mean, difference.standard_error / other.mean

    def __str__(self) -> str:
        decimals = max(0, DIGITS - 1 - int(np.floor(np.log10(self.mean))))
        return f"{self.mean:.{decimals}f} ± {self.standard_error:.{decimals}f}"


def _refused(record: Record) -> bool:
    return "refused" in record.figures


def verdict(difference: float, split: str) -> str:
    """Return the outcome in words: level means within the tolerance of this kind of split."""
    if abs(difference) <= LEVEL[split]:
        return "level with"
    if difference < 0:
        return "ahead of"
    return "behind" if difference <= MOST_BEHIND else "FAR BEHIND"


def compare(records: Records, split: str) -> list[dict[str, object]]:
    """Return the rows of the table of one kind of split."""
    rows: list[dict[str, object]] = []
    methods = list(dict.fromkeys(record.params["model"] for record in select(records, split=split)))
    for name in dict.fromkeys(record.params["table"] for record in select(records, split=split)):
        found = {model: Error.of(select(records, table=name, split=split, model=model)) for model in methods}
        errors = {model: error for model, error in found.items() if error is not None}
        row: dict[str, object] = {"table": name}
        refused = {record.params["model"] for record in select(records, table=name, split=split) if _refused(record)}
        row |= {model: "refused" if model in refused else str(errors.get(model, "")) for model in methods}
        rivals = [model for model in BEST_OF[split] if model in errors]
        if OURS not in errors:
            row |= {"difference": "", "verdict": "refused" if OURS in refused else ""}
        elif not rivals:
            row |= {"difference": "", "verdict": ""}
        else:
            best = min(rivals, key=lambda model: errors[model].mean)
            difference, error = errors[OURS].against(errors[best])
            row["difference"] = f"{difference:+.2%} ± {error:.2%}"
            row["verdict"] = f"{verdict(difference, split)} {best}"
        rows.append(row)
    return rows


def items(records: Records) -> list[Item]:
    titles = {KNOWN: "Known tasks: rows are held out", NEW: "New tasks: whole tasks are held out"}
    shown: list[Item] = [
        Text(
            "The cross-validated estimators with default parameters against other methods for grouped rows. Mean "
            "squared error, or log loss of 0/1 targets, over the held-out rows of the folds that the tables come with. "
            f"Features are standardised with training rows, text is one-hot. Machine: {machines(records)}."
        ),
        *(Text(f"{name}: {METHODS[name].description}.") for name in OTHERS[KNOWN]),
        *(
            Text(f"Left out: {name} ({reason}).")
            for name in OTHERS[KNOWN]
            if (reason := METHODS[name].package.missing())
        ),
    ]
    for split, title in titles.items():
        rows = compare(records, split)
        counts = _counts(rows)
        caption = (
            f"Mean ± standard error over folds. Difference: of {OURS} to the best of {' and '.join(BEST_OF[split])}, "
            "with the standard error over folds of the paired difference; positive is worse. Level: within "
            f"{LEVEL[split]:.1%}; far behind: by more than {MOST_BEHIND:.0%}. Level or ahead: {counts}."
        )
        shown.append(table(title, rows, caption))
    refusals = {record.figures["refused"]: record.params["table"] for record in records if _refused(record)}
    return [*shown, *(Text(f"Refused on {name}: {reason}") for reason, name in refusals.items())]


def _counts(rows: Sequence[Mapping[str, object]]) -> str:
    fine = sum(str(row["verdict"]).startswith(("level", "ahead")) for row in rows)
    return f"{fine} of {len(rows)} tables"


TITLE = "Many groups with few rows: default estimators and mixed-effects models"
GROUPED = Experiment("grouped", TITLE, runs, measure, items, {"estimators": "default"})
