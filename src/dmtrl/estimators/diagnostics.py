"""What a fitted model says about its tasks: who is related to whom, whom sharing helps, how sure that is, and who
joins later.

Room: beside the estimators, which inherit `Insight`. Everything here goes through the estimator's own reading of
its input, so the shapes of data are the same as in fit.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from dmtrl.data.task_data import TaskData
from dmtrl.engines.base import Engine
from dmtrl.estimators.problem import Problem
from dmtrl.exceptions import NotConvergedWarning
from dmtrl.losses import CLASSIFICATION, get_loss
from dmtrl.numerics.blas import single_threaded_blas
from dmtrl.progress import bar
from dmtrl.relationship import Fixed, FreeIntercept, Learned, Relationship, independent, is_learned
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.solver.api import ProblemSpec, on_engine, solve_problem, thread_count
from dmtrl.solver.certificate import Certificate
from dmtrl.solver.checkpoint import CheckpointSession
from dmtrl.solver.cross_validation import Path, cross_validate
from dmtrl.solver.new_task import Extension, extend
from dmtrl.solver.settings import Settings


class Related(NamedTuple):
    """Pairs of a task and its correlation: the most related first, the most opposed first."""

    related: list[tuple[Any, float]]
    opposed: list[tuple[Any, float]]


@dataclass(frozen=True)
class Comparison:
    """Held-out error of every task: learned together, alone, and pooled. `hurts` marks tasks that do worse together
    than alone by a one-sided t-test over folds at 1 %; among many tasks one in a hundred is marked by chance."""

    tasks: np.ndarray
    together: np.ndarray
    alone: np.ndarray
    pooled: np.ndarray
    hurts: np.ndarray
    measure: str

    def table(self) -> Any:
        """As a pandas frame, one row per task."""
        import pandas as pd

        columns = {"together": self.together, "alone": self.alone, "pooled": self.pooled, "hurts": self.hurts}
        return pd.DataFrame(columns, index=pd.Index(self.tasks, name="task"))

    def __str__(self) -> str:
        means = ", ".join(f"{name} {getattr(self, name).mean():.4g}" for name in ("together", "alone", "pooled"))
        hurt = f"sharing hurts {int(self.hurts.sum())} of {len(self.tasks)}"
        return f"mean held-out {self.measure} over tasks: {means}; {hurt}"


@dataclass(frozen=True)
class CorrelationIntervals:
    """Bootstrap intervals of every two tasks' correlation; `sign_share`: how often the resamples agree on its sign."""

    lower: Any
    upper: Any
    sign_share: Any
    level: float

    def __str__(self) -> str:
        sure = (np.asarray(self.lower) > 0) | (np.asarray(self.upper) < 0)
        pairs = np.triu_indices(len(sure), 1)
        return f"{int(sure[pairs].sum())} of {len(pairs[0])} correlations have a {self.level:.0%} interval without zero"


@dataclass(frozen=True)
class AddedTask:
    """A task that joined later. `certificate` is that of all tasks together with the old ones left where they
    were: its gap bounds what fitting everything anew could gain."""

    name: Any
    coef: np.ndarray
    intercept: float
    certificate: Certificate


class Insight:
    """Methods of a fitted MTRL estimator."""

    def related(self: Any, task: Any, k: int = 5) -> Related:
        """The k most related and the k most opposed tasks of a task."""
        covariance: TaskCovariance = self._fitted_covariance()
        found = np.flatnonzero(self.unit_names_ == task)
        if len(found) == 0:
            raise ValueError(f"there is no task {task!r} in the model; unit_names_ lists its {len(self.unit_names_)}")
        i = int(found[0])
        F, diagonal = covariance.factor(), covariance.diagonal()
        scale = np.sqrt(diagonal * diagonal[i])
        row = np.divide(F @ F[i], scale, out=np.zeros(len(F)), where=scale > 0)
        others = np.array([j for j in np.argsort(-row, kind="stable") if j != i], dtype=int)
        names = self.unit_names_.tolist()
        related = [(names[j], float(row[j])) for j in others[:k] if row[j] > 0]
        opposed = [(names[j], float(row[j])) for j in others[::-1][:k] if row[j] < 0]
        return Related(related, opposed)

    def _probe(self: Any, X: Any, y: Any, tasks: Any, sample_weight: Any) -> tuple[Any, Problem]:
        """An unfitted twin and the problem it would solve on data of the same tasks."""
        probe = clone(self).set_params(callbacks=None, verbose=0)
        problem = probe._pose(probe._read(X, y, tasks, sample_weight))
        missing = set(self.tasks_.tolist()) ^ set(probe.tasks_.tolist())
        if missing:
            raise ValueError(
                f"this needs data of the model's {len(self.tasks_)} tasks, with tasks= or task_column as in fit; "
                f"{sorted(map(str, missing))[0]!r} is in only one of the two"
            )
        return probe, problem

    def compare(
        self: Any, X: Any, y: Any = None, tasks: Any = None, sample_weight: Any = None, cv: int = 5
    ) -> Comparison:
        """Per task, learning together (with this model's relationship and tau), alone, and pooled, on held-out folds.

        Each way chooses its own lambda for these folds, by the same rule; pooled is one model for everybody, intercept
        included.
        """
        if not isinstance(cv, int | np.integer):
            raise ValueError(f"cv must be a number of folds, got {cv!r}")
        check_is_fitted(self)
        probe, problem = self._probe(X, y, tasks, sample_weight)
        m = problem.data.m
        lambdas = default_lambdas(problem.data)
        everybody = TaskCovariance(np.full((m, 1), m**-0.5), np.ones(1), 0.0)  # one weight vector for all tasks
        settings = Settings(tol=max(self.tol, 3e-3), max_rounds=self.max_rounds, seed=0)

        together = probe._spec(problem, settings)
        alone = replace(together, relationship=independent(m))
        pooled = replace(together, relationship=Fixed(everybody), intercept_ridge=None)

        def run(engine: Engine, spec: ProblemSpec, session: CheckpointSession) -> list[Path]:
            paths = []
            with bar(self.verbose, "comparing", 3) as step:
                for one, grid, tau in (
                    (together, np.append(lambdas, self.reg_lambda_), self.common_strength_),
                    (
                        alone,
                        lambdas / m,
                        0.0,
                    ),  # Sigma = I / m: the same penalty on a task takes a lambda m times smaller
                    (pooled, lambdas, 0.0),
                ):
                    paths.append(cross_validate(engine, one, grid, [tau], cv))
                    step()
            return paths

        threads = thread_count(probe.n_jobs)
        paths, _, _ = on_engine(together, run, CheckpointSession(), probe.engine, threads, None, "stop")
        measure = "loss" if problem.data.groups is not None else default_measure(self.loss)
        by_fold = [_held_out(path, measure, None) for path in paths]
        together_error, alone_error, pooled_error = (_held_out(path, measure, 0) for path in paths)
        harmed = _harmed(by_fold[0] - by_fold[1])
        names = np.asarray(problem.data.names)
        return Comparison(names, together_error, alone_error, pooled_error, harmed, measure.replace("_", " "))

    def correlation_intervals(
        self: Any,
        X: Any,
        y: Any = None,
        tasks: Any = None,
        sample_weight: Any = None,
        n_resamples: int = 50,
        level: float = 0.9,
    ) -> CorrelationIntervals:
        """How sure the task correlations are: the model is fitted again on rows drawn with replacement within each
        task.
        """
        check_is_fitted(self)
        if n_resamples < 2:
            raise ValueError(f"n_resamples must be at least 2, got {n_resamples!r}")
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level!r}")
        probe, problem = self._probe(X, y, tasks, sample_weight)
        threads = thread_count(self.n_jobs)
        seeds = np.random.SeedSequence(self._seed()).spawn(n_resamples)
        settings = Settings(tol=max(self.tol, 3e-3), max_rounds=self.max_rounds)
        with (
            bar(self.verbose, "resampling", n_resamples) as step,
            single_threaded_blas(),
            warnings.catch_warnings(),
            ThreadPoolExecutor(threads) as pool,
        ):
            warnings.simplefilter("ignore", NotConvergedWarning)

            def resample(seed: np.random.SeedSequence) -> np.ndarray:
                data = _resampled(problem.data, np.random.default_rng(seed))
                spec = probe._spec(replace(problem, data=data), settings)
                outcome = solve_problem(spec, self.reg_lambda_, self.common_strength_)
                step()
                correlation: np.ndarray = probe._relations(outcome, self.common_strength_).correlation()
                return correlation

            draws = np.array(list(pool.map(resample, seeds)))
        low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
        share = np.maximum((draws > 0).mean(axis=0), (draws < 0).mean(axis=0))
        lower, upper, agreed = (self._labelled(values, problem.data.names) for values in (low, high, share))
        return CorrelationIntervals(lower, upper, agreed, level)

    def add_task(self: Any, X: Any, y: Any, name: Any, sample_weight: Any = None) -> AddedTask:
        """Fit a task that comes later against what was learned, without the other tasks' data, and keep it in the
        model.
        """
        check_is_fitted(self)
        if self._kind == CLASSIFICATION and len(self.classes_) > 2:
            raise ValueError("add_task works for regression and for two classes; with more, fit everything anew")
        if not is_learned(self.relationship):
            raise ValueError(
                "add_task needs relationship='learned'; with a given one, fit everything anew with a larger one"
            )
        if self.layout_ != "long" or len(self._outcome.W) != len(self.tasks_):
            raise ValueError("add_task needs a model that was fitted with tasks and in which no task is constant")
        if name in self.tasks_.tolist():
            raise ValueError(f"there is already a task {name!r} in the model")
        names = np.array([*self.tasks_.tolist(), name])
        whole = {"i", "u"}
        if names.dtype.kind != self.tasks_.dtype.kind and not {names.dtype.kind, self.tasks_.dtype.kind} <= whole:
            raise ValueError(
                f"the name {name!r} is of another kind than the model's task names, as {self.tasks_.tolist()[0]!r}"
            )
        newcomer = TaskData.from_list([self._newcomer_rows(X, y, sample_weight)], [name])
        lam, before = self.reg_lambda_, self._outcome
        relation: Relationship = Learned(self.common_strength_)
        ridge = self._intercept_ridge(self._coordinates)
        if ridge is not None:
            relation = FreeIntercept(relation, ridge / lam)
        losses = self.certificate_.primal - lam * relation.penalty(before.W, before.common)
        settings = Settings(tol=self.tol, max_rounds=self.max_rounds)
        added = extend(before.W, before.dual, losses, newcomer, get_loss(self.loss), relation, lam, settings)
        return self._join(names, added)

    def _newcomer_rows(self: Any, X: Any, y: Any, sample_weight: Any) -> tuple[Any, ...]:
        """The new task's rows in the coordinates of the problem that was solved."""
        X = self._validate(X, reset=False)
        X = X if self.feature_map_ is None else self.feature_map_.transform(X)
        X = self._coordinates.rows(X)
        y = np.asarray(y)
        if self._kind == CLASSIFICATION:
            if not np.isin(y, self.classes_).all():
                raise ValueError(f"the new task has labels other than the model's classes {self.classes_.tolist()}")
            if len(np.unique(y)) < 2:
                raise ValueError(f"the new task has only one class, {y[0]!r}; it needs rows of both")
            y = np.where(y == self.classes_[1], 1.0, -1.0)
        y = y.astype(float) - self._coordinates.y_centre
        return (X, y) if sample_weight is None else (X, y, sample_weight)

    def _join(self: Any, names: np.ndarray, added: Extension) -> AddedTask:
        """Lay the new task behind the old ones."""
        coef, intercept = self._coordinates.coefficients(added.w)
        self.coef_ = np.vstack([self.coef_, coef.astype(self.coef_.dtype)])
        self.intercept_ = np.append(self.intercept_, self.intercept_.dtype.type(intercept))
        self.tasks_ = self.unit_names_ = names
        before = self._outcome
        W = np.vstack([before.W, added.w])
        common = added.outcome.common
        own = W - common
        covariance = Learned().update(own[:, :-1] if self.fit_intercept is True else own)
        self._outcome = replace(
            before, W=W, common=common, covariance=covariance, certificate=added.certificate, dual=added.dual
        )
        self._keep_common(self._outcome, self.common_strength_, self._coordinates)
        self._covariance = self._relations(self._outcome, self.common_strength_)
        self.certificate_ = added.certificate
        return AddedTask(names.tolist()[-1], coef, float(intercept), added.certificate)


def default_lambdas(data: TaskData, count: int = 11) -> np.ndarray:
    """From the mean squared row norm down five decades: what that means for the data does not depend on its scale."""
    squares = data.X.multiply(data.X).sum() if hasattr(data.X, "multiply") else np.einsum("ij,ij->", data.X, data.X)
    return float(squares) / data.X.shape[0] * np.logspace(0, -5, count)


def default_measure(loss: Any) -> str:
    loss = get_loss(loss)
    if loss.kind == CLASSIFICATION:
        return "wrong"
    return "squared_error" if loss.name == "squared" else "loss"


def _held_out(path: Path, measure: str, axis: int | None) -> np.ndarray:
    """Mean error of each task at the best lambda: over all folds (axis 0), or per fold, NaN where it had no row."""
    lam, tau = path.best(measure, "tasks")
    cell = path.cell(lam, tau)
    total, weight = getattr(path, measure)[cell], path.weight[cell]
    if axis is not None:
        total, weight = total.sum(axis=axis), weight.sum(axis=axis)
    return np.divide(total, weight, out=np.full(total.shape, np.nan), where=weight > 0)


def _harmed(difference: np.ndarray) -> np.ndarray:
    """Where (folds, m) differences are above zero by a one-sided t-test at 1 %; a single task shares with nobody."""
    count = (~np.isnan(difference)).sum(axis=0)
    mean = np.nansum(difference, axis=0) / np.maximum(count, 1)
    error = np.sqrt(np.nansum((difference - mean) ** 2, axis=0) / np.maximum(count * (count - 1), 1))
    limit = student.ppf(0.99, np.maximum(count - 1, 1))
    return (count > 1) & (mean > limit * error) & (mean > 0) & (difference.shape[1] > 1)


def _resampled(data: TaskData, rng: np.random.Generator) -> TaskData:
    """Rows drawn with replacement, as weights: nothing is copied."""
    draws = [rng.multinomial(n, np.full(n, 1.0 / n)) for n in np.diff(data.starts)]
    if data.groups is not None:  # units that share rows share the draw
        first = {group: i for i, group in reversed(list(enumerate(data.groups.tolist())))}
        draws = [draws[first[group]] for group in data.groups.tolist()]
    times = np.concatenate(draws).astype(float)
    weight = times if data.sample_weight is None else times * data.sample_weight
    empty = np.add.reduceat(weight, data.starts[:-1]) <= 0
    for i in np.flatnonzero(empty):  # every row that was drawn had weight zero: keep the task as it is
        rows = slice(data.starts[i], data.starts[i + 1])
        weight[rows] = 1.0 if data.sample_weight is None else data.sample_weight[rows]
    return replace(data, sample_weight=weight)
