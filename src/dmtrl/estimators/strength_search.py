"""StrengthSearch: chooses lambda, common and own by cross-validation before the final fit.

For every fold, a path of warm-started fits runs from large to small lambda. The workers send only sums over held-out
rows; scores of scikit-learn's scorers are computed here, from the weights of the fold.
"""

import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from scipy import sparse
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import get_scorer_names

from dmtrl.engines.base import Engine
from dmtrl.estimators.base import SHIFT_INVARIANT, MTRLBase
from dmtrl.estimators.comparison import default_measure
from dmtrl.estimators.feature_maps import candidate_maps, several_maps
from dmtrl.estimators.folds import given_splits, label_splits
from dmtrl.estimators.grids import default_lambdas
from dmtrl.estimators.held_out import HeldOutRows, Metrics
from dmtrl.estimators.inputs import LabelledRows
from dmtrl.estimators.metrics import TaskScorer
from dmtrl.estimators.problem import FitProblem
from dmtrl.estimators.task_model import check_choice, init_parameters
from dmtrl.exceptions import ScaleWarning
from dmtrl.losses import CLASSIFICATION, AnyLoss, get_loss
from dmtrl.numerics.checks import is_whole
from dmtrl.progress import bar
from dmtrl.solver.api import Placement, ProblemSpec, Strengths, on_engine
from dmtrl.solver.checkpoint import Checkpoint, CheckpointSession
from dmtrl.solver.checkpoint.options import PathLike
from dmtrl.solver.cross_validation import MEASURES, RULES, SCORE, Path, cross_validate, for_paths
from dmtrl.solver.outcome import Callback, Outcome, RoundRecord
from dmtrl.solver.race import Race

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
            stacklevel=5,
        )


def warn_of_scores(folds: np.ndarray, undefined: dict[int, ValueError]) -> None:
    """Warn that some folds have no score. `undefined`: what the scorer said."""
    named = f"fold{'s' if len(folds) > 1 else ''} {', '.join(map(str, folds))}"
    reason = f" ({undefined[min(undefined)]})" if undefined else ""
    warnings.warn(
        f"the scorer is not defined on the held-out rows of {named}{reason}, so that only the other folds count; use "
        "fewer folds or another scorer",
        UndefinedMetricWarning,
        stacklevel=5,
    )


_OWN_PARAMETERS = ("lambdas", "commons", "owns", "cv", "scoring", "choice", "exhaustive")


class StrengthSearch(MTRLBase):
    """Chooses lambda, common and own before the final fit."""

    __metadata_request__fit: ClassVar = {"tasks": True, "sample_weight": True, "groups": True}
    metrics_: Metrics

    def __init__(
        self,
        loss: str | AnyLoss = "squared",
        lambdas: Sequence[float] | None = None,
        commons: Sequence[float] = (0.0, 1.0, 10.0),
        owns: Sequence[float] = (0.0, 3.0),
        cv: Any = 5,
        scoring: Any = None,
        choice: str = "best",
        exhaustive: bool = False,
        relationship: Any = "learned",
        task_weight: float | str = 0.5,
        feature_map: Any = None,
        fit_intercept: bool | str = True,
        tol: float = 1e-3,
        max_rounds: int = 1000,
        max_staleness: int = 0,
        engine: Any = "local",
        n_jobs: int | None = None,
        workers: int | None = None,
        shards: int = 1,
        on_lost: str = "stop",
        random_state: Any = None,
        verbose: int = 0,
        callbacks: Sequence[Callback] | None = None,
        task_column: Any = None,
        unknown_tasks: str = "raise",
    ):
        super().__init__(**init_parameters(locals(), exclude=_OWN_PARAMETERS))
        self.lambdas = lambdas
        self.commons = commons
        self.owns = owns
        self.cv = cv
        self.scoring = scoring
        self.choice = choice
        self.exhaustive = exhaustive

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
        self._check_search()
        rows = self._read(X, y, tasks, sample_weight, splits=lambda rows: given_splits(self.cv, rows, groups))
        self._fit_rows(rows, checkpoint, resume)
        return self

    def _check_search(self) -> None:
        check_choice("choice", self.choice, RULES)
        for name in ("commons", "owns"):
            check_numbers(name, getattr(self, name))
        if self.lambdas is not None:
            check_numbers("lambdas", self.lambdas)
            lambdas = np.asarray(self.lambdas, dtype=float)
            if not (np.isfinite(lambdas).all() and (lambdas > 0).all()):
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

    def _choose(self, table: LabelledRows, place: Placement) -> tuple[FitProblem, Strengths]:
        splits = label_splits(self.cv, table, self._kind == CLASSIFICATION, self._seed())
        if several_maps(self.feature_map):
            return self._choose_map(table, splits, place)
        problem = self._build_problem(table, splits)
        warn_of_scales(problem.data.X, getattr(self, "feature_names_in_", None))
        held = HeldOutRows(table, splits)
        strengths = self._search(problem, place, len(splits), held)
        self._keep_held_out(held, problem)
        return problem, strengths

    def _choose_map(self, table: LabelledRows, splits: np.ndarray, place: Placement) -> tuple[FitProblem, Strengths]:
        """One search for each feature map, on the same splits; the first of the best ones is taken."""
        if place.session.active:
            raise ValueError("a search over several feature maps has no checkpoints; choose one feature_map first")
        paths, found = [], []
        for feature_map in candidate_maps(self.feature_map, self._seed(), table.X):
            one = copy(self)
            one.feature_map = feature_map
            problem, strengths = one._choose(table, replace(place, session=CheckpointSession()))
            error = one.cv_path_.mean(one.scoring_, one._over())[one.cv_path_.cell(*strengths)]
            paths.append(one.cv_path_)
            found.append((-error if one.scoring_ == SCORE else error, one, problem, strengths))
        _, best, problem, strengths = min(found, key=lambda entry: entry[0])
        vars(self).update({name: value for name, value in vars(best).items() if name.endswith("_")})
        self.cv_paths_ = paths
        return problem, strengths

    def _map_of_fit(self) -> Any:
        """The chosen one of several maps."""
        return vars(self).get("feature_map_") if several_maps(self.feature_map) else self.feature_map

    def _over(self) -> str:
        """What held-out errors are averaged over."""
        return "tasks" if self._kind == CLASSIFICATION else "rows"

    def _keep_held_out(self, held: HeldOutRows, problem: FitProblem) -> None:
        self.metrics_ = held.metrics(problem.classes, get_loss(self.loss).name == "poisson")

    def _strengths(self, problem: FitProblem, place: Placement) -> Strengths:
        """For rows that only the workers hold, which draw the folds."""
        self._check_search()
        if not is_whole(self.cv) or self._scorer() is not None:
            raise ValueError("rows that are not in this process need a number of folds as cv, and no scorer")
        return self._search(problem, place, int(self.cv))

    def _search(self, problem: FitProblem, place: Placement, folds: int, held: HeldOutRows | None = None) -> Strengths:
        """`held`: the rows, if they are in this process; it receives the predictions of the folds at the choice."""
        lambdas = default_lambdas(problem.data.X) if self.lambdas is None else np.asarray(self.lambdas, dtype=float)
        commons, owns = ([0.0], [0.0]) if len(problem.tasks) == 1 else (list(self.commons), list(self.owns))
        # choosing needs less accuracy than the final fit
        settings = self._settings(self._seed(), max(self.tol, 3e-3))
        scorer = self._scorer()
        if scorer is not None and problem.classes is not None:
            scorer.check_classes(len(problem.classes))
        self.scoring_ = (self.scoring or default_measure(self.loss)) if scorer is None else SCORE
        over = self._over()
        race = None if self.exhaustive or scorer is not None else Race(self.scoring_, over)
        total = len(lambdas) * len(commons) * len(owns) * folds
        callbacks = self.callbacks or ()
        rounds = [callback.on_cv_round for callback in callbacks if hasattr(callback, "on_cv_round")]
        fits = [callback.on_cv_fit for callback in callbacks if hasattr(callback, "on_cv_fit")]

        def on_round(record: RoundRecord) -> None:
            for callback in rounds:
                callback(record)

        undefined: dict[int, ValueError] = {}  # why a fold has no score

        def score(fold: int, strengths: Strengths, outcome: Outcome) -> float:
            assert scorer is not None
            assert held is not None
            try:
                return scorer(self._fold_model(problem, outcome, strengths), *held.arguments(fold))
            except ValueError as error:
                undefined.setdefault(fold, error)
                return float("nan")
            except AttributeError as error:
                if "predict_proba" not in str(error) or hasattr(self, "predict_proba"):
                    raise
                needs = f"the scorer {scorer.metric!r} needs probabilities, which the {get_loss(self.loss).name} loss"
                raise ValueError(f"{needs} does not give; use the logistic loss or another scorer") from error

        with bar(self.verbose, "choosing lambda, common and own", total) as step:

            def on_fit(done: int, total: int) -> None:
                step(total)
                for callback in fits:
                    callback(done, total)

            def run(engine: Engine, spec: ProblemSpec, session: CheckpointSession) -> Path:
                hook = None if scorer is None else score
                path = cross_validate(
                    engine, spec, lambdas, commons, folds, session, on_round, on_fit, race, hook, owns
                )
                if not path.scored.any() and undefined:
                    raise undefined[min(undefined)]
                strengths = path.best(self.scoring_, over, self.choice)
                if held is not None:
                    self._predict_held_out(engine, spec, strengths, problem, held)
                return path

            path, _ = on_engine(self.problem_spec(problem, settings), run, for_paths(place, folds, race))
        if scorer is not None and not path.scored.all():
            warn_of_scores(np.flatnonzero(~path.scored), undefined)
        self.cv_path_: Path = path
        self.cv_paths_ = [path]
        return path.best(self.scoring_, over, self.choice)
