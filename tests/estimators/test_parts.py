"""Task weights, own parts and tasks with very few rows in the estimators, the report and the shell."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dmtrl
from dmtrl import MTRLClassifier, MTRLClassifierCV, MTRLRegressor, MTRLRegressorCV, Strengths, verify
from dmtrl.relationship import Learned
from dmtrl.report.model_page import model_page
from support.model_pages import table, words
from support.shell_data import run, write

SIZES = {"a": 60, "b": 50, "c": 40, "d": 30, "tiny": 2}
TASKS = np.repeat(list(SIZES), list(SIZES.values()))


def rows(seed: int = 0, classes: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """a to c are alike; d and the task of two rows are their opposites."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(len(TASKS), 4))
    sign = np.where(np.isin(TASKS, ["d", "tiny"]), -1.0, 1.0)
    y = sign * (X @ [1.0, -1.0, 0.5, 0.0]) + 0.2 * rng.normal(size=len(TASKS))
    return X, y > 0 if classes else y


X, Y = rows()


def test_attributes() -> None:
    model = MTRLRegressor(task_weight="rows", own=1.0).fit(X, Y, tasks=TASKS)
    assert model.tasks_.tolist() == list(SIZES)
    assert model.task_rows_ is not None
    assert model.task_rows_.tolist() == list(SIZES.values())
    np.testing.assert_allclose(model.task_weights_, np.array(list(SIZES.values())) * 5 / len(TASKS))
    assert model.own_strength_ == 1.0
    assert model.weight_shares_.shape == (5, 3)
    np.testing.assert_allclose(model.weight_shares_.sum(axis=1), 1.0)
    assert (model.weight_shares_[:, 2] > 0).all()
    plain = MTRLRegressor(common=0.0).fit(X, Y, tasks=TASKS)
    np.testing.assert_array_equal(plain.weight_shares_, np.tile([0.0, 1.0, 0.0], (5, 1)))


def test_shares_follow_the_data() -> None:
    """Equal tasks are common, tasks that differ by a random direction each are their own."""
    rng = np.random.default_rng(1)
    tasks, Z = np.repeat(np.arange(8), 50), rng.normal(size=(400, 8))
    one, each = rng.normal(size=8), np.linalg.qr(rng.normal(size=(8, 8)))[0]
    how: dict[str, Any] = {"reg_lambda": 1e-3, "own": 1.0, "common": 1.0}
    equal = MTRLRegressor(**how).fit(Z, Z @ one, tasks=tasks).weight_shares_.mean(axis=0)
    apart = MTRLRegressor(**how).fit(Z, (Z * each[tasks]).sum(axis=1), tasks=tasks).weight_shares_.mean(axis=0)
    assert equal[0] > apart[0]
    assert equal[2] < 0.2 < apart[2]


def test_a_given_relationship_has_parts_too() -> None:
    model = MTRLRegressor(relationship="shared", common=1.0, own=1.0, fit_intercept=False).fit(X, Y, tasks=TASKS)
    assert (model.weight_shares_ > 0).all()
    verify(model, X, Y, tasks=TASKS)
    carried = MTRLRegressor(relationship=Learned(0.2, 0.1)).fit(X, Y, tasks=TASKS)
    assert carried.own_strength_ == pytest.approx(0.5)
    assert carried.common_strength_ == pytest.approx(1.0)


@pytest.mark.parametrize("task_weight", ["equal", 0.5, "rows"])
@pytest.mark.parametrize("classes", [False, True])
def test_saved_verified_and_extended(tmp_path: Path, task_weight: Any, classes: bool) -> None:
    Z, y = rows(1, classes)
    how: dict[str, Any] = {"task_weight": task_weight, "own": 1.0, "reg_lambda": 0.01}
    made = MTRLClassifier(**how, on_single_class="constant") if classes else MTRLRegressor(**how)
    first = ~np.isin(TASKS, ["d", "tiny"])
    model = made.fit(Z[first], y[first], tasks=TASKS[first])
    model.save(tmp_path / "model")
    loaded = dmtrl.load(tmp_path / "model")
    for name in ("coef_", "task_weights_", "task_rows_", "weight_shares_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    assert (loaded.own_strength_, loaded.task_weight) == (1.0, task_weight)
    verify(loaded, Z[first], y[first], tasks=TASKS[first])
    late = TASKS == "d"
    added = loaded.add_task(Z[late], y[late], "d")
    both = first | late
    again = verify(loaded, Z[both], y[both], tasks=TASKS[both])
    assert again.primal == pytest.approx(added.certificate.primal, rel=1e-6)
    assert loaded.task_rows_.tolist() == [60, 50, 40, 30]
    gamma = {"equal": 0.0, "rows": 1.0}.get(task_weight, task_weight)
    np.testing.assert_allclose(loaded.task_weights_ / loaded.task_weights_[0], (loaded.task_rows_ / 60) ** gamma)
    assert loaded.own_strength_ / 4 == pytest.approx(model.own_strength_ / 3), "the same kappa"
    assert loaded.weight_shares_.shape == (4, 3)


def test_cross_validation_over_owns() -> None:
    Z, y = rows(2)
    owns, lambdas = (0.0, 1.0, 5.0), (1.0, 0.1, 0.01)
    search = MTRLRegressorCV(lambdas=lambdas, commons=(0.0, 1.0), owns=owns, cv=3, exhaustive=True)
    model = search.fit(Z, y, tasks=TASKS)
    path = model.cv_results_
    assert path.loss.shape == (6, 3, 3, 5)
    pairs = set(zip(path.commons.tolist(), path.owns.tolist(), strict=True))
    assert pairs == {(common, own) for common in (0.0, 1.0) for own in owns}
    i, j = np.unravel_index(np.argmin(path.mean("squared_error")), (6, 3))
    chosen = model.reg_lambda_, model.common_strength_, model.own_strength_
    assert chosen == (path.lambdas[j], path.commons[i], path.owns[i])
    twin = MTRLRegressor(reg_lambda=chosen[0], common=chosen[1], own=chosen[2]).fit(Z, y, tasks=TASKS)
    np.testing.assert_allclose(twin.coef_, model.coef_, atol=1e-2)
    with pytest.raises(ValueError, match="with common 1 and own 2 is not on the grid"):
        path.index_of(Strengths(0.1, 1.0, 2.0))
    single = MTRLClassifierCV(lambdas=lambdas, cv=3).fit(Z, y > 0)
    assert (single.common_strength_, single.own_strength_) == (0.0, 0.0)


def test_tiny_tasks_make_no_headline() -> None:
    model = MTRLRegressor(reg_lambda=1e-3, common=0.0, task_weight="equal").fit(X, Y, tasks=TASKS)
    assert model.tiny_tasks().tolist() == [False, False, False, False, True]
    assert np.asarray(model.task_correlation_)[0, 4] < -0.3, "the tiny task would be the most opposed one"
    opposed = [name for name, _ in model.related("a").opposed]
    assert opposed == ["d"]
    assert model.related("tiny").opposed, "asked for itself, it has an answer"
    comparison = model.compare(X, Y, TASKS)
    assert comparison.rows is not None
    assert comparison.rows.tolist() == list(SIZES.values())
    assert comparison.tiny.tolist() == [False, False, False, False, True]
    assert "of 4 (without 1 with very few rows)" in str(comparison)
    assert "100% related, 0% own" in str(comparison)
    assert comparison.table()["rows"].tolist() == list(SIZES.values())
    page = model_page(model, X, Y, TASKS, comparison)
    for title in ("Most alike", "Most opposed"):
        assert "tiny" not in {name for row in table(page, title).rows for name in row[:2]}
    assert "tiny" not in page.lead
    closest = table(page, "Closest tasks")
    assert closest.columns[:3] == ["task", "rows", "few rows"]
    assert {row[0]: row[1:3] for row in closest.rows} == {
        name: [count, "few" if name == "tiny" else None] for name, count in SIZES.items()
    }
    assert "without 1 with very few rows" in page.lead
    assert "Of 4 tasks (without 1" in words(page)
    shares = table(page, "Rows and shares")
    assert shares.columns == ["task", "rows", "few rows", "common", "related", "own"]
    assert [row[1] for row in shares.rows] == list(SIZES.values())
    np.testing.assert_array_equal([row[3:] for row in shares.rows], model.weight_shares_)


def test_the_shell_shows_rows_per_task_and_marks_tiny_ones(tmp_path: Path) -> None:
    columns = {"shop": pa.array(TASKS), **{f"x{j}": pa.array(X[:, j]) for j in range(4)}, "sales": pa.array(Y)}
    data = write(pa.table(columns), tmp_path / "shops.csv")
    how = (
        "fit",
        data,
        "--task",
        "shop",
        "--target",
        "sales",
        "--lambda",
        "0.01",
        "--out",
        tmp_path / "model",
        "--force",
    )
    shown = run(*how, "--task-weight", "rows", "--own", "1")
    assert shown.exit_code == 0, shown.output
    assert "2 to 60 rows, median 40; very few: tiny (left out below)" in shown.stdout
    for word in ("alike", "opposed"):
        line = next((line for line in shown.stdout.splitlines() if line.strip().startswith(word)), "")
        assert "tiny" not in line
    result = json.loads(run(*how, "--task-weight", "0.3", "--own", "2", "--json", "--no-page").stdout)
    assert (result["task_weight"], result["own"]) == (0.3, 2.0)
    assert [task["few_rows"] for task in result["per_task"]] == [False, False, False, False, True]
    assert sum(result["shares"].values()) == pytest.approx(1.0)
    assert set(result["per_task"][0]["shares"]) == {"common", "related", "own"}
    wrong = run(*how, "--task-weight", "2")
    assert wrong.exit_code != 0
    assert "neither equal nor rows nor a number from 0 to 1" in wrong.output


@pytest.mark.parametrize(("name", "wrong"), [("task_weight", "row"), ("task_weight", 2.0), ("own", -1.0)])
def test_wrong_parameters_change_nothing(name: str, wrong: Any) -> None:
    model = MTRLRegressor(**{name: wrong})
    with pytest.raises(ValueError, match=f"^{name}"):
        model.fit(X, Y, tasks=TASKS)
    assert not hasattr(model, "coef_")
