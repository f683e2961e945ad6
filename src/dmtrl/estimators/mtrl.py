"""MTRLRegressor and MTRLClassifier: `solve` in scikit-learn's clothes.

Room: on top of estimator_base, beside the baselines. Here labels become units and scores become answers, and here is
what both say of their parameters.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from dmtrl.estimators import inputs as intake
from dmtrl.estimators.base import MTRLBase, choose
from dmtrl.estimators.problem import Units, by_task
from dmtrl.losses import CLASSIFICATION, REGRESSION, AnyLoss, get_loss
from dmtrl.solver.outcome import Callback

NEVER = -1e6  # the score of a class that a task never had

PARAMETERS = """Parameters
    ----------
    loss : str or Loss, default <loss>
        <losses>
    reg_lambda : float, default <reg_lambda>
        How strongly large and unrelated coefficients are held back: the problem is the sum over tasks of the mean loss
        plus reg_lambda/2 tr(W^T Sigma^-1 W). <lambda>
    relationship : "learned", "independent", "shared", a sparse graph, a covariance array or a Relationship
        How the tasks are related. "learned" finds the covariance; all else is given.
    common : float or "auto", default "auto"
        Strength (tau) of a component that all tasks share, beside the learned relations; 0 is the paper's problem.
        "auto" is 1 where the relationship between tasks is learned, and 0 beside a given one and between more than two
        classes. A single task has none, whatever is set.
    feature_map : None, "rff" or transformer, default None
        "rff" are 300 random Fourier features; RFF(n_components, gamma) says how many and how wide. Any scikit-learn
        transformer will do. coef_ is in the mapped features.
    fit_intercept : True, False or "penalised", default True
        True: one per task, outside the relationship and practically free. "penalised": as one more related coefficient.
    tol : float, default 1e-3
        The fit stops when the objective is proven to be within this share of the best possible.
    max_rounds : int, default 1000
        The most rounds of messages; if they do not suffice there is a NotConvergedWarning.
    max_staleness : int, default 0
        0: rounds in step, all wait for the slowest worker. Above: every answer counts when it comes, and a worker may
        go on this many times while another is still at work. Certified as ever; which answer within tol depends on
        time.
    engine : "local", "ray" or RayOptions, default "local"
        Where the work is done: in this process, or by the actors of a Ray cluster.
    n_jobs : int, optional
        Threads of the local engine; -1 for all cores.
    random_state : int, RandomState or None
        The seed. None is 0: a fit is repeatable unless something else is asked for.
    warm_start : bool, default False
        Begin from the last fit's coefficients if it was of the same tasks and features.
    verbose : int, default 0
        1: a live line on a terminal; 2: a line per round.
    callbacks : sequence of callables, optional
        Each is given the record of every round.
    task_column : str or int, optional
        The column of X that names the task, instead of tasks=. It may hold text and is not a feature.
    unknown_tasks : "raise" or "common", default "raise"
        At predict, a task that was not there in fit is an error, or is predicted from the common component."""

ATTRIBUTES = """Attributes
    ----------
    tasks_ : ndarray of shape (m,)
        In the order of the rows of coef_: sorted, or as given in a list, a dict or the columns of y.
    coef_ : ndarray of shape <shape>
    intercept_ : ndarray of shape <ishape>
    common_coef_, common_intercept_ : ndarray of shape (d,) and float
        What all tasks share; zero without a common component.
    reg_lambda_, common_strength_ : float
        The lambda and tau that were used.
    unit_names_ : ndarray
        The rows of the task covariance: tasks_<units>.
    task_covariance_ : ndarray, or a TaskCovariance above 5000 units
        Trace one; of the whole weights, what all tasks share included.
    task_correlation_ : DataFrame, or ndarray without pandas
    certificate_ : Certificate
        .primal, .dual, .gap, .relative_gap: nothing can be better than .dual.
    history_ : list of dict
        One record a round.
    n_rounds_ : int
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only where X had column names.
    feature_map_ : transformer or None
    layout_ : "alone", "long" or "wide"
        No tasks, a task per row, or a column of y per task."""


def documented(**words: str) -> Any:
    """Fills <parameters> and <attributes> in a class's docstring, and the words in angle brackets in those."""

    def fill(cls: type) -> type:
        doc = (cls.__doc__ or "").replace("<parameters>", PARAMETERS).replace("<attributes>", ATTRIBUTES)
        for word, text in words.items():
            doc = doc.replace(f"<{word}>", text)
        cls.__doc__ = doc
        return cls

    return fill


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
        max_staleness: int = 0,
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
        self.max_staleness = max_staleness
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
        max_staleness: int = 0,
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
        self.max_staleness = max_staleness
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
