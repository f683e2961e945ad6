"""cv as a splitter or an iterable, scikit-learn's scorers, and the one-standard-error choice: as doing it by hand."""

from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.linear_model import Ridge
from sklearn.metrics import get_scorer, mean_absolute_error, r2_score, roc_auc_score
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    PredefinedSplit,
    ShuffleSplit,
    TimeSeriesSplit,
)

from dmtrl import (
    LocalOptions,
    MTRLClassifier,
    MTRLClassifierCV,
    MTRLRegressor,
    MTRLRegressorCV,
    Strengths,
    load,
    per_task_scores,
    task_scorer,
)
from dmtrl.data.folds import TEST, draw_splits
from dmtrl.solver.cv_results import CvResults


def _rows(n: int = 60, m: int = 3, d: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tasks take turns, so that every part of the rows has all of them."""
    rng = np.random.default_rng(seed)
    X, tasks = rng.normal(size=(n, d)), np.arange(n) % m
    W = rng.normal(size=d) + 0.3 * rng.normal(size=(m, d))
    return X, (X * W[tasks]).sum(axis=1) + rng.normal(size=n), tasks


class Accurate(MTRLRegressorCV):
    """Searches with `tol`, where MTRLRegressorCV needs less accuracy."""

    _search_tol = 0.0


class AccurateClassifier(MTRLClassifierCV):
    _search_tol = 0.0


GROUPS = np.arange(60) // 3 % 10
SPLITTERS: dict[str, Any] = {
    "kfold": KFold(4, shuffle=True, random_state=1),
    "groups": GroupKFold(4),
    "time": TimeSeriesSplit(3),
    "predefined": PredefinedSplit(np.where(np.arange(60) < 40, -1, np.arange(60) % 2)),
    "one split": PredefinedSplit(np.where(np.arange(60) < 40, -1, 0)),
    "overlapping": ShuffleSplit(3, test_size=0.2, random_state=0),
    "pairs": [(np.arange(0, 30), np.arange(35, 60)), (np.arange(20, 60), np.arange(15))],  # not complements
}


@pytest.mark.parametrize("name", SPLITTERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_errors_are_those_of_fitting_each_split_by_hand(name: str, weighted: bool) -> None:
    X, y, tasks = _rows()
    weight = np.random.default_rng(5).integers(0, 3, size=60).astype(float) if weighted else np.ones(60)
    cv, groups = SPLITTERS[name], GROUPS if name == "groups" else None
    model = Accurate(lambdas=[0.3, 0.01], commons=[0.0, 1.0], owns=[0.0], cv=cv, tol=1e-6, exhaustive=True)
    model.fit(X, y, tasks=tasks, sample_weight=weight if weighted else None, groups=groups)
    path = model.cv_results_
    pairs = cv if isinstance(cv, list) else list(cv.split(X, y, groups))
    assert path.squared_error.shape == (2, 2, len(pairs), 3)
    for k, (train, test) in enumerate(pairs):
        assert np.allclose(path.weight[0, 0, k], np.bincount(tasks[test], weight[test], minlength=3))
        for i, common in enumerate(path.commons):
            for j, lam in enumerate(path.lambdas):
                hand = MTRLRegressor(reg_lambda=lam, common=common, tol=1e-6)
                hand.fit(X[train], y[train], tasks=tasks[train], sample_weight=weight[train])
                errors = weight[test] * (y[test] - hand.predict(X[test], tasks=tasks[test])) ** 2
                expected = np.bincount(tasks[test], errors, minlength=3)
                assert path.squared_error[i, j, k] == pytest.approx(expected, rel=5e-3)


def test_a_number_of_folds_is_the_same_as_its_splits() -> None:
    """And both give the same bits on one and two threads, and in shards."""
    X, y, tasks = _rows()
    splits = [
        (np.flatnonzero(roles != TEST), np.flatnonzero(roles == TEST)) for roles in draw_splits(tasks, None, 3, 7)
    ]
    options: dict[str, Any] = {"lambdas": [0.3, 0.01], "commons": [1.0], "owns": [0.0], "random_state": 7}
    models = [
        MTRLRegressorCV(cv=cv, **options, n_jobs=jobs).fit(X, y, tasks=tasks) for cv in (3, splits) for jobs in (1, 2)
    ]
    for model in models[1:]:
        for name, values in vars(models[0].cv_results_).items():
            assert values.tobytes() == getattr(model.cv_results_, name).tobytes(), name
    cut = MTRLRegressorCV(cv=3, **options, engine=LocalOptions(workers=2, shards=2)).fit(X, y, tasks=tasks)
    assert np.array_equal(
        cut.cv_results_.weight, models[0].cv_results_.weight
    )  # shards hold out the rows of the whole task


def test_rows_without_weight_keep_their_numbers() -> None:
    """Splits count the rows as they were passed."""
    X, y, tasks = _rows()
    weight = np.ones(60)
    weight[[0, 5, 17, 44]] = 0.0
    keep, place = weight > 0, np.cumsum(weight > 0) - 1
    with_all = [(np.arange(30), np.arange(30, 60)), (np.arange(30, 60), np.arange(30))]
    without = [tuple(place[part[keep[part]]] for part in pair) for pair in with_all]
    a = MTRLRegressorCV(lambdas=[0.1], cv=with_all).fit(X, y, tasks=tasks, sample_weight=weight)
    b = MTRLRegressorCV(lambdas=[0.1], cv=without).fit(X[keep], y[keep], tasks=tasks[keep], sample_weight=weight[keep])
    assert a.cv_results_.squared_error.tobytes() == b.cv_results_.squared_error.tobytes()


def test_columns_of_y_are_split_by_rows() -> None:
    X, _, _ = _rows()
    rng = np.random.default_rng(3)
    Y = X @ rng.normal(size=(4, 2)) + rng.normal(size=(60, 2))
    Y[::7, 0] = np.nan
    cv = KFold(3)
    model = MTRLRegressorCV(lambdas=[0.1], commons=[0.0], cv=cv).fit(X, Y)
    rows = [[np.isfinite(Y[test, c]).sum() for c in range(2)] for _, test in cv.split(X)]
    assert model.cv_results_.weight[0, 0].tolist() == rows


@pytest.mark.parametrize(
    ("cv", "groups", "message"),
    [
        (1, None, "at least two folds, got 1"),
        (21, None, "cv=21 is more folds than rows: the largest task, 0, has only 20 rows; use cv=20 or less"),
        (5, GROUPS, "groups is used by splitters only"),
        ("ten", None, "cv must be a number of folds, a scikit-learn splitter or an iterable of"),
        (2.5, None, "cv must be a number of folds"),
        ([], None, "cv has no split"),
        ([([0, 1], [60])], None, "split 0 of cv must be two arrays"),
        ([([0, 1, 2], [])], None, "split 0 of cv has no test rows"),
        ([([0, 1, 2], [2, 3])], None, "split 0 of cv trains on row 2 and tests it"),
        ([(np.arange(3), [5]), ([0, 1, 3, 4], [2])], None, "split 1 of cv has no training rows of task 2"),
        (GroupKFold(3), np.arange(59), "groups must hold one value per row"),
        (LeaveOneGroupOut(), np.arange(60) % 3, "split 0 of cv has no training rows of task 0"),
    ],
)
def test_splits_that_cannot_be_used_are_refused(cv: Any, groups: Any, message: str) -> None:
    X, y, tasks = _rows()
    with pytest.raises(ValueError, match=message):
        MTRLRegressorCV(cv=cv).fit(X, y, tasks=tasks, groups=groups)


def test_scores_are_scikit_learns() -> None:
    """r2 over all held-out rows of a fold, the mean over folds, as GridSearchCV computes them."""
    X, y, tasks = _rows()
    splits, lambdas = list(KFold(3, shuffle=True, random_state=2).split(X)), [0.3, 0.03]
    model = Accurate(lambdas=lambdas, commons=[1.0], owns=[0.0], cv=splits, scoring="r2", tol=1e-6).fit(
        X, y, tasks=tasks
    )
    with sklearn.config_context(enable_metadata_routing=True):
        grid = GridSearchCV(
            MTRLRegressor(common=1.0, tol=1e-6), {"reg_lambda": lambdas}, cv=splits, scoring=task_scorer("r2")
        ).fit(X, y, tasks=tasks)
    assert model.scoring_ == "score"
    assert model.cv_results_.mean("score")[0] == pytest.approx(grid.cv_results_["mean_test_score"], abs=2e-3)
    assert model.reg_lambda_ == grid.best_params_["reg_lambda"]


def test_scores_per_task_and_of_a_callable() -> None:
    X, y, tasks = _rows()
    weight = np.random.default_rng(1).uniform(0.5, 2.0, size=60)
    splits = list(KFold(3, shuffle=True, random_state=2).split(X))
    seen = []

    def error(model: Any, X: np.ndarray, y: np.ndarray) -> float:
        seen.append((len(X), model.reg_lambda_, model.common_strength_))
        return -mean_absolute_error(y, model.predict(X))

    options: dict[str, Any] = {"lambdas": [0.1, 1.0], "commons": [1.0], "owns": [0.0], "cv": splits, "tol": 1e-6}
    by_hand = MTRLRegressor(reg_lambda=0.1, common=1.0, tol=1e-6)
    model = Accurate(**options, scoring=error).fit(X, y, tasks=tasks, sample_weight=weight)
    per_task = Accurate(**options, scoring=task_scorer("r2", average="tasks"))
    per_task.fit(X, y, tasks=tasks, sample_weight=weight)
    assert sorted(set(seen)) == [(20, 0.1, 1.0), (20, 1.0, 1.0)]
    for k, (train, test) in enumerate(splits):
        by_hand.fit(X[train], y[train], tasks=tasks[train], sample_weight=weight[train])
        predicted = by_hand.predict(X[test], tasks=tasks[test])
        assert model.cv_results_.score[0, 1, k] == pytest.approx(-mean_absolute_error(y[test], predicted), abs=5e-3)
        r2 = [
            r2_score(y[test][here], predicted[here], sample_weight=weight[test][here])
            for here in (tasks[test] == task for task in range(3))
        ]
        assert per_task.cv_results_.score[0, 1, k] == pytest.approx(np.mean(r2), abs=0.02)


@pytest.mark.parametrize("scoring", ["roc_auc", "neg_log_loss", "accuracy", "neg_brier_score"])
def test_classification_is_scored(scoring: str) -> None:
    X, y, tasks = _rows(n=90)
    labels = (y + np.random.default_rng(0).normal(size=90) > 0).astype(int)
    splits = list(KFold(3, shuffle=True, random_state=0).split(X))
    model = AccurateClassifier(lambdas=[0.1, 0.01], commons=[1.0], owns=[0.0], cv=splits, scoring=scoring, tol=1e-6)
    path = model.fit(X, labels, tasks=tasks).cv_results_
    train, test = splits[1]
    hand = MTRLClassifier(reg_lambda=0.01, common=1.0, tol=1e-6).fit(X[train], labels[train], tasks=tasks[train])
    expected = task_scorer(scoring)(hand, X[test], labels[test], tasks=tasks[test])
    assert path.score[0, 1, 1] == pytest.approx(expected, abs=0.01)
    assert path.score.shape == (1, 2, 3)
    if scoring == "roc_auc":
        assert expected == roc_auc_score(labels[test], hand.decision_function(X[test], tasks=tasks[test]))


def test_several_classes_are_scored_by_the_answer() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 5)), rng.integers(0, 3, size=90)
    X[np.arange(90), y] += 2.0
    model = MTRLClassifierCV(lambdas=[0.1, 0.001], cv=3, scoring="accuracy").fit(X, y)
    assert 0.6 < model.cv_results_.mean("score").max() < 1.0
    for scoring, instead in (("roc_auc", "roc_auc_ovr"), (task_scorer("f1"), "f1_macro")):
        with pytest.raises(ValueError, match=rf"is for two classes, but y has 3; use '{instead}'"):
            MTRLClassifierCV(lambdas=[0.1], cv=3, scoring=scoring).fit(X, y)
        MTRLClassifierCV(lambdas=[0.1], commons=[0.0], owns=[0.0], cv=3, scoring=instead).fit(X, y)
    with pytest.raises(ValueError, match="'roc_auc_ovr' needs probabilities, which the hinge loss does not give"):
        MTRLClassifierCV(loss="hinge", lambdas=[0.1], cv=3, scoring="roc_auc_ovr").fit(X, y)


def test_a_data_frame_with_a_task_column_and_a_feature_map() -> None:
    pd = pytest.importorskip("pandas")
    X, y, tasks = _rows()
    frame = pd.DataFrame(X, columns=list("abcd")).assign(task=tasks)
    options: dict[str, Any] = {"lambdas": [0.1, 1.0], "cv": KFold(3), "scoring": "r2", "feature_map": "rff"}
    named = MTRLRegressorCV(**options, task_column="task").fit(frame, y)
    plain = MTRLRegressorCV(**options).fit(X, y, tasks=tasks)
    assert named.cv_results_.score.tobytes() == plain.cv_results_.score.tobytes()
    assert list(named.feature_names_in_) == list("abcd")


def test_scorers_that_cannot_be_used_are_refused() -> None:
    X, y, tasks = _rows()
    for scoring, message in (
        ("beauty", "or the name of a scikit-learn scorer, got 'beauty'"),
        (3, "a callable scorer"),
    ):
        with pytest.raises(ValueError, match=message):
            MTRLRegressorCV(scoring=scoring).fit(X, y, tasks=tasks)
    with pytest.raises(ValueError, match="no fold has a finite score"):
        MTRLRegressorCV(lambdas=[0.1], scoring=lambda model, X, y: np.nan).fit(X, y, tasks=tasks)

    def broken(model: Any, X: np.ndarray, y: np.ndarray) -> float:
        raise ValueError("what the scorer says")

    with pytest.raises(ValueError, match="what the scorer says"):
        MTRLRegressorCV(lambdas=[0.1], scoring=broken).fit(X, y, tasks=tasks)


def _sorted_classes() -> tuple[np.ndarray, np.ndarray, np.ndarray, list[Any]]:
    """Three splits, of which the last tests a single class."""
    X, y, tasks = _rows(n=60)
    labels = (y > np.median(y)).astype(int)
    last = np.flatnonzero(labels == 1)[:9]
    others = np.setdiff1d(np.arange(60), last)
    tests = [others[::3], others[1::3], last]
    return X, labels, tasks, [(np.setdiff1d(np.arange(60), test), test) for test in tests]


def test_a_fold_on_which_the_scorer_is_not_defined_is_left_out() -> None:
    X, labels, tasks, splits = _sorted_classes()

    def area(model: Any, X: np.ndarray, y: np.ndarray) -> float:
        if len(set(y)) < 2:
            raise ValueError("only one class")
        return float(roc_auc_score(y, model.decision_function(X)))

    options: dict[str, Any] = {"lambdas": [1.0, 0.1, 0.01], "commons": [1.0], "owns": [0.0], "scoring": area}
    with pytest.warns(UndefinedMetricWarning, match=r"the held-out rows of fold 2 \(only one class\), so") as said:
        model = MTRLClassifierCV(**options, cv=splits).fit(X, labels, tasks=tasks)
    assert len(said) == 1
    two = MTRLClassifierCV(**options, cv=splits[:2]).fit(X, labels, tasks=tasks)
    assert model.cv_results_.scored.tolist() == [True, True, False]
    assert model.cv_results_.mean("score") == pytest.approx(two.cv_results_.mean("score"))
    assert model.cv_results_.standard_error("score") == pytest.approx(two.cv_results_.standard_error("score"))
    assert model.reg_lambda_ == two.reg_lambda_


def test_a_task_for_which_the_metric_is_not_defined_is_left_out_of_the_average() -> None:
    X, y, tasks = _rows(n=90)
    labels = (y > 0).astype(int)
    model = MTRLClassifier(reg_lambda=0.1).fit(X, labels, tasks=tasks)
    keep = (tasks != 1) | (labels == 1)
    X, labels, tasks = X[keep], labels[keep], tasks[keep]
    found = per_task_scores(model, X, labels, tasks, "neg_log_loss")
    assert np.isnan(found[1])
    average = task_scorer("neg_log_loss", average="tasks")(model, X, labels, tasks=tasks)
    assert average == pytest.approx((found[0] + found[2]) / 2)
    here = tasks == 1
    with pytest.raises(ValueError, match="only one label"):
        task_scorer("neg_log_loss", average="tasks")(model, X[here], labels[here], tasks=tasks[here])


def test_a_model_chosen_by_a_scorer_is_saved(tmp_path: Any) -> None:
    X, y, tasks = _rows()
    model = MTRLRegressorCV(lambdas=[0.1, 1.0], cv=KFold(3), scoring="r2").fit(X, y, tasks=tasks)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.cv_results_.score.tobytes() == model.cv_results_.score.tobytes()
    assert again.scoring == "r2"


def _path(error: list[list[float]], weight: float = 1.0) -> CvResults:
    """One common, one task: errors of (lambda, fold)."""
    sums = np.array(error)[None, :, :, None]
    lambdas, rounds = np.array([float(f"1e-{k}") for k in range(len(error))]), np.ones(sums.shape[:3], dtype=int)
    score = -sums[..., 0]
    return CvResults(lambdas, np.zeros(1), np.zeros(1), np.full(sums.shape, weight), sums, sums, sums, rounds, score)


def test_one_standard_error_takes_the_strongest_lambda_that_is_not_clearly_worse() -> None:
    path = _path([[9.0, 9.0, 9.0], [2.2, 2.3, 2.6], [1.0, 2.0, 3.0], [1.5, 2.4, 2.9]])
    assert path.best("loss") == Strengths(0.01)
    assert path.standard_error("loss")[0, 2] == pytest.approx(1 / np.sqrt(3))  # of 1, 2, 3
    assert path.best("loss", rule="one_se") == Strengths(0.1)  # 2.37 <= 2 + 0.58 < 9
    assert path.best("score", rule="one_se") == Strengths(0.1)
    one = _path([[2.0], [1.0]])
    assert one.best("loss", rule="one_se") == one.best("loss") == Strengths(0.1)


def test_one_standard_error_is_stronger_or_equal() -> None:
    X, y, tasks = _rows()
    best = MTRLRegressorCV(exhaustive=True).fit(X, y, tasks=tasks)
    one_se = MTRLRegressorCV(exhaustive=True, choice="one_se").fit(X, y, tasks=tasks)
    assert one_se.common_strength_ == best.common_strength_
    assert one_se.reg_lambda_ > best.reg_lambda_
    mean, error = (getattr(best.cv_results_, f)("squared_error") for f in ("mean", "standard_error"))
    i, j = best.cv_results_.index_of(best.strengths_)
    stronger = best.cv_results_.index_of(one_se.strengths_)
    assert mean[stronger] <= mean[i, j] + error[i, j]
    assert (mean[i, : stronger[1]] > mean[i, j] + error[i, j]).all()


def test_a_ridge_regression_agrees_on_the_choice() -> None:
    """A single task is ridge regression: the scores are those of scikit-learn's."""
    X, y, _ = _rows(n=80)
    splits = list(KFold(4, shuffle=True, random_state=0).split(X))
    model = Accurate(lambdas=[10.0, 1.0, 0.1], cv=splits, scoring="neg_mean_absolute_error", tol=1e-8)
    found = model.fit(X, y).cv_results_.mean("score")[0]
    for lam, score in zip(model.cv_results_.lambdas, found, strict=True):
        expected = [
            get_scorer("neg_mean_absolute_error")(Ridge(lam * len(train)).fit(X[train], y[train]), X[test], y[test])
            for train, test in splits
        ]
        assert score == pytest.approx(np.mean(expected), rel=1e-3)
