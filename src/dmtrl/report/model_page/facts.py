"""The facts that the page about a model shows, as plain values.

The sections of the page read only these facts, so a result without an estimator can have the same page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from typing import Any, Literal

import numpy as np

from dmtrl.data.labels import plain
from dmtrl.data.task_data import tiny_tasks
from dmtrl.estimators.comparison import Comparison
from dmtrl.estimators.correlations import CorrelationIntervals
from dmtrl.estimators.held_out import Metrics
from dmtrl.losses import get_loss
from dmtrl.relationship import TaskCovariance, is_learned
from dmtrl.report.model_page.held_out import HeldOut, held_out_error, metrics_of
from dmtrl.solver.certificate import Certificate


@dataclass(frozen=True)
class ModelFacts:
    """What the page shows.

    names: the tasks, one for each row of `covariance` and `coef`. coef: None if the features were mapped, so that
    coefficients do not belong to named features; with more than two classes those of all classes, one after the other.
    common_coef: the component that all tasks share. truth: the true correlations, if known. record: a line about the
    data and the model for the footer.
    """

    names: Sequence[str]
    covariance: TaskCovariance
    relations_learned: bool
    certificate: Certificate
    tol: float
    loss: str
    reg_lambda: float
    common: float
    features: int
    feature_names: Sequence[str] = ()
    coef: np.ndarray | None = None
    common_coef: np.ndarray | None = None
    scaled: bool = False  # whether the features were standardised
    history: Sequence[Mapping[str, Any]] = ()
    rows: int | None = None
    task_rows: np.ndarray | None = None  # the number of rows of each task
    own: float = 0.0  # strength of the own parts
    shares: np.ndarray | None = None  # of each task: how much of its coefficients is common, related and its own
    classes: Sequence[str] = ()
    target: str = ""
    task_column: str = ""
    held_out: HeldOut | None = None
    metrics: Metrics | None = None  # on held-out rows
    comparison: Comparison | None = None
    truth: np.ndarray | None = None
    intervals: CorrelationIntervals | None = None  # of the correlations
    record: str = ""
    more: Sequence[tuple[str, str]] = field(default_factory=tuple)  # additional key figures
    study: Mapping[str, Any] | None = None  # what is known of a federated study; see federation/coordinator/results.py

    @property
    def noisy(self) -> bool:
        """Whether the model was made from noisy releases of a private study."""
        return bool(self.study and self.study.get("noisy"))

    @property
    def tiny(self) -> np.ndarray:
        """Which tasks have very few rows; none if the numbers of rows are not known."""
        return np.zeros(len(self.names), dtype=bool) if self.task_rows is None else tiny_tasks(self.task_rows)


def model_facts(
    model: Any,
    X: Any = None,
    y: Any = None,
    tasks: Any = None,
    comparison: Comparison | Literal[False] | None = None,
    sample_weight: Any = None,
    intervals: CorrelationIntervals | None = None,
) -> ModelFacts:
    """The facts of a fitted estimator.

    With data of several tasks and `comparison=None`, `model.compare` is called; `comparison=False` prevents this.
    """
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(model)
    preparation = getattr(model, "preparation_", None)
    names = [str(plain(name)) for name in model.tasks_]
    if model.layout_ == "alone" and len(names) == 1:
        names = ["all rows"]
    if intervals is not None and len(intervals.without_zero) != len(names):
        raise ValueError(
            f"the intervals are of {len(intervals.without_zero)} tasks and the model has {len(names)}; pass the result "
            "of its own correlation_intervals"
        )
    if comparison is None and X is not None and len(model.tasks_) > 1:
        comparison = model.compare(X, y, tasks, sample_weight)
    mapped = model.feature_map_ is not None
    return ModelFacts(
        names=names,
        covariance=model.covariance_,
        relations_learned=is_learned(model.relationship),
        certificate=model.certificate_,
        tol=float(model.tol),
        loss=get_loss(model.loss).name.replace("_", " "),
        reg_lambda=float(model.reg_lambda_),
        common=float(model.common_strength_),
        own=float(model.own_strength_),
        shares=model.weight_shares_,
        features=int(model.n_features_in_),
        feature_names=_coefficient_names(model, preparation),
        coef=None if mapped else np.asarray(model.coef_, dtype=float).reshape(len(names), -1),
        common_coef=None if mapped or not model.predicts_new_tasks else np.ravel(model.common_coef_).astype(float),
        scaled=preparation is not None and preparation.width is None,
        history=list(getattr(model, "history_", [])),
        rows=None if X is None else _count_rows(X, y),
        task_rows=model.task_rows_,
        classes=[str(plain(name)) for name in getattr(model, "classes_", [])],
        target="" if preparation is None else str(preparation.target),
        task_column="" if preparation is None else str(preparation.task),
        held_out=held_out_error(model, comparison or None, X, y, tasks, sample_weight),
        metrics=metrics_of(model, comparison or None),
        comparison=comparison or None,
        intervals=intervals,
        record=_record(model),
        study=getattr(model, "study_", None),
    )


def _coefficient_names(model: Any, preparation: Any) -> list[str]:
    """A name for each coefficient of a task: the feature and, with more than two classes, the class."""
    names = _feature_names(model, preparation)
    if np.ndim(model.coef_) == 2:
        return names
    return [f"{name} ({plain(label)})" for label in model.classes_ for name in names]


def _feature_names(model: Any, preparation: Any) -> list[str]:
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        return [str(plain(name)) for name in names]
    if preparation is not None and len(preparation.feature_names) == model.n_features_in_:
        return list(preparation.feature_names)
    return [f"feature {j}" for j in range(model.n_features_in_)]


def _count_rows(X: Any, y: Any) -> int:
    if y is not None:
        return len(y)
    parts = X.values() if isinstance(X, Mapping) else X
    return sum(len(part[1]) for part in parts)


def _record(model: Any) -> str:
    import dmtrl

    parameters = model.get_params(deep=False).items()
    settings = ", ".join(f"{name}={value!r}" for name, value in parameters if isinstance(value, str | int | float))
    return f"Made by dmtrl {dmtrl.__version__} from a {type(model).__name__} with {settings}."


def percent(share: float) -> str:
    """A share as a percentage with two digits, rounded up so that it is an upper bound."""
    if share <= 0:
        return "0 %"
    if not np.isfinite(share):
        return "unknown"
    size = floor(log10(100 * share)) - 1
    if size < -9:
        return "less than 0.00000001 %"
    step = 10.0**size
    up = np.ceil(100 * share / step * (1 - 1e-12)) * step
    shown = f"{up:.{max(-size, 0)}f}"
    return f"{shown.rstrip('0').rstrip('.') if '.' in shown else shown} %"


def format_bytes(count: float) -> str:
    """A number of bytes in a suitable unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"
