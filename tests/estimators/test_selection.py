"""Choosing lambda and tau: on training rows only, by the path, and as good as trying every value by hand."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import LeaveOneGroupOut, train_test_split
from sklearn.utils.estimator_checks import parametrize_with_checks

from dmtrl import MTRLClassifierCV, MTRLRegressor, MTRLRegressorCV
from support.problems import random_problem


def _long(loss: str = "squared", **kwargs: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    data = random_problem(loss, **kwargs)
    return data.X, data.y, np.repeat([f"task{i}" for i in range(data.m)], np.diff(data.starts))


# A fit is within tol of the optimum, not at it; the check wants seven digits. The test after it compares six.
TO_TOLERANCE = {
    f"check_sample_weight_equivalence_on_{kind}_data": "weighted and repeated rows take different ways to one optimum"
    for kind in ("dense", "sparse")
}


@parametrize_with_checks(
    [
        MTRLRegressorCV(lambdas=[0.1, 1.0], commons=[0.0], cv=2, tol=1e-12),
        MTRLClassifierCV(lambdas=[0.1, 1.0], commons=[0.0], cv=2),
    ],
    expected_failed_checks=lambda estimator: TO_TOLERANCE if isinstance(estimator, MTRLClassifierCV) else {},
)
def test_conformance(estimator, check) -> None:
    check(estimator)


@pytest.mark.parametrize("classes", [2, 3])
def test_weights_are_repetitions_in_a_classifier_too(classes: int) -> None:
    """As scikit-learn's check: weights in one group of rows, every group is a test set."""
    rng = np.random.default_rng(0)
    X, y = rng.random(size=(15, 6)), np.arange(15) % classes
    weight = rng.integers(0, 5, size=15)
    X3, y3, group = np.vstack([X, X, X]), np.tile(y, 3), np.repeat([0, 1, 2], 15)
    times = np.concatenate([weight, np.ones(30, dtype=int)])
    repeated = np.repeat(np.arange(45), times)
    options = {"lambdas": [0.03, 0.3], "tol": 1e-12, "max_rounds": 5000}
    splits = list(LeaveOneGroupOut().split(X3, groups=group))
    weighted = MTRLClassifierCV(cv=splits, **options).fit(X3, y3, sample_weight=times)
    splits = list(LeaveOneGroupOut().split(repeated, groups=group[repeated]))
    again = MTRLClassifierCV(cv=splits, **options).fit(X3[repeated], y3[repeated])
    assert np.allclose(weighted.cv_results_.loss, again.cv_results_.loss, rtol=5e-3)
    assert weighted.reg_lambda_ == again.reg_lambda_
    assert np.allclose(weighted.decision_function(X), again.decision_function(X), rtol=1e-6, atol=1e-6)


def test_the_choice_is_the_best_of_the_path() -> None:
    X, y, tasks = _long(m=5, d=6, rows=25)
    search = MTRLRegressorCV(lambdas=[0.001, 0.1, 10.0], commons=[0.0, 1.0], owns=[0.0], cv=3)
    model = search.fit(X, y, tasks=tasks)
    mean = model.cv_results_.mean("squared_error")
    assert mean.shape == (2, 3)
    i, j = np.unravel_index(mean.argmin(), mean.shape)
    assert (model.reg_lambda_, model.common_strength_) == (model.cv_results_.lambdas[j], model.cv_results_.commons[i])
    twin = MTRLRegressor(reg_lambda=model.reg_lambda_, common=model.common_strength_).fit(X, y, tasks=tasks)
    assert np.allclose(model.predict(X, tasks=tasks), twin.predict(X, tasks=tasks), rtol=1e-6)
    assert model.certificate_.relative_gap <= 1e-3


def test_scale_of_the_features_does_not_change_the_choice() -> None:
    X, y, tasks = _long(m=4, d=5, rows=25)
    a = MTRLRegressorCV(commons=[0.0], cv=3).fit(X, y, tasks=tasks)
    b = MTRLRegressorCV(commons=[0.0], cv=3).fit(1000 * X, y, tasks=tasks)
    assert np.argmin(a.cv_results_.mean("squared_error")) == np.argmin(b.cv_results_.mean("squared_error"))


def test_classifier_on_digits() -> None:
    """Ten one-vs-rest tasks in one problem, offline."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X / 16.0, y, test_size=0.4, random_state=0, stratify=y)
    model = MTRLClassifierCV(lambdas=[1e-3, 1e-2, 1e-1], cv=3).fit(X_train, y_train)
    assert model.score(X_test, y_test) > 0.94
    assert model.certificate_.relative_gap <= 1e-3


def test_parameters_survive_cloning_and_nonsense_is_refused() -> None:
    X, y, tasks = _long()
    model = MTRLRegressorCV(lambdas=[0.1], cv=2, scoring="loss")
    assert clone(model).get_params()["scoring"] == "loss"
    assert "reg_lambda" not in model.get_params()
    with pytest.raises(ValueError, match="scoring must be one of loss, squared_error, wrong"):
        MTRLRegressorCV(scoring="beauty").fit(X, y, tasks=tasks)
    with pytest.raises(ValueError, match="lambdas must be positive and finite"):
        MTRLRegressorCV(lambdas=[0.0]).fit(X, y, tasks=tasks)
    with pytest.raises(ValueError, match="choice must be 'best' or 'one_se', got 'two_se'"):
        MTRLRegressorCV(choice="two_se").fit(X, y, tasks=tasks)
    with pytest.raises(ValueError, match="at least two folds, got 1"):
        MTRLRegressorCV(cv=1).fit(X, y, tasks=tasks)


@pytest.mark.parametrize("multi_class", ["softmax", "ovr"])
def test_several_classes_are_chosen_by_wrong_answers(multi_class: str) -> None:
    """Labels are noise: no candidate may look better than chance, which it would if a held-out row trained a class."""
    rng = np.random.default_rng(0)
    X, y, tasks = rng.normal(size=(180, 40)), rng.integers(0, 3, size=180), np.repeat([0, 1, 2], 60)
    model = MTRLClassifierCV(lambdas=[1e-4, 1.0], commons=[1.0], cv=3, multi_class=multi_class)
    model.fit(X, y, tasks=tasks)
    assert model.scoring_ == "wrong"
    assert float(model.cv_results_.mean("wrong").min()) > 0.5
    assert model.cv_results_.wrong.shape[-1] == 3  # a sum for each task


def test_scoring_that_makes_no_sense_is_refused() -> None:
    X, y, tasks = _long()
    with pytest.raises(ValueError, match="scoring='wrong' counts wrong answers, for classification only"):
        MTRLRegressorCV(scoring="wrong").fit(X, y, tasks=tasks)
    with pytest.raises(ValueError, match="scoring='squared_error' makes no sense with the poisson loss"):
        MTRLRegressorCV(loss="poisson", scoring="squared_error").fit(X, np.abs(y).round(), tasks=tasks)
    with pytest.raises(ValueError, match="every task has only one sample"):
        MTRLRegressorCV().fit(X[:3], y[:3], tasks=np.arange(3))
