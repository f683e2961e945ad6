"""MTRLBase: what the estimators share when they fit. A subclass defines how labels become units."""

from abc import abstractmethod
from copy import copy
from dataclasses import replace
from numbers import Real
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state

from dmtrl.data.blocks import as_rows
from dmtrl.engines import choose_engine
from dmtrl.engines.base import Engine
from dmtrl.estimators.classes import fill_absent
from dmtrl.estimators.feature_maps import get_feature_map
from dmtrl.estimators.folds import labels_of
from dmtrl.estimators.held_out import HeldOutRows
from dmtrl.estimators.inputs import LabelledRows
from dmtrl.estimators.problem import Coordinates, FitProblem, UnitLabels, build_problem, pad, restrict
from dmtrl.estimators.task_model import TaskModel, check_callbacks, check_choice
from dmtrl.losses import BUILTIN, AnyLoss, get_loss
from dmtrl.numerics.checks import is_number, is_whole
from dmtrl.relationship import Learned, TaskCovariance, is_learned
from dmtrl.relationship.base import check_kappa, check_tau
from dmtrl.relationship.parts import given_parts, learned_parts
from dmtrl.solver.api import Placement, ProblemSpec, Strengths, solve_problem, warn_unless_converged
from dmtrl.solver.checkpoint import Checkpoint, CheckpointSession, open_session
from dmtrl.solver.checkpoint.options import PathLike
from dmtrl.solver.cross_validation import fit_folds
from dmtrl.solver.outcome import Outcome, StartPoint
from dmtrl.solver.settings import Settings
from dmtrl.solver.task_weights import check_task_weight

INTERCEPT_RIDGE = 1e-6  # ridge on a free intercept: the certificate needs one, and this one has no visible effect
SHIFT_INVARIANT = {"squared", "absolute", "epsilon_insensitive", "huber", "quantile"}  # losses of y - z only


class MTRLBase(TaskModel):
    """Turns rows into a problem, solves it and stores the result."""

    _outcome: Outcome

    @abstractmethod
    def label_units(self, rows: LabelledRows) -> UnitLabels:
        """Assign rows and numeric labels to the units of the problem.

        Parameters
        ----------
        rows : LabelledRows
            The rows of all tasks.
        """

    def fit(
        self,
        X: Any,
        y: Any = None,
        tasks: Any = None,
        sample_weight: Any = None,
        checkpoint: PathLike | Checkpoint | CheckpointSession | None = None,
        resume: PathLike | bool | None = None,
    ) -> Self:
        """Fit one linear model per task and the relationship between tasks.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n, d), or list or dict of (X_i, y_i)
            Training rows. Data frames of pandas, polars and pyarrow are accepted. A list or dict holds one (X_i, y_i)
            or (X_i, y_i, sample_weight_i) per task; then do not pass y.
        y : array-like of shape (n,) or (n, m), default=None
            Labels. In a 2-D y every column is a task, and NaN marks a missing label.
        tasks : array-like of shape (n,), default=None
            The task label of each row: text, integers or categories. None means a single task.
        sample_weight : array-like of shape (n,), default=None
            Weights of the rows. With task_weight="equal" only proportions within a task matter.
        checkpoint : str, path or Checkpoint, default=None
            Folder or fsspec URL to write checkpoints to. A path means one checkpoint per minute.
        resume : str, path or True, default=None
            Resume from the checkpoint at this path, or with True from the one at `checkpoint` if it exists. The data
            and parameters must be the same. The result is bitwise equal to that of an uninterrupted fit, unless
            max_staleness > 0.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        self._check_parameters()
        self._fit_rows(self._read(X, y, tasks, sample_weight), checkpoint, resume)
        return self

    def _fit_rows(
        self,
        table: LabelledRows,
        checkpoint: PathLike | Checkpoint | CheckpointSession | None,
        resume: PathLike | bool | None,
    ) -> None:
        self.layout_ = table.layout
        place = Placement(self.engine, self.n_jobs, self.workers, self.on_lost, open_session(checkpoint, resume))
        with choose_engine(self.engine).session():
            problem, strengths = self._choose(table, place)
            del table  # frees what was only needed to lay the rows and to choose
            outcome = self._solve(problem, strengths, place)
        warn_unless_converged(outcome, self._settings(0), stacklevel=4)
        self._keep(problem, outcome, strengths)

    def fit_problem(self, problem: FitProblem, place: Placement) -> Outcome:
        """Fit a problem whose rows are held by the workers of a running engine.

        Parameters
        ----------
        problem : FitProblem
            The problem. Its data has the names of the tasks and the features, but need not have rows.
        place : Placement
            The engine, whose workers hold the rows in the coordinates of the problem, and the checkpoints.

        Returns
        -------
        Outcome
            The solution, in the coordinates of the problem.
        """
        self._check_parameters()
        strengths = self._strengths(problem, place)
        outcome = self._solve(problem, strengths, place)
        warn_unless_converged(outcome, self._settings(0), stacklevel=3)
        self.set_outcome(problem, outcome, *strengths)
        return outcome

    def set_outcome(
        self, problem: FitProblem, outcome: Outcome, reg_lambda: float, common: float, own: float = 0.0
    ) -> Self:
        """Become the fitted model of a problem that was solved elsewhere.

        Parameters
        ----------
        problem : FitProblem
            The problem, as in `fit_problem`.
        outcome : Outcome
            Its solution.
        reg_lambda, common, own : float
            The strengths of the solution.

        Returns
        -------
        self : object
        """
        self.layout_, self.n_features_in_ = "long", len(problem.coordinates.x_centre)
        self._keep(problem, outcome, Strengths(reg_lambda, common, own))
        return self

    def _check_parameters(self) -> None:
        loss = get_loss(self.loss)
        if loss.outputs > 1:
            raise ValueError("pass the loss for two classes, such as 'logistic'; multi_class extends it to more")
        if loss.kind != self._kind:
            valid = ", ".join(sorted(name for name, make in BUILTIN.items() if make().kind == self._kind))
            raise ValueError(f"the {loss.name} loss is for {loss.kind}; {type(self).__name__} accepts {valid}")
        check_choice("fit_intercept", self.fit_intercept, (True, False, "penalised"))
        check_choice("unknown_tasks", self.unknown_tasks, ("raise", "common"))
        check_choice("on_lost", self.on_lost, ("stop", "go_on"))
        check_callbacks(self.callbacks)
        for name in ("workers", "shards"):
            value = getattr(self, name)
            if not (is_whole(value) and value >= 1) and not (name == "workers" and value is None):
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        choose_engine(self.engine)
        common: Any = self.common
        if is_number(common):
            check_tau(common)
        elif not (isinstance(common, str) and common == "auto"):
            raise ValueError(f"common must be 'auto' or a number of at least 0, got {common!r}")
        check_kappa(self.own)
        reg_lambda: Any = self.reg_lambda
        if not (isinstance(reg_lambda, Real) and 0 < float(reg_lambda) < np.inf):
            raise ValueError(f"reg_lambda must be positive and finite, got {reg_lambda!r}")
        check_task_weight(self.task_weight)
        self._settings(0)  # raises for invalid values before any row is read

    def _settings(self, seed: int, tol: float | None = None) -> Settings:
        tol = self.tol if tol is None else tol
        return Settings(tol=tol, max_rounds=self.max_rounds, max_staleness=self.max_staleness, seed=seed)

    def _choose(self, table: LabelledRows, place: Placement) -> tuple[FitProblem, Strengths]:
        """The problem to solve, and lambda and common for it."""
        problem = self._build_problem(table)
        return problem, self._strengths(problem, place)

    def _map_of_fit(self) -> Any:
        """The feature map to fit, as the parameter names it."""
        return self.feature_map

    def _build_problem(self, rows: LabelledRows, splits: np.ndarray | None = None) -> FitProblem:
        """`splits`: of a cross-validation, for each label."""
        feature_map = get_feature_map(self._map_of_fit(), self._seed())
        X = as_rows(rows.X if feature_map is None else feature_map.fit_transform(rows.X))
        units, weight = self.label_units(rows), rows.sample_weight
        centre_y = get_loss(self.loss).name in SHIFT_INVARIANT
        coordinates = Coordinates.for_rows(X, units, weight, self.fit_intercept, centre_y)
        problem = build_problem(X, units, weight, coordinates, feature_map)
        data = problem.data if splits is None else replace(problem.data, splits=splits[:, labels_of(units, rows)])
        return replace(problem, data=data, rows=np.bincount(rows.codes, minlength=len(rows.names)))

    def _strengths(self, problem: FitProblem, place: Placement) -> Strengths:
        """Return lambda and the strengths of the common and own parts, in units of 1/m. With common="auto" it is that
        of a given relationship or, if the relationship is learned, 1."""
        lam, relationship, m = float(self.reg_lambda), self.relationship, problem.data.m
        if len(problem.tasks) == 1:
            return Strengths(lam, 0.0)
        own = float(self.own) or float(getattr(relationship, "kappa", 0.0) * m)
        if not isinstance(self.common, str):
            return Strengths(lam, float(self.common), own)
        return Strengths(lam, float(getattr(relationship, "tau", is_learned(relationship) / m) * m), own)

    def _solve(self, problem: FitProblem, strengths: Strengths, place: Placement) -> Outcome:
        lam, common, own = strengths
        spec = self.problem_spec(problem, self._settings(self._seed()))
        spec = replace(spec, start=self._start(problem), own=own)
        return solve_problem(spec, lam, common, place, callbacks=self.callbacks or (), verbose=int(self.verbose))

    def problem_spec(self, problem: FitProblem, settings: Settings) -> ProblemSpec:
        """Describe a problem for the solver, with the relationship and the intercept of this estimator.

        Parameters
        ----------
        problem : FitProblem
            The problem to solve.
        settings : Settings
            Settings of the algorithm.
        """
        relationship = restrict(self.relationship, problem)
        if is_learned(relationship):  # for a single unit "independent" is equivalent and faster
            relationship = "learned" if problem.data.m > 1 else "independent"
        return ProblemSpec(
            problem.data,
            self._losses(None if problem.seen is None else problem.seen_by_units),
            relationship,
            settings,
            self.shards,
            self.intercept_ridge(problem.coordinates),
            task_weight=check_task_weight(self.task_weight),
            keep_all_tasks=True,
        )

    def _losses(self, seen: np.ndarray | None) -> AnyLoss | list[AnyLoss]:
        """The loss of all tasks, or one for each. `seen` (m, k): whether a task has a class."""
        return get_loss(self.loss)

    def intercept_ridge(self, coordinates: Coordinates) -> float | None:
        """Return the ridge on a free intercept, or None if the intercept is not free.

        Parameters
        ----------
        coordinates : Coordinates
            The coordinates of the problem.
        """
        if self.fit_intercept is not True:
            return None
        loss = get_loss(self.loss)
        # the gradient of a Lipschitz loss does not grow with y, so the ridge must shrink as the scale of y grows
        bounded = loss.name in SHIFT_INVARIANT and np.isfinite(loss.lipschitz)
        slope = min(loss.smoothness, loss.lipschitz / coordinates.y_scale) if bounded else 1.0
        return float(INTERCEPT_RIDGE * slope)

    def _start(self, problem: FitProblem) -> StartPoint | None:
        """Where to begin: with warm_start the last fit's coefficients, if it was of the same units and features."""
        before = vars(self).get("_outcome")
        if not self.warm_start or before is None or not np.array_equal(self.tasks_, problem.tasks):
            return None
        columns = problem.outputs * (problem.data.X.shape[1] + (self.fit_intercept is True))
        if before.W.shape != (problem.data.m, columns):
            return None
        return StartPoint(self.weights_of(problem, np.arange(len(problem.tasks))), before.common)

    def weights_of(self, problem: FitProblem, order: np.ndarray) -> np.ndarray:
        """Return the coefficients of the fitted model as weights in a problem, a row per unit.

        Parameters
        ----------
        problem : FitProblem
            A problem with the tasks of the model.
        order : ndarray of int
            The number in the model of each task of the problem.
        """
        coef, intercept = self.coef_[order][problem.used], self.intercept_[order][problem.used]
        W = problem.coordinates.weights(coef.astype(float), intercept)
        if problem.outputs > 1 and self.fit_intercept is True:  # no row asks for the intercept of an absent class
            W[:, -problem.outputs :][~problem.seen_by_units] = 0.0
        return W

    def _fold_model(self, problem: FitProblem, outcome: Outcome, strengths: Strengths) -> Self:
        """The fitted model of one fold of a cross-validation, which predicts checked rows of `fit`."""
        model = copy(self)
        model.task_column = None
        vars(model).pop("feature_names_in_", None)  # the rows are arrays by now
        model._keep(problem, outcome, strengths)
        return model

    def _predict_held_out(
        self, engine: Engine, spec: ProblemSpec, strengths: Strengths, problem: FitProblem, held: HeldOutRows
    ) -> None:
        """Let the model of each fold predict the rows that the fold holds out."""

        def receive(fold: int, outcome: Outcome) -> None:
            held.predict(fold, self._fold_model(problem, outcome, strengths))

        fit_folds(engine, spec, strengths, held.n_folds, receive)

    def _seed(self) -> int:
        """The seed of the fit. None means 0, so that a fit is repeatable by default."""
        if self.random_state is None or isinstance(self.random_state, int | np.integer):
            return int(self.random_state or 0)
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _keep(self, problem: FitProblem, outcome: Outcome, strengths: Strengths) -> None:
        """Set the fitted attributes."""
        used, k, W = problem.used, problem.outputs, outcome.W
        d, dtype = len(problem.coordinates.x_centre), problem.data.X.dtype
        if k > 1 and self.fit_intercept is True:
            W = np.hstack([W[:, :-k], fill_absent(W[:, -k:], problem.seen_by_units)])
        intercept = problem.constant.astype(float)
        coef = np.zeros((*intercept.shape, d))
        coef[used], intercept[used] = problem.coordinates.coefficients(W, k)
        self.tasks_ = problem.tasks
        if problem.classes is not None:
            self.classes_ = problem.classes
        if problem.seen is not None:
            self.seen_classes_ = problem.seen
        self.feature_map_ = problem.feature_map
        self.coordinates_ = problem.coordinates
        self.coef_ = coef.astype(dtype)
        self.intercept_ = np.asarray(intercept, dtype=dtype)
        self.reg_lambda_, self.common_strength_, self.own_strength_ = strengths
        self.task_rows_, self.task_weights_ = problem.rows, np.zeros(len(problem.tasks))
        self.task_weights_[used] = outcome.task_weight
        self._keep_parts(outcome, W, used, len(problem.tasks))
        self.certificate_ = outcome.certificate
        self.history_ = [record.as_dict() for record in outcome.history]
        self.n_rounds_ = len(outcome.history)
        self._covariance = pad(self._reported_covariance(outcome), problem)
        # in the coordinates of the problem, for warm_start and add_task; neither needs the history
        self._outcome = replace(outcome, history=[])

    def _keep_parts(self, outcome: Outcome, W: np.ndarray, used: np.ndarray, m: int) -> None:
        """Set what describes the common, related and own parts of the weights. `W`: the weights with all intercepts;
        `used`: the number of the task of each of its rows."""
        k, units = self._outputs, len(W)
        tau, kappa = self.common_strength_ / units, self.own_strength_ / units
        free = self.fit_intercept is True  # then the intercepts are not part of the relationship
        features, common = (W[:, :-k], outcome.common[:-k]) if free else (W, outcome.common)
        if is_learned(self.relationship):
            parts = learned_parts(features, common, kappa)
        else:
            parts = given_parts(outcome.covariance, features, tau, kappa)
        whole = np.append(parts.common, W[:, -k:].mean(axis=0)) if free else parts.common  # the mean over units
        coef, intercept = self.coordinates_.coefficients(whole, k)
        self.common_coef_ = coef.astype(self.coef_.dtype)
        self.common_intercept_ = intercept if k > 1 else float(intercept)
        self.weight_shares_ = np.zeros((m, 3))
        self.weight_shares_[used] = parts.shares()

    def _reported_covariance(self, outcome: Outcome) -> TaskCovariance:
        """Sigma of the whole weights (12). With a common component or own parts the solver's Sigma describes only the
        related part, without what all tasks share and what each task has of its own."""
        if self.common_strength_ == self.own_strength_ == 0 or not is_learned(self.relationship):
            return outcome.covariance
        return Learned().update(self._weights_of_features(outcome))

    def _weights_of_features(self, outcome: Outcome) -> np.ndarray:
        """The weights without intercepts, where these are not part of the relationship."""
        return outcome.W[:, : -self._outputs] if self.fit_intercept is True else outcome.W
