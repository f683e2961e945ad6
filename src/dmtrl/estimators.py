"""MTRLRegressor and MTRLClassifier: `solve` in scikit-learn's clothes.

Room: above solve and intake, beside the baselines. Here rows become the units of one problem (a task; with more than two
classes a task and a class), an intercept becomes a column, and the outcome becomes fitted attributes. No mathematics.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy import sparse
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dmtrl import intake
from dmtrl.blocks import as_rows
from dmtrl.coordinator import Callback
from dmtrl.covariance import DENSE_LIMIT, TaskCovariance
from dmtrl.data import TaskData
from dmtrl.feature_maps import get_feature_map
from dmtrl.losses import BUILTIN, CLASSIFICATION, REGRESSION, AnyLoss, get_loss
from dmtrl.settings import Settings
from dmtrl.solve import solve

INTERCEPT_RIDGE = 1e-4  # on a free intercept: what a certificate needs, too little to be seen
NEVER = -1e6  # the score of a class that a task never had
SHIFTED = {"squared", "absolute", "epsilon_insensitive", "huber", "quantile"}  # losses of y - z: y may be centred


@dataclass(frozen=True)
class _Units:
    """The units of the problem: a task, or a task and a class. `rows` are row numbers of X, unit after unit."""

    rows: np.ndarray
    y: np.ndarray
    starts: np.ndarray
    names: np.ndarray  # of all units, also of those that are left out
    used: np.ndarray  # numbers of the units that take part
    constant: np.ndarray  # scores of all units; counts where a unit is left out


class _MTRL:
    """What the two estimators share; they say themselves how labels become units."""

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

    __metadata_request__fit = {"tasks": True, "sample_weight": True}
    __metadata_request__predict = {"tasks": True}
    __metadata_request__score = {"tasks": True, "sample_weight": True}
    _kind: str

    def _units(self, table: intake.Table) -> _Units:
        raise NotImplementedError

    def _answers(self, score: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def fit(self, X: Any, y: Any = None, tasks: Any = None, sample_weight: Any = None) -> Self:
        """Learn one model per task and how the tasks are related.

        Parameters
        ----------
        X : array, CSR matrix, pandas, polars or pyarrow frame of shape (n, d); or a list or dict of (X_i, y_i)
        y : one label per row; or (n, m), a column per task in which NaN is a missing label; or None with a list or dict
        tasks : one label per row (text, integers, categories), None for a single task
        sample_weight : one number per row; within a task only the proportions count
        """
        loss = self._check_parameters()
        table = self._read(X, y, tasks, sample_weight)
        self.tasks_ = table.names
        self.layout_ = "wide" if table.wide else ("alone" if table.names is intake.ALONE else "long")
        seed = _seed(self.random_state)
        self.feature_map_ = get_feature_map(self.feature_map, seed)
        rows = table.X if self.feature_map_ is None else self.feature_map_.fit_transform(table.X)
        self._learn(as_rows(rows), self._units(table), table.sample_weight, loss, seed)
        return self

    def _check_parameters(self) -> AnyLoss:
        loss = get_loss(self.loss)
        if loss.kind != self._kind:
            fitting = ", ".join(sorted(name for name, make in BUILTIN.items() if make().kind == self._kind))
            raise ValueError(f"the {loss.name} loss is for {loss.kind}; {type(self).__name__} takes {fitting}")
        _choose("fit_intercept", self.fit_intercept, (True, False, "penalised"))
        _choose("unknown_tasks", self.unknown_tasks, ("raise", "common"))
        if not isinstance(self.engine, str) or self.engine != "local":
            raise ValueError(f"unknown engine {self.engine!r}; choose 'local'")
        return loss

    def _read(self, X: Any, y: Any, tasks: Any, sample_weight: Any, reset: bool = True) -> intake.Table:
        """Rows and labels as a checked long table."""
        if y is None and not intake.is_list_of_tasks(X):
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        table = intake.read(X, y, tasks, sample_weight, self.task_column)
        table = replace(table, X=self._validate(table.X, reset))
        table.check_finite(getattr(self, "feature_names_in_", None))
        return table.long().weighted()

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

    def _learn(self, X: Any, units: _Units, weight: np.ndarray | None, loss: AnyLoss, seed: int) -> None:
        d, free = X.shape[1], self.fit_intercept is True
        # With a free intercept the centre of X and y may lie anywhere; where it lies at zero the intercept's ridge does not bite.
        x_centre = np.zeros(d, dtype=X.dtype) if sparse.issparse(X) or not free else np.average(X, axis=0, weights=weight)
        y_centre = 0.0
        weight = None if weight is None else weight[units.rows]
        if free and loss.name in SHIFTED:
            y_centre = float(np.average(units.y, weights=weight))
        X = _take(X - x_centre if x_centre.any() else X, units.rows)
        X = _with_constant(X) if self.fit_intercept else X
        count = len(units.used)
        tau = self._tau(count, len(self.tasks_))
        relationship = self.relationship
        if isinstance(relationship, str) and relationship == "learned" and count == 1:
            relationship = "independent"  # the same for one task, and faster
        outcome = solve(
            TaskData(as_rows(X), units.y - y_centre, weight, units.starts, units.names[units.used]),
            loss=loss,
            reg_lambda=self.reg_lambda,
            relationship=_restrict(relationship, units),
            common=tau,
            settings=Settings(tol=self.tol, max_rounds=self.max_rounds, seed=seed),
            n_jobs=self.n_jobs,
            intercept_ridge=INTERCEPT_RIDGE if free else None,
            callbacks=self.callbacks or (),
            verbose=int(self.verbose),
        )
        total = len(units.names)
        coef, intercept = np.zeros((total, d)), units.constant.astype(float)
        coef[units.used] = outcome.W[:, :d]
        bias = outcome.W[:, d] if self.fit_intercept else np.zeros(count)
        intercept[units.used] = bias + y_centre - coef[units.used] @ x_centre
        common = outcome.common if tau == 0 or isinstance(self.relationship, str) and self.relationship == "learned" else None
        if common is None:  # a given Sigma: the part of W that tau 1 1^T explains
            sigma = outcome.covariance.plus_common(tau).dense()
            common = tau * np.linalg.lstsq(sigma, outcome.W, rcond=None)[0].sum(axis=0)
        common_bias = float(common[d]) if self.fit_intercept == "penalised" else float(bias.mean())
        shape = (len(self.tasks_),) if total == len(self.tasks_) else (len(self.tasks_), -1)
        self.coef_ = coef.reshape(*shape, d).astype(X.dtype)
        self.intercept_ = intercept.reshape(shape).astype(X.dtype)
        self.common_coef_ = common[:d].astype(X.dtype)
        self.common_intercept_ = float(common_bias + y_centre - common[:d] @ x_centre)
        self.unit_names_ = units.names
        self.certificate_ = outcome.certificate
        self.history_ = [record.as_dict() for record in outcome.history]
        self.n_rounds_ = len(outcome.history)
        self._tau_used = tau
        self._covariance = _pad(outcome.covariance, units.used, total)

    def _tau(self, units: int, tasks: int) -> float:
        """The strength of the common component: none for a single task, nor, unless asked for, beside a given Sigma or between classes."""
        if tasks == 1:
            return 0.0
        if isinstance(self.common, str):
            _choose("common", self.common, ("auto",))
            learned = isinstance(self.relationship, str) and self.relationship == "learned"
            return 1.0 if learned and units <= tasks else 0.0
        return float(self.common)

    @property
    def task_covariance_(self) -> np.ndarray | TaskCovariance:
        """Sigma with trace one, one row per unit; above 5000 units the operator it is kept as."""
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

    def _scores(self, X: Any, tasks: Any) -> np.ndarray:
        """w . x + b of each row: (n,), (n, k) with k > 2 classes; a second axis of tasks when the columns of y were the tasks."""
        check_is_fitted(self)
        X, labels = intake.read_rows(X, tasks, self.task_column)
        rows = self._validate(X, reset=False)
        names, codes = (intake.ALONE, np.zeros(rows.shape[0], dtype=int)) if labels is None else np.unique(labels, return_inverse=True)
        intake.Table(rows, None, names, codes, None).check_finite(getattr(self, "feature_names_in_", None))
        return self._score_rows(rows, None if labels is None else self._numbers(labels))

    def _score_rows(self, rows: Any, codes: np.ndarray | None) -> np.ndarray:
        if self.feature_map_ is not None:
            rows = as_rows(self.feature_map_.transform(rows))
        if codes is None:
            if len(self.tasks_) > 1 and self.layout_ != "wide":
                raise ValueError(
                    f"the model has {len(self.tasks_)} tasks ({intake.known(self.tasks_)}); say with tasks= which one each row belongs to"
                )
            flat = self.coef_.reshape(-1, self.coef_.shape[-1])
            scores = rows @ flat.T + self.intercept_.ravel()
            return scores.reshape(len(scores), *self.intercept_.shape) if self.layout_ == "wide" else scores.reshape(len(scores), *self.intercept_.shape[1:])
        coef, intercept = self.coef_, self.intercept_
        if (codes < 0).any():
            coef = np.concatenate([coef, self.common_coef_[None]])
            intercept = np.append(intercept, intercept.dtype.type(self.common_intercept_))
        if coef.ndim == 2:
            return _row_products(rows, coef, codes) + intercept[codes]
        return np.stack([_row_products(rows, coef[:, c], codes) for c in range(coef.shape[1])], axis=1) + intercept[codes]

    def _numbers(self, labels: np.ndarray) -> np.ndarray:
        """The number of each row's task; -1 for a task never seen, if those are welcome."""
        if self.layout_ == "alone":
            raise ValueError("the model was fitted without tasks and has none to tell apart; leave tasks out")
        codes = intake.lookup(labels, self.tasks_)
        unknown = codes < 0
        if not unknown.any():
            return codes
        row = int(np.argmax(unknown))
        what = f"row {row}: task {labels[row : row + 1].tolist()[0]!r} was not there in fit, which had {intake.known(self.tasks_)}"
        if self.unknown_tasks == "raise":
            raise ValueError(f"{what}; set unknown_tasks='common' to predict from what all tasks share")
        if self._tau_used == 0 or self.coef_.ndim > 2:
            raise ValueError(f"{what}; there is no common component to predict it from (that takes common > 0, two tasks or more and at most two classes)")
        return codes

    def predict(self, X: Any, tasks: Any = None) -> np.ndarray:
        """One answer per row; with a 2-D y in fit and no tasks, one per row and task."""
        return self._answers(self._scores(X, tasks))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, tasks: Any = None) -> float:
        """R^2, or accuracy. Where the columns of y are the tasks: its mean over the tasks."""
        check_is_fitted(self)
        table = self._read(X, y, tasks, sample_weight, reset=False)
        if table.wide and self.layout_ == "wide":
            numbers = table.codes
        else:
            numbers = None if table.names is intake.ALONE else self._numbers(table.names)[table.codes]
        predicted = self._answers(self._score_rows(table.X, numbers))
        predicted = predicted.ravel()
        measure = r2_score if self._kind == REGRESSION else accuracy_score
        groups = [table.codes == i for i in np.unique(table.codes)] if table.wide else [slice(None)]
        weight = table.sample_weight
        return float(
            np.mean([measure(table.y[g], predicted[g], sample_weight=None if weight is None else weight[g]) for g in groups])
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


class MTRLRegressor(_MTRL, RegressorMixin, BaseEstimator):
    """Linear regression for many related tasks, with the relations between them and a certificate."""

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

    def _units(self, table: intake.Table) -> _Units:
        y = _numbers_of(table)
        rows, starts = _by_task(table.codes, len(table.names))
        everyone = np.arange(len(table.names))
        return _Units(rows, y[rows], starts, table.names, everyone, np.zeros(len(everyone)))

    def _answers(self, score: np.ndarray) -> np.ndarray:
        return np.exp(score) if get_loss(self.loss).name == "poisson" else score


class MTRLClassifier(_MTRL, ClassifierMixin, BaseEstimator):
    """Linear classification for many related tasks, with the relations between them and a certificate."""

    __metadata_request__decision_function = {"tasks": True}
    __metadata_request__predict_proba = {"tasks": True}
    __metadata_request__predict_log_proba = {"tasks": True}
    _kind = CLASSIFICATION

    def __init__(
        self,
        loss: str | AnyLoss = "logistic",
        reg_lambda: float = 0.01,
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

    def _units(self, table: intake.Table) -> _Units:
        _choose("on_single_class", self.on_single_class, ("raise", "constant"))
        check_classification_targets(table.y)
        self.classes_, labels = np.unique(table.y, return_inverse=True)
        m, k = len(table.names), len(self.classes_)
        counts = np.bincount(table.codes * k + labels, minlength=m * k).reshape(m, k)
        single = np.count_nonzero(counts, axis=1) == 1
        self._check_single(table, counts, single)
        rows, starts = _by_task(table.codes, m)
        certain = np.log(2 * counts.sum(axis=1) + 1.0)  # the log-odds of a class seen in n of n rows
        if k == 2:
            used = np.flatnonzero(~single)
            classes = np.ones(len(used), dtype=int)
            tasks, names = used, table.names
            constant = np.where(counts[:, 1] > 0, certain, -certain)
        else:
            used = np.flatnonzero((counts > 0) & ~single[:, None])
            tasks, classes = np.divmod(used, k)
            prefix = [""] if table.names is intake.ALONE else [f"{name}: " for name in table.names]
            names = np.array([f"{before}{label}" for before in prefix for label in self.classes_])
            constant = np.where(counts > 0, certain[:, None], NEVER).ravel()
        parts = [rows[starts[i] : starts[i + 1]] for i in tasks]
        y = np.concatenate([np.where(labels[part] == c, 1.0, -1.0) for part, c in zip(parts, classes, strict=True)])
        ends = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        return _Units(np.concatenate(parts), y, ends, names, used, constant)

    def _check_single(self, table: intake.Table, counts: np.ndarray, single: np.ndarray) -> None:
        if not single.any():
            return
        i = int(np.argmax(single))
        only = self.classes_[np.argmax(counts[i])].item() if hasattr(self.classes_, "item") else None
        if single.all():
            raise ValueError(f"there is only one class to learn, {only!r}; {type(self).__name__} needs a task with two classes")
        if self.on_single_class == "raise":
            raise ValueError(
                f"task {table.names[i : i + 1].tolist()[0]!r} has only one class, {only!r}; leave it out, "
                "or set on_single_class='constant' to answer with that class there"
            )

    def _answers(self, score: np.ndarray) -> np.ndarray:
        return self.classes_[(score > 0).astype(int) if len(self.classes_) == 2 else score.argmax(axis=-1)]

    def decision_function(self, X: Any, tasks: Any = None) -> np.ndarray:
        """w . x + b: above zero speaks for classes_[1]; with more than two classes one column per class."""
        return self._scores(X, tasks)

    def _has_probabilities(self) -> bool:
        if get_loss(self.loss).name != "logistic":
            raise AttributeError(f"the {get_loss(self.loss).name} loss gives no probabilities; loss='logistic' does")
        return True

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any, tasks: Any = None) -> np.ndarray:
        """A column per class; with more than two, one-vs-rest probabilities made to sum to one.

        Where the columns of y were the tasks and there are two classes: the probability of classes_[1] per row and task.
        """
        score = self._scores(X, tasks)
        if len(self.classes_) > 2:
            log = -np.logaddexp(0, -score)
            share = np.exp(log - log.max(axis=-1, keepdims=True))
            return share / share.sum(axis=-1, keepdims=True)
        positive = expit(score)
        return positive if positive.ndim == 2 else np.column_stack([1 - positive, positive])

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any, tasks: Any = None) -> np.ndarray:
        return np.log(self.predict_proba(X, tasks))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = True
        tags.classifier_tags.multi_label = True
        return tags


def _choose(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def _seed(random_state: Any) -> int:
    """None is 0: a fit is repeatable unless something else is asked for."""
    if random_state is None or isinstance(random_state, int | np.integer):
        return int(random_state or 0)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def _by_task(codes: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers task after task, and where each task starts among them."""
    return np.argsort(codes, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=m))])


def _numbers_of(table: intake.Table) -> np.ndarray:
    try:
        return np.asarray(table.y, dtype=float)
    except (TypeError, ValueError):
        for row, value in enumerate(table.y):
            try:
                float(value)
            except (TypeError, ValueError):
                raise ValueError(f"{table.where(row)}: y holds {value!r}, which is not a number") from None
        raise


def _take(X: Any, rows: np.ndarray) -> Any:
    return X if len(rows) == X.shape[0] and (np.diff(rows) == 1).all() else X[rows]


def _with_constant(X: Any) -> Any:
    one = np.ones((X.shape[0], 1), dtype=X.dtype)
    return sparse.hstack([X, one], format="csr", dtype=X.dtype) if sparse.issparse(X) else np.hstack([X, one])


def _row_products(X: Any, coef: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Each row of X times the coefficients of its own task."""
    if sparse.issparse(X):
        row = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        return np.bincount(row, weights=X.data * coef[codes[row], X.indices], minlength=X.shape[0])
    return np.einsum("ij,ij->i", X, coef[codes])


def _restrict(relationship: Any, units: _Units) -> Any:
    """A given covariance or graph without the units that are left out."""
    shape = getattr(relationship, "shape", None)
    if shape is None or len(units.used) == len(units.names) or shape != (len(units.names),) * 2:
        return relationship
    return relationship[units.used][:, units.used]


def _pad(covariance: TaskCovariance, used: np.ndarray, total: int) -> TaskCovariance:
    """Sigma over all units; those that were left out are related to nobody."""
    if len(used) == total:
        return covariance
    if covariance.floor > 0:
        sigma = np.zeros((total, total))
        sigma[np.ix_(used, used)] = covariance.dense()
        return TaskCovariance.from_dense(sigma)
    basis = np.zeros((total, covariance.basis.shape[1]))
    basis[used] = covariance.basis
    return replace(covariance, basis=basis)
