"""Estimators with a shared part: small tasks, new tasks, files, verification, added tasks, searches, engines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.model_selection import GroupKFold

import dmtrl
from dmtrl import Checkpoint, LocalOptions, MTRLClassifier, MTRLClassifierCV, MTRLRegressor, MTRLRegressorCV, RayOptions
from dmtrl.engines.local import LocalEngine
from dmtrl.losses import get_loss
from dmtrl.solver.shared_fit import fit_shared

SIZES = (1, 2, 9, 16)
TASKS = np.repeat(np.arange(12), [SIZES[i % 4] for i in range(12)])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(len(TASKS), 3)) + 2.0
V = np.outer(RNG.normal(size=12), [0.5, 0.5, 0.0])
SCORE = 10.0 + (X - 2.0) @ [1.0, 0.5, -1.0] + ((X - 2.0) * V[TASKS]).sum(axis=1) + RNG.normal(size=12)[TASKS]
NOISY = SCORE - 10.0 + RNG.logistic(size=len(SCORE))
AMOUNTS = SCORE + 0.3 * RNG.normal(size=len(SCORE))
TWO = np.where(NOISY > 0, "yes", "no")
THREE = np.array(["a", "b", "c"])[np.digitize(NOISY, [-1.0, 1.0])]
KINDS: dict[str, tuple[Any, np.ndarray]] = {
    "amounts": (MTRLRegressor, AMOUNTS),
    "two classes": (MTRLClassifier, TWO),
    "three classes": (MTRLClassifier, THREE),
}


def fitted(kind: str, **how: Any) -> Any:
    estimator, y = KINDS[kind]
    return estimator(**({"shared_model": "linear", "reg_lambda": 0.3} | how)).fit(X, y, tasks=TASKS)


@pytest.mark.parametrize("kind", KINDS)
def test_coefficients_are_the_shared_part_plus_deviations(kind: str) -> None:
    model = fitted(kind)
    k = 3 if kind == "three classes" else 1
    rows = np.zeros((1, 3))
    deviation = model.coef_ - model.shared_coef_
    assert deviation.shape == model.coef_.shape
    assert np.abs(deviation).max() > 1e-3
    assert model.levels_.shape == ((12,) if k == 1 else (12, k))
    centre = model.coordinates_.x_centre
    at_centre = model.intercept_ - model.shared_intercept_ + deviation @ centre
    assert at_centre == pytest.approx(model.levels_, abs=1e-10)
    assert model.strengths_.level == model.level_ > 0
    for task in (0, 11):
        given = model.decision_function(rows, [task]) if kind != "amounts" else model.predict(rows, [task])
        assert given == pytest.approx(np.atleast_1d(model.intercept_[task]).reshape(given.shape))


@pytest.mark.parametrize("kind", KINDS)
def test_an_infinite_lambda_is_the_shared_fit(kind: str) -> None:
    model = fitted(kind, reg_lambda=np.inf)
    assert model.coef_ == pytest.approx(np.broadcast_to(model.shared_coef_, model.coef_.shape), abs=1e-12)
    assert model.certificate_.relative_gap <= 1e-6
    assert np.ptp(model.levels_, axis=0).min() > 0.01
    if kind == "amounts":
        data = dmtrl.TaskData.from_long(X, AMOUNTS, TASKS)
        with LocalEngine(data.sources(1), get_loss("squared")) as engine:
            found = fit_shared(engine, 12, get_loss("squared"))
        assert model.shared_coef_ == pytest.approx(found.coef[0])
        assert model.level_ == pytest.approx(found.level, rel=1e-2)
        assert model.intercept_ == pytest.approx(found.intercept[0] + found.levels[:, 0], abs=1e-3)


@pytest.mark.parametrize("lam", [0.3, np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_verified_and_extended(kind: str, lam: float, tmp_path: Path) -> None:
    model, y = fitted(kind, reg_lambda=lam), KINDS[kind][1]
    model.save(tmp_path / "model")
    back = dmtrl.load(tmp_path / "model")
    assert (back.predict(X, TASKS) == model.predict(X, TASKS)).all()
    assert back.levels_.tobytes() == model.levels_.tobytes()
    certificate = dmtrl.verify(back, X, y, TASKS)
    assert certificate.primal == pytest.approx(model.certificate_.primal, rel=1e-6)
    back.coef_ = back.coef_ + 0.5
    with pytest.raises(ValueError, match="changed"):
        dmtrl.verify(back, X, y, TASKS)
    one_row = model.add_task(X[20:21], y[20:21], name=50)
    several = model.add_task(X[30:40], y[30:40], name=51)
    assert one_row.certificate.gap >= 0
    assert several.certificate.gap >= 0
    assert len(model.levels_) == 14
    whole = np.vstack([X, X[20:21], X[30:40]]), np.concatenate([y, y[20:21], y[30:40]])
    dmtrl.verify(model, *whole, np.concatenate([TASKS, [50], [51] * 10]))
    if np.isinf(lam):
        assert several.coef == pytest.approx(model.shared_coef_)


def test_new_tasks_are_predicted_by_the_shared_part() -> None:
    model = fitted("amounts")
    with pytest.raises(ValueError, match="set unknown_tasks='shared'"):
        model.predict(X[:1], tasks=[99])
    model.set_params(unknown_tasks="shared")
    assert model.predict(X[:5], tasks=[99] * 5) == pytest.approx(
        X[:5] @ model.new_task_coef_ + model.new_task_intercept_
    )
    assert model.new_task_coef_ == pytest.approx([1.0, 0.5, -1.0], abs=0.5)


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("kind", ["two classes", "three classes"])
def test_tasks_with_one_row_or_one_class_are_ordinary(kind: str, search: bool) -> None:
    estimator, y = MTRLClassifierCV if search else MTRLClassifier, KINDS[kind][1]
    tasks = np.where(TASKS < 4, np.where(y == "a", 20, np.where(y == "yes", 21, TASKS)), TASKS)
    model = estimator(shared_model="linear").fit(X, y, tasks=tasks)
    assert len(model.tasks_) == len(np.unique(tasks))
    single = [task for task in model.tasks_ if len(np.unique(y[tasks == task])) == 1]
    assert single
    chance = model.predict_proba(np.repeat(X[:1], len(single), axis=0), tasks=single)
    assert (chance > 1e-3).all(), "no class is certain"


def test_four_rows_are_enough_for_five_folds_and_one_row_per_task_for_a_search() -> None:
    small = np.repeat(np.arange(10), 4)
    model = MTRLRegressorCV(shared_model="linear").fit(X[:40], AMOUNTS[:40], tasks=small)
    assert model.cv_results_.weight[0, 0].sum() == 40
    alone = MTRLRegressorCV(shared_model="linear").fit(X[:30], AMOUNTS[:30], tasks=np.arange(30))
    assert np.isfinite(alone.predict(X[:30], tasks=np.arange(30))).all()
    assert np.isfinite(alone.metrics_.overall["rmse"])
    with pytest.raises(ValueError, match="more folds than rows"):
        MTRLRegressorCV(shared_model="linear").fit(X[:4], AMOUNTS[:4], tasks=[0, 0, 1, 1])


def test_a_search_may_leave_whole_tasks_out() -> None:
    model = MTRLRegressorCV(shared_model="linear", cv=GroupKFold(3))
    model.fit(X, AMOUNTS, tasks=TASKS, groups=TASKS)
    assert model.level_ < np.inf
    with pytest.raises(ValueError, match="every split must train on every task"):
        MTRLRegressorCV(cv=GroupKFold(3)).fit(X, AMOUNTS, tasks=TASKS, groups=TASKS)


@pytest.mark.parametrize("loss", ["absolute", "quantile", "epsilon_insensitive"])
def test_losses_with_kinks_have_no_shared_part(loss: str) -> None:
    large = TASKS % 4 > 1  # with so few rows in a task, a free intercept makes any fit slow
    rows = X[large], AMOUNTS[large], TASKS[large]
    model, usual = MTRLRegressor(loss, shared_model="linear").fit(*rows), MTRLRegressor(loss).fit(*rows)
    assert model.shared_coef_ is None
    assert model.levels_ is None
    assert (model.coef_ == usual.coef_).all()


def test_without_shared_part_for_one_task_or_another_intercept() -> None:
    assert MTRLRegressor(shared_model="linear").fit(X, AMOUNTS).shared_coef_ is None
    model = MTRLRegressor(shared_model="linear", fit_intercept=False).fit(X, AMOUNTS, tasks=TASKS)
    assert model.shared_coef_ is None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"shared_model": "tree"}, "shared_model must be None or 'linear', got 'tree'"),
        ({"level": 0.0}, "level must be 'auto' or a positive number, got 0.0"),
        ({"level": 3.0}, "pass shared_model='linear' with it"),
        ({"level": "free"}, "level must be 'auto' or a positive number, got 'free'"),
        ({"reg_lambda": np.inf}, "reg_lambda must be positive and finite, got inf"),
    ],
)
def test_wrong_parameters(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MTRLRegressor(**how).fit(X, AMOUNTS, tasks=TASKS)


def test_sparse_rows_weights_wide_labels_and_warm_start() -> None:
    weight = 1.0 + np.arange(len(TASKS)) % 3
    dense = MTRLRegressor(shared_model="linear", tol=1e-6).fit(X, AMOUNTS, tasks=TASKS, sample_weight=weight)
    thin = MTRLRegressor(shared_model="linear", tol=1e-6, level=dense.level_)
    thin.fit(sparse.csr_matrix(X), AMOUNTS, tasks=TASKS, sample_weight=weight)
    assert thin.shared_coef_ == pytest.approx(dense.shared_coef_, rel=1e-4)
    again = MTRLRegressor(shared_model="linear", tol=1e-6, warm_start=True)
    again.fit(X, AMOUNTS, tasks=TASKS, sample_weight=weight)
    rounds = again.n_rounds_
    again.fit(X, AMOUNTS, tasks=TASKS, sample_weight=weight)
    assert again.n_rounds_ < rounds
    assert again.coef_ == pytest.approx(dense.coef_, abs=1e-2)
    wide = np.column_stack([AMOUNTS, -AMOUNTS, np.where(TASKS < 6, AMOUNTS, np.nan)])
    model = MTRLRegressor(shared_model="linear").fit(X, wide)
    assert model.predict(X).shape == wide.shape
    assert model.levels_ is not None


def test_levels_without_deviations_are_fitted_again_on_other_labels() -> None:
    model = MTRLRegressor(reg_lambda=np.inf, shared_model="linear", warm_start=True).fit(X, AMOUNTS, tasks=TASKS)
    again, fresh = model.fit(X, -3.0 * AMOUNTS, tasks=TASKS), MTRLRegressor(reg_lambda=np.inf, shared_model="linear")
    np.testing.assert_allclose(again.levels_, fresh.fit(X, -3.0 * AMOUNTS, tasks=TASKS).levels_)


def test_a_search_has_the_same_bits_with_threads_and_resumes(tmp_path: Path) -> None:
    how: dict[str, Any] = {"shared_model": "linear", "cv": 3}
    one = MTRLRegressorCV(**how).fit(X, AMOUNTS, tasks=TASKS)
    two = MTRLRegressorCV(**how, n_jobs=2, engine=LocalOptions(workers=3)).fit(X, AMOUNTS, tasks=TASKS)
    assert (one.coef_ == two.coef_).all()
    assert one.reg_lambda_ == two.reg_lambda_

    class Stop:
        def __call__(self, record: Any) -> None: ...

        def on_cv_fit(self, done: int, total: int) -> None:
            if done == 10:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MTRLRegressorCV(**how, callbacks=[Stop()]).fit(
            X, AMOUNTS, tasks=TASKS, checkpoint=Checkpoint(tmp_path, every_rounds=1)
        )
    resumed = MTRLRegressorCV(**how).fit(X, AMOUNTS, tasks=TASKS, resume=tmp_path)
    assert (resumed.coef_ == one.coef_).all()
    assert (resumed.metrics_.overall["rmse"], resumed.level_) == (one.metrics_.overall["rmse"], one.level_)


def test_compared_with_alone_and_pooled_and_intervals() -> None:
    model = MTRLRegressorCV(shared_model="linear", cv=3).fit(X, AMOUNTS, tasks=TASKS)
    found = model.compare(X, AMOUNTS, tasks=TASKS, cv=3)
    assert np.nanmean(found.together) < min(np.nanmean(found.alone), np.nanmean(found.pooled))
    ends = model.predict_interval(X, TASKS, coverage=0.8)
    assert np.mean((ends[:, 0] <= AMOUNTS) & (ends[:, 1] >= AMOUNTS)) > 0.7
    assert model.correlation_intervals(X, AMOUNTS, tasks=TASKS, n_groups=3).level == 0.9
    none = MTRLRegressor(reg_lambda=np.inf, shared_model="linear").fit(X, AMOUNTS, tasks=TASKS)
    with pytest.raises(ValueError, match="no deviations"):
        none.correlation_intervals(X, AMOUNTS, tasks=TASKS)


@pytest.mark.ray
def test_ray_has_the_same_bits() -> None:
    one = MTRLClassifierCV(shared_model="linear", cv=3).fit(X, TWO, tasks=TASKS)
    ray = MTRLClassifierCV(shared_model="linear", cv=3, engine=RayOptions(workers=2)).fit(X, TWO, tasks=TASKS)
    assert (one.coef_ == ray.coef_).all()
    assert one.certificate_ == ray.certificate_
