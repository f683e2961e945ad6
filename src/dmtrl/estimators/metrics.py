"""Scores that know about tasks.

Room: beside the estimators. A scorer by name calls `predict(X)` and nothing else; here it is shown a model that has
been told the tasks, so every scorer of scikit-learn serves, in cross_val_score and GridSearchCV too.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from sklearn.metrics import get_scorer
from sklearn.utils.metadata_routing import MetadataRequest

from dmtrl.estimators import inputs as intake

Scorer = Callable[..., float]


class _Told:
    """A model whose methods need not be told the tasks any more."""

    def __init__(self, model: Any, tasks: Any):
        self._model, self._tasks = model, tasks

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        if name not in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
            return value

        @wraps(value)  # scikit-learn asks a method for its name
        def told(X: Any) -> Any:
            return value(X, tasks=self._tasks)

        return told


class TaskScorer:
    """A scorer that hands `tasks` on to the model; see task_scorer."""

    def __init__(self, metric: str | Scorer, average: str = "rows"):
        if average not in ("rows", "tasks"):
            raise ValueError(f"average must be 'rows' or 'tasks', got {average!r}")
        self.metric, self.average = metric, average
        self._scorer: Scorer = get_scorer(metric) if isinstance(metric, str) else metric

    def __call__(self, model: Any, X: Any, y: Any, tasks: Any = None, sample_weight: Any = None) -> float:
        if self.average == "tasks":
            scores = per_task_scores(model, X, y, tasks, self.metric, sample_weight)
            return float(np.mean(list(scores.values())))
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        return float(self._scorer(model if tasks is None else _Told(model, tasks), X, y, **weights))

    def get_metadata_routing(self) -> MetadataRequest:
        request = MetadataRequest(owner=self)
        request.score.add_request(param="tasks", alias=True)
        request.score.add_request(param="sample_weight", alias=True)
        return request

    def __repr__(self) -> str:
        return f"task_scorer({self.metric!r}, average={self.average!r})"


def task_scorer(metric: str | Scorer, average: str = "rows") -> TaskScorer:
    """A scorer for cross_val_score, cross_validate and GridSearchCV that hands `tasks` on to predict.

    metric: the name of one of scikit-learn's scorers, or a scorer. average: over all "rows" at once, or the mean over
    "tasks" of each task's own score. With `sklearn.set_config(enable_metadata_routing=True)`:

        cross_val_score(model, X, y, scoring=task_scorer("neg_root_mean_squared_error"), params={"tasks": tasks})
    """
    return TaskScorer(metric, average)


def per_task_scores(
    model: Any, X: Any, y: Any, tasks: Any = None, metric: str | Scorer = "r2", sample_weight: Any = None
) -> dict[Any, float]:
    """Each task's score by the metric, a scorer of scikit-learn or its name; `pandas.Series` makes a frame of it.

    The tasks are those of `tasks`, of the model's task_column, or the columns of a 2-D y.
    """
    table = intake.read(X, y, tasks, sample_weight, getattr(model, "task_column", None))
    parts = y is None and intake.is_list_of_tasks(X)
    whole, table = table.X if parts else X, table.long()
    scorer = get_scorer(metric) if isinstance(metric, str) else metric
    scores = {}
    for i, name in enumerate(table.names):
        mine = np.flatnonzero(table.codes == i)
        rows = table.rows[mine]
        told = parts or table.wide or tasks is not None
        one = _Told(model, np.full(len(mine), name)) if told else model
        weights = {} if table.sample_weight is None else {"sample_weight": table.sample_weight[rows]}
        scores[intake.plain(name)] = float(scorer(one, intake.take_rows(whole, rows), table.y[mine], **weights))
    return scores
