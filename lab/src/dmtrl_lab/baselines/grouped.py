"""What people use for grouped rows, from other packages: mixed-effects models, and trees that know the group.

Nothing is tuned, and each runs on one thread. GPBoost and statsmodels estimate variances by maximum likelihood.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression

POOLED, LMM, SLOPES, TREES, LGBM = "pooled", "lmm", "slopes", "trees+re", "lgbm"
MAX_SLOPES = 3  # columns with random slopes
TREE_OPTIONS = {"num_leaves": 15, "learning_rate": 0.05, "verbose": -1, "num_threads": 1}
MIXED_TREES, PLAIN_TREES = 100, 150


@dataclass(frozen=True)
class GroupedRows:
    """Training rows, and rows to predict. Groups are numbers. `binary`: y is 0 or 1; probabilities are predicted."""

    X: np.ndarray
    y: np.ndarray
    group: np.ndarray
    X_new: np.ndarray
    group_new: np.ndarray
    binary: bool = False


@dataclass(frozen=True)
class Package:
    """A package that may not be installed."""

    name: str

    def missing(self) -> str | None:
        """Return why the package cannot be used here, or None."""
        return None if find_spec(self.name) else f"{self.name} is not installed; pip install {self.name}"


@dataclass(frozen=True)
class Method:
    """A method: what it is, the package that it needs, and a function from rows to predictions."""

    description: str
    package: Package
    predict: Callable[[GroupedRows], np.ndarray]


def with_constant(X: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(X)), X])


def varying_columns(X: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return the columns that are not constant within every group."""
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    spread = np.maximum.reduceat(X[order], starts) - np.minimum.reduceat(X[order], starts)
    return np.flatnonzero((spread > 0).any(axis=0))


def fit_pooled(rows: GroupedRows) -> np.ndarray:
    """One regression for all rows, without a penalty."""
    if rows.binary:
        fitted = LogisticRegression(C=np.inf, max_iter=1000).fit(rows.X, rows.y)
        return np.asarray(fitted.predict_proba(rows.X_new)[:, 1])
    return np.asarray(LinearRegression().fit(rows.X, rows.y).predict(rows.X_new))


def _random_effects(rows: GroupedRows, slopes: np.ndarray | None = None) -> Any:
    """GPBoost's model of random effects, which is not fitted yet."""
    import gpboost

    more: dict[str, Any] = {}
    if slopes is not None and len(slopes):
        more = {"group_rand_coef_data": rows.X[:, slopes], "ind_effect_group_rand_coef": [1] * len(slopes)}
    likelihood = "bernoulli_logit" if rows.binary else "gaussian"
    return gpboost.GPModel(group_data=rows.group, likelihood=likelihood, num_parallel_threads=1, **more)


def fit_random_intercept(X: np.ndarray, y: np.ndarray, group: np.ndarray) -> Any:
    """Return GPBoost's fitted linear mixed model with a random intercept."""
    model = _random_effects(GroupedRows(X, y, group, X, group))
    model.fit(y=y, X=with_constant(X))
    return model


def _fit_mixed(rows: GroupedRows, slopes: np.ndarray | None = None) -> np.ndarray:
    model = _random_effects(rows, slopes)
    model.fit(y=rows.y, X=with_constant(rows.X))
    more = {} if slopes is None or not len(slopes) else {"group_rand_coef_data_pred": rows.X_new[:, slopes]}
    predicted = model.predict(
        X_pred=with_constant(rows.X_new), group_data_pred=rows.group_new, predict_response=True, **more
    )
    return np.asarray(predicted["mu"])


def _fit_slopes(rows: GroupedRows) -> np.ndarray:
    return _fit_mixed(rows, varying_columns(rows.X, rows.group)[:MAX_SLOPES])


def _fit_mixed_trees(rows: GroupedRows) -> np.ndarray:
    import gpboost

    model = _random_effects(rows)
    trees = gpboost.train(TREE_OPTIONS.copy(), gpboost.Dataset(rows.X, rows.y), MIXED_TREES, gp_model=model)
    predicted = trees.predict(rows.X_new, group_data_pred=rows.group_new, predict_var=False, pred_latent=False)
    return np.asarray(predicted["response_mean"])


def _fit_trees(rows: GroupedRows) -> np.ndarray:
    import lightgbm

    X, X_new = (np.column_stack(one) for one in ((rows.X, rows.group), (rows.X_new, rows.group_new)))
    options = {**TREE_OPTIONS, "objective": "binary" if rows.binary else "regression"}
    data = lightgbm.Dataset(X, rows.y, categorical_feature=[rows.X.shape[1]])
    return np.asarray(lightgbm.train(options, data, PLAIN_TREES).predict(X_new))


def fit_statsmodels(X: np.ndarray, y: np.ndarray, group: np.ndarray) -> Any:
    """Return statsmodels' fitted linear mixed model with a random intercept."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of optimisers that it tries in turn
        return MixedLM(y, with_constant(X), groups=group).fit(reml=False)


SKLEARN, GPBOOST, LIGHTGBM = Package("sklearn"), Package("gpboost"), Package("lightgbm")
METHODS: dict[str, Method] = {
    POOLED: Method("one regression for all rows, without a penalty", SKLEARN, fit_pooled),
    LMM: Method("linear or logistic mixed model with a random intercept (GPBoost)", GPBOOST, _fit_mixed),
    SLOPES: Method(
        f"the same with random slopes of the first {MAX_SLOPES} columns that vary within tasks", GPBOOST, _fit_slopes
    ),
    TREES: Method(
        f"{MIXED_TREES} boosted trees with a random intercept (GPBoost), not tuned", GPBOOST, _fit_mixed_trees
    ),
    LGBM: Method(
        f"{PLAIN_TREES} boosted trees with the task as a category (LightGBM), not tuned", LIGHTGBM, _fit_trees
    ),
}
