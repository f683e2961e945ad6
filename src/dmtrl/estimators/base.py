"""MTRLBase: what the estimators share when they fit. A subclass defines how labels become numbers."""

from abc import abstractmethod
from copy import copy
from dataclasses import replace
from numbers import Real
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state

from dmtrl.data.blocks import as_rows
from dmtrl.data.coordinates import Coordinates
from dmtrl.data.sources import SourcePlan
from dmtrl.data.task_data import TaskData
from dmtrl.engines import choose_engine
from dmtrl.estimators.classes import fill_absent
from dmtrl.estimators.feature_maps import get_feature_map
from dmtrl.estimators.held_out import HeldOutRows
from dmtrl.estimators.inputs import LabelledRows
from dmtrl.estimators.problem import pad, restrict, task_data
from dmtrl.estimators.task_model import TaskModel, check_callbacks, check_choice
from dmtrl.losses import BUILTIN, CLASSIFICATION, AnyLoss, get_loss
from dmtrl.numerics.checks import is_number
from dmtrl.relationship import Learned, TaskCovariance, is_learned
from dmtrl.relationship.base import check_kappa, check_tau
from dmtrl.relationship.parts import given_parts, learned_parts
from dmtrl.solver.api import on_engine, solve
from dmtrl.solver.checkpoint import Checkpoint, CheckpointSession
from dmtrl.solver.checkpoint.options import PathLike
from dmtrl.solver.execution import Execution
from dmtrl.solver.outcome import Outcome, StartPoint
from dmtrl.solver.problem import LINEAR, Intercept, Problem, Strengths, Tasks
from dmtrl.solver.settings import Settings
from dmtrl.solver.shared_fit import SharedFit, can_fit_shared, fits_in_sums
from dmtrl.solver.task_weights import check_task_weight

AUTO = "auto"
INTERCEPT_RIDGE = 1e-6  # ridge on a free intercept: the certificate needs one, and this one has no visible effect
SHIFT_INVARIANT = {"squared", "absolute", "epsilon_insensitive", "huber", "quantile"}  # losses of y - z only


class MTRLBase(TaskModel):
    """Turns rows into a problem, solves it and stores the result."""

    _outcome: Outcome

    @abstractmethod
    def arrange(self, rows: LabelledRows, ordinary: bool = False) -> tuple[LabelledRows, Tasks]:
        """Arrange labels as numbers, task after task.

        Parameters
        ----------
        rows : LabelledRows
            Checked rows of all tasks.
        ordinary : bool, default=False
            Whether a task with a single class is a task like any other, because there is a shared part.

        Returns
        -------
        LabelledRows
            The numeric labels of the tasks in the problem.
        Tasks
            All tasks, with those that are left out of the problem.
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
            Weights of the rows. With task_weight="equal" only proportions within a task matter. The strength of levels
            around a shared part takes a weight as a number of rows, so there the mean weight should be about one.
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
        execution = self._execution(checkpoint, resume)
        self._fit_rows(self._read(X, y, tasks, sample_weight), execution)
        return self

    def _fit_rows(self, rows: LabelledRows, execution: Execution) -> None:
        self.layout_ = rows.layout
        problem = self._problem(rows)
        del rows  # frees what was only needed to lay the rows
        self._keep(*self._run(problem, execution))

    def fit_problem(
        self, problem: Problem, engine: Any = None, checkpoint: PathLike | Checkpoint | CheckpointSession | None = None
    ) -> Outcome:
        """Fit a problem whose rows are read by the workers, or held by those of a running engine.

        Parameters
        ----------
        problem : Problem
            The problem, from `describe`.
        engine : Engine, default=None
            A running engine, whose workers hold the rows in the coordinates of the problem. None means the engine of
            the estimator.
        checkpoint : str, path, Checkpoint or CheckpointSession, default=None
            Where to write checkpoints.

        Returns
        -------
        Outcome
            The solution, in the coordinates of the problem.
        """
        self._check_parameters()
        execution = self._execution(checkpoint)
        problem, outcome = self._run(problem, execution if engine is None else replace(execution, engine=engine))
        self.set_outcome(problem, outcome)
        return outcome

    def set_outcome(self, problem: Problem, outcome: Outcome) -> Self:
        """Become the fitted model of a problem that was solved elsewhere.

        Parameters
        ----------
        problem : Problem
            The problem, from `describe`, with the strengths of the solution.
        outcome : Outcome
            Its solution.

        Returns
        -------
        self : object
        """
        assert problem.coordinates is not None
        self.layout_, self.n_features_in_ = "long", len(problem.coordinates.x_centre)
        self._keep(problem, outcome)
        return self

    def _run(self, problem: Problem, execution: Execution, held: HeldOutRows | None = None) -> tuple[Problem, Outcome]:
        """Choose the strengths and solve the problem, on one engine. `held`: rows of a cross-validation, if they are in
        this process."""

        def compute(problem: Problem, execution: Execution) -> tuple[Problem, Outcome]:
            chosen = self._choose(problem, execution, held)
            return chosen, solve(chosen, execution)

        return on_engine(problem, execution, compute)

    def _choose(self, problem: Problem, execution: Execution, held: HeldOutRows | None) -> Problem:
        """The problem with the strengths to fit it with."""
        return problem

    def _execution(
        self,
        checkpoint: PathLike | Checkpoint | CheckpointSession | None = None,
        resume: PathLike | bool | None = None,
        warn: bool = True,
    ) -> Execution:
        return Execution(
            choose_engine(self.engine, self.n_jobs),
            self._settings(),
            checkpoint,
            resume,
            callbacks=self.callbacks or (),
            verbose=int(self.verbose),
            keep_all_tasks=True,
            warn=warn,
        )

    def _settings(self) -> Settings:
        return Settings(tol=self.tol, max_rounds=self.max_rounds, seed=self._seed())

    def _check_parameters(self) -> None:
        loss = get_loss(self.loss)
        if loss.outputs > 1:
            raise ValueError("pass the loss for two classes, such as 'logistic'; multi_class extends it to more")
        if loss.kind != self._kind:
            valid = ", ".join(sorted(name for name, make in BUILTIN.items() if make().kind == self._kind))
            raise ValueError(f"the {loss.name} loss is for {loss.kind}; {type(self).__name__} accepts {valid}")
        check_choice("fit_intercept", self.fit_intercept, (True, False, "penalised"))
        check_choice("unknown_tasks", self.unknown_tasks, ("raise", "shared"))
        check_choice("shared_model", self.shared_model, (None, LINEAR))
        level: Any = self.level
        if not (level == AUTO if isinstance(level, str) else is_number(level) and level > 0):
            raise ValueError(f"level must be 'auto' or a positive number, got {level!r}")
        if self.shared_model is None and level != AUTO:
            raise ValueError("level is the strength of levels around a shared part; pass shared_model='linear' with it")
        check_callbacks(self.callbacks)
        common: Any = self.common
        if is_number(common):
            check_tau(common)
        elif not (isinstance(common, str) and common == "auto"):
            raise ValueError(f"common must be 'auto' or a number of at least 0, got {common!r}")
        check_kappa(self.own)
        reg_lambda: Any = self.reg_lambda
        finite = isinstance(reg_lambda, Real) and 0 < float(reg_lambda) < np.inf
        if not (finite or (self.shared_model is not None and reg_lambda == np.inf)):
            raise ValueError(f"reg_lambda must be positive and finite, got {reg_lambda!r}")
        self._task_weight(shared=False)

    def _may_share(self) -> bool:
        """Whether a problem of several tasks has a shared part, unless it has too many features."""
        return self.shared_model is not None and self.fit_intercept is True and can_fit_shared(get_loss(self.loss), 0)

    def _task_weight(self, shared: bool) -> float:
        """The exponent of the task sizes. `shared`: whether there is a shared part."""
        if isinstance(self.task_weight, str) and self.task_weight == AUTO:
            return 1.0 if shared else 0.5
        return check_task_weight(self.task_weight)

    def _map_of_fit(self) -> Any:
        """The feature map to fit, as the parameter names it."""
        return self.feature_map

    def _problem(self, rows: LabelledRows) -> Problem:
        """The problem of checked rows."""
        feature_map = get_feature_map(self._map_of_fit(), self._seed())
        X = as_rows(rows.X if feature_map is None else feature_map.fit_transform(rows.X))
        several, k = self._may_share() and len(rows.names) > 1, len(np.unique(rows.y)) if self._has_classes else 1
        arranged, tasks = self.arrange(rows, several and fits_in_sums(X.shape[1], k if k > 2 else 1))
        centre_y = get_loss(self.loss).name in SHIFT_INVARIANT
        coordinates = Coordinates.for_rows(
            X, arranged.y, arranged.rows, rows.sample_weight, self.fit_intercept, centre_y
        )
        return self.describe(task_data(X, arranged, coordinates), coordinates, tasks, feature_map)

    def describe(
        self, data: TaskData | SourcePlan | int, coordinates: Coordinates, tasks: Tasks, feature_map: Any = None
    ) -> Problem:
        """Describe a problem with the loss, the relationship and the strengths of this estimator.

        Parameters
        ----------
        data : TaskData, SourcePlan or int
            The rows, a plan to read them, or the number of tasks if workers hold them.
        coordinates : Coordinates
            The coordinates of the rows.
        tasks : Tasks
            All tasks of the model.
        feature_map : transformer, default=None
            The fitted feature map that the rows have passed through.

        Returns
        -------
        Problem
        """
        m, relationship = len(tasks.used), restrict(self.relationship, tasks)
        if is_learned(relationship):  # for a single task "independent" is equivalent and faster
            relationship = "learned" if m > 1 else "independent"
        ridge = self.intercept_ridge(coordinates)
        losses = self._losses(None if tasks.seen is None else tasks.seen_in_problem)
        shared = self._may_share() and m > 1 and can_fit_shared(losses, len(coordinates.x_centre))
        problem = Problem(
            data,
            losses,
            self._strengths(m, len(tasks.names), shared),
            relationship,
            self._task_weight(shared),
            None if ridge is None else Intercept(ridge),
            LINEAR if shared else None,
            tasks=tasks,
            coordinates=coordinates,
            feature_map=feature_map,
        )
        return replace(problem, start=self._start(problem))

    def _strengths(self, m: int, total: int, shared: bool = False) -> Strengths:
        """The strengths of a problem of m tasks, of `total` tasks of the model. With common="auto" common is that of a
        given relationship or, if the relationship is learned, 1; 0 if there is a shared part."""
        lam, relationship = float(self.reg_lambda), self.relationship
        if total == 1:
            return Strengths(lam)
        level = None if isinstance(self.level, str) or not shared else float(self.level)
        own = float(self.own) or float(getattr(relationship, "kappa", 0.0) * m)
        if not isinstance(self.common, str):
            return Strengths(lam, float(self.common), own, level)
        usual = is_learned(relationship) and not shared
        return Strengths(lam, float(getattr(relationship, "tau", usual / m) * m), own, level)

    @property
    def _has_classes(self) -> bool:
        return self._kind == CLASSIFICATION

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

    def _start(self, problem: Problem) -> StartPoint | None:
        """Where to begin: with warm_start the last fit's coefficients, if it was of the same tasks and features."""
        before, tasks, coordinates = vars(self).get("_outcome"), problem.tasks, problem.coordinates
        assert tasks is not None
        assert coordinates is not None
        if not self.warm_start or before is None or not np.array_equal(self.tasks_, tasks.names):
            return None
        columns = tasks.outputs * (len(coordinates.x_centre) + coordinates.intercept)
        if before.W.shape != (problem.m, columns):
            return None
        if before.shared is not None or problem.shared is not None:  # deviations do not depend on the coordinates
            same = before.shared is not None and problem.shared is not None
            return StartPoint(before.W, before.common) if same else None
        return StartPoint(self.weights_of(coordinates, tasks, np.arange(len(tasks.names))), before.common)

    def weights_of(self, coordinates: Coordinates, tasks: Tasks, order: np.ndarray) -> np.ndarray:
        """Return the coefficients of the fitted model as weights in a problem, a row per task. With a shared part they
        are deviations from it.

        Parameters
        ----------
        coordinates : Coordinates
            The coordinates of the problem.
        tasks : Tasks
            The tasks of the model, as the problem has them.
        order : ndarray of int
            The number in the model of each of these tasks.
        """
        coef, intercept = self.coef_[order][tasks.used], self.intercept_[order][tasks.used]
        W = coordinates.weights(coef.astype(float), intercept)
        shared = self._outcome.shared
        if shared is not None:
            return np.asarray(W - shared.row)
        if tasks.outputs > 1 and self.fit_intercept is True:  # no row asks for the intercept of an absent class
            W[:, -tasks.outputs :][~tasks.seen_in_problem] = 0.0
        return W

    def _fold_model(self, problem: Problem, fit: Outcome | StartPoint, shared: SharedFit | None = None) -> Self:
        """The fitted model of one fold of a cross-validation, which predicts checked rows of `fit`. From weights alone,
        it has no certificate and no relations; `shared` is then the shared part of the fold."""
        model = copy(self)
        model.task_column = None
        vars(model).pop("feature_names_in_", None)  # the rows are arrays by now
        if isinstance(fit, Outcome):
            model._keep(problem, fit)
        else:
            model._keep_coefficients(problem, fit.W, shared)
        return model

    def _seed(self) -> int:
        """The seed of the fit. None means 0, so that a fit is repeatable by default."""
        if self.random_state is None or isinstance(self.random_state, int | np.integer):
            return int(self.random_state or 0)
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _keep(self, problem: Problem, outcome: Outcome) -> None:
        """Set the fitted attributes."""
        tasks, strengths = problem.tasks, problem.strengths
        W = self._keep_coefficients(problem, outcome.W, outcome.shared)
        assert tasks is not None
        total, used = len(tasks.names), tasks.used
        self.reg_lambda_, self.common_strength_ = strengths.reg_lambda, strengths.common
        self.own_strength_ = strengths.own
        self.task_rows_, self.task_weights_ = tasks.row_counts, np.zeros(total)
        self.task_weights_[used] = outcome.task_weight
        self._keep_parts(outcome, W, used, total)
        self.certificate_ = outcome.certificate
        self.history_ = [record.as_dict() for record in outcome.history]
        self.n_rounds_ = len(outcome.history)
        self._covariance = pad(self._reported_covariance(outcome), tasks)
        # in the coordinates of the problem, for warm_start and add_task; neither needs the history
        self._outcome = replace(outcome, history=[])

    def _keep_coefficients(self, problem: Problem, W: np.ndarray, shared: SharedFit | None) -> np.ndarray:
        """Set the attributes that predictions need. Returns the weights with the intercepts of absent classes."""
        tasks, coordinates = problem.tasks, problem.coordinates
        assert tasks is not None, "the problem was not described by an estimator"
        assert coordinates is not None
        used, k, dtype = tasks.used, tasks.outputs, coordinates.x_centre.dtype
        if k > 1 and self.fit_intercept is True and shared is None:
            W = np.hstack([W[:, :-k], fill_absent(W[:, -k:], tasks.seen_in_problem)])
        intercept = tasks.constant.astype(float)
        coef = np.zeros((*intercept.shape, len(coordinates.x_centre)))
        whole = W if shared is None else W + shared.row
        coef[used], intercept[used] = coordinates.coefficients(whole, k)
        self.tasks_ = tasks.names
        if tasks.classes is not None:
            self.classes_ = tasks.classes
        if tasks.seen is not None:
            self.seen_classes_ = tasks.seen
        self.feature_map_, self.coordinates_ = problem.feature_map, coordinates
        self.coef_ = coef.astype(dtype)
        self.intercept_ = np.asarray(intercept, dtype=dtype)
        self.shared_coef_ = self.shared_intercept_ = self.level_ = self.levels_ = None
        if shared is not None:
            self.level_ = shared.level
            self._keep_levels(W)
            self.shared_coef_, self.shared_intercept_ = self._one_task(shared.row)
            self.new_task_coef_, self.new_task_intercept_ = self._one_task(shared.new_row)
        return W

    def _keep_levels(self, W: np.ndarray) -> None:
        """W: deviations from the shared part, with levels."""
        k = self._outputs
        self.levels_ = np.asarray(W[:, -1] if k == 1 else W[:, -k:], dtype=self.coef_.dtype)

    def _one_task(self, w: np.ndarray) -> tuple[np.ndarray, Any]:
        """Weights of the problem as coefficients and intercept."""
        coef, intercept = self.coordinates_.coefficients(w, self._outputs)
        return coef.astype(self.coef_.dtype), intercept if self._outputs > 1 else float(intercept)

    def _keep_parts(self, outcome: Outcome, W: np.ndarray, used: np.ndarray, m: int) -> None:
        """Set what describes the common, related and own parts of the weights. `W`: the weights with all intercepts;
        `used`: the number of the task of each of its rows."""
        k, fitted = self._outputs, len(W)
        common_variance, own_variance = self.common_strength_ / fitted, self.own_strength_ / fitted
        free = self.fit_intercept is True  # then the intercepts are not part of the relationship
        features, common = (W[:, :-k], outcome.common[:-k]) if free else (W, outcome.common)
        if is_learned(self.relationship):
            parts = learned_parts(features, common, own_variance)
        else:
            parts = given_parts(outcome.covariance, features, common_variance, own_variance)
        shared = outcome.shared
        if shared is not None:
            parts = parts._replace(common=parts.common + shared.coef.ravel())
            whole = np.append(parts.common, shared.intercept)
        else:
            whole = np.append(parts.common, W[:, -k:].mean(axis=0)) if free else parts.common  # the mean over tasks
        self.common_coef_, self.common_intercept_ = self._one_task(whole)
        if shared is None:
            self.new_task_coef_, self.new_task_intercept_ = self.common_coef_, self.common_intercept_
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
