"""What a model says of its tasks: relations, comparison, intervals, newcomers."""

import numpy as np
import pytest

from dmtrl import MTRLClassifier, MTRLRegressor, verify


def _families(seed: int = 0, n: int = 40, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """a1, a2, a3 alike; b1, b2 their opposites; c1 on its own."""
    rng = np.random.default_rng(seed)
    parent, other = rng.normal(size=(2, 6))
    truth = {"a1": parent, "a2": parent, "a3": parent, "b1": -parent, "b2": -parent, "c1": other}
    tasks = np.repeat(list(truth), n)
    X = rng.normal(size=(len(tasks), 6))
    W = np.array([truth[t] + 0.05 * rng.normal(size=6) for t in truth])
    codes = np.repeat(np.arange(6), n)
    return X, (X * W[codes]).sum(axis=1) + noise * rng.normal(size=len(tasks)), tasks, W


def test_related_and_opposed() -> None:
    X, y, tasks, _ = _families()
    model = MTRLRegressor(reg_lambda=0.1, common=0.0).fit(X, y, tasks=tasks)
    related, opposed = model.related("a1", k=2)
    assert {name for name, _ in related} == {"a2", "a3"}
    assert {name for name, _ in opposed} == {"b1", "b2"}
    correlation = model.task_correlation_
    assert related[0][1] == pytest.approx(correlation.loc["a1", related[0][0]])
    assert opposed[0][1] == pytest.approx(correlation.loc["a1"].min())
    with pytest.raises(ValueError, match="unknown task 'z9'; tasks_ lists"):
        model.related("z9")


def test_tasks_that_are_all_alike_look_alike_also_beside_a_common_component() -> None:
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(200, 5)), np.repeat(np.arange(5), 40)
    y = X @ np.array([1.0, -2.0, 0.5, 0.0, 1.0]) + 0.3 * rng.normal(size=200)
    for common in (0.0, 1.0):
        model = MTRLRegressor(reg_lambda=0.1, common=common).fit(X, y, tasks=tasks)
        assert model.task_correlation_.to_numpy().min() > 0.9


def test_compare_shows_what_sharing_brings_and_where_it_hurts() -> None:
    X, y, tasks, _ = _families(n=12, noise=1.5)
    model = MTRLRegressor(reg_lambda=0.3, common=0.0).fit(X, y, tasks=tasks)
    before = model.coef_.copy()
    comparison = model.compare(X, y, tasks)
    assert (model.coef_ == before).all()
    assert comparison.together.mean() < comparison.alone.mean() < comparison.pooled.mean()
    assert list(comparison.table().index) == ["a1", "a2", "a3", "b1", "b2", "c1"]
    assert "mean held-out squared error over tasks" in str(comparison)


def test_data_of_other_tasks_is_refused() -> None:
    X, y, tasks, _ = _families()
    model = MTRLRegressor().fit(X, y, tasks=tasks)
    with pytest.raises(ValueError, match="the data must have the 6 tasks of the model"):
        model.compare(X, y)
    with pytest.raises(ValueError, match="task 'c1' is only in the data or only in the model"):
        model.correlation_intervals(X[tasks != "c1"], y[tasks != "c1"], tasks[tasks != "c1"])


def test_negative_transfer_is_flagged() -> None:
    """Tasks with ample data of their own, forced to be alike although they are opposites: sharing must be seen to
    hurt.
    """
    X, y, tasks, _ = _families(n=150, noise=0.1)
    forced = np.ones((6, 6)) + 1e-6 * np.eye(6)
    model = MTRLRegressor(reg_lambda=0.1, common=0.0, relationship=forced).fit(X, y, tasks=tasks)
    comparison = model.compare(X, y, tasks)
    assert comparison.hurts.all()
    fine = MTRLRegressor(reg_lambda=1e-4, common=0.0).fit(X, y, tasks=tasks).compare(X, y, tasks)
    assert fine.hurts.sum() <= 1


def test_one_task_shares_with_nobody_and_is_not_harmed() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    comparison = MTRLRegressor().fit(X, X[:, 0]).compare(X, X[:, 0])
    assert not comparison.hurts.any()


def test_many_unrelated_tasks_gain_nothing_and_lose_little() -> None:
    rng = np.random.default_rng(1)
    tasks = np.repeat(np.arange(300), 15)
    X = rng.normal(size=(4500, 5))
    y = (X * rng.normal(size=(300, 5))[tasks]).sum(axis=1) + 0.3 * rng.normal(size=4500)
    comparison = MTRLRegressor(common=0.0).fit(X, y, tasks=tasks).compare(X, y, tasks, cv=3)
    assert comparison.alone.mean() == pytest.approx(comparison.together.mean(), rel=0.04)


def test_intervals_hold_the_estimate_and_narrow_with_data() -> None:
    widths = []
    for n in (10, 80):
        X, y, tasks, _ = _families(n=n, noise=1.0)
        model = MTRLRegressor(reg_lambda=0.1, common=0.0, n_jobs=2, random_state=3).fit(X, y, tasks=tasks)
        intervals = model.correlation_intervals(X, y, tasks, n_groups=20)
        again = model.correlation_intervals(X, y, tasks, n_groups=20)
        assert (intervals.lower.values == again.lower.values).all()
        assert (intervals.lower.values <= intervals.upper.values).all()
        estimate = model.task_correlation_.loc["a1", "b1"]
        assert intervals.lower.loc["a1", "b1"] <= estimate <= intervals.upper.loc["a1", "b1"]
        widths.append(float((intervals.upper - intervals.lower).values.mean()))
    assert intervals.p_value.loc["a1", "a2"] < 0.01
    assert widths[1] < widths[0]
    with pytest.raises(ValueError, match="level must be a number between 0 and 1"):
        model.correlation_intervals(X, y, tasks, level=2)


def test_a_task_that_joins_later() -> None:
    X, y, tasks, W = _families(n=60)
    model = MTRLRegressor(reg_lambda=0.05, common=0.0).fit(X, y, tasks=tasks)
    kept = model.coef_.copy()
    rng = np.random.default_rng(9)
    few = rng.normal(size=(8, 6))
    y_few = few @ W[0] + 0.5 * rng.normal(size=8)
    added = model.add_task(few, y_few, "a4")
    assert (model.coef_[:6] == kept).all()
    assert model.tasks_[-1] == "a4"
    assert added.certificate.primal >= added.certificate.dual
    many = rng.normal(size=(500, 6))
    joined = np.mean((model.predict(many, tasks=np.full(500, "a4")) - many @ W[0]) ** 2)
    alone = MTRLRegressor(reg_lambda=0.05).fit(few, y_few)
    assert joined < np.mean((alone.predict(many) - many @ W[0]) ** 2)
    assert {name for name, _ in model.related("a4", k=3).related} >= {"a1", "a2"}
    with pytest.raises(ValueError, match="already has a task 'a4'"):
        model.add_task(few, few @ W[0], "a4")
    with pytest.raises(ValueError, match="must have the type of the other task names"):
        MTRLRegressor().fit(X, y, tasks=np.repeat(np.arange(6), 60)).add_task(few, few @ W[0], "x")
    with pytest.raises(ValueError, match=r"row 0, column 0: X contains .* too large to compute with; scale the column"):
        model.add_task(1e120 * few, y_few, "a5")
    with pytest.raises(ValueError, match="row 0: y contains 'good', which is not a number"):
        model.add_task(few, ["good"] * 8, "a5")
    with pytest.raises(ValueError, match="all rows of task 'a5' have sample weight zero"):
        model.add_task(few, y_few, "a5", sample_weight=np.zeros(8))
    with pytest.raises(ValueError, match="add_task adds one task; pass a 1-D y"):
        model.add_task(few, np.column_stack([y_few, y_few]), "a5")


@pytest.mark.parametrize("common", [0.0, 1.0])
def test_the_certificate_after_joining_can_be_verified(common: float) -> None:
    X, y, tasks, _ = _families(n=40)
    late = tasks == "b2"
    model = MTRLRegressor(reg_lambda=0.05, common=common).fit(X[~late], y[~late], tasks=tasks[~late])
    added = model.add_task(X[late], y[late], "b2")
    again = verify(model, X, y, tasks)
    assert again.primal == pytest.approx(added.certificate.primal, rel=1e-6)
    assert again.dual >= added.certificate.dual  # with everybody's data the bound can only be better


def test_a_class_task_joins_later_and_strangers_are_refused() -> None:
    X, y, tasks, W = _families(n=60)
    labels = np.where(y > 0, "yes", "no")
    model = MTRLClassifier(common=0.0).fit(X, labels, tasks=tasks)
    rng = np.random.default_rng(1)
    few = rng.normal(size=(20, 6))
    model.add_task(few, np.where(few @ W[3] > 0, "yes", "no"), "b3")
    assert "b1" in {name for name, _ in model.related("b3", k=3).related}
    with pytest.raises(ValueError, match="labels of the new task must be among the classes"):
        model.add_task(few, np.full(20, "maybe"), "b4")
    given = MTRLRegressor(relationship="independent").fit(X, y, tasks=tasks)
    with pytest.raises(ValueError, match="add_task requires relationship='learned'"):
        given.add_task(few, few @ W[0], "n")
