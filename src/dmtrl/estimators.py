"""MTRLRegressor and MTRLClassifier: `solve` in scikit-learn's clothes.

Room: on top of estimator_base, beside the baselines. Here labels become units and scores become answers.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from dmtrl import intake
from dmtrl.coordinator import Callback
from dmtrl.estimator_base import MTRLBase, choose, documented
from dmtrl.losses import CLASSIFICATION, REGRESSION, AnyLoss, get_loss
from dmtrl.problem import Units, by_task

NEVER = -1e6  # the score of a class that a task never had


@documented(
    loss='"squared"',
    losses='"squared", "absolute", "huber", "epsilon_insensitive", "quantile", "poisson" (predict is then '
    "exp(w . x + b)),\n        one with its number, as losses.quantile(0.9), or a CustomLoss.",
    reg_lambda="0.1",
    **{"lambda": "0.1 suits standardised features;\n        the scale of y does not matter to squared loss."},
    shape="(m, d)",
    ishape="(m,)",
    units="",
)
class MTRLRegressor(MTRLBase, RegressorMixin, BaseEstimator):
    """Linear regression for many related tasks, with the relations between them and a certificate.

    <parameters>

    <attributes>

    Examples
    --------
    >>> import numpy as np
    >>> from dmtrl import MTRLRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, school = rng.normal(size=(90, 3)), np.repeat(["north", "south", "east"], 30)
    >>> y = X[:, 0] * np.where(school == "east", -1, 1) + 0.1 * rng.normal(size=90)
    >>> model = MTRLRegressor(reg_lambda=0.01).fit(X, y, tasks=school)
    >>> model.predict([[1.0, 0.0, 0.0]], tasks=["east"]).round(1)
    array([-1.])
    >>> model.task_correlation_.loc["north", ["south", "east"]].round(1).tolist()
    [1.0, -1.0]
    """

    _kind = REGRESSION

    def __init__(
        self,
        loss: str | AnyLoss = "squared",
        reg_lambda: float = 0.1,
        relationship: Any = "learned",
        common: float | str = "auto",
        feature_map: Any = None,
        fit_intercept: bool | str = True,
        tol: float = 1e-3,
        max_rounds: int = 1000,
        engine: Any = "local",
        n_jobs: int | None = None,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        callbacks: Sequence[Callback] | None = None,
        task_column: Any = None,
        unknown_tasks: str = "raise",
    ):
        self.loss = loss
        self.reg_lambda = reg_lambda
        self.relationship = relationship
        self.common = common
        self.feature_map = feature_map
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_rounds = max_rounds
        self.engine = engine
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.callbacks = callbacks
        self.task_column = task_column
        self.unknown_tasks = unknown_tasks

    def _units(self, table: intake.Table) -> Units:
        order, starts = by_task(table.codes, len(table.names))
        everyone = np.arange(len(table.names))
        return Units(table.rows[order], table.numeric_y()[order], starts, table.names, everyone, 0.0 * everyone)

    def _answers(self, score: np.ndarray) -> np.ndarray:
        return np.exp(score) if get_loss(self.loss).name == "poisson" else score


@documented(
    loss='"logistic"',
    losses='"logistic" (the only one with predict_proba), "hinge", "smoothed_hinge", "squared_hinge", or a CustomLoss.',
    reg_lambda="0.001",
    **{"lambda": "0.001 suits standardised features\n        and tf-idf rows alike."},
    shape="(m, d), or (m, k, d) with k > 2 classes",
    ishape="(m,) or (m, k)",
    units=', or "task: class" for each of both',
)
class MTRLClassifier(MTRLBase, ClassifierMixin, BaseEstimator):
    """Linear classification for many related tasks, with the relations between them and a certificate.

    With more than two classes the units of the problem are a task and a class each, one against the rest, with one
    relationship over all of them; coef_ is then (m, k, d). A class that a task never had is never answered there.

    <parameters>
    on_single_class : {"raise", "constant"}, default "raise"
        What to do with a task whose rows are all of one class: refuse it, or answer with that class there.

    <attributes>
    classes_ : ndarray of shape (k,)
    """

    __metadata_request__decision_function: ClassVar = {"tasks": True}
    __metadata_request__predict_proba: ClassVar = {"tasks": True}
    __metadata_request__predict_log_proba: ClassVar = {"tasks": True}
    _kind = CLASSIFICATION

    def __init__(
        self,
        loss: str | AnyLoss = "logistic",
        reg_lambda: float = 0.001,
        relationship: Any = "learned",
        common: float | str = "auto",
        feature_map: Any = None,
        fit_intercept: bool | str = True,
        tol: float = 1e-3,
        max_rounds: int = 1000,
        engine: Any = "local",
        n_jobs: int | None = None,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        callbacks: Sequence[Callback] | None = None,
        task_column: Any = None,
        unknown_tasks: str = "raise",
        on_single_class: str = "raise",
    ):
        self.loss = loss
        self.reg_lambda = reg_lambda
        self.relationship = relationship
        self.common = common
        self.feature_map = feature_map
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_rounds = max_rounds
        self.engine = engine
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.callbacks = callbacks
        self.task_column = task_column
        self.unknown_tasks = unknown_tasks
        self.on_single_class = on_single_class

    def _units(self, table: intake.Table) -> Units:
        choose("on_single_class", self.on_single_class, ("raise", "constant"))
        check_classification_targets(table.y)
        self.classes_, labels = np.unique(table.y, return_inverse=True)
        m, k = len(table.names), len(self.classes_)
        counts = np.bincount(table.codes * k + labels, minlength=m * k).reshape(m, k)
        single = np.count_nonzero(counts, axis=1) == 1
        if single.any():
            self._check_single(table.names, counts, single)
        certain = np.log(2.0 * counts.sum(axis=1) + 1)  # the log-odds of a class seen in n of n rows, and a half more
        if k == 2:
            tasks = used = np.flatnonzero(~single)
            classes, names = np.ones(len(used), dtype=int), table.names
            constant = np.where(counts[:, 1] > 0, certain, -certain)
        else:
            used = np.flatnonzero((counts > 0) & ~single[:, None])
            tasks, classes = np.divmod(used, k)
            prefix = [""] if table.names is intake.ALONE else [f"{name}: " for name in table.names]
            names = np.array([f"{before}{label}" for before in prefix for label in self.classes_])
            constant = np.where(counts > 0, certain[:, None], NEVER).ravel()
        order, starts = by_task(table.codes, m)
        sizes = np.diff(starts)[tasks]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        mine = order[np.arange(ends[-1]) + np.repeat(starts[tasks] - ends[:-1], sizes)]  # unit after unit
        y = np.where(labels[mine] == np.repeat(classes, sizes), 1.0, -1.0)
        groups = None if k == 2 else tasks
        return Units(table.rows[mine], y, ends, names, used, constant, groups)

    def _check_single(self, names: np.ndarray, counts: np.ndarray, single: np.ndarray) -> None:
        i = int(np.argmax(single))
        only = intake.plain(self.classes_[np.argmax(counts[i])])
        if single.all():
            raise ValueError(f"every task has only one class, as {only!r}; there is nothing to tell apart")
        if self.on_single_class == "raise":
            raise ValueError(
                f"task {intake.plain(names[i])!r} has only one class, {only!r}; leave it out, "
                "or set on_single_class='constant' to answer with that class there"
            )

    def _answers(self, score: np.ndarray) -> np.ndarray:
        two = len(self.classes_) == 2
        return np.asarray(self.classes_[(score > 0).astype(int) if two else score.argmax(axis=-1)])

    def decision_function(self, X: Any, tasks: Any = None) -> np.ndarray:
        """w . x + b: above zero speaks for classes_[1]; with more than two classes a column per class."""
        return self._scores(X, tasks)

    def _has_probabilities(self) -> bool:
        name = get_loss(self.loss).name
        if name != "logistic":
            raise AttributeError(f"the {name} loss gives no probabilities; loss='logistic' does")
        return True

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any, tasks: Any = None) -> np.ndarray:
        """A column per class; with more than two, the one-vs-rest probabilities made to sum to one.

        Where the columns of y were the tasks and there are two classes: of classes_[1], per row and task.
        """
        score = self._scores(X, tasks)
        if len(self.classes_) > 2:
            log = -np.logaddexp(0, -score)
            share = np.exp(log - log.max(axis=-1, keepdims=True))
            return np.asarray(share / share.sum(axis=-1, keepdims=True))
        return np.asarray(expit(score)) if score.ndim == 2 else np.column_stack([expit(-score), expit(score)])

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any, tasks: Any = None) -> np.ndarray:
        """The logarithm of predict_proba."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X, tasks))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = True
        tags.classifier_tags.multi_label = True
        return tags
