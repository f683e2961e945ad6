"""MTRLRegressor and what both estimators share: conformance, scikit-learn on one task, shapes, frames, routing."""

import doctest

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import PoissonRegressor, QuantileRegressor, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, cross_validate
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVR
from sklearn.utils.estimator_checks import parametrize_with_checks

import dmtrl.estimators.mtrl
from dmtrl import (
    RFF,
    Execution,
    MTRLClassifier,
    MTRLRegressor,
    NotConvergedWarning,
    Problem,
    Splines,
    per_task_scores,
    solve,
    task_scorer,
)
from dmtrl.data.task_data import TaskData
from dmtrl.losses import epsilon_insensitive, quantile
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.solver.settings import Settings

TIGHT = {"tol": 1e-10, "max_rounds": 5000}


def related_tasks(m=4, n=25, d=3, seed=0, spread=0.2):
    """A long table of m tasks around one truth, in mixed order, with an offset in X and in y."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=d) + spread * rng.normal(size=(m, d))
    tasks = rng.permutation(np.repeat([f"t{i}" for i in range(m)], n))
    X = rng.normal(size=(m * n, d)) + 2.0
    own = truth[[int(name[1:]) for name in tasks]]
    return X, (X * own).sum(axis=1) + 5.0 + 0.3 * rng.normal(size=m * n), tasks


X, Y, TASKS = related_tasks()
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
MODEL = MTRLRegressor(reg_lambda=0.01, tol=1e-8).fit(X, Y, tasks=TASKS)


@parametrize_with_checks([MTRLRegressor(), MTRLClassifier(), RFF(), Splines()])
def test_conformance(estimator, check):
    if isinstance(estimator, MTRLRegressor) and "sample_weight_equivalence" in check.func.__name__:
        estimator = clone(estimator).set_params(tol=1e-12)  # two ways to one optimum, compared to seven digits
    if isinstance(estimator, MTRLClassifier) and "sample_weight_equivalence" in check.func.__name__:
        # the units of one-vs-rest are solved exactly; test_softmax_weights_are_repetitions has the tolerance of softmax
        estimator = clone(estimator).set_params(multi_class="ovr")
    check(estimator)


@pytest.mark.parametrize("lam", [0.01, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_one_task_is_ridge(lam, weighted):
    """1/(2 sum s) sum s r^2 + lam/2 |w|^2 is Ridge's objective over 2 sum s at alpha = lam * sum s."""
    weight = np.random.default_rng(1).random(len(Y)) + 0.1 if weighted else None
    alpha = lam * (len(Y) if weight is None else weight.sum())
    for intercept in (True, False):
        ridge = Ridge(alpha=alpha, fit_intercept=intercept).fit(X, Y, sample_weight=weight)
        ours = MTRLRegressor(reg_lambda=lam, fit_intercept=intercept, **TIGHT).fit(X, Y, sample_weight=weight)
        np.testing.assert_allclose(ours.coef_[0], ridge.coef_, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(ours.intercept_[0], ridge.intercept_, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(ours.predict(X), ridge.predict(X), rtol=1e-4, atol=1e-4)


def test_one_task_with_other_losses_is_scikit_learn():
    lam, n = 0.02, len(Y)
    svr = LinearSVR(epsilon=0.2, C=1 / (lam * n), max_iter=200_000, tol=1e-8, random_state=0).fit(X, Y)
    ours = MTRLRegressor(epsilon_insensitive(0.2), lam, fit_intercept="penalised", **TIGHT).fit(X, Y)
    np.testing.assert_allclose(ours.predict(X), svr.predict(X), atol=2e-3)
    counts = np.random.default_rng(0).poisson(np.exp(0.3 * X[:, 0]))
    theirs = PoissonRegressor(alpha=lam, tol=1e-8, max_iter=1000).fit(X, counts)
    ours = MTRLRegressor("poisson", lam, **TIGHT).fit(X, counts)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=2e-3)


def test_quantile_loss_gives_the_quantile():
    """With next to no penalty it is quantile regression, and it cuts off the share it is asked for."""
    for level in (0.1, 0.9):
        ours = MTRLRegressor(quantile(level), 1e-5, tol=1e-6, max_rounds=5000).fit(X, Y)
        theirs = QuantileRegressor(quantile=level, alpha=0).fit(X, Y)
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=0.05)
        assert abs(np.mean(ours.predict(X) >= Y) - level) < 0.05


def test_robust_losses_withstand_outliers():
    rng = np.random.default_rng(0)
    spoilt = Y + 100 * (rng.random(len(Y)) < 0.1)
    errors = {
        loss: np.abs(MTRLRegressor(loss, 1e-3).fit(X, spoilt, tasks=TASKS).predict(X, tasks=TASKS) - Y).mean()
        for loss in ("squared", "absolute", "huber")
    }
    assert errors["absolute"] < 0.3 * errors["squared"]
    assert errors["huber"] < 0.3 * errors["squared"]


def test_estimator_and_functional_api_agree():
    data = TaskData.from_long(X, Y, TASKS)
    outcome = solve(Problem.of(data, loss="squared", reg_lambda=0.1), Execution(settings=Settings(tol=1e-9)))
    model = MTRLRegressor(reg_lambda=0.1, common=0, fit_intercept=False, tol=1e-9).fit(X, Y, tasks=TASKS)
    np.testing.assert_allclose(model.coef_, outcome.W, rtol=1e-6)
    np.testing.assert_allclose(model.task_covariance_, outcome.covariance.dense(), rtol=1e-6)
    assert model.certificate_ == outcome.certificate


def test_fitted_attributes():
    m, d = 4, 3
    assert MODEL.tasks_.tolist() == ["t0", "t1", "t2", "t3"]
    assert MODEL.coef_.shape == (m, d)
    assert MODEL.intercept_.shape == (m,)
    assert MODEL.common_coef_.shape == (d,)
    assert MODEL.n_features_in_ == d
    assert not hasattr(MODEL, "feature_names_in_")
    assert np.trace(MODEL.task_covariance_) == pytest.approx(1)
    assert MODEL.task_correlation_.index.tolist() == MODEL.task_correlation_.columns.tolist() == MODEL.tasks_.tolist()
    assert MODEL.n_rounds_ == len(MODEL.history_)
    assert {"round", "gap", "primal", "dual", "rho", "bytes_sent", "bytes_received", "seconds"} <= set(
        MODEL.history_[0]
    )
    certificate = MODEL.certificate_
    assert certificate.relative_gap <= 1e-8
    assert certificate.primal - certificate.dual == certificate.gap
    assert not hasattr(MTRLRegressor(), "task_covariance_")
    assert not hasattr(MTRLRegressor(), "task_correlation_")


def test_objective_is_the_certificates_primal():
    """The certificate speaks of the coefficients people see: recomputed here from them alone."""
    x, y = X.mean(axis=0), Y.mean()
    own = MODEL.coef_ - MODEL.common_coef_
    loss = sum(np.mean((Y - MODEL.predict(X, tasks=TASKS))[t == TASKS] ** 2) / 2 for t in MODEL.tasks_)
    nuclear = np.linalg.svd(own, compute_uv=False).sum() ** 2
    tau = MODEL.common_strength_ / len(MODEL.tasks_)
    penalty = 0.01 / 2 * (nuclear + MODEL.common_coef_ @ MODEL.common_coef_ / tau)
    ridge = 1e-6 / 2 * np.sum((MODEL.intercept_ - y + MODEL.coef_ @ x) ** 2)
    assert loss + penalty + ridge == pytest.approx(MODEL.certificate_.primal, rel=1e-9)


def test_a_single_task_ignores_common():
    a, b = (MTRLRegressor(common=common, **TIGHT).fit(X, Y, tasks=np.zeros(len(Y))) for common in (0, 5.0))
    np.testing.assert_array_equal(a.coef_, b.coef_)
    assert b.common_strength_ == 0


def test_common_auto_is_one_only_where_the_relationship_is_learned():
    strengths = [
        MTRLRegressor(relationship=given).fit(X, Y, tasks=TASKS).common_strength_
        for given in ("learned", "independent", "shared", np.eye(4), sparse.eye(4).tocsr())
    ]
    assert strengths == [1, 0, 0, 0, 0]


def test_independent_is_a_ridge_per_task():
    """Sigma = I/4: each task has the penalty 4 * lam / 2 |w|^2."""
    model = MTRLRegressor(reg_lambda=0.05, relationship="independent", **TIGHT).fit(X, Y, tasks=TASKS)
    for i, name in enumerate(model.tasks_):
        mine = name == TASKS
        ridge = Ridge(alpha=0.05 * 4 * mine.sum()).fit(X[mine], Y[mine])
        np.testing.assert_allclose(model.coef_[i], ridge.coef_, rtol=1e-3, atol=1e-4)


def test_free_intercept_does_not_depend_on_where_zero_is():
    moved = MTRLRegressor(reg_lambda=0.01, tol=1e-8).fit(X + 1000.0, Y - 5000.0, tasks=TASKS)
    np.testing.assert_allclose(
        moved.predict(X + 1000.0, tasks=TASKS), MODEL.predict(X, tasks=TASKS) - 5000.0, atol=1e-5
    )
    none = MTRLRegressor(reg_lambda=0.01, fit_intercept=False).fit(X, Y, tasks=TASKS)
    assert not none.intercept_.any()


def test_penalised_intercept_is_a_column_of_ones():
    with_ones = np.column_stack([X, np.ones(len(X))])
    column = MTRLRegressor(fit_intercept=False, **TIGHT).fit(with_ones, Y, tasks=TASKS)
    option = MTRLRegressor(fit_intercept="penalised", **TIGHT).fit(X, Y, tasks=TASKS)
    np.testing.assert_allclose(np.column_stack([option.coef_, option.intercept_]), column.coef_, atol=1e-6)


@pytest.mark.parametrize("intercept", [True, False, "penalised"])
def test_sparse_is_dense(intercept):
    rows = np.where(np.random.default_rng(0).random(X.shape) < 0.5, X, 0.0)
    dense, csr = (
        MTRLRegressor(fit_intercept=intercept, tol=1e-8).fit(form, Y, tasks=TASKS)
        for form in (rows, sparse.csr_array(rows))
    )
    np.testing.assert_allclose(
        csr.predict(sparse.csr_matrix(rows), tasks=TASKS), dense.predict(rows, tasks=TASKS), atol=2e-3
    )
    np.testing.assert_allclose(
        csr.score(sparse.csr_matrix(rows), Y, tasks=TASKS), dense.score(rows, Y, tasks=TASKS), atol=1e-5
    )


def test_float32_stays_float32():
    for form in (X.astype(np.float32), sparse.csr_matrix(X.astype(np.float32))):
        model = MTRLRegressor(reg_lambda=0.01).fit(form, Y, tasks=TASKS, sample_weight=np.ones(len(Y)))
        assert model.coef_.dtype == model.intercept_.dtype == model.predict(form, tasks=TASKS).dtype == np.float32
        np.testing.assert_allclose(model.predict(form, tasks=TASKS), MODEL.predict(X, tasks=TASKS), atol=0.05)


@pytest.mark.parametrize("kind", [list, pd.Series, pl.Series, pa.array, lambda t: pd.Series(t).astype("category")])
def test_tasks_may_be_any_series(kind):
    np.testing.assert_array_equal(clone(MODEL).fit(X, Y, tasks=kind(TASKS)).coef_, MODEL.coef_)
    np.testing.assert_array_equal(MODEL.predict(X, tasks=kind(TASKS)), MODEL.predict(X, tasks=TASKS))


def test_tasks_may_be_numbers():
    numbers = np.array([int(name[1:]) for name in TASKS])
    for labels in (numbers, numbers.astype(float), numbers.astype(object), numbers.astype(np.int8)):
        model = clone(MODEL).fit(X, Y, tasks=labels)
        assert model.tasks_.tolist() == [0, 1, 2, 3]
        np.testing.assert_array_equal(model.coef_, MODEL.coef_)


@pytest.mark.parametrize(
    "frame", [lambda f: f, pl.from_pandas, lambda f: pa.Table.from_pandas(f, preserve_index=False)]
)
def test_frames(frame):
    model = clone(MODEL).fit(frame(FRAME), Y, tasks=TASKS)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(model.coef_, MODEL.coef_)
    np.testing.assert_allclose(model.predict(frame(FRAME), tasks=TASKS), MODEL.predict(X, tasks=TASKS))
    named = frame(FRAME.assign(school=TASKS)[["a", "school", "b", "c"]])
    for column in ("school", 1, -3):
        model = clone(MODEL).set_params(task_column=column).fit(named, Y)
        assert model.feature_names_in_.tolist() == ["a", "b", "c"]
        np.testing.assert_allclose(model.predict(named), MODEL.predict(X, tasks=TASKS))
        assert model.score(named, Y) == pytest.approx(MODEL.score(X, Y, tasks=TASKS))
        assert per_task_scores(model, named, Y) == pytest.approx(per_task_scores(MODEL, X, Y, TASKS))


def test_task_column_of_arrays():
    numbers = np.array([int(name[1:]) for name in TASKS])
    with_text = np.column_stack([TASKS.astype(object), X])
    with_number = np.column_stack([X, numbers])
    for column, table in (
        (0, with_text),
        (-1, with_number),
        (3, sparse.csr_matrix(with_number)),
        (0, with_text.tolist()),
    ):
        model = clone(MODEL).set_params(task_column=column).fit(table, Y)
        assert model.n_features_in_ == 3
        np.testing.assert_allclose(model.predict(table), MODEL.predict(X, tasks=TASKS), atol=1e-2)


@pytest.mark.parametrize("frame", [np.asarray, pl.from_pandas, lambda f: f, sparse.csr_matrix])
def test_list_and_dict_of_tasks(frame):
    parts = {str(t): (frame(FRAME[t == TASKS]), Y[t == TASKS]) for t in MODEL.tasks_}
    by_name, in_order = (MTRLRegressor(reg_lambda=0.01).fit(given) for given in (parts, list(parts.values())))
    assert by_name.tasks_.tolist() == MODEL.tasks_.tolist()
    assert in_order.tasks_.tolist() == [0, 1, 2, 3]
    for model in (by_name, in_order):
        np.testing.assert_allclose(model.coef_, MODEL.coef_, atol=0.02)
    assert by_name.score(parts) == pytest.approx(MODEL.score(X, Y, tasks=TASKS), abs=1e-3)
    assert list(per_task_scores(by_name, parts, None)) == MODEL.tasks_.tolist()
    weighted = {name: (*part, np.full(len(part[1]), 2.0)) for name, part in parts.items()}
    np.testing.assert_array_equal(MTRLRegressor(reg_lambda=0.01).fit(weighted).coef_, by_name.coef_)
    backwards = MTRLRegressor(reg_lambda=0.01).fit(dict(reversed(parts.items())))
    assert backwards.tasks_.tolist() == MODEL.tasks_.tolist()[::-1]


def test_columns_of_y_are_tasks_and_nan_is_missing():
    rng = np.random.default_rng(0)
    wide = X @ rng.normal(size=(3, 4)) + rng.normal(size=4)
    wide[rng.random(wide.shape) < 0.3] = np.nan
    rows, columns = np.nonzero(~np.isnan(wide))
    long = MTRLRegressor(tol=1e-8).fit(X[rows], wide[rows, columns], tasks=columns)
    model = MTRLRegressor(tol=1e-8).fit(X, wide)
    np.testing.assert_allclose(model.coef_, long.coef_, atol=1e-4)
    assert model.predict(X).shape == wide.shape
    for j in range(4):
        np.testing.assert_allclose(model.predict(X)[:, j], model.predict(X, tasks=np.full(len(X), j)))
    named = MTRLRegressor(tol=1e-8).fit(X, pd.DataFrame(wide, columns=list("zyxw")))
    assert named.tasks_.tolist() == list("zyxw")
    np.testing.assert_array_equal(named.coef_, model.coef_)
    by_column = per_task_scores(named, X, pd.DataFrame(wide, columns=list("zyxw")))
    assert named.score(X, pd.DataFrame(wide, columns=list("zyxw"))) == pytest.approx(np.mean(list(by_column.values())))
    one = MTRLRegressor(tol=1e-8).fit(X, Y[:, None])
    np.testing.assert_array_equal(one.predict(X)[:, 0], MTRLRegressor(tol=1e-8).fit(X, Y).predict(X))


def test_weights_are_proportions_within_a_task():
    """Rows of weight zero are not there, and with equal task weights the total of a task's weights does not matter."""
    rng = np.random.default_rng(0)
    weight = rng.integers(0, 3, len(Y)).astype(float)
    times = np.repeat(np.arange(len(Y)), weight.astype(int))
    scale = np.where(TASKS == "t1", 7.0, 1.0)
    repeated = MTRLRegressor(**TIGHT).fit(X[times], Y[times], tasks=TASKS[times])
    weighted = MTRLRegressor(**TIGHT).fit(X, Y, tasks=TASKS, sample_weight=weight)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-5)
    equal = MTRLRegressor(**TIGHT, task_weight="equal")
    before = equal.fit(X, Y, tasks=TASKS, sample_weight=weight).coef_
    np.testing.assert_allclose(equal.fit(X, Y, tasks=TASKS, sample_weight=weight * scale).coef_, before, atol=1e-3)


def test_order_of_rows_and_names_of_tasks_do_not_matter():
    order = np.random.default_rng(0).permutation(len(Y))
    shuffled = MTRLRegressor(reg_lambda=0.01, **TIGHT).fit(X[order], Y[order], tasks=TASKS[order])
    renamed = MTRLRegressor(reg_lambda=0.01, **TIGHT).fit(X, Y, tasks=np.char.replace(TASKS, "t0", "z"))
    plain = MTRLRegressor(reg_lambda=0.01, **TIGHT).fit(X, Y, tasks=TASKS)
    np.testing.assert_allclose(shuffled.coef_, plain.coef_, atol=1e-6)
    np.testing.assert_allclose(np.roll(renamed.coef_, 1, axis=0), plain.coef_, atol=1e-6)


def test_unknown_task_from_the_common_component():
    rows, y, tasks = related_tasks(spread=0.05)
    held_out = tasks == "t3"
    rest = ~held_out
    for given in ("learned", "independent"):
        model = MTRLRegressor(reg_lambda=0.01, relationship=given, common=1.0, unknown_tasks="shared")
        model.fit(rows[rest], y[rest], tasks=tasks[rest])
        known, new = model.predict(rows, tasks=np.where(held_out, "t0", tasks)), model.predict(rows, tasks=tasks)
        np.testing.assert_allclose(new[rest], known[rest])
        np.testing.assert_allclose(new[held_out], rows[held_out] @ model.common_coef_ + model.common_intercept_)
        assert np.sqrt(np.mean((new - y)[held_out] ** 2)) < 0.6  # the noise alone is 0.3


def test_warm_start_goes_on_from_the_last_fit():
    model = MTRLRegressor(reg_lambda=0.01, warm_start=True, tol=1e-6).fit(X, Y, tasks=TASKS)
    cold = model.n_rounds_
    assert model.fit(X, Y, tasks=TASKS).n_rounds_ < cold
    near = model.set_params(reg_lambda=0.012).fit(X + 3.0, Y, tasks=TASKS)
    fresh = clone(model).fit(X + 3.0, Y, tasks=TASKS)
    np.testing.assert_allclose(near.coef_, fresh.coef_, atol=1e-2)
    assert model.fit(X[:, :2], Y, tasks=TASKS).coef_.shape == (4, 2)  # what does not fit is not used
    assert model.fit(X, Y).coef_.shape == (1, 3)


def test_repeatable_and_callbacks():
    seen = []
    models = [
        MTRLRegressor("absolute", random_state=seed, callbacks=[seen.append], n_jobs=jobs).fit(X, Y, tasks=TASKS)
        for seed, jobs in ((None, None), (0, 2), (np.random.RandomState(3), 1), (np.random.RandomState(3), 2))
    ]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    np.testing.assert_array_equal(models[2].coef_, models[3].coef_)
    assert len(seen) == sum(model.n_rounds_ for model in models)


def test_stopping_on_max_rounds_warns_and_says_the_gap():
    with pytest.warns(NotConvergedWarning, match=r"max_rounds=2 .* relative gap of"):
        MTRLRegressor(max_rounds=2, tol=1e-9).fit(X, Y, tasks=TASKS)


def test_given_covariance_and_graph():
    graph = sparse.csr_matrix(np.diag([1.0, 0, 0], 1) + np.diag([1.0, 0, 0], -1))
    model = MTRLRegressor(relationship=graph).fit(X, Y, tasks=TASKS)
    assert model.task_correlation_.loc["t0", "t1"] > 0.1
    assert model.task_correlation_.loc["t0", "t2"] == pytest.approx(0, abs=1e-12)
    sigma = np.diag([4.0, 3, 2, 1])
    model = MTRLRegressor(relationship=sigma).fit(X, Y, tasks=TASKS)
    np.testing.assert_allclose(model.task_covariance_, sigma / 10)
    with pytest.raises(ValueError, match="has 4 tasks, the data has 1"):
        MTRLRegressor(relationship=sigma).fit(X, Y)


def test_many_tasks_keep_the_covariance_an_operator():
    rng = np.random.default_rng(0)
    many = np.repeat(np.arange(6000), 2)
    rows = rng.normal(size=(len(many), 2))
    model = MTRLRegressor(fit_intercept=False, tol=0.1).fit(rows, rows[:, 0], tasks=many)
    assert isinstance(model.task_covariance_, TaskCovariance)
    assert model.predict(rows, tasks=many).shape == (len(many),)
    with pytest.raises(ValueError, match="6000 tasks"):
        _ = model.task_correlation_


def test_clone_and_set_params_keep_nested_parameters():
    model = clone(MTRLRegressor(feature_map=RFF(n_components=20)).set_params(reg_lambda=0.5, feature_map__gamma=0.1))
    assert model.get_params()["feature_map__gamma"] == 0.1
    assert model.fit(X, Y, tasks=TASKS).coef_.shape == (4, 20)
    assert not hasattr(model.feature_map, "gamma_")  # the parameter is not fitted, its copy is
    assert "MTRLRegressor" in model._repr_html_()


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("routing")
def test_tasks_pass_through_pipeline_and_grid_search():
    pipeline = Pipeline([("scale", StandardScaler()), ("model", MTRLRegressor())])
    search = GridSearchCV(pipeline, {"model__reg_lambda": [1e-3, 10.0]}, cv=3).fit(X, Y, tasks=TASKS)
    assert search.best_params_ == {"model__reg_lambda": 1e-3}
    predicted = search.best_estimator_.predict(X, tasks=TASKS)
    assert search.score(X, Y, tasks=TASKS) > 0.9
    scored = GridSearchCV(
        pipeline, {"model__reg_lambda": [1e-3, 10.0]}, cv=3, scoring=task_scorer("neg_root_mean_squared_error")
    ).fit(X, Y, tasks=TASKS)
    assert scored.best_params_ == search.best_params_
    assert -scored.score(X, Y, tasks=TASKS) == pytest.approx(np.sqrt(np.mean((Y - predicted) ** 2)))


@pytest.mark.usefixtures("routing")
def test_tasks_pass_through_cross_validation():
    plain = cross_val_score(MTRLRegressor(), X, Y, cv=3, params={"tasks": TASKS})
    named = cross_val_score(MTRLRegressor(), X, Y, cv=3, scoring=task_scorer("r2"), params={"tasks": TASKS})
    np.testing.assert_allclose(named, plain)
    scoring = {"rows": task_scorer("r2"), "tasks": task_scorer("r2", average="tasks")}
    params = {"tasks": TASKS, "sample_weight": np.ones(len(Y))}
    weighted = cross_validate(MTRLRegressor(), X, Y, cv=3, scoring=scoring, params=params)
    np.testing.assert_allclose(weighted["test_rows"], plain)
    assert (weighted["test_tasks"] != plain).all()
    unseen, (rows, y, tasks) = MTRLRegressor(unknown_tasks="shared"), related_tasks(spread=0.05)
    new_tasks = cross_val_score(unseen, rows, y, cv=GroupKFold(4), params={"tasks": tasks, "groups": tasks})
    assert (new_tasks > 0.35).all()


def test_task_column_needs_no_routing():
    table = FRAME.assign(school=TASKS)
    model = MTRLRegressor(task_column="school")
    search = GridSearchCV(model, {"reg_lambda": [1e-3, 10.0]}, cv=3, scoring="neg_mean_absolute_error").fit(table, Y)
    assert search.best_params_ == {"reg_lambda": 1e-3}
    assert search.best_estimator_.tasks_.tolist() == MODEL.tasks_.tolist()


def test_documentation_holds():
    assert doctest.testmod(dmtrl.estimators.mtrl).failed == 0
    for word in (*MTRLRegressor().get_params(), *(name for name in vars(MODEL) if name.endswith("_"))):
        assert word in MTRLRegressor.__doc__
        assert word in MTRLClassifier.__doc__
    assert "<" not in MTRLRegressor.__doc__.replace(">>>", "")


def test_per_task_scores():
    scores = per_task_scores(MODEL, X, Y, TASKS, "neg_mean_squared_error")
    residual = Y - MODEL.predict(X, tasks=TASKS)
    assert scores == pytest.approx({t: -np.mean(residual[t == TASKS] ** 2) for t in MODEL.tasks_.tolist()})
    frame = per_task_scores(MODEL, X.tolist(), Y, TASKS, "neg_mean_squared_error", sample_weight=np.ones(len(Y)))
    assert frame == pytest.approx(scores)
    with pytest.raises(ValueError, match="average must be 'rows' or 'tasks'"):
        task_scorer("r2", average="median")
