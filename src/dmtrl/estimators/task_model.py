"""TaskModel: the parameters of an estimator, the reading of rows, and predictions of a fitted model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn import get_config
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted, validate_data

from dmtrl import notebook
from dmtrl.data.blocks import as_rows
from dmtrl.data.coordinates import Coordinates
from dmtrl.data.labels import plain
from dmtrl.estimators import inputs, model_file
from dmtrl.estimators.problem import row_products
from dmtrl.losses import CLASSIFICATION, REGRESSION, AnyLoss
from dmtrl.relationship import TaskCovariance
from dmtrl.relationship.covariance import DENSE_LIMIT
from dmtrl.relationship.similarity import similarity_order
from dmtrl.solver.certificate import Certificate
from dmtrl.solver.outcome import Callback
from dmtrl.solver.problem import Strengths
from dmtrl.tables.names import quoted


class TaskModel(ABC):
    """One linear model per task. A subclass sets the fitted attributes and turns scores into predictions."""

    __metadata_request__fit: ClassVar = {"tasks": True, "sample_weight": True}
    __metadata_request__predict: ClassVar = {"tasks": True}
    __metadata_request__score: ClassVar = {"tasks": True, "sample_weight": True}
    _kind: str
    tasks_: np.ndarray
    classes_: np.ndarray
    seen_classes_: np.ndarray
    coef_: np.ndarray
    intercept_: np.ndarray
    common_coef_: np.ndarray
    common_intercept_: Any
    new_task_coef_: np.ndarray
    new_task_intercept_: Any
    shared_coef_: np.ndarray | None
    shared_intercept_: Any
    level_: float | None
    levels_: np.ndarray | None
    reg_lambda_: float
    common_strength_: float
    own_strength_: float
    weight_shares_: np.ndarray
    task_weights_: np.ndarray
    task_rows_: np.ndarray | None
    certificate_: Certificate
    coordinates_: Coordinates
    feature_map_: Any
    layout_: str
    _covariance: TaskCovariance

    def __init__(
        self,
        loss: str | AnyLoss = "squared",
        reg_lambda: float = 0.1,
        relationship: Any = "learned",
        common: float | str = "auto",
        own: float = 0.0,
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
        warm_start: bool = False,
        verbose: int = 0,
        callbacks: Sequence[Callback] | None = None,
        task_column: Any = None,
        unknown_tasks: str = "raise",
    ):
        self.loss = loss
        self.reg_lambda = reg_lambda
        self.relationship = relationship
        self.common = common
        self.own = own
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
        self.warm_start = warm_start
        self.verbose = verbose
        self.callbacks = callbacks
        self.task_column = task_column
        self.unknown_tasks = unknown_tasks

    @abstractmethod
    def _predictions(self, scores: np.ndarray) -> np.ndarray:
        """Convert scores to predictions."""

    def read_rows(self, X: Any, y: Any = None, tasks: Any = None, sample_weight: Any = None) -> inputs.LabelledRows:
        """Read and check labelled rows for a fitted estimator.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n, d), or a list or dict of (X_i, y_i)
            Rows with the features of `fit`.
        y, tasks, sample_weight : array-like of shape (n,), default=None
            Labels, task labels and weights of the rows, in any form that `fit` accepts.

        Returns
        -------
        LabelledRows
            Finite rows and labels, without rows of weight zero.
        """
        return self._read(X, y, tasks, sample_weight, reset=False)

    def _read(
        self,
        X: Any,
        y: Any,
        tasks: Any,
        sample_weight: Any,
        reset: bool = True,
        splits: Callable[[inputs.LabelledRows], np.ndarray | None] = lambda rows: None,
    ) -> inputs.LabelledRows:
        """`splits` is called with the rows as they were passed and returns the splits of a cross-validation."""
        if y is None and not inputs.is_list_of_tasks(X):
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        rows = inputs.read(X, y, tasks, sample_weight, self.task_column)
        return self._checked(replace(rows, splits=splits(rows)), reset)

    def _checked(self, rows: inputs.LabelledRows, reset: bool) -> inputs.LabelledRows:
        rows = replace(rows, X=self._validate(rows.X, reset))
        rows.check_X(getattr(self, "feature_names_in_", None))
        rows = rows.without_zero_weights().to_long()
        rows.check_y()
        return rows

    def _validate(self, X: Any, reset: bool) -> Any:
        try:
            return validate_data(
                self, X, accept_sparse="csr", dtype=[np.float64, np.float32], ensure_all_finite=False, reset=reset
            )
        except ValueError as error:
            # numpy raises a plain ValueError for text; only its message tells it apart
            message = inputs.describe_non_number(X) if "could not convert" in str(error) else None
            if message is None:
                raise
            raise ValueError(message) from None

    @property
    def _outputs(self) -> int:
        """Scores of a row: one, or one for each of more than two classes."""
        return self.coef_.shape[1] if self.coef_.ndim == 3 else 1

    @property
    def strengths_(self) -> Strengths:
        """Lambda and the strengths of the common and own parts and of the levels of the fit, in one object."""
        check_is_fitted(self)
        return Strengths(self.reg_lambda_, self.common_strength_, self.own_strength_, self.level_)

    @property
    def covariance_(self) -> TaskCovariance:
        """The task covariance Sigma as an operator, with trace one and a row per task."""
        check_is_fitted(self)
        return self._covariance

    @property
    def task_covariance_(self) -> np.ndarray | TaskCovariance:
        """The task covariance Sigma as an array; above 5000 tasks as an operator."""
        covariance = self.covariance_
        return covariance if covariance.m > DENSE_LIMIT else covariance.dense()

    @property
    def task_correlation_(self) -> Any:
        """The correlation of each pair of tasks, as a data frame if pandas is installed."""
        return label_pairs(self.covariance_.correlation(), self.tasks_)

    def predict(self, X: Any, tasks: Any = None) -> np.ndarray:
        """Predict labels.

        Parameters
        ----------
        X : {array-like, sparse matrix, data frame} of shape (n, d)
            The rows to predict.
        tasks : array-like of shape (n,), default=None
            The task label of each row. Not needed with `task_column`, with a single task, or if y was 2-D in `fit`.

        Returns
        -------
        ndarray of shape (n,) or (n, m)
            One prediction per row. If y was 2-D in `fit` and `tasks` is None: one per row and task.
        """
        return self._predictions(self._scores(X, tasks))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, tasks: Any = None) -> float:
        """Return R^2 for regression and accuracy for classification.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n, d), or a list or dict of (X_i, y_i)
            Test rows.
        y, sample_weight, tasks : array-like of shape (n,), default=None
            Labels, task labels and weights of the rows, in any form that `fit` accepts.

        Returns
        -------
        float
            The score over all rows. For a 2-D y the mean of the scores of its columns.
        """
        from sklearn.metrics import accuracy_score, r2_score  # slow to import, and not needed to fit or predict

        check_is_fitted(self)
        rows = self.read_rows(X, y, tasks, sample_weight)
        codes = self._task_numbers(rows.names)[rows.codes]
        predicted = self._predictions(self._score_rows(rows.X[rows.rows], codes))
        metric = r2_score if self._kind == REGRESSION else accuracy_score
        groups = [rows.codes == i for i in range(len(rows.names))] if rows.wide else [slice(None)]
        weight = np.ones(len(rows.y)) if rows.sample_weight is None else rows.sample_weight[rows.rows]
        return float(np.mean([metric(rows.y[g], predicted[g], sample_weight=weight[g]) for g in groups]))

    def _scores(self, X: Any, tasks: Any) -> np.ndarray:
        """w . x + b of each row, of shape (n,), or (n, k) for k > 2 classes. If y was 2-D in fit and tasks is None, an
        axis of tasks follows the first axis."""
        return self._score_rows(*self._read_unlabelled(X, tasks))

    def _read_unlabelled(self, X: Any, tasks: Any) -> tuple[Any, np.ndarray | None]:
        """Checked rows and the number of the task of each; None means all tasks for each row."""
        check_is_fitted(self)
        X, labels = inputs.split_tasks(X, tasks, self.task_column)
        X = self._validate(X, reset=False)
        numbers = np.arange(X.shape[0])
        names, codes = (inputs.SINGLE_TASK, 0 * numbers) if labels is None else np.unique(labels, return_inverse=True)
        rows = inputs.LabelledRows(X, None, names, codes, None, numbers)
        rows.check_X(getattr(self, "feature_names_in_", None))
        all_tasks = labels is None and self.layout_ == "wide"
        return X, None if all_tasks else self._task_numbers(names)[codes]

    def score_intercepts(self) -> np.ndarray:
        """Return `intercept_`; for a class that is never predicted in a task a number below all scores."""
        return self.intercept_

    def _score_rows(self, rows: Any, codes: np.ndarray | None) -> np.ndarray:
        """The scores of rows that belong to the tasks `codes`; None means all tasks for each row."""
        if self.feature_map_ is not None:
            rows = as_rows(self.feature_map_.transform(rows))
        coef, intercept = self.coef_, self.score_intercepts()
        if codes is None:
            return (rows @ coef.reshape(-1, coef.shape[-1]).T + intercept.ravel()).reshape(-1, *intercept.shape)
        if (codes < 0).any():  # -1 indexes what all tasks share, appended as the last task
            coef = np.concatenate([coef, self.new_task_coef_[None]])
            shared = np.asarray(self.new_task_intercept_)[None]
            intercept = np.concatenate([intercept, shared]).astype(intercept.dtype)
        if coef.ndim == 2:
            return row_products(rows, coef, codes) + intercept[codes]
        classes = range(coef.shape[1])
        return np.stack([row_products(rows, coef[:, c], codes) for c in classes], axis=1) + intercept[codes]

    def _task_numbers(self, names: np.ndarray) -> np.ndarray:
        """The index of each named task; -1 for an unknown task if unknown_tasks="shared"."""
        if names is inputs.SINGLE_TASK:
            if len(self.tasks_) == 1:
                return np.zeros(1, dtype=int)
            raise ValueError(
                f"the model has {len(self.tasks_)} tasks ({quoted(self.tasks_.tolist())}); "
                "pass the task of each row as tasks="
            )
        if self.layout_ == "alone":
            raise ValueError("the model was fitted without tasks; do not pass tasks")
        numbers = inputs.lookup(names, self.tasks_)
        if (numbers >= 0).all():
            return numbers
        unknown = plain(names[np.argmin(numbers)])
        what = f"unknown task {unknown!r}: the model was fitted on {quoted(self.tasks_.tolist())}"
        if self.unknown_tasks == "raise":
            raise ValueError(
                f"{what}; set unknown_tasks='shared' to predict it from what all tasks share, "
                "or in cross-validation shuffle the rows so that every training set contains every task"
            )
        if not self.predicts_new_tasks:
            raise ValueError(
                f"{what}, and has nothing that tasks share to predict other tasks from; "
                "that requires shared_model='linear' or common > 0, and at least two tasks"
            )
        return numbers

    @property
    def predicts_new_tasks(self) -> bool:
        """Whether the model has a shared part or a common component, from which it can predict other tasks."""
        return self.shared_coef_ is not None or self.common_strength_ > 0

    def save(self, path: model_file.FilePath) -> None:
        """Write the fitted model to a file.

        The file holds no code. An existing file is replaced only after the new one is complete. Callbacks, engine
        objects and RandomState objects are not saved. For a custom loss only the name is saved: the loaded model can
        predict, and `set_params(loss=...)` makes it possible to fit it again.

        Parameters
        ----------
        path : str or path
            The file to write. Read it with `dmtrl.load`.
        """
        model_file.save(self, path)

    def _repr_html_(self) -> str:
        """The fitted model for a notebook: what was fitted, the certificate, the correlations, and the parameters."""
        diagram = str(estimator_html_repr(self))
        if not self.__sklearn_is_fitted__():
            return diagram
        facts = [
            ("model", type(self).__name__),
            ("tasks", f"{len(self.tasks_):,}"),
            *([("classes", ", ".join(map(str, self.classes_)))] if self._kind == CLASSIFICATION else []),
            ("features", f"{self.coef_.shape[-1]:,}"),
            ("lambda", f"{self.reg_lambda_:.4g}"),
            ("certificate", self.certificate_),
        ]
        few = 1 < len(self.tasks_) <= notebook.MAX_CELLS
        related = ""
        if few:
            values = self.covariance_.correlation()
            order = similarity_order(values)
            names = [self.tasks_[i] for i in order]
            related = notebook.text("Task correlation") + notebook.heat_map(values[np.ix_(order, order)], names)
        folded = f"<details><summary>parameters</summary>{diagram}</details>"
        return notebook.section(notebook.facts(facts), related, folded)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """What IPython asks for first; scikit-learn's own would hide `_repr_html_`."""
        shown = {"text/plain": repr(self)}
        return shown | ({"text/html": self._repr_html_()} if get_config()["display"] == "diagram" else {})

    def __sklearn_is_fitted__(self) -> bool:
        return "coef_" in vars(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


def label_pairs(values: np.ndarray, names: np.ndarray) -> Any:
    """A matrix with a row and a column per name, as a data frame if pandas is installed."""
    try:
        import pandas as pd
    except ImportError:
        return values
    return pd.DataFrame(values, index=names, columns=names)


def check_callbacks(callbacks: Any) -> None:
    """Raise TypeError unless `callbacks` is None or a list of functions."""
    if callbacks is None or (isinstance(callbacks, list | tuple) and all(map(callable, callbacks))):
        return
    advice = "; pass a list with that function" if callable(callbacks) else ""
    raise TypeError(f"callbacks must be a list of functions, got {callbacks!r}{advice}")


def check_choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ValueError unless `value` equals one of `allowed`, in type and value."""
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}, got {value!r}")
