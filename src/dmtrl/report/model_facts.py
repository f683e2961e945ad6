"""Report room: what the page about a model tells, as plain values, taken from a fitted estimator.

The sections next door read these facts only, so a result that is no estimator (the demonstration's) is told by the
same page. Nothing is fitted here, except that `gather` compares on data that is given without a comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from typing import Any

import numpy as np

from dmtrl.estimators.diagnostics import Comparison
from dmtrl.losses.builtin import get_loss
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.report.held_out import HeldOut, held_out
from dmtrl.solver.certificate import Certificate


@dataclass(frozen=True)
class ModelFacts:
    """names: a unit (a task, or a task and a class) for each row of `covariance` and `coef`.

    coef is None where the features were mapped and have no names of their own any more. common: what all tasks share.
    truth: the true correlations, where they are known. record: a line about the data and the model for the footer.
    """

    names: Sequence[str]
    tasks: int
    covariance: TaskCovariance
    relations_learned: bool
    certificate: Certificate
    tol: float
    loss: str
    reg_lambda: float
    tau: float
    features: int
    feature_names: Sequence[str] = ()
    coef: np.ndarray | None = None
    common: np.ndarray | None = None
    scaled: bool = False  # whether the features were brought to one scale on the way in
    history: Sequence[Mapping[str, Any]] = ()
    rows: int | None = None
    classes: Sequence[str] = ()
    target: str = ""
    task_column: str = ""
    held_out: HeldOut | None = None
    comparison: Comparison | None = None
    comparable: bool = True  # whether a comparison could be made from the data of the fit
    truth: np.ndarray | None = None
    record: str = ""
    more: Sequence[tuple[str, str]] = field(default_factory=tuple)  # key figures beyond the usual ones

    @property
    def units(self) -> str:
        """What the names are, in the plural."""
        return "tasks" if len(self.names) == self.tasks else "pairs of task and class"


def gather(model: Any, X: Any = None, y: Any = None, tasks: Any = None, comparison: Any = None) -> ModelFacts:
    """The facts of a fitted estimator. With data and more than one task a comparison is made, unless one is given, or
    False for none."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(model)
    preparation = getattr(model, "preparation_", None)
    names = [_word(name) for name in model.unit_names_]
    if model.layout_ == "alone" and len(names) == 1:
        names = ["all rows"]
    if comparison is None and X is not None and len(model.tasks_) > 1:
        comparison = model.compare(X, y, tasks)
    mapped = model.feature_map_ is not None
    relationship = model.relationship
    return ModelFacts(
        names=names,
        tasks=len(model.tasks_),
        covariance=model.covariance_,
        relations_learned=type(relationship).__name__ == "Learned" or str(relationship) == "learned",
        certificate=model.certificate_,
        tol=float(model.tol),
        loss=get_loss(model.loss).name.replace("_", " "),
        reg_lambda=float(model.reg_lambda_),
        tau=float(model.common_strength_),
        features=int(model.n_features_in_),
        feature_names=_feature_names(model, preparation),
        coef=None if mapped else np.asarray(model.coef_, dtype=float).reshape(len(names), -1),
        common=np.asarray(model.common_coef_, dtype=float) if model.common_strength_ > 0 and not mapped else None,
        scaled=preparation is not None and preparation.width is None,
        history=list(getattr(model, "history_", [])),
        rows=None if X is None else _count_rows(X, y),
        classes=[_word(name) for name in getattr(model, "classes_", [])],
        target="" if preparation is None else str(preparation.target),
        task_column="" if preparation is None else str(preparation.task),
        held_out=held_out(model, comparison or None, X, y, tasks),
        comparison=comparison or None,
        comparable=len(model.tasks_) > 1,
        record=_record(model),
    )


def _word(name: Any) -> str:
    return str(name.item() if hasattr(name, "item") else name)


def _feature_names(model: Any, preparation: Any) -> list[str]:
    given = getattr(model, "feature_names_in_", None)
    if given is not None:
        return [_word(name) for name in given]
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
    words = ", ".join(f"{name}={value!r}" for name, value in parameters if isinstance(value, str | int | float))
    return f"Made by dmtrl {dmtrl.__version__} from a {type(model).__name__} with {words}."


def percent(share: float) -> str:
    """A share as a percentage of two digits, rounded up: what is said to be within it, is."""
    if share <= 0:
        return "0 %"
    size = floor(log10(100 * share)) - 1
    if size < -9:
        return "less than 0.00000001 %"
    step = 10.0**size
    up = np.ceil(100 * share / step * (1 - 1e-12)) * step
    shown = f"{up:.{max(-size, 0)}f}"
    return f"{shown.rstrip('0').rstrip('.') if '.' in shown else shown} %"


def number(value: float) -> str:
    """Six digits, with a true minus sign."""
    return f"{value:.6g}".replace("-", "−") if "e" not in f"{value:.6g}" else f"{value:.6g}"


def size_in_words(count: float) -> str:
    """Bytes in the unit that makes them readable."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def several(names: Sequence[str], most: int = 8) -> str:
    """A list of names for a sentence or a cell, the rest counted."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"
