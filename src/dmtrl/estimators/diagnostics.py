"""Questions to a fitted model: related tasks, the benefit of sharing, confidence intervals, and new tasks."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dmtrl import notebook
from dmtrl.data.task_data import TaskData, tiny_tasks
from dmtrl.engines import choose_engine, thread_count
from dmtrl.estimators.base import MTRLBase
from dmtrl.estimators.classes import fill_absent
from dmtrl.estimators.comparison import Comparison, default_measure, held_out_errors, significantly_positive
from dmtrl.estimators.correlations import CorrelationIntervals, Groups, intervals_of, pad_pairs, relation_test
from dmtrl.estimators.folds import given_splits, with_splits
from dmtrl.estimators.grids import default_lambdas, lambdas_of_deviations
from dmtrl.estimators.held_out import HeldOutRows
from dmtrl.estimators.inputs import LabelledRows, lookup, read
from dmtrl.estimators.task_model import label_pairs
from dmtrl.losses import CLASSIFICATION, get_loss
from dmtrl.numerics.blas import single_threaded_blas
from dmtrl.numerics.checks import is_number, is_whole
from dmtrl.progress import bar
from dmtrl.relationship import Fixed, Learned, TaskCovariance, independent, is_learned
from dmtrl.solver.api import on_engine, solve, warn_unless_converged
from dmtrl.solver.certificate import Certificate
from dmtrl.solver.execution import Execution
from dmtrl.solver.grid import Criterion, Grid
from dmtrl.solver.new_task import Extension, extend_deviations, extend_outcome
from dmtrl.solver.outcome import Outcome
from dmtrl.solver.problem import Intercept, Problem, Strengths, Tasks
from dmtrl.solver.search import SearchResult, for_search, search
from dmtrl.solver.settings import Settings

_TOL_OF_REFITS = 1e-4  # they differ by little from each other


class Related(NamedTuple):
    """Pairs of a task and its correlation, strongest first."""

    related: list[tuple[Any, float]]
    opposed: list[tuple[Any, float]]

    def _repr_html_(self) -> str:
        rows = [(name, f"{value:.2f}") for name, value in (*self.related, *self.opposed[::-1])]
        return notebook.section(notebook.table(["task", "correlation"], rows))


@dataclass(frozen=True)
class AddedTask:
    """A task added to a fitted model.

    `certificate` is for all tasks together with the old tasks unchanged. Its gap bounds the gain of a full refit with
    the same weights of tasks (`task_weights_`). With more than two classes, `coef` has a row and `intercept` a number
    for each class.
    """

    name: Any
    coef: np.ndarray
    intercept: float | np.ndarray
    certificate: Certificate


class Diagnostics(MTRLBase):
    """Public methods of a fitted estimator besides prediction."""

    def related(self, task: Any, k: int = 5) -> Related:
        """Return the tasks with the largest positive and negative correlation to a task.

        Tasks with very few rows, fewer than 3 or than a tenth of the median, are left out: their correlations are
        mostly chance.

        Parameters
        ----------
        task : object
            A name in `tasks_`.
        k : int, default=5
            The maximum number of tasks to return of each sign.

        Returns
        -------
        Related
            `related` and `opposed`, each a list of (task, correlation), strongest first.
        """
        covariance = self.covariance_
        found = np.flatnonzero(self.tasks_ == task)
        if len(found) == 0:
            raise ValueError(f"unknown task {task!r}; tasks_ lists the {len(self.tasks_)} tasks of the model")
        i = int(found[0])
        F, diagonal = covariance.factor(), covariance.diagonal()
        scale = np.sqrt(diagonal * diagonal[i])
        row = np.divide(F @ F[i], scale, out=np.zeros(len(F)), where=scale > 0)
        order = np.argsort(-row, kind="stable")
        others = order[(order != i) & ~self.tiny_tasks()[order]]
        names = self.tasks_.tolist()
        related = [(names[j], float(row[j])) for j in others[:k] if row[j] > 0]
        opposed = [(names[j], float(row[j])) for j in others[::-1][:k] if row[j] < 0]
        return Related(related, opposed)

    def tiny_tasks(self) -> np.ndarray:
        """Return which tasks have very few rows: fewer than 3, or than a tenth of the median.

        Returns
        -------
        ndarray of bool
            One value per name in `tasks_`; all False if the numbers of rows are not known.
        """
        check_is_fitted(self)
        return np.zeros(len(self.tasks_), dtype=bool) if self.task_rows_ is None else tiny_tasks(self.task_rows_)

    def _problem_of_same_tasks(self, rows: LabelledRows) -> tuple[Problem, TaskData, Tasks]:
        """The problem of the rows with the strengths of the model, and its data and tasks."""
        problem = self._problem(rows)
        assert problem.tasks is not None
        assert isinstance(problem.data, TaskData)
        different = set(self.tasks_.tolist()) ^ set(problem.tasks.names.tolist())
        if different:
            raise ValueError(
                f"the data must have the {len(self.tasks_)} tasks of the model, passed as in fit; "
                f"task {min(map(str, different))!r} is only in the data or only in the model"
            )
        return replace(problem, strengths=self.strengths_, start=None), problem.data, problem.tasks

    def compare(
        self, X: Any, y: Any = None, tasks: Any = None, sample_weight: Any = None, cv: Any = 5, groups: Any = None
    ) -> Comparison:
        """Compare learning together, alone and pooled by cross-validation.

        "together" uses the relationship, common and own of this model, "alone" fits each task separately, and "pooled"
        fits one model to the rows of all tasks. Each of them chooses its lambda on the same folds, by the same rule.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n, d), or a list or dict of (X_i, y_i)
            Rows of the tasks of the model.
        y, tasks, sample_weight : array-like of shape (n,), default=None
            Labels, task labels and weights of the rows, in any form that `fit` accepts.
        cv : int, splitter or iterable, default=5
            Number of folds, a scikit-learn splitter, or an iterable of (train, test) row numbers.
        groups : array-like of shape (n,), default=None
            The group of each row, for a splitter that needs groups such as GroupKFold.

        Returns
        -------
        Comparison
            Held-out errors and metrics of each task, and the tasks that sharing hurts.
        """
        check_is_fitted(self)
        rows = self._read(X, y, tasks, sample_weight, False, lambda rows: given_splits(cv, rows, groups))
        over_all = self.shared_coef_ is not None
        rows = with_splits(cv, rows, self._kind == CLASSIFICATION, 0, over_all)
        problem, data, found_tasks = self._problem_of_same_tasks(rows)
        m, lambdas, mine = problem.m, default_lambdas(data.X), problem.strengths
        together = lambdas_of_deviations(data.X) if over_all else lambdas
        equal = TaskCovariance(np.full((m, 1), m**-0.5), np.ones(1), 0.0)  # rank one: all tasks have the same weights
        shared = None if problem.intercept is None else replace(problem.intercept, shared=True)
        held = {name: HeldOutRows(rows) for name in ("together", "alone", "pooled")}
        measure = default_measure(self.loss)

        def grid(lambdas: np.ndarray, common: float = 0.0, own: float = 0.0) -> Grid:
            return Grid(lambdas, [common], [own], held["together"].n_folds, Criterion(measure, "tasks", race=True))

        searches = {
            "together": (problem, grid(np.append(together, mine.reg_lambda), mine.common, mine.own)),
            # Sigma = I / m: lambda / m gives the same penalty on a task
            "alone": (replace(problem, shared=None, relationship=independent(m)), grid(lambdas / m)),
            "pooled": (replace(problem, shared=None, relationship=Fixed(equal), intercept=shared), grid(lambdas)),
        }

        def run(_: Problem, execution: Execution) -> dict[str, SearchResult]:
            found = {}
            with bar(self.verbose, "comparing", len(searches)) as step:
                for name, (variant, candidates) in searches.items():
                    one = found[name] = search(variant, candidates, replace(execution, checkpoint=None))
                    chosen = replace(variant, strengths=one.choice)
                    for fold, (point, part) in enumerate(zip(one.points, one.fold_shared, strict=True)):
                        held[name].predict(fold, self._fold_model(chosen, point, part))
                    step()
            return found

        settings = Settings(tol=max(self.tol, 3e-3), max_rounds=self.max_rounds, seed=0)
        engine = choose_engine(self.engine, self.n_jobs)
        execution = for_search(Execution(engine, settings, keep_all_tasks=True), held["together"].n_folds, race=True)
        found = on_engine(problem, execution, run)
        per_fold = {name: held_out_errors(one, measure, None) for name, one in found.items()}
        counts = get_loss(self.loss).name == "poisson"
        return Comparison(
            np.asarray(data.names),
            **{name: held_out_errors(one, measure, 0) for name, one in found.items()},
            hurts=significantly_positive(per_fold["together"] - per_fold["alone"]),
            measure=measure.replace("_", " "),
            rows=np.diff(data.starts),
            shares=self.weight_shares_[lookup(found_tasks.names, self.tasks_)][found_tasks.used],
            metrics={name: one.metrics(found_tasks.classes, counts) for name, one in held.items()},
        )

    def correlation_intervals(
        self,
        X: Any,
        y: Any = None,
        tasks: Any = None,
        sample_weight: Any = None,
        n_groups: int = 30,
        level: float = 0.9,
    ) -> CorrelationIntervals:
        """Compute intervals of the task correlations.

        Divides the rows of each task into groups, and refits the model with less weight on one group at a time. An
        interval contains zero unless fits to each task alone show the relation, too: at a level of 0.9 about one in ten
        of the pairs whose true weights are orthogonal has an interval without zero. Requires a learned relationship,
        and tasks with rows of their own.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n, d), or a list or dict of (X_i, y_i)
            Rows of the tasks of the model.
        y, tasks, sample_weight : array-like of shape (n,), default=None
            Labels, task labels and weights of the rows, in any form that `fit` accepts.
        n_groups : int, default=30
            Number of groups, at least 2. Each takes a fit of the model and of the tasks alone.
        level : float, default=0.9
            Coverage of the intervals, between 0 and 1.

        Returns
        -------
        CorrelationIntervals
            `lower`, `upper` and `p_value` for each pair of names in `tasks_`, as data frames if pandas is installed.
        """
        if not is_whole(n_groups) or n_groups < 2:
            raise ValueError(f"n_groups must be a whole number of at least 2, got {n_groups!r}")
        if not (is_number(level) and 0 < level < 1):
            raise ValueError(f"level must be a number between 0 and 1, got {level!r}")
        check_is_fitted(self)
        if not is_learned(self.relationship):
            raise ValueError("correlation_intervals requires relationship='learned': a given one is not estimated")
        rows = self.read_rows(X, y, tasks, sample_weight)
        if rows.layout == "wide":
            raise ValueError(
                "correlation_intervals requires tasks with rows of their own: errors of several labels of the same row "
                "are not independent"
            )
        problem, data, _ = self._problem_of_same_tasks(rows)
        if np.isinf(self.reg_lambda_):
            raise ValueError("the model has no deviations from the shared part (reg_lambda_ is infinite) to correlate")
        groups = Groups.draw(data.starts, n_groups, np.random.default_rng(self._seed()))
        W, correlations, weights = self._refits(problem, data, groups)
        test = relation_test(W, groups.deviations(weights), groups)
        numbers = lookup(data.names, self.tasks_)
        estimate = self.covariance_.correlation()[np.ix_(numbers, numbers)]
        unknown = (groups.count < 2) | ~W.any(axis=1)
        found = intervals_of(estimate, correlations, test, groups, unknown, level)
        lower, upper, p_value = (
            label_pairs(pad_pairs(one, numbers, len(self.tasks_), empty), self.tasks_)
            for one, empty in zip(found, (-1.0, 1.0, np.nan), strict=True)
        )
        return CorrelationIntervals(lower, upper, p_value, level)

    def _refits(self, problem: Problem, data: TaskData, groups: Groups) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The weights of the tasks fitted alone to all rows, and the correlations (groups, m, m) and weights alone
        (groups, m, d) with less weight on one group at a time."""
        settings = Settings(tol=min(self.tol, _TOL_OF_REFITS), max_rounds=self.max_rounds)
        m, strengths, worst = problem.m, problem.strengths, list[Outcome]()

        def together(data: TaskData, problem: Problem = problem) -> Outcome:
            outcome = solve(replace(problem, data=data), Execution(settings=settings, warn=False))
            if not outcome.converged:
                worst[:] = [max([*worst, outcome], key=lambda one: one.certificate.relative_gap)]
            return outcome

        with (
            bar(self.verbose, "refitting", int(groups.count.max()) + 1) as step,
            single_threaded_blas(),
            ThreadPoolExecutor(thread_count(self.n_jobs)) as pool,
        ):
            # alone: without relations, with a tenth of the penalty on each task
            size = together(data).covariance.diagonal() + (strengths.common + strengths.own) / m
            unrelated = Fixed(TaskCovariance(np.eye(m), np.maximum(size, 0.01 * size.mean()), 0.0))
            apart = replace(problem, relationship=unrelated, strengths=Strengths(strengths.reg_lambda / 10))

            def alone(data: TaskData) -> np.ndarray:
                return self._weights_of_features(together(data, apart))

            def refit(data: TaskData) -> tuple[np.ndarray, np.ndarray]:
                found = self._reported_covariance(together(data)).correlation(), alone(data)
                step()
                return found

            W = alone(data)
            step()
            correlations, weights = map(np.array, zip(*pool.map(refit, groups.lighter(data)), strict=True))
        for outcome in worst:
            warn_unless_converged(outcome, settings)
        return W, correlations, weights

    def add_task(self, X: Any, y: Any, name: Any, sample_weight: Any = None) -> AddedTask:
        """Fit a new task against the fitted ones and add it to the model.

        The rows of the other tasks are not needed, and their coefficients do not change.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n, d)
            Rows of the new task.
        y : array-like of shape (n,)
            Labels of the new task.
        name : str or int
            Name of the new task, of the same type as the names in `tasks_`.
        sample_weight : array-like of shape (n,), default=None
            Weights of the rows.

        Returns
        -------
        AddedTask
            The new coefficients, and a certificate that bounds the gain of a full refit.
        """
        check_is_fitted(self)
        if not is_learned(self.relationship):
            raise ValueError("add_task requires relationship='learned'; otherwise call fit on all tasks")
        if self.layout_ != "long" or len(self._outcome.W) != len(self.tasks_):
            raise ValueError("add_task requires a model that was fitted with tasks and has no single-class task")
        if name in self.tasks_.tolist():
            raise ValueError(f"the model already has a task {name!r}")
        names = np.array([*self.tasks_.tolist(), name])
        kinds, whole = {np.asarray(name).dtype.kind, self.tasks_.dtype.kind}, {"i", "u"}
        if len(kinds) > 1 and not kinds <= whole:
            raise ValueError(
                f"the name {name!r} must have the type of the other task names, such as {self.tasks_.tolist()[0]!r}"
            )
        rows, seen = self._rows_of_new_task(X, y, name, sample_weight)
        newcomer = TaskData.from_list([rows], [name])
        before, strengths, shared = self._outcome, self.strengths_, self._outcome.shared
        settings, ridge = Settings(tol=self.tol, max_rounds=self.max_rounds), self.intercept_ridge(self.coordinates_)
        # the old tasks keep their weights, so the mean is no longer exactly one
        ratio = _size(newcomer) / before.task_size[0]
        exponent = self._task_weight(shared is not None)
        weight = np.append(before.task_weight, before.task_weight[0] * ratio**exponent)
        grown = len(names) / len(self.tasks_)  # the same tau and kappa for one more task
        strengths = replace(strengths, common=strengths.common * grown, own=strengths.own * grown)
        loss = self._losses(seen)
        loss = loss[0] if isinstance(loss, list) else loss
        intercept = None if ridge is None else Intercept(ridge)
        if shared is not None:
            added = extend_deviations(before, newcomer, loss, strengths, weight, settings)
        else:
            problem = Problem(len(names), loss, strengths, task_weight=weight, intercept=intercept)
            added = extend_outcome(before, newcomer, problem, settings)
        if not np.isfinite(added.certificate.relative_gap):
            raise ValueError(f"task {name!r} has no certificate after max_rounds={self.max_rounds}; raise max_rounds")
        warn_unless_converged(added.outcome, settings)
        return self._join(names, added, newcomer, seen)

    def _rows_of_new_task(
        self, X: Any, y: Any, name: Any, sample_weight: Any
    ) -> tuple[tuple[Any, ...], np.ndarray | None]:
        """The rows of the new task in the coordinates of the fitted problem, and (1, k) which classes they have."""
        rows = read(X, y, sample_weight=sample_weight)
        if rows.wide:
            raise ValueError("add_task adds one task; pass a 1-D y")
        rows = self._checked(replace(rows, names=np.array([name])), reset=False)
        X = self.coordinates_.rows(rows.X if self.feature_map_ is None else self.feature_map_.transform(rows.X))
        y, seen = rows.y, None
        if self._kind == CLASSIFICATION:
            if not np.isin(y, self.classes_).all():
                raise ValueError(f"the labels of the new task must be among the classes {self.classes_.tolist()}")
            if len(np.unique(y)) < 2 and self.shared_coef_ is None:
                raise ValueError(
                    f"the new task has only one class, {y.tolist()[0]!r}; it needs rows of at least two classes"
                )
            seen = np.isin(self.classes_, y)[None]
            y = np.searchsorted(self.classes_, y)
            y = (y if len(self.classes_) > 2 else 2 * y - 1).astype(float)
        else:
            y = rows.numeric_y()
        y = y - self.coordinates_.y_centre
        return ((X, y) if rows.sample_weight is None else (X, y, rows.sample_weight)), seen

    def _join(self, names: np.ndarray, added: Extension, newcomer: TaskData, seen: np.ndarray | None) -> AddedTask:
        """Append the new task to the fitted attributes."""
        k, before = self._outputs, self._outcome
        W = np.vstack([before.W, added.w])
        whole = W  # with intercepts for classes that the task does not have
        if seen is not None and "seen_classes_" in vars(self):  # the model of a study does not have it
            self.seen_classes_ = np.vstack([self.seen_classes_, seen])
            if k > 1 and self.fit_intercept is True and before.shared is None:
                whole = np.hstack([W[:, :-k], fill_absent(W[:, -k:], self.seen_classes_)])
        last = whole[-1] if before.shared is None else whole[-1] + before.shared.row
        coef, intercept = self.coordinates_.coefficients(last, k)
        self.coef_ = np.concatenate([self.coef_, coef[None].astype(self.coef_.dtype)])
        self.intercept_ = np.concatenate([self.intercept_, np.asarray(intercept, dtype=self.intercept_.dtype)[None]])
        self.common_strength_ *= len(names) / len(self.tasks_)
        self.own_strength_ *= len(names) / len(self.tasks_)
        self.tasks_ = names
        away = W - added.outcome.common
        learned = Learned(kappa=self.own_strength_ / len(names))
        covariance = learned.update(away[:, :-k] if self.fit_intercept is True else away)
        self._outcome = replace(
            before,
            W=W,
            common=added.outcome.common,
            covariance=covariance,
            certificate=added.certificate,
            dual=added.dual,
            task_weight=added.outcome.task_weight,
            task_size=np.append(before.task_size, _size(newcomer)),
        )
        if before.shared is not None:
            levels = np.vstack([before.shared.levels, added.w[-k:]])
            self._outcome = replace(self._outcome, shared=replace(before.shared, levels=levels))
            self._keep_levels(W)
        self.task_weights_ = added.outcome.task_weight
        if self.task_rows_ is not None:
            self.task_rows_ = np.append(self.task_rows_, newcomer.X.shape[0])
        self._keep_parts(self._outcome, whole, np.arange(len(names)), len(names))
        self._covariance = self._reported_covariance(self._outcome)
        self.certificate_ = added.certificate
        return AddedTask(names.tolist()[-1], coef, intercept if k > 1 else float(intercept), added.certificate)


def _size(data: TaskData) -> float:
    """The sum of the sample weights, or the number of rows."""
    return float(data.X.shape[0] if data.sample_weight is None else data.sample_weight.sum())
