"""Metrics on held-out rows against scikit-learn's, and prediction intervals: their definition and their coverage."""

from typing import Any

import numpy as np
import pytest
from sklearn import metrics as reference
from sklearn.model_selection import KFold, TimeSeriesSplit

from dmtrl import MTRLClassifierCV, MTRLRegressor, MTRLRegressorCV, load
from dmtrl.estimators.held_out import auc, calibration_error
from dmtrl.estimators.intervals import FoldModels


def _rows(sizes: list[int], seed: int = 0, d: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    tasks = np.repeat([f"task {i}" for i in range(len(sizes))], sizes)
    X = rng.normal(size=(len(tasks), d))
    W = np.repeat(rng.normal(size=d) + 0.4 * rng.normal(size=(len(sizes), d)), sizes, axis=0)
    return X, (X * W).sum(axis=1) + rng.normal(size=len(tasks)), tasks


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("digits", [1, 8])  # one digit: many ties
def test_auc_is_scikit_learns(weighted: bool, digits: int) -> None:
    rng = np.random.default_rng(digits)
    score, positive = rng.normal(size=70).round(digits), rng.random(70) < 0.4
    weight = rng.random(70) if weighted else np.ones(70)
    assert auc(score, positive, weight) == pytest.approx(reference.roc_auc_score(positive, score, sample_weight=weight))
    assert np.isnan(auc(score, np.ones(70, dtype=bool), weight))


def test_calibration_error_by_hand() -> None:
    """Forty rows in two bins: predicted .2 where one in ten is right, and .8 where nine in ten are."""
    probability, right = np.repeat([0.2, 0.8], 20), np.repeat([False, True], 20)
    right[[0, 1, 38, 39]] = ~right[[0, 1, 38, 39]]
    assert calibration_error(probability, right, np.full(40, 1 / 40)) == pytest.approx(0.1)
    assert calibration_error(right.astype(float), right, np.full(40, 1 / 40)) == 0.0


def _out_of_fold(model: Any, plain: Any, X: np.ndarray, y: np.ndarray, tasks: np.ndarray, cv: Any, method: str) -> Any:
    parts = []
    for train, test in cv.split(X):
        fold = plain.fit(X[train], y[train], tasks=tasks[train])
        parts.append((test, getattr(fold, method)(X[test], tasks=tasks[test])))
    order = np.argsort(np.concatenate([test for test, _ in parts]))
    return np.concatenate([values for _, values in parts])[order]


def test_regression_metrics_are_those_of_the_folds_by_hand() -> None:
    X, y, tasks = _rows([30, 20, 25])
    cv = KFold(3, shuffle=True, random_state=0)
    model = MTRLRegressorCV(lambdas=[0.1, 0.01], commons=[1.0], owns=[0.0], cv=cv).fit(X, y, tasks=tasks)
    plain = MTRLRegressor(reg_lambda=model.reg_lambda_, common=1.0, tol=3e-3)
    predicted = _out_of_fold(model, plain, X, y, tasks, cv, "predict")
    found = model.metrics_
    checks = {"r2": reference.r2_score, "mae": reference.mean_absolute_error, "rmse": reference.root_mean_squared_error}
    here, means = tasks == "task 1", np.empty(75)
    for train, test in cv.split(X):
        means[test] = [y[train][tasks[train] == task].mean() for task in tasks[test]]
    for name, metric in checks.items():
        assert found.overall[name] == pytest.approx(metric(y, predicted), rel=0.02)
        assert found.per_task[name][1] == pytest.approx(metric(y[here], predicted[here]), rel=0.03, abs=0.01)
        assert found.baseline[name] == pytest.approx(metric(y, means))
        assert found.baseline_per_task[name][1] == pytest.approx(metric(y[here], means[here]))
    assert found.rows.tolist() == [30, 20, 25]
    assert list(found.table().index) == ["all rows", "task 0", "task 1", "task 2"]
    assert "R²" in str(found)


def test_counts_have_a_deviance() -> None:
    X, y, tasks = _rows([40, 40])
    counts = np.random.default_rng(0).poisson(np.exp(np.clip(y / 2, -2, 2)))
    cv, means = KFold(4, shuffle=True, random_state=0), np.empty(80)
    model = MTRLRegressorCV("poisson", lambdas=[1.0], commons=[1.0], owns=[0.0], cv=cv).fit(X, counts, tasks=tasks)
    for train, test in cv.split(X):
        means[test] = [counts[train][tasks[train] == task].mean() for task in tasks[test]]
    assert model.metrics_.baseline["deviance"] == pytest.approx(reference.mean_poisson_deviance(counts, means))
    assert 0 < model.metrics_.overall["deviance"] < model.metrics_.baseline["deviance"]
    ends = model.predict_interval(X, tasks)
    assert ends.min() == 0.0  # some errors are larger than the prediction
    assert (ends[:, 0] < ends[:, 1]).all()


@pytest.mark.parametrize("classes", [2, 3])
def test_classification_metrics_are_scikit_learns(classes: int) -> None:
    X, y, tasks = _rows([50, 40])
    names = np.array(["a", "b", "c"])[:classes]
    labels = names[np.digitize(y, [0.0] if classes == 2 else [-1.0, 1.0])]
    cv = KFold(3, shuffle=True, random_state=0)
    model = MTRLClassifierCV(lambdas=[0.01], commons=[0.0], owns=[0.0], cv=cv).fit(X, labels, tasks=tasks)
    # the predictions that the metrics were computed from, from the models of the folds
    probability = _out_of_fold(
        model, MTRLClassifierCV(lambdas=[0.01], commons=[0.0], owns=[0.0]), X, labels, tasks, cv, "predict_proba"
    )
    found, answers = model.metrics_.overall, names[probability.argmax(axis=1)]
    expected = {
        "error_rate": 1 - reference.accuracy_score(labels, answers),
        "log_loss": reference.log_loss(labels, probability),
        "brier": np.square(probability - (labels[:, None] == names)).sum(axis=1).mean() / (2 if classes == 2 else 1),
        "auc": np.mean([reference.roc_auc_score(labels == c, probability[:, i]) for i, c in enumerate(names)]),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=0.05, abs=0.012), name
    frequency = np.empty((90, classes))
    for train, test in cv.split(X):
        overall = (np.array([np.sum(labels[train] == name) for name in names]) + 1 / classes) / (len(train) + 1)
        for i in test:
            known = labels[train][tasks[train] == tasks[i]]
            frequency[i] = (np.array([np.sum(known == name) for name in names]) + overall) / (len(known) + 1)
    assert model.metrics_.baseline["log_loss"] == pytest.approx(reference.log_loss(labels, frequency))
    assert model.metrics_.baseline_per_task["auc"] == pytest.approx([0.5, 0.5])
    assert model.metrics_.baseline_per_task["calibration"] == pytest.approx([0.0, 0.0], abs=0.15)


def test_the_baseline_does_not_know_held_out_labels() -> None:
    """Of two rows with both classes, the one that trains has the other class than the one that is held out."""
    rng = np.random.default_rng(0)
    X, labels, tasks = rng.normal(size=(400, 2)), rng.integers(0, 2, size=400), np.repeat(np.arange(200), 2)
    cv = [(np.arange(0, 400, 2), np.arange(1, 400, 2)), (np.arange(1, 400, 2), np.arange(0, 400, 2))]
    model = MTRLClassifierCV(lambdas=[1.0], commons=[1.0], owns=[0.0], cv=cv, on_single_class="constant")
    both = labels[::2] != labels[1::2]
    model.fit(X, labels, tasks=tasks)
    assert model.metrics_.baseline["error_rate"] == pytest.approx(1.0)
    assert np.isnan(model.metrics_.per_task["error_rate"]).tolist() == (~both).tolist()
    time = TimeSeriesSplit(3)
    X, y, tasks = _rows([30, 30])
    order = np.arange(60).reshape(2, 30).T.ravel()  # the tasks take turns
    X, y, tasks = X[order], y[order] + np.linspace(0, 9, 60), tasks[order]
    trend = MTRLRegressorCV(lambdas=[0.1], commons=[1.0], owns=[0.0], cv=time).fit(X, y, tasks=tasks)
    error = [abs(y[i] - y[train][tasks[train] == tasks[i]].mean()) for train, test in time.split(X) for i in test]
    assert trend.metrics_.baseline["mae"] == pytest.approx(np.mean(error))


def test_constant_tasks_do_not_count() -> None:
    X, y, tasks = _rows([40, 40, 40])
    labels = np.where(tasks == "task 1", 1, y > 0).astype(int)
    cv = KFold(3, shuffle=True, random_state=0)
    options: dict[str, Any] = {"lambdas": [0.1], "commons": [0.0], "owns": [0.0], "cv": cv}
    found = MTRLClassifierCV(**options, on_single_class="constant").fit(X, labels, tasks=tasks).metrics_
    weight = np.array([40, 0, 40])
    for name in ("error_rate", "log_loss", "brier"):
        for overall, per_task in ((found.overall, found.per_task), (found.baseline, found.baseline_per_task)):
            assert np.isnan(per_task[name]).tolist() == [False, True, False]
            assert overall[name] == pytest.approx(np.nansum(weight * per_task[name]) / 80)
    assert found.rows.tolist() == [40, 40, 40]


def test_a_row_that_several_folds_test_counts_once() -> None:
    X, y, tasks = _rows([30, 30])
    options: dict[str, Any] = {"lambdas": [0.1], "commons": [0.0], "owns": [0.0]}
    weight = np.random.default_rng(0).uniform(0.5, 2.0, size=60)
    once = list(KFold(3, shuffle=True, random_state=0).split(X))
    for part in (None, weight):
        single = MTRLRegressorCV(**options, cv=once).fit(X, y, tasks=tasks, sample_weight=part)
        double = MTRLRegressorCV(**options, cv=once * 2).fit(X, y, tasks=tasks, sample_weight=part)
        assert np.bincount(double.fold_models_.task, double.fold_models_.weight) == pytest.approx([30, 30])
        for coverage in (0.5, 0.9, 0.97):
            ends = [model.predict_interval(X, tasks, coverage) for model in (single, double)]
            assert ends[0] == pytest.approx(ends[1])


def test_a_loss_without_probabilities_has_fewer_metrics() -> None:
    X, y, tasks = _rows([30, 30])
    model = MTRLClassifierCV("hinge", lambdas=[0.1], commons=[0.0], owns=[0.0], cv=3).fit(X, y > 0, tasks=tasks)
    assert set(model.metrics_.overall) == {"error_rate", "auc"} == set(model.metrics_.baseline)


def test_a_comparison_has_the_metrics_of_all_three() -> None:
    X, y, tasks = _rows([30, 30, 30])
    model = MTRLRegressor(common=1.0).fit(X, y, tasks=tasks)
    found = model.compare(X, y, tasks, cv=KFold(3, shuffle=True, random_state=0))
    assert list(found.metrics) == ["together", "alone", "pooled"]
    for name, metrics in found.metrics.items():
        errors = getattr(found, name)  # the same rows, fitted along the path and on their own
        assert np.square(metrics.per_task["rmse"]) == pytest.approx(errors, rel=0.03)


def _by_definition(models: FoldModels, centre: np.ndarray, coverage: float) -> np.ndarray:
    """Barber et al. 2021, eq. 12, for one row: centre has one prediction per fold."""
    n = len(models.residual)
    upper = np.sort(centre[models.fold] + models.residual)
    lower = np.sort(-centre[models.fold] + models.residual)
    rank = int(np.ceil(coverage * (n + 1)))
    return np.array([-lower[rank - 1], upper[rank - 1]])


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_bounds_are_those_of_the_definition(coverage: float) -> None:
    rng = np.random.default_rng(0)
    n, folds = 67, 4
    residual, fold = rng.exponential(size=n), rng.integers(0, folds, size=n)
    coef, intercept = np.zeros((folds, 1, 2)), np.zeros((folds, 1))
    models = FoldModels(coef, intercept, residual, fold, np.zeros(n, dtype=int), np.ones(n))
    centre = rng.normal(size=(folds, 9))
    lower, upper = models.bounds(0, centre, coverage)
    for j in range(9):
        assert [lower[j], upper[j]] == pytest.approx(_by_definition(models, centre[:, j], coverage))
    # whole weights are repetitions
    times = rng.integers(1, 4, size=n)
    weighted = FoldModels(*(getattr(models, name) for name in ("coef", "intercept", "residual", "fold", "task")), times)
    rows = [np.repeat(getattr(models, name), times) for name in ("residual", "fold", "task")]
    repeated = FoldModels(models.coef, models.intercept, *rows, np.ones(times.sum()))
    assert weighted.bounds(0, centre, coverage)[1] == pytest.approx(repeated.bounds(0, centre, coverage)[1])


def test_too_few_rows_give_infinite_intervals() -> None:
    X, y, tasks = _rows([4, 4])
    model = MTRLRegressorCV(lambdas=[0.1], commons=[0.0], owns=[0.0], cv=2).fit(X, y, tasks=tasks)
    assert np.isinf(model.predict_interval(X, tasks, coverage=0.95)).all()
    assert np.isfinite(model.predict_interval(X, tasks, coverage=0.8)).all()


def test_coverage_of_simulated_rows() -> None:
    """Noise that differs between tasks: 90 % on average, and about as much in each task."""
    rng = np.random.default_rng(0)
    noise, sizes = np.array([0.5, 1.0, 2.0, 1.0, 0.5, 2.0]), np.array([150, 150, 150, 25, 25, 25])
    W = rng.normal(size=5) + 0.3 * rng.normal(size=(6, 5))

    def draw(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tasks = np.repeat(np.arange(6), rows)
        X = rng.normal(size=(len(tasks), 5))
        return X, (X * W[tasks]).sum(axis=1) + noise[tasks] * rng.standard_t(5, size=len(tasks)), tasks

    inside = []
    for seed in range(8):
        X, y, tasks = draw(sizes)
        model = MTRLRegressorCV(lambdas=[0.1, 0.01], commons=[1.0], owns=[0.0], cv=4, random_state=seed).fit(
            X, y, tasks=tasks
        )
        X, y, tasks = draw(np.full(6, 300))
        ends = model.predict_interval(X, tasks)
        hit = (ends[:, 0] <= y) & (y <= ends[:, 1])
        inside.append([hit[tasks == task].mean() for task in range(6)])
    per_task = np.mean(inside, axis=0)
    assert per_task.mean() == pytest.approx(0.9, abs=0.02)
    assert per_task[:3] == pytest.approx(0.9, abs=0.03)  # rows of their own
    assert per_task[3:] == pytest.approx(0.9, abs=0.06)  # scaled errors of all tasks


def test_intervals_of_columns_of_counts_and_after_saving(tmp_path: Any) -> None:
    X, y, _ = _rows([60])
    Y = np.column_stack([y, -y]) + np.random.default_rng(0).normal(size=(60, 2))
    wide = MTRLRegressorCV(lambdas=[0.1], commons=[0.0], owns=[0.0], cv=3).fit(X, Y)
    ends = wide.predict_interval(X[:7])
    assert ends.shape == (7, 2, 2)
    column = wide.predict_interval(X[:7], tasks=np.ones(7, dtype=int))
    assert ends[:, 1] == pytest.approx(column)
    assert (ends[..., 0] < wide.predict(X[:7])).all()
    assert (wide.predict(X[:7]) < ends[..., 1]).all()
    wide.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.predict_interval(X[:7]).tobytes() == ends.tobytes()
    assert again.metrics_.overall == wide.metrics_.overall


def test_what_intervals_cannot_do_is_refused() -> None:
    X, y, tasks = _rows([30, 30])
    model = MTRLRegressorCV(lambdas=[0.1], commons=[1.0], owns=[0.0], cv=3, unknown_tasks="shared").fit(
        X, y, tasks=tasks
    )
    for coverage in (90, "a", None):
        with pytest.raises(ValueError, match=f"coverage must be a number between 0 and 1, got {coverage!r}"):
            model.predict_interval(X, tasks, coverage=coverage)
    with pytest.raises(ValueError, match="predict_interval knows only the tasks of fit"):
        model.predict_interval(X[:2], ["task 0", "elsewhere"])
    model.add_task(X[:20], y[:20], "task 2")
    assert model.predict_interval(X[:2], tasks[:2]).shape == (2, 2)
    with pytest.raises(ValueError, match="predict_interval knows only the tasks of fit"):
        model.predict_interval(X[:1], ["task 2"])
