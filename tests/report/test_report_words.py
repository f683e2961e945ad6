"""What the page about a model says: its sentences and tables agree with each other and with oracles."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from dmtrl import Certificate, MTRLClassifierCV, MTRLRegressorCV, TaskCovariance
from dmtrl.losses import BUILTIN
from dmtrl.report.content import KeyFigures, Page, Table
from dmtrl.report.model_page import ModelFacts, model_page, page_from_facts
from dmtrl.report.model_page.held_out import ERROR_RATE, SQUARED_ERROR, baseline_error, baseline_loss, held_out_error
from support.model_pages import families, items, made_up_comparison, table, words


def test_held_out_error_matches_the_metrics() -> None:
    X, y, tasks, _ = families(4)
    model = MTRLRegressorCV(lambdas=[1.0, 0.1, 0.01], commons=[0.0], cv=4).fit(X, y, tasks=tasks)
    error, guess = (found["rmse"] ** 2 for found in (model.metrics_.overall, model.metrics_.baseline))
    path = model.cv_results_
    j = int(np.flatnonzero(path.lambdas == model.reg_lambda_)[0])
    assert error == pytest.approx(path.squared_error[0, j].sum() / len(y), rel=0.01), "the search was less accurate"
    alone = model_page(model)
    figures = dict(items(alone, KeyFigures)[0].entries)
    assert float(figures["held-out squared error, mean over rows"]) == pytest.approx(error, rel=1e-3)
    assert "Held-out squared error" in alone.lead
    assert "where sharing helps](" not in words(alone), "no way to a section that cannot say it"
    assert float(figures["baseline: each task's mean"]) == pytest.approx(guess, rel=1e-3)
    assert f"{1 - error / guess:.0%}".replace("%", " % lower") in words(alone)
    classes = MTRLClassifierCV(lambdas=[0.1, 0.01], commons=[0.0], cv=4).fit(X, y > 0, tasks=tasks)
    figures = dict(items(model_page(classes, X, y > 0, tasks, comparison=False), KeyFigures)[0].entries)
    metrics = classes.metrics_
    assert figures["baseline: each task's most frequent class"] == f"{metrics.baseline['error_rate']:.2%}"[:-1] + " %"
    assert figures["held-out error rate, mean over rows"] == f"{metrics.overall['error_rate']:.2%}"[:-1] + " %"
    noise = np.random.default_rng(1).normal(size=len(y))
    useless = MTRLRegressorCV(lambdas=[1e-6], commons=[0.0], cv=4).fit(X, noise, tasks=tasks)
    assert "no better than the baseline" in words(model_page(useless, X, noise, tasks, comparison=False))


@pytest.mark.parametrize("name", BUILTIN)
def test_every_loss_has_a_baseline(name: str) -> None:
    """The best constant of each task, found one by one; a task with a single row has none."""
    rng, loss = np.random.default_rng(0), BUILTIN[name]()
    tasks, weight = np.repeat(np.array(["p", "q", "r", "s"]), [30, 20, 25, 1]), rng.random(76) + 0.5
    y = rng.choice([-1.0, 1.0], 76) if loss.kind == "classification" else rng.poisson(3.0, 76).astype(float)
    best = []
    for task in "pqr":
        mine = tasks == task
        found = minimize_scalar(
            lambda z, m=mine: np.sum(weight[m] * loss.value(z, y[m])),
            bounds=(-15, 15),
            method="bounded",
            options={"xatol": 1e-9},
        )
        best.append((found.fun, weight[mine].sum()))
    errors, totals = np.array(best).T
    assert baseline_loss(loss, y, tasks, weight) == pytest.approx(errors.sum() / totals.sum(), rel=1e-6)
    assert baseline_loss(loss, y, tasks, weight, "tasks") == pytest.approx(np.mean(errors / totals), rel=1e-6)
    assert baseline_loss(loss, y[-1:], tasks[-1:], None) is None


def test_the_baseline_of_counts_is_that_of_a_model_without_features() -> None:
    """Features of zeros leave the model its intercepts: its held-out loss is a little above the best constants."""
    rng = np.random.default_rng(0)
    tasks, X = np.repeat(np.arange(4), 100), np.zeros((400, 1))
    y = rng.poisson(np.array([1.0, 3.0, 6.0, 10.0])[tasks])
    model = MTRLRegressorCV(loss="poisson", lambdas=[0.1], commons=[0.0], cv=5).fit(X, y, tasks=tasks)
    found = held_out_error(model, None, X, y, tasks)
    assert found is not None
    assert found.baseline_name == "each task's best constant"
    assert found.baseline is not None
    assert found.baseline < found.error < found.baseline + 0.03


def test_the_baseline_leaves_out_the_only_row_of_a_task() -> None:
    tasks = np.array(["p", "p", "q", "r", "r", "r"])
    y = [1.0, 3.0, 50.0, 1.0, 2.0, 6.0]
    by_row = [4.0, 4.0, 9.0, 2.25, 20.25]  # against the mean of the other rows of the task
    assert baseline_error(y, tasks, None, SQUARED_ERROR) == pytest.approx(np.mean(by_row))
    by_task = [np.mean(by_row[:2]), np.mean(by_row[2:])]
    assert baseline_error(y, tasks, None, SQUARED_ERROR, "tasks") == pytest.approx(np.mean(by_task))
    assert baseline_error([1.0, 2.0], np.array([0, 1]), None, SQUARED_ERROR) is None
    weight = np.array([1, 2, 1, 1, 3, 1])
    expected = [(4.0, 1), (4.0, 2), ((1 - 12 / 4) ** 2, 1), ((2 - 7 / 2) ** 2, 3), ((6 - 7 / 4) ** 2, 1)]
    assert baseline_error(y, tasks, weight, SQUARED_ERROR) == pytest.approx(
        np.average([error for error, _ in expected], weights=[w for _, w in expected])
    )


def test_the_baseline_of_classes_is_the_most_frequent_class_of_the_task() -> None:
    labels, tasks = ["a", "b", "b", "c"], np.array([0, 0, 0, 1])
    assert baseline_error(labels, tasks, None, ERROR_RATE) == pytest.approx(1 / 4)
    assert baseline_error(labels, tasks, None, ERROR_RATE, "tasks") == pytest.approx((1 / 3 + 0) / 2)
    assert baseline_error(labels, tasks, np.array([3, 1, 1, 1]), ERROR_RATE) == pytest.approx(2 / 6)


def made_of(correlation: np.ndarray, **more: Any) -> Page:
    """The page about tasks with these correlations."""
    m = len(correlation)
    values, vectors = np.linalg.eigh(correlation / m)
    covariance = TaskCovariance(vectors, np.clip(values, 0, None), 0.0)
    names = [f"task {i}" for i in range(m)]
    facts = ModelFacts(
        names,
        covariance,
        True,
        Certificate(2.0, 1.999),
        1e-3,
        "squared",
        0.1,
        0.0,
        1,
        ["a"],
        np.ones((m, 1)),
        **more,
    )
    return page_from_facts(facts, "Made up")


def test_lead_and_table_agree_on_opposed_tasks() -> None:
    weak = np.array([[1.0, 0.6, -0.05], [0.6, 1.0, -0.09], [-0.05, -0.09, 1.0]])
    page = made_of(weak)
    assert "No two tasks are opposed" in page.lead
    assert not any(item.title == "Most opposed" for item in items(page, Table))
    assert "no two have a correlation of −0.1 or less" in words(page)
    assert len(table(page, "Most alike").rows) == 1
    assert [row[2:] for row in table(page, "Closest tasks").rows][2] == [None] * 4
    strong = np.where(np.isclose(weak, -0.09), -0.11, weak)
    assert "Most opposed: task 1 and task 2 (−0.11)" in made_of(strong).lead
    assert [row[:2] for row in table(made_of(strong), "Most opposed").rows] == [["task 1", "task 2"]]


def test_text_mentions_only_listed_groups() -> None:
    correlation = np.array([[1.0, 0.9, -0.9], [0.9, 1.0, -0.9], [-0.9, -0.9, 1.0]])
    page = made_of(correlation)
    groups = table(page, "Groups")
    assert [row[0] for row in groups.rows] == [1]
    assert groups.rows[0][4] == "task 2", "a task in no group is called by its name"
    assert "In no group: task 2" in groups.caption
    assert [row[1] for row in table(page, "Closest tasks").rows] == [1, 1, None]


def test_number_of_marked_tasks_is_compared_with_chance() -> None:
    for m, chance in ((14, "fewer than one"), (300, "about 3")):
        comparison = made_up_comparison([f"task {i}" for i in range(m)])
        page = made_of(np.eye(m), comparison=comparison)
        sentence = f"{comparison.hurts.sum()} of {m} are marked as hurt ({chance} expected by chance)"
        assert sentence in page.lead
        assert words(page).count(sentence) == 2, "in the lead and in the section"
        assert "sum over tasks of each task's mean loss" in words(page)


def test_metrics_are_shown_with_their_baselines() -> None:
    X, y, tasks, _ = families(4)
    model = MTRLRegressorCV(lambdas=[0.1], commons=[0.0], owns=[0.0], cv=4).fit(X, y, tasks=tasks)
    page = model_page(model, X, y, tasks)
    overall = {row[0]: row[1:] for row in table(page, "Metrics on held-out rows").rows}
    found = model.metrics_
    assert overall["R²"][:2] == [
        pytest.approx(found.overall["r2"], rel=1e-3),
        pytest.approx(found.baseline["r2"], rel=1e-3),
    ]
    assert overall["R²"][-1] == "higher"
    assert overall["mean absolute error"][-1] == "lower"
    assert list(table(page, "Metrics on held-out rows").columns)[3:5] == ["each task alone", "one model for all"]
    lines = table(page, "Metrics of each task").rows
    assert [row[0] for row in lines] == model.tasks_.tolist()
    assert [row[1] for row in lines] == [int((tasks == task).sum()) for task in model.tasks_]
