"""MTRLRegressor and MTRLClassifier: `solve` in scikit-learn's clothes.

Room: above solve, intake and problem, beside the baselines. Labels become units here and the outcome becomes fitted
attributes; there is no mathematics in this file.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dmtrl import intake
from dmtrl.blocks import ArraySource, as_rows
from dmtrl.coordinator import Callback, Coordinator, Outcome
from dmtrl.covariance import DENSE_LIMIT, TaskCovariance
from dmtrl.engines.local import LocalEngine
from dmtrl.feature_maps import get_feature_map
from dmtrl.losses import BUILTIN, CLASSIFICATION, REGRESSION, AnyLoss, get_loss
from dmtrl.problem import Problem, Units, by_task, common_part, pad, pose, restrict, row_products
from dmtrl.progress import live_line
from dmtrl.relationship import FreeIntercept, get_relationship
from dmtrl.settings import Settings
from dmtrl.solve import thread_count, warn_unless_converged

INTERCEPT_RIDGE = 1e-4  # on a free intercept: what a certificate needs, too little to be seen
NEVER = -1e6  # the score of a class that a task never had
SHIFTED = {"squared", "absolute", "epsilon_insensitive", "huber", "quantile"}  # losses of y - z: y may be centred


class _MTRL:
    """What the two estimators share; they say themselves how labels become units and scores become answers."""

    __metadata_request__fit = {"tasks": True, "sample_weight": True}
    __metadata_request__predict = {"tasks": True}
    __metadata_request__score = {"tasks": True, "sample_weight": True}
    _kind: str
    loss: str | AnyLoss
    reg_lambda: float
    relationship: Any
    common: float | str
    feature_map: Any
    fit_intercept: bool | str
    tol: float
    max_rounds: int
    engine: Any
    n_jobs: int | None
    random_state: Any
    warm_start: bool
    verbose: int
    callbacks: Sequence[Callback] | None
    task_column: Any
    unknown_tasks: str

    def _units(self, table: intake.Table) -> Units:
        raise NotImplementedError

    def _answers(self, score: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def fit(self, X: Any, y: Any = None, tasks: Any = None, sample_weight: Any = None) -> Self:
        """Learn one model per task and how the tasks are related.

        Parameters
        ----------
        X : array, CSR matrix, pandas, polars or pyarrow frame (n, d)
            Or a list or dict of (X_i, y_i), one per task; then y is None.
        y : array-like (n,) or (n, m)
            With two dimensions every column is a task, and NaN a label that is not there.
        tasks : array-like (n,), optional
            The task of each row: text, integers or categories. None is one task.
        sample_weight : array-like (n,), optional
            Within a task only the proportions count: every task has the same weight in the objective.
        """
        self._check_parameters()
        table = self._read(X, y, tasks, sample_weight)
        self.layout_ = "wide" if table.wide else "alone" if table.names is intake.ALONE else "long"
        problem = self._pose(table)
        same = self.warm_start and np.array_equal(vars(self).get("unit_names_"), problem.units.names)
        outcome = self._solve(problem, self._outcome if same else None)
        self._keep(problem, outcome)
        self._outcome = outcome if self.warm_start else None
        return self

    def _check_parameters(self) -> None:
        loss = get_loss(self.loss)
        if loss.kind != self._kind:
            fitting = ", ".join(sorted(name for name, make in BUILTIN.items() if make().kind == self._kind))
            raise ValueError(f"the {loss.name} loss is for {loss.kind}; {type(self).__name__} takes {fitting}")
        _choose("fit_intercept", self.fit_intercept, (True, False, "penalised"))
        _choose("unknown_tasks", self.unknown_tasks, ("raise", "common"))
        _choose("engine", self.engine, ("local",))

    def _read(self, X: Any, y: Any, tasks: Any, sample_weight: Any, reset: bool = True) -> intake.Table:
        """Rows and labels as a checked table."""
        if y is None and not intake.is_list_of_tasks(X):
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        table = intake.read(X, y, tasks, sample_weight, self.task_column)
        table = replace(table, X=self._validate(table.X, reset))
        table.check_X(getattr(self, "feature_names_in_", None))
        table = table.weighted().long()
        table.check_y()
        return table

    def _validate(self, X: Any, reset: bool) -> Any:
        try:
            return validate_data(
                self, X, accept_sparse="csr", dtype=[np.float64, np.float32], ensure_all_finite=False, reset=reset
            )
        except ValueError as error:
            sentence = intake.explain_text(X) if "could not convert" in str(error) else None
            if sentence is None:
                raise
            raise ValueError(sentence) from None

    def _pose(self, table: intake.Table) -> Problem:
        """The problem to solve. Sets tasks_, feature_map_ and what labels say (classes_)."""
        self.tasks_ = table.names
        self.feature_map_ = get_feature_map(self.feature_map, _seed(self.random_state))
        rows = table.X if self.feature_map_ is None else self.feature_map_.fit_transform(table.X)
        centre_y = get_loss(self.loss).name in SHIFTED
        return pose(rows, self._units(table), table.sample_weight, self.fit_intercept, centre_y)

    def _solve(self, problem: Problem, before: Outcome | None) -> Outcome:
        data, units = problem.data, problem.units
        relationship = self.relationship
        if data.m == 1 and isinstance(relationship, str) and relationship == "learned":
            relationship = "independent"  # the same for one unit, and faster
        relation = get_relationship(restrict(relationship, units), data.m, self._tau(len(units.names)))
        if self.fit_intercept is True:
            relation = FreeIntercept(relation, INTERCEPT_RIDGE / self.reg_lambda)
        settings = Settings(tol=self.tol, max_rounds=self.max_rounds, seed=_seed(self.random_state))
        threads = thread_count(self.n_jobs)
        sources = [ArraySource(blocks) for blocks in data.partition(threads)]
        start = None
        if before is not None and before.W.shape == (data.m, data.X.shape[1]):
            d = self.coef_.shape[-1]
            W = problem.weights(self.coef_.reshape(-1, d)[units.used], self.intercept_.ravel()[units.used])
            start = replace(before, W=W.astype(float))
        with LocalEngine(sources, get_loss(self.loss), threads) as engine:
            coordinator = Coordinator(engine, data.m, relation, self.reg_lambda, settings)
            with live_line(int(self.verbose), settings.tol) as show:
                outcome = coordinator.run([*(self.callbacks or ()), *show], start)
        warn_unless_converged(outcome, settings)
        return outcome

    def _keep(self, problem: Problem, outcome: Outcome) -> None:
        """The outcome as fitted attributes."""
        units, m, d, dtype = problem.units, len(self.tasks_), len(problem.x_centre), problem.data.X.dtype
        total = len(units.names)
        coef, intercept = np.zeros((total, d)), units.constant.astype(float)
        coef[units.used], intercept[units.used] = problem.coefficients(outcome.W)
        tau, common = self._tau(total), outcome.common
        if tau > 0 and self.relationship != "learned":
            common = common_part(outcome.covariance, tau, outcome.W)
        if self.fit_intercept is True:  # outside the relationship: a task never seen is given the mean one
            common = np.append(common[:d], outcome.W[:, d].mean())
        shape = (m,) if total == m else (m, total // m)
        self.coef_ = coef.reshape(*shape, d).astype(dtype)
        self.intercept_ = intercept.reshape(shape).astype(dtype)
        common_coef, common_intercept = problem.coefficients(common)
        self.common_coef_, self.common_intercept_ = common_coef.astype(dtype), float(common_intercept)
        self.common_strength_ = tau
        self.unit_names_ = units.names
        self.certificate_ = outcome.certificate
        self.history_ = [record.as_dict() for record in outcome.history]
        self.n_rounds_ = len(outcome.history)
        self._tau_used = tau
        self._covariance = pad(outcome.covariance, units)

    def _tau(self, units: int) -> float:
        """The strength of the common component. One task has none; beside a given Sigma and between classes there is
        one only if it is asked for."""
        if len(self.tasks_) == 1:
            return 0.0
        if self.common != "auto":
            return float(self.common)
        return float(getattr(self.relationship, "tau", self.relationship == "learned" and units == len(self.tasks_)))

    @property
    def task_covariance_(self) -> np.ndarray | TaskCovariance:
        """Sigma with trace one, a row per unit; above 5000 units as the operator it is kept as."""
        covariance = self._fitted_covariance()
        return covariance if covariance.m > DENSE_LIMIT else covariance.dense()

    @property
    def task_correlation_(self) -> Any:
        """The correlation of every two units, as a labelled frame where pandas is installed."""
        correlation = self._fitted_covariance().correlation()
        try:
            import pandas as pd
        except ImportError:
            return correlation
        return pd.DataFrame(correlation, index=self.unit_names_, columns=self.unit_names_)

    def _fitted_covariance(self) -> TaskCovariance:
        if "_covariance" not in vars(self):
            raise AttributeError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self._covariance

    def predict(self, X: Any, tasks: Any = None) -> np.ndarray:
        """One answer per row; one per row and task where the columns of y were the tasks and none are given here."""
        return self._answers(self._scores(X, tasks))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, tasks: Any = None) -> float:
        """R^2 for regression, accuracy for classification; its mean over the columns where y has two dimensions."""
        check_is_fitted(self)
        table = self._read(X, y, tasks, sample_weight, reset=False)
        alone = table.names is intake.ALONE or (self.layout_ == "alone" and len(table.names) == 1)
        numbers = table.codes if alone else self._numbers(table.names)[table.codes]
        answers = self._answers(self._score_rows(table.X[table.rows], None if self._ambiguous(alone) else numbers))
        measure = r2_score if self._kind == REGRESSION else accuracy_score
        groups = [table.codes == i for i in range(len(table.names))] if table.wide else [slice(None)]
        weight = np.ones(len(table.y)) if table.sample_weight is None else table.sample_weight[table.rows]
        return float(np.mean([measure(table.y[g], answers[g], sample_weight=weight[g]) for g in groups]))

    def _ambiguous(self, no_tasks: bool) -> bool:
        return no_tasks and len(self.tasks_) > 1

    def _scores(self, X: Any, tasks: Any) -> np.ndarray:
        """w . x + b of each row: (n,), or (n, k) for more than two classes; with an axis of tasks before k where the
        columns of y were the tasks and none are given here."""
        check_is_fitted(self)
        X, labels = intake.read_rows(X, tasks, self.task_column)
        rows = self._validate(X, reset=False)
        numbers = np.arange(rows.shape[0])
        names, codes = (intake.ALONE, 0 * numbers) if labels is None else np.unique(labels, return_inverse=True)
        intake.Table(rows, None, names, codes, None, numbers).check_X(getattr(self, "feature_names_in_", None))
        return self._score_rows(rows, None if labels is None else self._numbers(names)[codes])

    def _score_rows(self, rows: Any, codes: np.ndarray | None) -> np.ndarray:
        if self.feature_map_ is not None:
            rows = as_rows(self.feature_map_.transform(rows))
        coef, intercept = self.coef_, self.intercept_
        if codes is None:
            if len(self.tasks_) > 1 and self.layout_ != "wide":
                raise ValueError(
                    f"the model has {len(self.tasks_)} tasks ({intake.known(self.tasks_)}); "
                    "say with tasks= which of them each row belongs to"
                )
            scores = rows @ coef.reshape(-1, coef.shape[-1]).T + intercept.ravel()
            return scores.reshape(-1, *(intercept.shape if self.layout_ == "wide" else intercept.shape[1:]))
        if (codes < 0).any():  # the common component is one more task, the last
            coef = np.concatenate([coef, self.common_coef_[None]])
            intercept = np.append(intercept, self.common_intercept_).astype(intercept.dtype)
        if coef.ndim == 2:
            return row_products(rows, coef, codes) + intercept[codes]
        classes = range(coef.shape[1])
        return np.stack([row_products(rows, coef[:, c], codes) for c in classes], axis=1) + intercept[codes]

    def _numbers(self, names: np.ndarray) -> np.ndarray:
        """The number of each named task; -1 for one never seen, if it may be predicted from the common component."""
        if self.layout_ == "alone":
            raise ValueError("the model was fitted without tasks and has none to tell apart; leave tasks out")
        numbers = intake.lookup(names, self.tasks_)
        if (numbers >= 0).all():
            return numbers
        unknown = intake.plain(names[np.argmin(numbers)])
        what = f"task {unknown!r} was not there in fit, which had {intake.known(self.tasks_)}"
        if self.unknown_tasks == "raise":
            raise ValueError(f"{what}; set unknown_tasks='common' to predict it from what all tasks share")
        if self.common_strength_ == 0 or self.coef_.ndim == 3:
            raise ValueError(
                f"{what}, and there is no common component to predict it from: "
                "that takes common > 0, more than one task and at most two classes"
            )
        return numbers

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


class MTRLRegressor(_MTRL, RegressorMixin, BaseEstimator):
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


class MTRLClassifier(_MTRL, ClassifierMixin, BaseEstimator):
    """Linear classification for many related tasks, with the relations between them and a certificate.

    With more than two classes the units of the problem are a task and a class each, one against the rest, with one
    relationship over all of them; coef_ is then (m, k, d). A class that a task never had is never answered there.

    <parameters>
    on_single_class : {"raise", "constant"}, default "raise"
        What to do with a task whose rows are all of one class: refuse it, or answer with that class there.

    <attributes>
    classes_ : ndarray of shape (k,)
    """

    __metadata_request__decision_function = {"tasks": True}
    __metadata_request__predict_proba = {"tasks": True}
    __metadata_request__predict_log_proba = {"tasks": True}
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
        _choose("on_single_class", self.on_single_class, ("raise", "constant"))
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
        parts = [order[starts[i] : starts[i + 1]] for i in tasks]
        y = np.concatenate([np.where(labels[part] == c, 1.0, -1.0) for part, c in zip(parts, classes, strict=True)])
        ends = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        return Units(table.rows[np.concatenate(parts)], y, ends, names, used, constant)

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


def _choose(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}, got {value!r}")


def _seed(random_state: Any) -> int:
    """None is 0: a fit is repeatable unless something else is asked for."""
    if random_state is None or isinstance(random_state, int | np.integer):
        return int(random_state or 0)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
