"""Scores per task, and scorers that pass `tasks` to the model in scikit-learn's model selection."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from sklearn.metrics import get_scorer, get_scorer_names
from sklearn.utils.metadata_routing import MetadataRequest

from dmtrl.data.labels import plain
from dmtrl.estimators import inputs

Scorer = Callable[..., float]


class _WithTasks:
    """A model with `tasks` bound to its prediction methods, for scorers that call `predict(X)`."""

    def __init__(self, model: Any, tasks: Any):
        self._model, self._tasks = model, tasks

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        if name not in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
            return value

        @wraps(value)  # scikit-learn reads the name of the method
        def bound(X: Any) -> Any:
            return value(X, tasks=self._tasks)

        return bound


class TaskScorer:
    """A scorer that passes `tasks` to the model; see `task_scorer`."""

    def __init__(self, metric: str | Scorer, average: str = "rows"):
        if average not in ("rows", "tasks"):
            raise ValueError(f"average must be 'rows' or 'tasks', got {average!r}")
        self.metric, self.average = metric, average
        self._scorer: Scorer = get_scorer(metric) if isinstance(metric, str) else metric

    def __call__(self, model: Any, X: Any, y: Any, tasks: Any = None, sample_weight: Any = None) -> float:
        if self.average == "tasks":
            scores = np.array(list(per_task_scores(model, X, y, tasks, self.metric, sample_weight).values()))
            known = scores[np.isfinite(scores)]
            return float(known.mean()) if len(known) else float("nan")
        return _score(self._scorer, model if tasks is None else _WithTasks(model, tasks), X, y, sample_weight)

    def check_classes(self, count: int) -> None:
        """Raise ValueError if the metric is for two classes and there are more."""
        names = get_scorer_names()
        several = [name for name in (f"{self.metric}_macro", f"{self.metric}_ovr") if name in names]
        if count > 2 and several:
            raise ValueError(f"the scorer {self.metric!r} is for two classes, but y has {count}; use {several[0]!r}")

    def get_metadata_routing(self) -> MetadataRequest:
        request = MetadataRequest(owner=self)
        request.score.add_request(param="tasks", alias=True)
        request.score.add_request(param="sample_weight", alias=True)
        return request

    def __repr__(self) -> str:
        return f"task_scorer({self.metric!r}, average={self.average!r})"


def _score(scorer: Scorer, model: Any, X: Any, y: Any, weight: Any) -> float:
    """Weights are passed to a scorer with a parameter `sample_weight`; a plain function of (model, X, y) has none."""
    parameters = inspect.signature(scorer).parameters.values()
    takes_weights = any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in parameters)
    return float(scorer(model, X, y, **({"sample_weight": weight} if takes_weights and weight is not None else {})))


def task_scorer(metric: str | Scorer, average: str = "rows") -> TaskScorer:
    """Make a scorer that passes `tasks` to the model.

    Use it as `scoring` in cross_val_score, cross_validate and GridSearchCV, with
    `sklearn.set_config(enable_metadata_routing=True)`:

        cross_val_score(model, X, y, scoring=task_scorer("neg_root_mean_squared_error"), params={"tasks": tasks})

    Parameters
    ----------
    metric : str or callable
        A scikit-learn scorer or its name.
    average : {"rows", "tasks"}, default="rows"
        Score all rows at once, or average the scores of the tasks for which the metric is defined.

    Returns
    -------
    TaskScorer
        A callable `scorer(model, X, y, tasks=None, sample_weight=None)`.
    """
    return TaskScorer(metric, average)


def per_task_scores(
    model: Any, X: Any, y: Any, tasks: Any = None, metric: str | Scorer = "r2", sample_weight: Any = None
) -> dict[Any, float]:
    """Score each task separately.

    Parameters
    ----------
    model : estimator
        A fitted estimator.
    X : {array-like, sparse matrix, data frame} of shape (n, d), or list or dict of (X_i, y_i)
        Test rows, in any form that `fit` accepts.
    y : array-like of shape (n,) or (n, m)
        Labels. The columns of a 2-D y are tasks.
    tasks : array-like of shape (n,), default=None
        The task label of each row. None means the `task_column` of the model or the columns of y.
    metric : str or callable, default="r2"
        A scikit-learn scorer or its name.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    dict
        The score of each task by name; NaN where scikit-learn says that the metric is not defined, such as log loss
        with a single class.
    """
    rows = inputs.read(X, y, tasks, sample_weight, getattr(model, "task_column", None))
    from_list = y is None and inputs.is_list_of_tasks(X)
    all_rows, rows = rows.X if from_list else X, rows.to_long()
    scorer = get_scorer(metric) if isinstance(metric, str) else metric
    scores, undefined = {}, None
    for i, name in enumerate(rows.names):
        labels = np.flatnonzero(rows.codes == i)
        numbers = rows.rows[labels]
        needs_tasks = from_list or rows.wide or tasks is not None
        one = _WithTasks(model, np.full(len(labels), name)) if needs_tasks else model
        weight = None if rows.sample_weight is None else rows.sample_weight[numbers]
        try:
            scores[plain(name)] = _score(scorer, one, inputs.take_rows(all_rows, numbers), rows.y[labels], weight)
        except ValueError as error:
            scores[plain(name)], undefined = float("nan"), undefined or error
    if undefined is not None and not np.isfinite(list(scores.values())).any():
        raise undefined
    return scores
