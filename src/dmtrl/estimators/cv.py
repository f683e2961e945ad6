"""MTRLRegressorCV and MTRLClassifierCV: estimators that choose lambda, common and own by cross-validation."""

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from dmtrl.estimators.docstrings import documented
from dmtrl.estimators.held_out import HeldOutRows
from dmtrl.estimators.mtrl import CLASSIFIER_ATTRIBUTES, CLASSIFIER_PARAMETERS, MTRLClassifier, MTRLRegressor
from dmtrl.estimators.strength_search import StrengthSearch
from dmtrl.losses import AnyLoss, get_loss
from dmtrl.numerics.checks import is_number
from dmtrl.solver.outcome import Callback

SEARCH_PARAMETERS = {
    "feature_map": """"rff", "splines", transformer, "auto" or list
        Transformation of the features, as in the estimators without CV. A list holds maps to choose from, where None
        means the features themselves. "auto" tries the features themselves, `Splines()` if rows are dense, `RFF()` at
        three widths, and the middle one beside the features (`RFF(linear=True)`). `coef_` refers to the transformed
        features.""",
    "lambdas": """sequence of float
        Values of reg_lambda to try. None means eleven values over five decades, below the mean squared row norm. With a
        shared part, None means infinity (no deviations) and seven values over three decades, which are extended by
        factors of sqrt(10) while the best one is at an end.""",
    "commons": """sequence of float
        Values of `common` to try. None means 0, 1 and 10, or 0 with a shared part. A single task uses 0.""",
    "owns": """sequence of float
        Values of `own` to try. None means 0 and 3, or 0 with a shared part. A single task uses 0.""",
    "cv": """int, splitter or iterable
        Number of folds, drawn within each task and class, or with a shared part over all rows; a scikit-learn splitter
        such as GroupKFold or TimeSeriesSplit; or an iterable of (train, test) row numbers. The last two split the rows
        as passed to `fit`, and every split must train on every task unless there is a shared part.""",
    "scoring": """str or callable
        What is measured on held-out rows: "loss", "squared_error", "wrong" (the error rate), the name of a scikit-learn
        scorer such as "r2" or "roc_auc", or a callable `scorer(model, X, y)`. None means "squared_error" for squared
        loss, "wrong" (averaged over tasks, ties broken by the loss) for classification without a shared part, and
        "loss" otherwise. A scorer
        scores all held-out rows of a fold at once, and the mean over folds counts; `task_scorer(name,
        average="tasks")` averages over tasks first. A fold on which the scorer is not defined is left out, with a
        warning.""",
    "choice": """{"best", "one_se"}
        "best" takes the candidate with the best mean. "one_se" takes the strongest lambda whose mean is within one
        standard error (over folds) of the best one, at the same `common` and `own`.""",
    "exhaustive": """bool
        True tries every candidate on every fold. False tries candidates that are significantly worse than the best
        after two folds (paired t-test over the tasks at the 1 % level) on no further fold. With a scorer every
        candidate is tried.""",
}
SEARCH_ATTRIBUTES = {
    "cv_results_": """CvResults
        Held-out errors of each lambda, common, own and fold. `cv_results_.complete` says which were tried on all
        folds.""",
    "metrics_": """Metrics
        Metrics of the choice on held-out rows, overall and per task, each with its baseline. Not set if the rows were
        not in this process.""",
    "map_results_": """list of CvResults
        One for each feature map that was tried, in order.""",
    "scoring_": """str
        What was optimised: "loss", "squared_error", "wrong", or "score" for a scorer.""",
}
FOLD_MODELS = {
    "fold_models_": """FoldModels
        The models of the folds at the choice and their absolute residuals on held-out rows, for `predict_interval`.
        Not set if the rows were not in this process.""",
}


@documented(SEARCH_PARAMETERS, SEARCH_ATTRIBUTES | FOLD_MODELS)
class MTRLRegressorCV(StrengthSearch, MTRLRegressor):
    """MTRLRegressor that chooses reg_lambda, common and own by cross-validation.

    <sections>
    """

    def _keep_held_out(self, held: HeldOutRows, classes: np.ndarray | None) -> None:
        super()._keep_held_out(held, classes)
        self.fold_models_ = held.fold_models()

    def predict_interval(self, X: Any, tasks: Any = None, coverage: float = 0.9) -> np.ndarray:
        """Predict intervals that contain the label of a new row with a given probability.

        Uses CV+ (Barber et al. 2021): the predictions of the models of the folds, plus and minus their errors on the
        rows that they did not see. On average over new rows of a task the coverage is close to `coverage`, and at least
        2 * coverage - 1, whatever the distribution of the rows. A task with fewer than 5 / (1 - coverage) held-out rows
        uses the errors of all tasks, scaled to its own, for which this is an approximation.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n, d), or a list or dict of these for each task
            The rows to predict.
        tasks : array-like of shape (n,), default=None
            The task label of each row, as in `predict`.
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


@documented(SEARCH_PARAMETERS | CLASSIFIER_PARAMETERS, SEARCH_ATTRIBUTES | CLASSIFIER_ATTRIBUTES)
class MTRLClassifierCV(StrengthSearch, MTRLClassifier):
    """MTRLClassifier that chooses reg_lambda, common and own by cross-validation.

    <sections>
    """

    def __init__(
        self,
        loss: str | AnyLoss = "logistic",
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
        on_single_class: str = "raise",
        multi_class: str = "auto",
        absent_classes: str = "never",
    ):
        StrengthSearch.__init__(
            self,
            loss=loss,
            lambdas=lambdas,
            commons=commons,
            owns=owns,
            cv=cv,
            scoring=scoring,
            choice=choice,
            exhaustive=exhaustive,
            relationship=relationship,
            task_weight=task_weight,
            shared_model=shared_model,
            level=level,
            feature_map=feature_map,
            fit_intercept=fit_intercept,
            tol=tol,
            max_rounds=max_rounds,
            engine=engine,
            n_jobs=n_jobs,
            random_state=random_state,
            verbose=verbose,
            callbacks=callbacks,
            task_column=task_column,
            unknown_tasks=unknown_tasks,
        )
        self.on_single_class = on_single_class
        self.multi_class = multi_class
        self.absent_classes = absent_classes
