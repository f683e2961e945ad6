"""StrengthSearch: chooses lambda, common and own by cross-validation before the final fit.

For every fold, a path of warm-started fits runs from large to small lambda. The workers send only sums over held-out
rows; scores of scikit-learn's scorers are computed here, from the weights of the fold.
"""

import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from scipy import sparse
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import get_scorer_names

from dmtrl.data.task_data import TaskData
from dmtrl.estimators.base import SHIFT_INVARIANT, MTRLBase
from dmtrl.estimators.comparison import default_measure
from dmtrl.estimators.feature_maps import candidate_maps, several_maps
from dmtrl.estimators.folds import given_splits, with_splits
from dmtrl.estimators.grids import COMMONS, MOST_ADDED, OWNS, default_lambdas, lambdas_of_deviations
from dmtrl.estimators.held_out import HeldOutRows, Metrics
from dmtrl.estimators.inputs import LabelledRows
from dmtrl.estimators.metrics import TaskScorer
from dmtrl.estimators.task_model import check_choice
from dmtrl.exceptions import ScaleWarning
from dmtrl.losses import CLASSIFICATION, AnyLoss, get_loss
from dmtrl.numerics.checks import is_whole
from dmtrl.solver.api import caller_level, on_engine, solve
from dmtrl.solver.checkpoint import Checkpoint, CheckpointSession
from dmtrl.solver.checkpoint.options import PathLike
from dmtrl.solver.cv_results import MEASURES, RULES, SCORE, CvResults, NoScoreError
from dmtrl.solver.execution import Execution
from dmtrl.solver.grid import Criterion, Grid
from dmtrl.solver.outcome import Callback, Outcome
from dmtrl.solver.problem import Problem
from dmtrl.solver.search import for_search, search

SCALES = 1e4  # how many times as much as all others a column may vary without a warning


def check_numbers(name: str, values: Any) -> None:
    """Raise ValueError unless `values` is a list of numbers."""
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a list of numbers, got {values!r}") from None
    if array.ndim != 1:
        advice = f"; pass {name}=[{values!r}]" if array.ndim == 0 and values is not None else ""
        raise ValueError(f"{name} must be a list of numbers, got {values!r}{advice}")


def warn_of_scales(X: Any, names: np.ndarray | None) -> None:
    """Warn if one column varies so much more than the others that lambda can suit only that one."""
    n, d = X.shape
    if n < 2 or d < 2:
        return
    if sparse.issparse(X):
        means, squares = np.asarray(X.mean(axis=0)).ravel(), np.asarray(X.multiply(X).mean(axis=0)).ravel()
    else:
        means, squares = X.mean(axis=0), np.einsum("ij,ij->j", X, X) / n
    sizes = np.sqrt(np.maximum(squares - means**2, 0.0))
    j = int(np.argmax(sizes))
    others = np.delete(sizes, j).max()
    if sizes[j] > SCALES * others > 0:
        column = j if names is None else names[j]
        warnings.warn(
            f"column {column!r} of X varies {sizes[j] / others:.0e} times as much as any other, so that lambda suits "
            "this column only; scale the columns, for example with StandardScaler",
            ScaleWarning,
            stacklevel=caller_level(),
        )


def _given(values: Any, usual: Any) -> Any:
    return usual if values is None else values


class StrengthSearch(MTRLBase):
    """Chooses lambda, common and own before the final fit."""

    __metadata_request__fit: ClassVar = {"tasks": True, "sample_weight": True, "groups": True}
    metrics_: Metrics
    reg_lambda, common, own, warm_start = 0.1, "auto", 0.0, False  # not parameters: the search chooses
    _search_tol: ClassVar[float] = 3e-3  # choosing needs less accuracy than the final fit

    def __init__(
        self,
        loss: str | AnyLoss = "squared",
        lambdas: Sequence[float] | None = None,
        commons: Sequence[float] | None = None,
        owns: Sequence[float] | None = None,
        cv: Any = 5,
        scoring: Any = None,
        choice: str = "best",
        exhaustive: bool = False,
        relationship: Any = "learned",
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
        verbose: int = 0,
        callbacks: Sequence[Callback] | None = None,
        task_column: Any = None,
        unknown_tasks: str = "raise",
    ):
        self.loss = loss
        self.lambdas = lambdas
        self.commons = commons
        self.owns = owns
        self.cv = cv
        self.scoring = scoring
        self.choice = choice
        self.exhaustive = exhaustive
        self.relationship = relationship
        self.task_weight = task_weight
        self.shared_model = shared_model
        self.level = level
        self.feature_map = feature_map
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_rounds = max_rounds
        self.engine = engine
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks
        self.task_column = task_column
        self.unknown_tasks = unknown_tasks

    def fit(
        self,
        X: Any,
        y: Any = None,
        tasks: Any = None,
        sample_weight: Any = None,
        checkpoint: PathLike | Checkpoint | CheckpointSession | None = None,
        resume: PathLike | bool | None = None,
        groups: Any = None,
    ) -> Self:
        """Choose lambda, common and own by cross-validation and fit one linear model per task with them.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n, d), or a list or dict of (X_i, y_i)
            Rows, as in `MTRLRegressor.fit`.
        y, tasks, sample_weight : array-like of shape (n,), default=None
            Labels, task labels and weights of the rows.
        checkpoint : path, URL or Checkpoint, default=None
            Where to write checkpoints.
        resume : bool, path or URL, default=None
            The checkpoint to continue from; True means the newest one in `checkpoint`.
        groups : array-like of shape (n,), default=None
            The group of each row, for a splitter that needs groups such as GroupKFold.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        self._check_parameters()
        execution = self._execution(checkpoint, resume)
        rows = self._read(X, y, tasks, sample_weight, splits=lambda rows: given_splits(self.cv, rows, groups))
        self._fit_rows(rows, execution)
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("choice", self.choice, RULES)
        for name in ("commons", "owns"):
            if getattr(self, name) is not None:
                check_numbers(name, getattr(self, name))
        if self.lambdas is not None:
            check_numbers("lambdas", self.lambdas)
            lambdas = np.asarray(self.lambdas, dtype=float)
            finite = np.isfinite(lambdas) | ((lambdas == np.inf) & (self.shared_model is not None))
            if not (finite.all() and (lambdas > 0).all()):
                raise ValueError(f"lambdas must be positive and finite, got {list(lambdas)}")
        if self.scoring == "wrong" and self._kind != CLASSIFICATION:
            raise ValueError("scoring='wrong' counts wrong answers, for classification only; use loss or squared_error")
        if self.scoring == "squared_error" and get_loss(self.loss).name not in SHIFT_INVARIANT:
            raise ValueError(f"scoring='squared_error' makes no sense with the {self.loss} loss; use loss")
        self._scorer()

    def _scorer(self) -> TaskScorer | None:
        """The scorer of `scoring`; None if it is an error that the workers sum."""
        scoring = self.scoring
        if scoring is None or (isinstance(scoring, str) and scoring in MEASURES):
            return None
        if isinstance(scoring, TaskScorer):
            return scoring
        if isinstance(scoring, str) and scoring not in get_scorer_names():
            raise ValueError(
                f"scoring must be one of {', '.join(MEASURES)} or the name of a scikit-learn scorer, got {scoring!r}"
            )
        if not isinstance(scoring, str) and not callable(scoring):
            raise ValueError(f"scoring must be a name or a callable scorer(model, X, y), got {scoring!r}")
        return TaskScorer(scoring)

    def _fit_rows(self, rows: LabelledRows, execution: Execution) -> None:
        self.layout_ = rows.layout
        over_all = self._may_share() and len(rows.names) > 1
        rows = with_splits(self.cv, rows, self._kind == CLASSIFICATION, self._seed(), over_all)
        assert rows.splits is not None
        execution = for_search(execution, len(rows.splits), self._race and not over_all)
        if several_maps(self.feature_map):
            with execution.engine.session():  # rows differ between maps, so that each needs an engine of its own
                problem = self._choose_map(rows, execution)
                self._keep(problem, solve(problem, execution))
            return
        problem, held = self._problem(rows), HeldOutRows(rows)
        del rows  # `held` has them, until the strengths are chosen
        self._warn_of_scales(problem)
        self._keep(*self._run(problem, execution, held))

    def _choose(self, problem: Problem, execution: Execution, held: HeldOutRows | None) -> Problem:
        """Search on the engine of the fit. `held` receives the predictions of the folds at the choice."""
        scorer = self._scorer()
        if held is None and (scorer is not None or not is_whole(self.cv)):
            raise ValueError("rows that are not in this process need a number of folds as cv, and no scorer")
        assert problem.tasks is not None
        classes, folds = problem.tasks.classes, int(self.cv) if held is None else held.n_folds
        if scorer is not None and classes is not None:
            scorer.check_classes(len(classes))
        of_fold = None if scorer is None or held is None else _FoldScorer(self, scorer, held)
        shared = problem.shared is not None
        usual = "loss" if shared and self._has_classes else default_measure(self.loss)
        self.scoring_ = (self.scoring or usual) if scorer is None else SCORE
        race = self._race and not shared
        grid = self._grid(problem, folds, Criterion(self.scoring_, self._over(shared), self.choice, race, of_fold))
        rough = replace(execution.settings, tol=max(self.tol, self._search_tol))
        try:
            found = search(problem, grid, replace(execution, settings=rough))
        except NoScoreError as error:
            if of_fold is None or not of_fold.undefined:
                raise
            raise of_fold.undefined[min(of_fold.undefined)] from error
        if of_fold is not None and not found.results.scored.all():
            of_fold.warn(np.flatnonzero(~found.results.scored))
        self.cv_results_, self.map_results_ = found.results, [found.results]
        problem = replace(problem, strengths=found.choice, shared=found.shared)
        if held is not None and held.is_open:  # it is closed if the final fit starts again
            for fold, (point, part) in enumerate(zip(found.points, found.fold_shared, strict=True)):
                held.predict(fold, self._fold_model(problem, point, part))
            self._keep_held_out(held, classes)
            held.close()
        return problem

    def _grid(self, problem: Problem, folds: int, criterion: Criterion) -> Grid:
        data, tasks, here = problem.data, problem.tasks, isinstance(problem.data, TaskData)
        assert tasks is not None
        shared = problem.shared is not None
        commons, owns = ((0.0,), (0.0,)) if shared else (COMMONS, OWNS)
        if len(tasks.names) > 1:
            commons, owns = _given(self.commons, commons), _given(self.owns, owns)
        else:
            commons, owns = (0.0,), (0.0,)
        lambdas: Any = self.lambdas
        if lambdas is not None:
            return Grid(lambdas, commons, owns, folds, criterion, keep_points=here)
        assert isinstance(data, TaskData), "rows that are not in this process need lambdas"
        lambdas, more = (lambdas_of_deviations(data.X), MOST_ADDED) if shared else (default_lambdas(data.X), 0)
        return Grid(lambdas, commons, owns, folds, criterion, keep_points=here, stronger=more, weaker=more)

    def _choose_map(self, rows: LabelledRows, execution: Execution) -> Problem:
        """One search for each feature map, on the same splits; the first of the best ones is taken."""
        if execution.opened().session.active:
            raise ValueError("a search over several feature maps has no checkpoints; choose one feature_map first")
        results, least = list[CvResults](), np.inf
        for feature_map in candidate_maps(self.feature_map, self._seed(), rows.X):
            one = copy(self)
            one.feature_map = feature_map
            problem, held = one._problem(rows), HeldOutRows(rows)
            one._warn_of_scales(problem)
            found = on_engine(problem, execution, partial(one._choose, held=held))
            results.append(one.cv_results_)
            errors = one.cv_results_.errors(one.scoring_, one._over(found.shared is not None))
            error = errors[one.cv_results_.index_of(found.strengths)]
            if not results[1:] or error < least:
                best, chosen, least = one, found, error
        vars(self).update({name: value for name, value in vars(best).items() if name.endswith("_")})
        self.map_results_ = results
        return chosen

    @property
    def _race(self) -> bool:
        """Whether candidates that are clearly worse are left out."""
        return not self.exhaustive and self._scorer() is None

    def _map_of_fit(self) -> Any:
        """The chosen one of several maps."""
        return vars(self).get("feature_map_") if several_maps(self.feature_map) else self.feature_map

    def _over(self, shared: bool) -> str:
        """What held-out errors are averaged over. `shared`: whether there is a shared part."""
        return "tasks" if self._kind == CLASSIFICATION and not shared else "rows"

    def _keep_held_out(self, held: HeldOutRows, classes: np.ndarray | None) -> None:
        self.metrics_ = held.metrics(classes, get_loss(self.loss).name == "poisson")

    def _warn_of_scales(self, problem: Problem) -> None:
        assert isinstance(problem.data, TaskData)
        warn_of_scales(problem.data.X, getattr(self, "feature_names_in_", None))


class _FoldScorer:
    """Scores the fits of a search with a scorer of scikit-learn. `undefined`: why a fold has no score."""

    def __init__(self, estimator: StrengthSearch, scorer: TaskScorer, held: HeldOutRows):
        self._estimator, self._scorer, self._held = estimator, scorer, held
        self.undefined: dict[int, ValueError] = {}

    def __call__(self, fold: int, problem: Problem, outcome: Outcome) -> float:
        model = self._estimator._fold_model(problem, outcome)
        try:
            return self._scorer(model, *self._held.arguments(fold))
        except ValueError as error:
            self.undefined.setdefault(fold, error)
            return float("nan")
        except AttributeError as error:
            if "predict_proba" not in str(error) or hasattr(model, "predict_proba"):
                raise
            loss = get_loss(model.loss).name
            needs = f"the scorer {self._scorer.metric!r} needs probabilities, which the {loss} loss"
            raise ValueError(f"{needs} does not give; use the logistic loss or another scorer") from error

    def warn(self, folds: np.ndarray) -> None:
        """Warn that these folds have no score."""
        named = f"fold{'s' if len(folds) > 1 else ''} {', '.join(map(str, folds))}"
        reason = f" ({self.undefined[min(self.undefined)]})" if self.undefined else ""
        warnings.warn(
            f"the scorer is not defined on the held-out rows of {named}{reason}, so that only the other folds count; "
            "use fewer folds or another scorer",
            UndefinedMetricWarning,
            stacklevel=caller_level(),
        )
