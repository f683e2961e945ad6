"""MTRLRegressor and MTRLClassifier."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from dmtrl.data.labels import plain
from dmtrl.estimators.classes import ABSENT_CLASS_SCORE, chances, class_losses, resolve_multi_class
from dmtrl.estimators.diagnostics import Diagnostics
from dmtrl.estimators.docstrings import documented
from dmtrl.estimators.inputs import LabelledRows
from dmtrl.estimators.task_model import check_choice
from dmtrl.losses import CLASSIFICATION, REGRESSION, AnyLoss, Loss, get_loss
from dmtrl.solver.outcome import Callback
from dmtrl.solver.problem import Tasks

CLASSIFIER_PARAMETERS = {
    "loss": """str or Loss
        "logistic" (the only one with predict_proba), "hinge", "smoothed_hinge", "squared_hinge", or a CustomLoss.""",
    "reg_lambda": """float
        Regularisation strength. The objective is the sum over tasks of the mean loss, see `task_weight`, plus
        reg_lambda / 2 * tr(W^T Sigma^-1 W). The default suits standardised features and tf-idf rows.""",
    "on_single_class": """{"raise", "constant"}
        What to do if all rows of a task have the same class and there is no shared part: raise ValueError, or always
        predict that class there.""",
    "multi_class": """{"auto", "softmax", "ovr"}
        The model of more than two classes: "softmax" (multinomial logistic regression) or "ovr" (one-vs-rest: a model
        of each class against the others, with any loss). "auto" means softmax for the logistic loss and one-vs-rest
        for other losses. Either way a task is one row of k d weights, and the relationship and the common component are
        between tasks.""",
    "absent_classes": """{"never", "share"}
        What `predict` does with a class of which a task has no rows: never predict it there, or predict it from the
        other tasks.""",
}
CLASSIFIER_ATTRIBUTES = {
    "coef_": """ndarray of shape (m, d), or (m, k, d) for k > 2 classes
        Coefficients of each task.""",
    "intercept_": """ndarray of shape (m,) or (m, k)
        Intercepts of each task.""",
    "common_coef_": """ndarray of shape (d,) or (k, d)
        Coefficients that all tasks have in common: those of the common component, plus the shared part; zero without
        either.""",
    "common_intercept_": """float, or ndarray of shape (k,)
        Intercept of the common component.""",
    "new_task_coef_": """ndarray of shape (d,) or (k, d)
        Coefficients that predict a task that was not in `fit`.""",
    "new_task_intercept_": """float, or ndarray of shape (k,)
        Intercept that predicts a task that was not in `fit`.""",
    "shared_coef_": """ndarray of shape (d,) or (k, d), or None
        Coefficients of the shared part; None without one.""",
    "shared_intercept_": """float, ndarray of shape (k,) or None
        Intercept of the shared part; None without one.""",
    "levels_": """ndarray of shape (m,) or (m, k), or None
        How far the score of each task lies above the shared part, at the mean row of the fit; None without a shared
        part.""",
    "classes_": """ndarray of shape (k,)
        Sorted class labels.""",
    "seen_classes_": """ndarray of shape (m, k)
        Whether a class occurs in a task.""",
}


@documented({}, {})
class MTRLRegressor(Diagnostics, RegressorMixin, BaseEstimator):
    """Linear regression for many related tasks.

    Fits one linear model per task together with the task covariance, and certifies the distance to the optimum.

    <sections>

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

    def arrange(self, rows: LabelledRows, ordinary: bool = False) -> tuple[LabelledRows, Tasks]:
        y, loss, m = rows.numeric_y(), get_loss(self.loss), len(rows.names)
        if isinstance(loss, Loss):
            rows.check_labels(y, loss)
        tasks = Tasks(rows.names, np.arange(m), np.zeros(m), row_counts=np.bincount(rows.codes, minlength=m))
        return rows.take(np.argsort(rows.codes, kind="stable"), y), tasks

    def _predictions(self, scores: np.ndarray) -> np.ndarray:
        return np.exp(scores) if get_loss(self.loss).name == "poisson" else scores


@documented(CLASSIFIER_PARAMETERS, CLASSIFIER_ATTRIBUTES)
class MTRLClassifier(Diagnostics, ClassifierMixin, BaseEstimator):
    """Linear classification for many related tasks.

    Fits one linear model per task together with the task covariance, and certifies the distance to the optimum.

    <sections>
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
        own: float = 0.0,
        task_weight: float | str = "auto",
        shared_model: str | None = None,
        level: float | str = "auto",
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
        multi_class: str = "auto",
        absent_classes: str = "never",
    ):
        super().__init__(
            loss=loss,
            reg_lambda=reg_lambda,
            relationship=relationship,
            common=common,
            own=own,
            task_weight=task_weight,
            shared_model=shared_model,
            level=level,
            feature_map=feature_map,
            fit_intercept=fit_intercept,
            tol=tol,
            max_rounds=max_rounds,
            engine=engine,
            n_jobs=n_jobs,
            random_state=random_state,
            warm_start=warm_start,
            verbose=verbose,
            callbacks=callbacks,
            task_column=task_column,
            unknown_tasks=unknown_tasks,
        )
        self.on_single_class = on_single_class
        self.multi_class = multi_class
        self.absent_classes = absent_classes

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("on_single_class", self.on_single_class, ("raise", "constant"))
        check_choice("absent_classes", self.absent_classes, ("never", "share"))
        check_choice("multi_class", self.multi_class, ("auto", "softmax", "ovr"))
        resolve_multi_class(self.multi_class, get_loss(self.loss))

    def arrange(self, rows: LabelledRows, ordinary: bool = False) -> tuple[LabelledRows, Tasks]:
        check_classification_targets(rows.y)
        class_names, labels = np.unique(rows.y, return_inverse=True)
        m, k = len(rows.names), len(class_names)
        counts = np.bincount(rows.codes * k + labels, minlength=m * k).reshape(m, k)
        single = np.count_nonzero(counts, axis=1) == 1
        if ordinary and k > 1:
            single[:] = False
        if single.any():
            i = int(np.argmax(single))
            task, label = plain(rows.names[i]), plain(class_names[np.argmax(counts[i])])
            if single.all():
                raise ValueError(f"every task has only one class, such as {label!r}; classification needs two")
            if self.on_single_class == "raise":
                raise ValueError(
                    f"task {task!r} has only one class, {label!r}; leave it out, "
                    "or set on_single_class='constant' to always predict that class there"
                )
        certain = np.log(2.0 * counts.sum(axis=1) + 1)  # log-odds of n successes in n trials, with half a failure added
        if k == 2:
            constant, numeric = np.where(counts[:, 1] > 0, certain, -certain), 2.0 * labels - 1.0
        else:
            constant, numeric = np.where(counts > 0, certain[:, None], 0.0), labels.astype(float)
        used = np.flatnonzero(~single)
        order = np.argsort(rows.codes, kind="stable")
        tasks = Tasks(rows.names, used, constant, class_names, counts > 0, counts.sum(axis=1))
        return rows.take(order[~single[rows.codes[order]]], numeric, used), tasks

    def _losses(self, seen: np.ndarray | None) -> AnyLoss | list[AnyLoss]:
        loss = get_loss(self.loss)
        return loss if seen is None or seen.shape[1] == 2 else class_losses(loss, self.multi_class, _possible(seen))

    def score_intercepts(self) -> np.ndarray:
        if self._outputs == 1 or self.absent_classes == "share":
            return self.intercept_
        return np.where(_possible(self.seen_classes_), self.intercept_, self.intercept_.dtype.type(ABSENT_CLASS_SCORE))

    def _predictions(self, scores: np.ndarray) -> np.ndarray:
        two = len(self.classes_) == 2
        return np.asarray(self.classes_[(scores > 0).astype(int) if two else scores.argmax(axis=-1)])

    def decision_function(self, X: Any, tasks: Any = None) -> np.ndarray:
        """Return the scores w . x + b.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n, d), or a list or dict of these for each task
            The rows to score.
        tasks : array-like of shape (n,), default=None
            The task label of each row, as in `predict`.

        Returns
        -------
        ndarray of shape (n,) or (n, k)
            For two classes, positive scores mean classes_[1]. For more classes, one score per class. If y was 2-D in
            `fit` and `tasks` is None, an axis of tasks follows the first axis.
        """
        return self._scores(X, tasks)

    def _has_probabilities(self) -> bool:
        name = get_loss(self.loss).name
        if name != "logistic":
            raise AttributeError(f"predict_proba is not available with loss={name!r}; use loss='logistic'")
        return True

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any, tasks: Any = None) -> np.ndarray:
        """Return class probabilities.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n, d), or a list or dict of these for each task
            The rows to predict.
        tasks : array-like of shape (n,), default=None
            The task label of each row, as in `predict`.

        Returns
        -------
        ndarray of shape (n, k), or (n, m) or (n, m, k)
            One column per class; with multi_class="ovr" the one-vs-rest probabilities, normalised to sum to one. If y
            was 2-D in `fit` and `tasks` is None: the probability of classes_[1] for each row and task, or for k > 2 of
            each class.
        """
        score = self._scores(X, tasks)
        if len(self.classes_) > 2:
            return chances(score, resolve_multi_class(self.multi_class, get_loss(self.loss)))
        return np.asarray(expit(score)) if score.ndim == 2 else np.column_stack([expit(-score), expit(score)])

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any, tasks: Any = None) -> np.ndarray:
        """Return the logarithm of the class probabilities.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n, d), or a list or dict of these for each task
            The rows to predict.
        tasks : array-like of shape (n,), default=None
            The task label of each row, as in `predict`.

        Returns
        -------
        ndarray of shape (n, k), or (n, m) or (n, m, k)
            The logarithm of `predict_proba`.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X, tasks))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = True
        tags.classifier_tags.multi_label = True
        return tags


def _possible(seen: np.ndarray) -> np.ndarray:
    """(m, k): the classes that a task may have, from those that it has. One class says nothing about the others."""
    return seen | (np.count_nonzero(seen, axis=1) == 1)[:, None]
