"""MTRLRegressorCV and MTRLClassifierCV: estimators that choose lambda and common by cross-validation.

For every fold, a path of warm-started fits runs from large to small lambda. The workers hold out the folds themselves
and send only sums over held-out rows.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.engines.base import Engine
from dmtrl.estimators.base import SHIFT_INVARIANT, MTRLBase
from dmtrl.estimators.diagnostics import default_lambdas, default_measure
from dmtrl.estimators.docstrings import documented
from dmtrl.estimators.mtrl import (
    CLASSES,
    CLASSIFICATION_LOSS,
    CLASSIFIER_WORDS,
    REGRESSION_LOSS,
    REGRESSOR_WORDS,
    SINGLE_CLASS,
    MTRLClassifier,
    MTRLRegressor,
)
from dmtrl.estimators.problem import FitProblem
from dmtrl.exceptions import ScaleWarning
from dmtrl.losses import CLASSIFICATION, AnyLoss, get_loss
from dmtrl.progress import bar
from dmtrl.solver.api import Placement, ProblemSpec, on_engine
from dmtrl.solver.checkpoint import CheckpointSession
from dmtrl.solver.cross_validation import MEASURES, Path, cross_validate, for_paths
from dmtrl.solver.outcome import Callback, RoundRecord
from dmtrl.solver.race import Race

SCALES = 1e4  # how many times as much as all others a column may vary without a warning
SEARCH_PARAMETERS = {
    "lambdas": """sequence of float
        Values of reg_lambda to try. None means eleven values over five decades, below the mean squared row norm.""",
    "commons": """sequence of float
        Values of `common` to try. Ignored for a single task and for more than two classes, which use 0.""",
    "cv": """int
        Number of folds. Each worker assigns its own rows to folds.""",
    "scoring": """{{"loss", "squared_error", "wrong"}}
        Measure of the error on held-out rows. None means "squared_error" for squared loss, "wrong" (the error rate,
        averaged over tasks, ties broken by the loss) for two classes, and "loss" otherwise.""",
    "exhaustive": """bool
        True tries every candidate on every fold. False tries candidates that are significantly worse than the best
        after two folds (paired t-test over the tasks at the 1 % level) on no further fold.""",
}
SEARCH_ATTRIBUTES = {
    "cv_path_": """Path
        Held-out errors of each lambda, common and fold. `cv_path_.complete` says which were tried on all folds.""",
    "scoring_": """str
        The measure that was minimised.""",
}


def check_numbers(name: str, values: Any) -> None:
    """Raise ValueError unless `values` is None or a list of numbers."""
    try:
        array = np.asarray(() if values is None else values, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a list of numbers, got {values!r}") from None
    if array.ndim != 1:
        advice = f"; pass {name}=[{values!r}]" if array.ndim == 0 else ""
        raise ValueError(f"{name} must be a list of numbers, got {values!r}{advice}")


def warn_of_scales(X: Any, names: Any = None) -> None:
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


class _StrengthSearch(MTRLBase):
    """Chooses lambda and common before the final fit."""

    lambdas: Sequence[float] | None
    commons: Sequence[float]
    cv: int
    scoring: str | None
    exhaustive: bool

    def _strengths(self, problem: FitProblem, place: Placement) -> tuple[float, float]:
        if self.scoring is not None and self.scoring not in MEASURES:
            raise ValueError(f"scoring must be one of {', '.join(MEASURES)}, got {self.scoring!r}")
        if self.scoring == "wrong" and self._kind != CLASSIFICATION:
            raise ValueError("scoring='wrong' counts wrong signs and is for classification; use loss or squared_error")
        if self.scoring == "squared_error" and get_loss(self.loss).name not in SHIFT_INVARIANT:
            raise ValueError(f"scoring='squared_error' makes no sense with the {self.loss} loss; use loss")
        check_numbers("lambdas", self.lambdas)
        check_numbers("commons", self.commons)
        warn_of_scales(problem.data.X, getattr(self, "feature_names_in_", None))
        lambdas = default_lambdas(problem.data) if self.lambdas is None else np.asarray(self.lambdas, dtype=float)
        if not (np.isfinite(lambdas).all() and (lambdas > 0).all()):
            raise ValueError(f"lambdas must be positive and finite, got {list(lambdas)}")
        if not isinstance(self.cv, int | np.integer):
            raise ValueError(f"cv must be a number of folds, which every worker draws for itself, got {self.cv!r}")
        # a common component is for several tasks that share labels; one task has none
        commons = (
            [0.0] if len(problem.tasks) == 1 or len(problem.unit_names) != len(problem.tasks) else list(self.commons)
        )
        # choosing needs less accuracy than the final fit
        settings = self._settings(self._seed(), max(self.tol, 3e-3))
        # with more than two classes the wrong answers of one-vs-rest models say little: most of them are "no"
        several = problem.data.groups is not None
        self.scoring_ = self.scoring or ("loss" if several else default_measure(self.loss))
        over = "tasks" if self._kind == CLASSIFICATION else "rows"
        race = None if self.exhaustive else Race(self.scoring_, over)
        total = len(lambdas) * len(commons) * int(self.cv)
        callbacks = self.callbacks or ()
        rounds = [callback.on_cv_round for callback in callbacks if hasattr(callback, "on_cv_round")]
        fits = [callback.on_cv_fit for callback in callbacks if hasattr(callback, "on_cv_fit")]

        def on_round(record: RoundRecord) -> None:
            for callback in rounds:
                callback(record)

        with bar(self.verbose, "choosing lambda and common", total) as step:

            def on_fit(done: int, total: int) -> None:
                step(total)
                for callback in fits:
                    callback(done, total)

            def run(engine: Engine, spec: ProblemSpec, session: CheckpointSession) -> Path:
                return cross_validate(engine, spec, lambdas, commons, int(self.cv), session, on_round, on_fit, race)

            path, _ = on_engine(self.problem_spec(problem, settings), run, for_paths(place, int(self.cv), race))
        self.cv_path_: Path = path
        return path.best(self.scoring_, over)


@documented(REGRESSOR_WORDS, SEARCH_PARAMETERS | {"loss": REGRESSION_LOSS}, SEARCH_ATTRIBUTES)
class MTRLRegressorCV(_StrengthSearch, MTRLRegressor):
    """MTRLRegressor that chooses reg_lambda and common by cross-validation.

    <sections>
    """

    def __init__(
        self,
        loss: str | AnyLoss = "squared",
        lambdas: Sequence[float] | None = None,
        commons: Sequence[float] = (0.0, 1.0, 10.0),
        cv: int = 5,
        scoring: str | None = None,
        exhaustive: bool = False,
        relationship: Any = "learned",
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
        super().__init__(
            loss=loss,
            relationship=relationship,
            feature_map=feature_map,
            fit_intercept=fit_intercept,
            tol=tol,
            max_rounds=max_rounds,
            max_staleness=max_staleness,
            engine=engine,
            n_jobs=n_jobs,
            workers=workers,
            shards=shards,
            on_lost=on_lost,
            random_state=random_state,
            verbose=verbose,
            callbacks=callbacks,
            task_column=task_column,
            unknown_tasks=unknown_tasks,
        )
        self.lambdas = lambdas
        self.commons = commons
        self.cv = cv
        self.scoring = scoring
        self.exhaustive = exhaustive


@documented(
    CLASSIFIER_WORDS,
    SEARCH_PARAMETERS | {"loss": CLASSIFICATION_LOSS, "on_single_class": SINGLE_CLASS},
    SEARCH_ATTRIBUTES | {"classes_": CLASSES},
)
class MTRLClassifierCV(_StrengthSearch, MTRLClassifier):
    """MTRLClassifier that chooses reg_lambda and common by cross-validation.

    <sections>
    """

    def __init__(
        self,
        loss: str | AnyLoss = "logistic",
        lambdas: Sequence[float] | None = None,
        commons: Sequence[float] = (0.0, 1.0, 10.0),
        cv: int = 5,
        scoring: str | None = None,
        exhaustive: bool = False,
        relationship: Any = "learned",
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
        on_single_class: str = "raise",
    ):
        super().__init__(
            loss=loss,
            relationship=relationship,
            feature_map=feature_map,
            fit_intercept=fit_intercept,
            tol=tol,
            max_rounds=max_rounds,
            max_staleness=max_staleness,
            engine=engine,
            n_jobs=n_jobs,
            workers=workers,
            shards=shards,
            on_lost=on_lost,
            random_state=random_state,
            verbose=verbose,
            callbacks=callbacks,
            task_column=task_column,
            unknown_tasks=unknown_tasks,
            on_single_class=on_single_class,
        )
        self.lambdas = lambdas
        self.commons = commons
        self.cv = cv
        self.scoring = scoring
        self.exhaustive = exhaustive
