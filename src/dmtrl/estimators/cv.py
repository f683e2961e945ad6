"""MTRLRegressorCV and MTRLClassifierCV: estimators that choose lambda, common and own by cross-validation.

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
from dmtrl.estimators.docstrings import documented
from dmtrl.estimators.feature_maps import candidate_maps, several_maps
from dmtrl.estimators.folds import given_splits, label_splits
from dmtrl.estimators.grids import default_lambdas
from dmtrl.estimators.held_out import HeldOutRows, Metrics
from dmtrl.estimators.inputs import LabelledRows
from dmtrl.estimators.metrics import TaskScorer
from dmtrl.estimators.mtrl import (
    ABSENT_CLASSES,
    CLASSES,
    CLASSIFICATION_LOSS,
    CLASSIFIER_WORDS,
    MULTI_CLASS,
    REGRESSION_LOSS,
    REGRESSOR_WORDS,
    SEEN_CLASSES,
    SINGLE_CLASS,
    MTRLClassifier,
    MTRLRegressor,
)
from dmtrl.estimators.problem import FitProblem
from dmtrl.estimators.task_model import check_choice
from dmtrl.exceptions import ScaleWarning
from dmtrl.losses import CLASSIFICATION, AnyLoss, get_loss
from dmtrl.numerics.checks import is_number, is_whole
from dmtrl.progress import bar
from dmtrl.solver.api import Placement, ProblemSpec, Strengths, on_engine
from dmtrl.solver.checkpoint import Checkpoint, CheckpointSession
from dmtrl.solver.checkpoint.options import PathLike
from dmtrl.solver.cross_validation import MEASURES, RULES, SCORE, Path, cross_validate, fit_folds, for_paths
from dmtrl.solver.outcome import Callback, Outcome, RoundRecord
from dmtrl.solver.race import Race

SCALES = 1e4  # how many times as much as all others a column may vary without a warning
SEARCH_PARAMETERS = {
    "feature_map": """"rff", "splines", transformer, "auto" or list
        Transformation of the features, as in the estimators without CV. A list holds maps to choose from, where None
        means the features themselves. "auto" tries the features themselves, `Splines()` if rows are dense, `RFF()` at
        three widths, and the middle one beside the features (`RFF(linear=True)`). `coef_` refers to the transformed
        features.""",
    "lambdas": """sequence of float
        Values of reg_lambda to try. None means eleven values over five decades, below the mean squared row norm.""",
    "commons": """sequence of float
        Values of `common` to try. Ignored for a single task, which uses 0.""",
    "owns": """sequence of float
        Values of `own` to try. Ignored for a single task, which uses 0.""",
    "cv": """int, splitter or iterable
        Number of folds, drawn within each task and class; a scikit-learn splitter such as GroupKFold or
        TimeSeriesSplit; or an iterable of (train, test) row numbers. The last two split the rows as passed to `fit`,
        and every split must train on every task.""",
    "scoring": """str or callable
        What is measured on held-out rows: "loss", "squared_error", "wrong" (the error rate), the name of a scikit-learn
        scorer such as "r2" or "roc_auc", or a callable `scorer(model, X, y)`. None means "squared_error" for squared
        loss, "wrong" (averaged over tasks, ties broken by the loss) for classification, and "loss" otherwise. A scorer
        scores all held-out rows of a fold at once, and the mean over folds counts; `task_scorer(name,
        average="tasks")` averages over tasks first. A fold on which the scorer is not defined is left out, with a
        warning.""",
    "choice": """{{"best", "one_se"}}
        "best" takes the candidate with the best mean. "one_se" takes the strongest lambda whose mean is within one
        standard error (over folds) of the best one, at the same `common` and `own`.""",
    "exhaustive": """bool
        True tries every candidate on every fold. False tries candidates that are significantly worse than the best
        after two folds (paired t-test over the tasks at the 1 % level) on no further fold. With a scorer every
        candidate is tried.""",
}
SEARCH_ATTRIBUTES = {
    "cv_path_": """Path
        Held-out errors of each lambda, common, own and fold. `cv_path_.complete` says which were tried on all
        folds.""",
    "metrics_": """Metrics
        Metrics of the choice on held-out rows, overall and per task, each with its baseline. Not set if the rows were
        not in this process.""",
    "cv_paths_": """list of Path
        One for each feature map that was tried, in order.""",
    "scoring_": """str
        What was optimised: "loss", "squared_error", "wrong", or "score" for a scorer.""",
}
FOLD_MODELS = {
    "fold_models_": """FoldModels
        The models of the folds at the choice and their absolute residuals on held-out rows, for `predict_interval`.
        Not set if the rows were not in this process.""",
}


def check_numbers(name: str, values: Any) -> None:
    """Raise ValueError unless `values` is a list of numbers."""
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a list of numbers, got {values!r}") from None
    if array.ndim != 1:
        advice = f"; pass {name}=[{values!r}]" if array.ndim == 0 and values is not None else ""
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


class _StrengthSearch(MTRLBase):
    """Chooses lambda, common and own before the final fit."""

    __metadata_request__fit: ClassVar = {"tasks": True, "sample_weight": True, "groups": True}
    lambdas: Sequence[float] | None
    commons: Sequence[float]
    owns: Sequence[float]
    cv: Any
    scoring: Any
    choice: str
    exhaustive: bool
    metrics_: Metrics

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
        chosen = {name: value for name, value in vars(best).items() if name.endswith("_")}
        vars(self).update(chosen)
        self.cv_paths_ = paths
        return problem, strengths

    def _map_of_fit(self) -> Any:
        """Of several maps the one that was chosen."""
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

    def _search(
        self,
        problem: FitProblem,
        place: Placement,
        folds: int,
        held: HeldOutRows | None = None,
    ) -> Strengths:
        """`held`: the rows, if they are in this process; it receives the predictions of the folds at the choice."""
        lambdas = default_lambdas(problem.data) if self.lambdas is None else np.asarray(self.lambdas, dtype=float)
        commons = [0.0] if len(problem.tasks) == 1 else list(self.commons)
        # choosing needs less accuracy than the final fit
        settings = self._settings(self._seed(), max(self.tol, 3e-3))
        scorer = self._scorer()
        if scorer is not None and problem.classes is not None:
            scorer.check_classes(len(problem.classes))
        self.scoring_ = (self.scoring or default_measure(self.loss)) if scorer is None else SCORE
        over = self._over()
        race = None if self.exhaustive or scorer is not None else Race(self.scoring_, over)
        owns = [0.0] if len(problem.tasks) == 1 else list(self.owns)
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

                    def receive(fold: int, outcome: Outcome) -> None:
                        held.predict(fold, self._fold_model(problem, outcome, strengths))

                    fit_folds(engine, spec, strengths, folds, receive)
                return path

            path, _ = on_engine(self.problem_spec(problem, settings), run, for_paths(place, folds, race))
        if scorer is not None and not path.scored.all():
            warn_of_scores(np.flatnonzero(~path.scored), undefined)
        self.cv_path_: Path = path
        self.cv_paths_ = [path]
        return path.best(self.scoring_, over, self.choice)


@documented(REGRESSOR_WORDS, SEARCH_PARAMETERS | {"loss": REGRESSION_LOSS}, SEARCH_ATTRIBUTES | FOLD_MODELS)
class MTRLRegressorCV(_StrengthSearch, MTRLRegressor):
    """MTRLRegressor that chooses reg_lambda, common and own by cross-validation.

    <sections>
    """

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
        super().__init__(
            loss=loss,
            relationship=relationship,
            task_weight=task_weight,
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
        self.owns = owns
        self.cv = cv
        self.scoring = scoring
        self.choice = choice
        self.exhaustive = exhaustive

    def _keep_held_out(self, held: HeldOutRows, problem: FitProblem) -> None:
        super()._keep_held_out(held, problem)
        self.fold_models_ = held.fold_models()

    def predict_interval(self, X: Any, tasks: Any = None, coverage: float = 0.9) -> np.ndarray:
        """Predict intervals that contain the label of a new row with a given probability.

        Uses CV+ (Barber et al. 2021): the predictions of the models of the folds, plus and minus their errors on the
        rows that they did not see. On average over new rows of a task the coverage is close to `coverage`, and at least
        2 * coverage - 1, whatever the distribution of the rows. A task with fewer than 5 / (1 - coverage) held-out rows
        uses the errors of all tasks, scaled to its own, for which this is an approximation.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n, d)
            The rows to predict.
        tasks : array-like of shape (n,), default=None
            The task label of each row; see `predict`.
        coverage : float, default=0.9
            The probability, between 0 and 1.

        Returns
        -------
        ndarray of shape (n, 2) or (n, m, 2)
            The lower and the upper end; infinite if there are too few held-out rows. The lower end of counts is at
            least 0. If y was 2-D in `fit` and `tasks` is None: for each row and task.
        """
        if not (is_number(coverage) and 0 < coverage < 1):
            raise ValueError(f"coverage must be a number between 0 and 1, got {coverage!r}")
        X, codes = self._read_unlabelled(X, tasks)
        folds = vars(self).get("fold_models_")
        if folds is None:
            raise ValueError("predict_interval needs the held-out errors of a fit whose rows were in this process")
        m = folds.coef.shape[1]
        if codes is not None and ((codes < 0) | (codes >= m)).any():
            raise ValueError("predict_interval knows only the tasks of fit; fit again with the rows of the new task")
        one, centres = copy(self), []
        for one.coef_, one.intercept_ in zip(folds.coef, folds.intercept, strict=True):
            centres.append(self._predictions(one._score_rows(X, codes)))
        centre = np.array(centres, dtype=float)
        ends = np.empty((*centre.shape[1:], 2))
        for task in range(m) if codes is None else np.unique(codes):
            rows: Any = (slice(None), task) if codes is None else codes == task
            here = centre[:, :, task] if codes is None else centre[:, rows]
            ends[rows] = np.stack(folds.bounds(int(task), here, coverage), axis=-1)
        if get_loss(self.loss).name == "poisson":
            ends[..., 0] = np.maximum(ends[..., 0], 0.0)
        return ends


@documented(
    CLASSIFIER_WORDS,
    SEARCH_PARAMETERS
    | {
        "loss": CLASSIFICATION_LOSS,
        "on_single_class": SINGLE_CLASS,
        "multi_class": MULTI_CLASS,
        "absent_classes": ABSENT_CLASSES,
    },
    SEARCH_ATTRIBUTES | {"classes_": CLASSES, "seen_classes_": SEEN_CLASSES},
)
class MTRLClassifierCV(_StrengthSearch, MTRLClassifier):
    """MTRLClassifier that chooses reg_lambda, common and own by cross-validation.

    <sections>
    """

    def __init__(
        self,
        loss: str | AnyLoss = "logistic",
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
        on_single_class: str = "raise",
        multi_class: str = "auto",
        absent_classes: str = "never",
    ):
        super().__init__(
            loss=loss,
            relationship=relationship,
            task_weight=task_weight,
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
            multi_class=multi_class,
            absent_classes=absent_classes,
        )
        self.lambdas = lambdas
        self.commons = commons
        self.owns = owns
        self.cv = cv
        self.scoring = scoring
        self.choice = choice
        self.exhaustive = exhaustive
