"""What the estimators share: reading rows, posing the problem, keeping the outcome, scoring rows.

Room: beside the estimators, above solve, intake and problem. A subclass says how labels become units and scores become
answers; an estimator that chooses its own lambda and tau overrides `_strengths`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dmtrl.data.blocks import as_rows
from dmtrl.engines import choose_engine
from dmtrl.estimators import inputs as intake
from dmtrl.estimators.diagnostics import Insight
from dmtrl.estimators.feature_maps import get_feature_map
from dmtrl.estimators.model_file import Savable
from dmtrl.estimators.problem import Coordinates, Problem, Units, common_part, pad, pose, restrict, row_products
from dmtrl.losses import BUILTIN, REGRESSION, AnyLoss, get_loss
from dmtrl.relationship import Learned, is_learned
from dmtrl.relationship.covariance import DENSE_LIMIT, TaskCovariance
from dmtrl.solver.api import ProblemSpec, solve_problem
from dmtrl.solver.checkpoint import Checkpoint, CheckpointSession, open_session
from dmtrl.solver.checkpoint.options import PathLike
from dmtrl.solver.outcome import Callback, Outcome
from dmtrl.solver.settings import Settings

INTERCEPT_RIDGE = 1e-6  # on a free intercept: what a certificate needs, too little to be seen
SHIFTED = {"squared", "absolute", "epsilon_insensitive", "huber", "quantile"}  # losses of y - z: y may be centred


class MTRLBase(Insight, Savable, ABC):
    """What the two estimators share; they say themselves how labels become units and scores become answers."""

    __metadata_request__fit: ClassVar = {"tasks": True, "sample_weight": True}
    __metadata_request__predict: ClassVar = {"tasks": True}
    __metadata_request__score: ClassVar = {"tasks": True, "sample_weight": True}
    _kind: str
    _outcome: Outcome
    loss: str | AnyLoss
    reg_lambda: float
    relationship: Any
    common: float | str
    feature_map: Any
    fit_intercept: bool | str
    tol: float
    max_rounds: int
    max_staleness: int
    engine: Any
    n_jobs: int | None
    random_state: Any
    warm_start: bool
    verbose: int
    callbacks: Sequence[Callback] | None
    task_column: Any
    unknown_tasks: str

    @abstractmethod
    def _units(self, table: intake.Table) -> Units:
        """Labels as the units of the problem."""

    @abstractmethod
    def _answers(self, score: np.ndarray) -> np.ndarray:
        """Scores as predictions."""

    def fit(
        self,
        X: Any,
        y: Any = None,
        tasks: Any = None,
        sample_weight: Any = None,
        checkpoint: PathLike | Checkpoint | CheckpointSession | None = None,
        resume: PathLike | bool | None = None,
    ) -> Self:
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
        checkpoint : path, fsspec URL or Checkpoint, optional
            Where to write down, every minute or as often as a Checkpoint says, how far the fit is.
        resume : path, URL or True, optional
            Go on from such a checkpoint (True: from that of `checkpoint`, if there is one), with the same data and
            parameters. The model has the same bits as if the fit had never stopped, unless max_staleness is set.
        """
        self._check_parameters()
        table = self._read(X, y, tasks, sample_weight)
        self.layout_ = "wide" if table.wide else "alone" if table.names is intake.ALONE else "long"
        problem = self._pose(table)
        del table  # frees what was only needed to lay the rows
        session = open_session(checkpoint, resume)
        with choose_engine(self.engine).session():
            lam, tau = self._strengths(problem, session)
            self._keep(problem, self._solve(problem, lam, tau, session), lam, tau)
        return self

    def _check_parameters(self) -> None:
        loss = get_loss(self.loss)
        if loss.kind != self._kind:
            fitting = ", ".join(sorted(name for name, make in BUILTIN.items() if make().kind == self._kind))
            raise ValueError(f"the {loss.name} loss is for {loss.kind}; {type(self).__name__} takes {fitting}")
        choose("fit_intercept", self.fit_intercept, (True, False, "penalised"))
        choose("unknown_tasks", self.unknown_tasks, ("raise", "common"))
        choose_engine(self.engine)
        if isinstance(self.common, str):
            choose("common", self.common, ("auto",))
        given: Any = self.reg_lambda
        if not (isinstance(given, Real) and 0 < float(given) < np.inf):
            raise ValueError(f"reg_lambda must be positive and finite, got {self.reg_lambda!r}")
        self._settings(0)  # refuses what cannot be before anything is read or started

    def _settings(self, seed: int, tol: float | None = None) -> Settings:
        tol = self.tol if tol is None else tol
        return Settings(tol=tol, max_rounds=self.max_rounds, max_staleness=self.max_staleness, seed=seed)

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
        self.feature_map_ = get_feature_map(self.feature_map, self._seed())
        rows = table.X if self.feature_map_ is None else self.feature_map_.fit_transform(table.X)
        centre_y = get_loss(self.loss).name in SHIFTED
        return pose(rows, self._units(table), table.sample_weight, self.fit_intercept, centre_y)

    def _strengths(self, problem: Problem, session: CheckpointSession) -> tuple[float, float]:
        """lambda and tau. One task has no common component; beside a given Sigma and between classes there is one only
        if it is asked for."""
        lam, relationship = float(self.reg_lambda), self.relationship
        if len(self.tasks_) == 1:
            return lam, 0.0
        if not isinstance(self.common, str):
            return lam, float(self.common)
        learned = is_learned(relationship) and len(problem.units.names) == len(self.tasks_)
        return lam, float(getattr(relationship, "tau", learned))

    def _solve(self, problem: Problem, lam: float, tau: float, session: CheckpointSession) -> Outcome:
        return solve_problem(
            self._spec(problem, self._settings(self._seed())),
            lam,
            tau,
            engine=self.engine,
            n_jobs=self.n_jobs,
            start=self._start(problem),
            callbacks=self.callbacks or (),
            verbose=int(self.verbose),
            session=session,
        )

    def _spec(self, problem: Problem, settings: Settings) -> ProblemSpec:
        """The problem as the solver takes it."""
        relationship = restrict(self.relationship, problem.units)
        if is_learned(relationship):  # for one unit the same as independent, which is faster
            relationship = "learned" if problem.data.m > 1 else "independent"
        ridge = self._intercept_ridge(problem.coordinates)
        return ProblemSpec(problem.data, get_loss(self.loss), relationship, settings, intercept_ridge=ridge)

    def _intercept_ridge(self, coordinates: Coordinates) -> float | None:
        """The ridge on a free intercept; None without one."""
        if self.fit_intercept is not True:
            return None
        loss = get_loss(self.loss)
        # a loss with bounded slope pulls the less on an intercept the larger y is: so must its ridge
        bounded = loss.name in SHIFTED and np.isfinite(loss.lipschitz)
        pull = min(loss.smoothness, loss.lipschitz / coordinates.y_scale) if bounded else 1.0
        return float(INTERCEPT_RIDGE * pull * coordinates.constant**2)

    def _start(self, problem: Problem) -> Outcome | None:
        """Where to begin: with warm_start the last fit's coefficients, if it was of the same units and features."""
        units, before = problem.units, vars(self).get("_outcome")
        if not self.warm_start or before is None or not np.array_equal(self.unit_names_, units.names):
            return None
        if before.W.shape != (problem.data.m, problem.data.X.shape[1]):
            return None
        coef = self.coef_.reshape(len(units.names), -1)[units.used].astype(float)
        return replace(before, W=problem.coordinates.weights(coef, self.intercept_.ravel()[units.used]))

    def _seed(self) -> int:
        """None is 0: a fit is repeatable unless something else is asked for."""
        if self.random_state is None or isinstance(self.random_state, int | np.integer):
            return int(self.random_state or 0)
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _keep(self, problem: Problem, outcome: Outcome, lam: float, tau: float) -> None:
        """The outcome as fitted attributes."""
        units, m, d, dtype = problem.units, len(self.tasks_), len(problem.coordinates.x_centre), problem.data.X.dtype
        total = len(units.names)
        coef, intercept = np.zeros((total, d)), units.constant.astype(float)
        coef[units.used], intercept[units.used] = problem.coordinates.coefficients(outcome.W)
        shape = (m,) if total == m else (m, total // m)
        self.coef_ = coef.reshape(*shape, d).astype(dtype)
        self.intercept_ = np.asarray(intercept.reshape(shape), dtype=dtype)
        self._keep_common(outcome, tau, problem.coordinates)
        self.reg_lambda_, self.common_strength_ = lam, tau
        self.unit_names_ = units.names
        self.certificate_ = outcome.certificate
        self.history_ = [record.as_dict() for record in outcome.history]
        self.n_rounds_ = len(outcome.history)
        self._covariance = pad(self._relations(outcome, tau), units)
        self._outcome = replace(outcome, history=[])
        self._coordinates = problem.coordinates

    def _keep_common(self, outcome: Outcome, tau: float, coordinates: Coordinates) -> None:
        common, d = outcome.common, len(coordinates.x_centre)
        if tau > 0 and not is_learned(self.relationship):
            common = common_part(outcome.covariance, tau, outcome.W)
        if self.fit_intercept is True:  # outside the relationship: a task never seen is given the mean one
            common = np.append(common[:d], outcome.W[:, d].mean())
        coef, intercept = coordinates.coefficients(common)
        self.common_coef_, self.common_intercept_ = coef.astype(self.coef_.dtype), float(intercept)

    def _relations(self, outcome: Outcome, tau: float) -> TaskCovariance:
        """Sigma as people read it. Beside a common component the solver's own is of what is left without it, in which
        tasks that are all alike would look unrelated: here it is of the whole weights (12)."""
        if tau == 0 or not is_learned(self.relationship):
            return outcome.covariance
        return Learned().update(outcome.W[:, :-1] if self.fit_intercept is True else outcome.W)

    @property
    def task_covariance_(self) -> np.ndarray | TaskCovariance:
        """Sigma with trace one, a row per unit; above 5000 units as the operator it is kept as."""
        covariance = self._fitted_covariance()
        return covariance if covariance.m > DENSE_LIMIT else covariance.dense()

    @property
    def task_correlation_(self) -> Any:
        """The correlation of every two units, as a labelled frame where pandas is installed."""
        return self._labelled(self._fitted_covariance().correlation(), self.unit_names_)

    @property
    def covariance_(self) -> TaskCovariance:
        """Sigma with trace one, a row per unit, as an operator."""
        return self._fitted_covariance()

    def read_rows(self, X: Any, y: Any = None, tasks: Any = None, sample_weight: Any = None) -> intake.Table:
        """Rows and labels, checked against the rows of the fit, as a table."""
        return self._read(X, y, tasks, sample_weight, reset=False)

    def _labelled(self, values: np.ndarray, names: np.ndarray) -> Any:
        try:
            import pandas as pd
        except ImportError:
            return values
        return pd.DataFrame(values, index=names, columns=names)

    def _fitted_covariance(self) -> TaskCovariance:
        if "_covariance" not in vars(self):
            raise AttributeError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self._covariance

    def predict(self, X: Any, tasks: Any = None) -> np.ndarray:
        """One answer per row; one per row and task where the columns of y were the tasks and none are given here."""
        return self._answers(self._scores(X, tasks))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, tasks: Any = None) -> float:
        """R^2 for regression, accuracy for classification; its mean over the columns where y has two dimensions."""
        from sklearn.metrics import accuracy_score, r2_score  # here: not needed before, and slow to import

        check_is_fitted(self)
        table = self._read(X, y, tasks, sample_weight, reset=False)
        codes = self._numbers(table.names)[table.codes]
        answers = self._answers(self._score_rows(table.X[table.rows], codes))
        measure = r2_score if self._kind == REGRESSION else accuracy_score
        groups = [table.codes == i for i in range(len(table.names))] if table.wide else [slice(None)]
        weight = np.ones(len(table.y)) if table.sample_weight is None else table.sample_weight[table.rows]
        return float(np.mean([measure(table.y[g], answers[g], sample_weight=weight[g]) for g in groups]))

    def _scores(self, X: Any, tasks: Any) -> np.ndarray:
        """w . x + b of each row: (n,), or (n, k) for more than two classes; with an axis of tasks before k where the
        columns of y were the tasks and none are given here."""
        check_is_fitted(self)
        X, labels = intake.read_rows(X, tasks, self.task_column)
        rows = self._validate(X, reset=False)
        numbers = np.arange(rows.shape[0])
        names, codes = (intake.ALONE, 0 * numbers) if labels is None else np.unique(labels, return_inverse=True)
        intake.Table(rows, None, names, codes, None, numbers).check_X(getattr(self, "feature_names_in_", None))
        every = labels is None and self.layout_ == "wide"
        return self._score_rows(rows, None if every else self._numbers(names)[codes])

    def _score_rows(self, rows: Any, codes: np.ndarray | None) -> np.ndarray:
        if self.feature_map_ is not None:
            rows = as_rows(self.feature_map_.transform(rows))
        coef, intercept = self.coef_, self.intercept_
        if codes is None:  # every task
            return (rows @ coef.reshape(-1, coef.shape[-1]).T + intercept.ravel()).reshape(-1, *intercept.shape)
        if (codes < 0).any():  # the common component is one more task, the last
            coef = np.concatenate([coef, self.common_coef_[None]])
            intercept = np.append(intercept, self.common_intercept_).astype(intercept.dtype)
        if coef.ndim == 2:
            return row_products(rows, coef, codes) + intercept[codes]
        classes = range(coef.shape[1])
        return np.stack([row_products(rows, coef[:, c], codes) for c in classes], axis=1) + intercept[codes]

    def _numbers(self, names: np.ndarray) -> np.ndarray:
        """The number of each named task; -1 for one never seen, if it may be predicted from the common component."""
        if names is intake.ALONE:
            if len(self.tasks_) == 1:
                return np.zeros(1, dtype=int)
            few = f"the model has {len(self.tasks_)} tasks ({intake.known(self.tasks_)})"
            raise ValueError(f"{few}; say with tasks= which of them each row belongs to")
        if self.layout_ == "alone":
            raise ValueError("the model was fitted without tasks and has none to tell apart; leave tasks out")
        numbers = intake.lookup(names, self.tasks_)
        if (numbers >= 0).all():
            return numbers
        unknown = intake.plain(names[np.argmin(numbers)])
        what = f"task {unknown!r} was not there in fit, which had {intake.known(self.tasks_)}"
        if self.unknown_tasks == "raise":
            raise ValueError(
                f"{what}; set unknown_tasks='common' to predict it from what all tasks share, "
                "or in cross-validation shuffle the rows so that every task is in every training part"
            )
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


def choose(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}, got {value!r}")
