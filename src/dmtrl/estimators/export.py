"""Export fitted models as plain coefficients (CSV, JSON) or as an ONNX graph, for use without dmtrl.

A model is a score per task, and per class if there are more than two: intercept + sum of coefficient * term. `formulas`
says what each coefficient multiplies. For a model of `dmtrl fit` these are columns of the table, in their own units:
the scaling of the preparation is part of the coefficients.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dmtrl.data.labels import plain
from dmtrl.estimators.classes import resolve_multi_class
from dmtrl.estimators.feature_maps import RFF
from dmtrl.estimators.model_file import MODELS, FilePath
from dmtrl.exceptions import InputError, Setting
from dmtrl.losses import get_loss
from dmtrl.storage import whole_file
from dmtrl.tables.names import quoted
from dmtrl.tables.output import check_output
from dmtrl.tables.preparation import Category, Date, Number, Preparation, Words

FORMAT = 1
SUFFIXES = (".csv", ".json", ".onnx")
_CSV_HEADER = ["task", "class", "feature", "kind", "column", "value", "fill", "coefficient", "multiplies"]


@dataclass(frozen=True)
class Term:
    """What one coefficient multiplies.

    kind: "number" (the value of a column), "missing" (1 if it is missing), "level" (1 if it equals `value`), "other" (1
    if it equals no level of this column), "days" (days since the date `value`), "date part" (the part `value` of a
    date), "word" (its tf-idf in a text), "bucket" (number `value` of hashed words) or "feature" (a feature as it is).
    fill: replaces a missing number or date. idf: of a word.
    """

    feature: str
    kind: str
    column: str
    value: str | None = None
    fill: float | None = None
    idf: float | None = None
    coefficient: float = 0.0

    @property
    def multiplies(self) -> str:
        """A description in words."""
        filled = "" if self.fill is None else f", {self.fill!r} if missing"
        return {
            "number": f"the value of {self.column!r}{filled}",
            "missing": f"1 if {self.column!r} is missing, else 0",
            "level": f"1 if {self.column!r} is {self.value!r}, else 0",
            "other": f"1 if {self.column!r} is none of the levels listed, else 0",
            "days": f"days from {self.value} to {self.column!r}{filled}",
            "date part": f"the {self.value} of {self.column!r}, 0 if missing",
            "word": f"{self.idf!r} * count of {self.value!r} in {self.column!r}, over the norm of all such products",
            "bucket": f"bucket {self.value} of the hashed words of {self.column!r}",
            "feature": f"the feature {self.feature!r}",
        }[self.kind]


@dataclass(frozen=True)
class Formula:
    """The score of one task, or of one class of a task: intercept + sum of coefficient * term."""

    task: Any
    label: Any  # the class; None for regression and for two classes
    intercept: float
    terms: tuple[Term, ...]


def export(model: Any, path: FilePath, task: Any = None, force: bool = False) -> None:
    """Write the models of tasks as plain coefficients or as an ONNX graph, for use without dmtrl.

    The extension of the file sets the format. CSV has a line per coefficient; JSON also says how a score becomes a
    prediction. For a model of `dmtrl fit` the coefficients multiply columns of the table in their own units, because
    scaling is included. An ONNX graph has the outputs `score`, `prediction` and, for logistic loss, `probability`.
    It has one input `X`, or for a model of `dmtrl fit` one per column, and needs the extra `dmtrl[onnx]`.

    Parameters
    ----------
    model : MTRLRegressor, MTRLClassifier, MTRLRegressorCV or MTRLClassifierCV
        A fitted model. CSV and JSON require a model without a feature map.
    path : str or path
        The file to write: .csv, .json or .onnx. It appears when it is complete.
    task : object, default=None
        A name in `tasks_`. None exports every task; an ONNX graph holds one.
    force : bool, default=False
        Whether to replace an existing file. Without it an existing file raises OutputExistsError.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} has an unsupported extension; supported: {', '.join(SUFFIXES)}")
    if type(model).__name__ not in MODELS:
        raise ValueError(f"export supports {', '.join(MODELS)}, got {type(model).__name__}")
    check_output(target, force)
    check_is_fitted(model)
    tasks = _chosen_tasks(model, task)
    if suffix == ".onnx":
        if len(tasks) > 1:
            raise InputError(
                f"an ONNX graph holds the model of one task, and this model has {len(model.tasks_)}; pass ",
                Setting("task"),
                f" with one of {quoted(model.tasks_.tolist())}",
            )
        from dmtrl.estimators.onnx_graph import onnx_bytes

        content = onnx_bytes(model, int(tasks[0]))
    else:
        found = list(formulas(model, tasks))
        text = as_csv(found) if suffix == ".csv" else json.dumps(as_json(model, found), indent=1, allow_nan=False)
        content = text.encode()
    with whole_file(target) as file:
        file.write(content)


def _chosen_tasks(model: Any, task: Any) -> np.ndarray:
    """The numbers of the tasks to export. A number may be written as text, as on the command line."""
    if task is None:
        return np.arange(len(model.tasks_))
    found = [i for i, name in enumerate(model.tasks_.tolist()) if name == task or str(name) == task]
    if not found:
        raise ValueError(f"unknown task {task!r}: the model has {quoted(model.tasks_.tolist())}")
    return np.array(found)


def formulas(model: Any, tasks: Sequence[int] | np.ndarray) -> Iterator[Formula]:
    """The formula of each of these tasks, and of each of its classes if there are more than two."""
    if model.feature_map_ is not None:
        onnx = "export it as .onnx, or " if isinstance(model.feature_map_, RFF) else ""
        raise InputError(
            f"the coefficients of a model with a feature map ({type(model.feature_map_).__name__}) do not multiply "
            f"columns of the data; {onnx}save the model"
        )
    patterns, intercepts = _patterns(model), model.score_intercepts()
    labels = [None] if model.coef_.ndim == 2 else model.classes_.tolist()
    for i in tasks:
        scores = zip(labels, np.atleast_2d(model.coef_[i]), np.atleast_1d(intercepts[i]), strict=True)
        for label, coef, intercept in scores:
            yield _formula(plain(model.tasks_[i]), label, coef, intercept, patterns)


@dataclass(frozen=True)
class _Pattern:
    """A term without its coefficient: the feature is (quantity - mean) / scale. A reference level has no feature."""

    term: Term
    mean: float = 0.0
    scale: float = 1.0
    has_feature: bool = True


def _formula(task: Any, label: Any, coef: np.ndarray, intercept: Any, patterns: list[_Pattern]) -> Formula:
    terms, constant = [], float(intercept)
    weights = iter(coef.astype(float).tolist())
    for pattern in patterns:
        coefficient = next(weights) / pattern.scale if pattern.has_feature else 0.0
        constant -= coefficient * pattern.mean
        terms.append(replace(pattern.term, coefficient=coefficient))
    assert next(weights, None) is None, "every coefficient has a term"
    return Formula(task, label, constant, tuple(terms))


def _patterns(model: Any) -> list[_Pattern]:
    preparation = getattr(model, "preparation_", None)
    if isinstance(preparation, Preparation):
        return [pattern for column in preparation.columns for pattern in _column_patterns(column)]
    names = getattr(model, "feature_names_in_", None)
    shown = [f"x{j}" for j in range(model.coef_.shape[-1])] if names is None else [str(name) for name in names]
    return [_Pattern(Term(name, "feature", name)) for name in shown]


def _column_patterns(column: Any) -> Iterator[_Pattern]:
    """The features of one column of a table, in the order of `column.features`."""
    if isinstance(column, Number):
        yield from _number_patterns(column, "number", column.name, None)
    elif isinstance(column, Category):
        kinds = ["missing" if level is None else "level" for level in column.categories] + ["other"] * column.other
        names = ["(reference)"] * column.first + column.features
        levels = [*column.categories, *([None] * column.other)]
        for i, (kind, name, level) in enumerate(zip(kinds, names, levels, strict=True)):
            yield _Pattern(Term(name, kind, column.name, level), has_feature=i >= column.first)
    elif isinstance(column, Date):
        yield from _number_patterns(column.days, "days", column.name, column.first)
        for part in column.parts:
            yield _Pattern(Term(f"{column.name} {part}", "date part", column.name, part))
    elif isinstance(column, Words):
        for i, name in enumerate(column.features):
            if column.vocabulary:
                yield _Pattern(Term(name, "word", column.name, column.vocabulary[i], idf=column.idf[i]))
            else:
                yield _Pattern(Term(name, "bucket", column.name, str(i)))
    else:
        for name in column.features:  # of a libsvm file
            yield _Pattern(Term(name, "feature", name))


def _number_patterns(number: Number, kind: str, column: str, value: str | None) -> Iterator[_Pattern]:
    yield _Pattern(Term(number.name, kind, column, value, number.fill), number.mean, number.scale)
    if number.flagged:
        yield _Pattern(Term(number.features[1], "missing", column))


def as_csv(found: Sequence[Formula]) -> str:
    """A line per intercept and per coefficient."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV_HEADER)
    for formula in found:
        start = [formula.task, "" if formula.label is None else formula.label]
        writer.writerow([*start, "", "intercept", "", "", "", repr(formula.intercept), "1"])
        for term in formula.terms:
            value, fill = "" if term.value is None else term.value, "" if term.fill is None else repr(term.fill)
            line = [term.feature, term.kind, term.column, value, fill, repr(term.coefficient), term.multiplies]
            writer.writerow([*start, *line])
    return out.getvalue()


def as_json(model: Any, found: Sequence[Formula]) -> dict[str, Any]:
    """The models as plain values, and how a score becomes a prediction."""
    preparation = getattr(model, "preparation_", None)
    classes = getattr(model, "classes_", None)
    return {
        "format": FORMAT,
        "dmtrl": version("dmtrl"),
        "task_column": getattr(preparation, "task", None),
        "target": getattr(preparation, "target", None),
        "missing_texts": list(getattr(preparation, "missing", ())),
        "loss": get_loss(model.loss).name,
        "classes": None if classes is None else classes.tolist(),
        **_rules(model),
        "models": [
            {
                "task": formula.task,
                "class": formula.label,
                "intercept": formula.intercept,
                "terms": [
                    {name: value for name, value in vars(term).items() if value is not None}
                    | {"multiplies": term.multiplies}
                    for term in formula.terms
                ],
            }
            for formula in found
        ],
    }


def _rules(model: Any) -> dict[str, str]:
    """How scores become predictions and probabilities, in words."""
    rules = {"score": "intercept + sum of coefficient * term"}
    if not hasattr(model, "classes_"):
        return rules | {"prediction": "exp(score)" if get_loss(model.loss).name == "poisson" else "score"}
    two = len(model.classes_) == 2
    rules["prediction"] = "classes[1] if score > 0, else classes[0]" if two else "the class with the largest score"
    if hasattr(model, "predict_proba"):
        softmax = not two and resolve_multi_class(model.multi_class, get_loss(model.loss)) == "softmax"
        share = "exp(score)" if softmax else "1 / (1 + exp(-score))"
        rules["probability"] = f"of classes[1]: {share}" if two else f"{share} of each class, divided by their sum"
    return rules
