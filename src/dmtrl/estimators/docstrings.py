"""Parameter and attribute descriptions that the estimators share.

`documented` puts them into a class docstring, in the order of the signature and with the defaults of that class.
"""

import inspect
from collections.abc import Callable
from textwrap import fill
from typing import TypeVar

PARAMETERS = {
    "loss": """str or Loss
        "squared", "absolute", "huber", "epsilon_insensitive", "quantile" or "poisson" (which predicts exp(w . x + b)),
        a loss with its parameter such as `losses.quantile(0.9)`, or a CustomLoss.""",
    "reg_lambda": """float
        Regularisation strength. The objective is the sum over tasks of the mean loss, see `task_weight`, plus
        reg_lambda / 2 * tr(W^T Sigma^-1 W). The default suits standardised features. For squared loss it does not
        depend on the scale of y. With a shared part, W are the deviations from it, and infinity means none.""",
    "relationship": """{"learned", "independent", "shared"}, sparse graph, covariance or Relationship
        How the tasks are related. "learned" estimates the task covariance; the others are fixed.""",
    "common": """float or "auto"
        Strength of a component that all tasks share, in addition to the learned relationship, in units of 1/m for m
        tasks: 1 makes it as strong as the average task's own part; 0 is the problem of the paper. "auto" is 1 if the
        relationship between tasks is learned, and 0 for a fixed relationship or with a shared part. A single task has
        no common component.""",
    "own": """float
        Strength of a part of each task's coefficients that is not related to other tasks, in the units of `common`. It
        keeps what the relationship would shrink away, so that sharing hurts less where tasks differ; with a large
        value each task is learned alone. 0 is the problem of the paper.""",
    "task_weight": """{"equal", "rows"} or float
        How much a task counts in the objective. "equal" counts the mean loss of each task the same, as in the paper.
        "rows" counts every row the same, so that a task with few rows hardly shapes the relations. A number gamma
        between 0 (equal) and 1 (rows) gives a task with n rows a weight proportional to n^gamma, with mean one over
        the tasks. With sample weights, n is their sum. "auto" is "rows" with a shared part, and 0.5 without.""",
    "shared_model": """"linear" or None
        "linear" fits what all tasks share first: one linear model of all rows, with a level for each task that is
        shrunk towards the shared one. The relationship is then between the deviations from it: tasks are related if
        they deviate from the average in the same way. Tasks with one row or one class are ordinary tasks then, and new
        tasks are predicted by the shared part. With None nothing is shared but the relationship and the common
        component: the problem of the paper. Losses with kinks ("hinge", "absolute", "quantile",
        "epsilon_insensitive") and custom losses, more than 1000 shared weights, a single task, and a `fit_intercept`
        other than True always mean None; `shared_coef_` is None then.""",
    "level": """"auto" or float
        Strength with which the levels of the tasks are shrunk towards the shared level, in rows: with n rows by the
        factor n / (n + level) for squared loss. "auto" estimates it by marginal likelihood; infinity means no levels.
        Only used with a shared part.""",
    "feature_map": """"rff", "splines" or transformer
        Transformation of the features. "rff" gives 300 random Fourier features, "splines" a curve for each feature;
        pass `RFF(n_components, gamma)`, `Splines(n_knots)` or any scikit-learn transformer for others. `coef_` refers
        to the transformed features.""",
    "fit_intercept": """bool or "penalised"
        With True each task has an intercept outside the relationship and practically without penalty. With
        "penalised" the intercept is one more regularised coefficient.""",
    "tol": """float
        The fit stops when the relative gap between objective and lower bound is at most `tol`.""",
    "max_rounds": """int
        Maximum number of rounds. A fit that reaches it emits a NotConvergedWarning.""",
    "engine": """{"local", "ray"}, LocalOptions or RayOptions
        Where the workers run: in this process, or as actors of a Ray cluster. The options also set the number of
        workers, shards of tasks, asynchronous rounds and what happens if a worker is lost.""",
    "n_jobs": """int
        Threads of the local engine. None means 1, and -1 means all cores.""",
    "random_state": """int or RandomState
        Seed of the fit. None means 0, so that a fit is repeatable by default.""",
    "warm_start": """bool
        Start from the coefficients of the previous fit if it had the same tasks and features.""",
    "verbose": """int
        1 shows a progress line on a terminal, 2 prints a line per round.""",
    "callbacks": """sequence of callable
        Functions that are called with the RoundRecord of each round. One that raises KeyboardInterrupt stops the fit;
        the checkpoint is written first. In a cross-validation, the methods `on_cv_round(record)` and
        `on_cv_fit(done, total)` of a callback are called as well, if it has them.""",
    "task_column": """str or int
        Name or index of the column of X with the task labels, instead of `tasks`. It may hold text and is not a
        feature.""",
    "unknown_tasks": """{"raise", "shared"}
        What `predict` does for a task that was not in `fit`: raise ValueError, or predict from what all tasks share,
        the shared part or else the common component.""",
}

ATTRIBUTES = {
    "tasks_": """ndarray of shape (m,)
        Task names in the order of the rows of `coef_`: sorted, or as given in a list, a dict or the columns of y.""",
    "coef_": """ndarray of shape (m, d)
        Coefficients of each task.""",
    "intercept_": """ndarray of shape (m,)
        Intercepts of each task.""",
    "common_coef_": """ndarray of shape (d,)
        Coefficients that all tasks have in common: those of the common component, plus the shared part; zero without
        either.""",
    "common_intercept_": """float
        Intercept of the common component.""",
    "new_task_coef_": """ndarray of shape (d,)
        Coefficients that predict a task that was not in `fit`.""",
    "new_task_intercept_": """float
        Intercept that predicts a task that was not in `fit`.""",
    "shared_coef_": """ndarray of shape (d,) or None
        Coefficients of the shared part; None without one.""",
    "shared_intercept_": """float or None
        Intercept of the shared part; None without one.""",
    "level_": """float or None
        Strength of the levels around the shared part, infinite if there are none; None without a shared part.""",
    "levels_": """ndarray of shape (m,) or None
        How far the score of each task lies above the shared part, at the mean row of the fit; None without a shared
        part.""",
    "reg_lambda_": """float
        The regularisation strength of the fit.""",
    "common_strength_": """float
        The strength of the common component of the fit, in the units of `common`.""",
    "own_strength_": """float
        The strength of the tasks' own parts of the fit, in the units of `own`.""",
    "strengths_": """Strengths
        These three strengths and `level_` in one object.""",
    "weight_shares_": """ndarray of shape (m, 3)
        How much of each task's coefficients is common to all tasks, related to other tasks, and its own: the lengths
        of these three parts, divided by their sum.""",
    "task_weights_": """ndarray of shape (m,)
        Weight of each task in the objective, with mean one; 0 for a task that was left out because of its single
        class.""",
    "task_rows_": """ndarray of shape (m,) or None
        Number of rows of each task. None if it is not known, as in the model that a site of a study receives.""",
    "covariance_": """TaskCovariance
        Task covariance as an operator, with trace one. It includes the common component.""",
    "task_covariance_": """ndarray or TaskCovariance
        Task covariance as an array; above 5000 tasks as an operator.""",
    "task_correlation_": """DataFrame or ndarray
        Correlation of each pair of tasks; an array if pandas is not installed.""",
    "certificate_": """Certificate
        Proven bounds: `primal` is the objective of the model, and no model has an objective below `dual`.""",
    "history_": """list of dict
        One record per round.""",
    "n_rounds_": """int
        Number of rounds.""",
    "n_features_in_": """int
        Number of features in `fit`.""",
    "feature_names_in_": """ndarray of str
        Names of the features. Only set if X had column names.""",
    "feature_map_": """transformer or None
        The fitted feature map.""",
    "coordinates_": """Coordinates
        Centre and scale of the rows and labels that the solver received.""",
    "layout_": """{"alone", "long", "wide"}
        How tasks were passed to `fit`: not at all, as a label per row, or as columns of y.""",
}

Class = TypeVar("Class", bound=type)


def documented(parameters: dict[str, str], attributes: dict[str, str]) -> Callable[[Class], Class]:
    """Insert the sections "Parameters" and "Attributes" into a class docstring, in place of "<sections>".

    `parameters` and `attributes` replace shared descriptions, which are those of MTRLRegressor, or add to them.
    """

    def insert(cls: Class) -> Class:
        described, lines = PARAMETERS | parameters, ["Parameters", "----------"]
        for name, parameter in inspect.signature(cls).parameters.items():
            kind, text = _entry(described[name])
            default = f'"{parameter.default}"' if isinstance(parameter.default, str) else parameter.default
            lines += [f"{name} : {kind}, default={default}", text]
        lines += ["", "Attributes", "----------"]
        for name, entry in (ATTRIBUTES | attributes).items():
            kind, text = _entry(entry)
            lines += [f"{name} : {kind}", text]
        cls.__doc__ = inspect.cleandoc(cls.__doc__ or "").replace("<sections>", "\n".join(lines))
        return cls

    return insert


def _entry(entry: str) -> tuple[str, str]:
    """Split an entry into its type and its wrapped description."""
    kind, text = entry.split("\n", 1)
    return kind, fill(" ".join(text.split()), 100, initial_indent="    ", subsequent_indent="    ")
