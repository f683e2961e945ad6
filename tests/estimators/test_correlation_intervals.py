"""Intervals of task correlations: their formula, and what they say about tasks that are known to be unrelated.

The level is measured by `dmtrl-lab reproduce intervals`, which takes longer than a test may.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dmtrl import MTRLClassifier, MTRLRegressor, NotConvergedWarning, TaskData
from dmtrl.estimators import correlations
from dmtrl.estimators.correlations import Groups, intervals_of, relation_test
from dmtrl.report.content import HeatMap
from dmtrl.report.model_page import model_page
from dmtrl_lab.experiments import intervals
from support.model_pages import families, items

NONE = np.zeros(2, dtype=bool)  # no task of which nothing is known


def test_deviations_give_the_standard_error_of_a_mean_exactly() -> None:
    """With a group for each row; with fewer groups, that of the means of groups."""
    rng = np.random.default_rng(0)
    y, starts = rng.normal(size=17), np.array([0, 12, 17])
    groups = Groups.draw(starts, 100, rng)
    data = TaskData(np.ones((17, 1)), y, None, starts, ["a", "b"])

    def means(one: TaskData) -> np.ndarray:
        weight = one.sample_weight
        return np.array([[np.average(y[a:b], weights=weight[a:b])] for a, b in ((0, 12), (12, 17))])

    refits = np.array([means(one) for one in groups.lighter(data)])
    assert refits.shape == (12, 2, 1)
    variance = np.square(groups.deviations(refits)).sum(axis=0)[:, 0]
    assert variance == pytest.approx([y[:12].var(ddof=1) / 12, y[12:].var(ddof=1) / 5])

    four = Groups.draw(np.array([0, 12]), 4, rng)
    assert np.bincount(four.of_row).tolist() == [3, 3, 3, 3]
    one = TaskData(np.ones((12, 1)), y[:12], None, np.array([0, 12]), ["a"])
    refits = np.array([[[np.average(y[:12], weights=few.sample_weight)]] for few in four.lighter(one)])
    of_groups = [y[:12][four.of_row == k].mean() for k in range(4)]
    assert np.square(four.deviations(refits)).sum() == pytest.approx(np.var(of_groups, ddof=1) / 4)


def test_sample_weights_count_in_the_groups() -> None:
    data = TaskData(np.ones((4, 1)), np.zeros(4), np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 4]), ["a"])
    groups = Groups(np.array([0, 1, 0, 1]), np.array([2]))
    first, second = (one.sample_weight / data.sample_weight for one in groups.lighter(data))
    assert first[[1, 3]].tolist() == second[[0, 2]].tolist() == [1.0, 1.0]
    assert np.ptp(first[[0, 2]]) == 0 < 1 - first[0]


@pytest.mark.parametrize("size", [0.0, 1.0, 4.0], ids=["no signal", "little", "much"])
def test_few_statistics_of_unrelated_tasks_are_large(size: float) -> None:
    """Estimates of two weight vectors that are orthogonal, or zero, with known covariances."""
    rng = np.random.default_rng(1)
    d, trials = 12, 3000
    truth = np.zeros((2, d))
    truth[0, 0], truth[1, 1] = size, size
    factors = rng.normal(size=(2, d, d)) / d**0.5 * np.array([1.0, 0.6])[:, None, None]
    W = truth + np.einsum("ide,tie->tid", factors, rng.normal(size=(trials, 2, d)))
    deviations = factors.transpose(2, 0, 1)  # their squares sum to the covariances
    groups = Groups(np.arange(2 * d) % d, np.array([d, d]))
    statistic = np.array([relation_test(w, deviations, groups)[0][0, 1] for w in W])
    assert np.mean(np.abs(statistic) > stats.norm.ppf(0.95)) == pytest.approx(0.1, abs=0.035)
    if size == 4.0:  # the variance is known well
        products = np.einsum("td,td->t", W[:, 0], W[:, 1])
        assert np.mean(np.square(products / statistic)) == pytest.approx(products.var(), rel=0.1)


def test_many_tasks_are_taken_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    W, deviations = rng.normal(size=(7, 3)), rng.normal(size=(5, 7, 3))
    groups = Groups(np.arange(35) % 5, np.full(7, 5))
    whole, freedom = relation_test(W, deviations, groups)
    monkeypatch.setattr(correlations, "_PAIRS_AT_ONCE", 2 * 5 * 5 * 7)
    assert relation_test(W, deviations, groups)[0] == pytest.approx(whole)
    V = np.einsum("gid,gie->ide", deviations, deviations)
    along, both = np.einsum("id,jde,ie->ij", W, V, W), np.einsum("ide,jed->ij", V, V)
    variance = np.maximum(along + along.T - both, both / 4)
    assert whole == pytest.approx(W @ W.T / np.sqrt(variance))
    assert ((freedom >= 4 - 1e-9) & (freedom <= 8 + 1e-9)).all()  # of the less certain task, or of both
    assert relation_test(np.zeros((7, 3)), np.zeros((5, 7, 3)), groups)[0].tolist() == [[0] * 7] * 7


@given(st.floats(-1, 1), st.floats(-6, 6), st.floats(0, 0.5), st.floats(0.5, 0.99))
def test_an_interval_contains_zero_unless_the_tasks_alone_show_the_relation(
    correlation: float, statistic: float, spread: float, level: float
) -> None:
    groups = Groups(np.arange(20) % 10, np.array([10, 10]))
    both = np.array([[0.0, 1.0], [1.0, 0.0]])
    estimate = correlation * both + np.eye(2)
    changes = np.tanh(correlations.fisher(correlation) + spread * np.linspace(-1, 1, 10))[
        :, None, None
    ] * both + np.eye(2)
    low, high, p_value = intervals_of(estimate, changes, (statistic * both, np.full((2, 2), 18.0)), groups, NONE, level)
    assert low[0, 1] <= correlation <= high[0, 1]
    assert (low == low.T).all()
    assert (high == high.T).all()
    clear = p_value[0, 1] < 1 - level and statistic * correlation > 0
    if abs(p_value[0, 1] - (1 - level)) > 1e-9 and abs(correlation) > 1e-9:
        assert ((low[0, 1] > 0) or (high[0, 1] < 0)) == clear
    assert low.diagonal().tolist() == high.diagonal().tolist() == [1.0, 1.0]


def test_the_far_end_is_that_of_the_refits() -> None:
    groups = Groups(np.arange(6), np.array([6, 6]))
    z, changes = np.arctanh(0.3), np.random.default_rng(1).normal(size=6) * 0.1
    refits = np.tanh(z + changes)[:, None, None] * np.ones((2, 2))
    test = np.full((2, 2), 9.0), np.full((2, 2), 10.0)
    _, high, _ = intervals_of(np.full((2, 2), 0.3), refits, test, groups, NONE, 0.8)
    removed = 0.75
    spread = np.sqrt((6 - removed) ** 2 / (removed**2 * 6 * 5) * np.square(changes - changes.mean()).sum())
    assert high[0, 1] == pytest.approx(np.tanh(z + stats.t.ppf(0.9, 5) * spread))


def test_a_task_with_one_row_is_never_clear() -> None:
    """Its rows cannot be divided."""
    X, y, tasks, _ = families(4)
    keep = (tasks != tasks[0]) | (np.arange(len(tasks)) == 0)
    model = MTRLRegressor(reg_lambda=0.1, common=0.0).fit(X[keep], y[keep], tasks=tasks[keep])
    found = model.correlation_intervals(X[keep], y[keep], tasks[keep], n_groups=4)
    i = model.tasks_.tolist().index(tasks[0])
    others = np.delete(np.arange(len(model.tasks_)), i)
    lower, upper, p_value = (np.asarray(part) for part in (found.lower, found.upper, found.p_value))
    assert (lower[i, others] == -1).all()
    assert (upper[others, i] == 1).all()
    assert np.isnan(p_value[i, others]).all()
    assert (lower[i, i], upper[i, i], p_value[i, i]) == (1, 1, 0)
    assert not found.without_zero[i, others].any()
    assert np.isfinite(p_value[np.ix_(others, others)]).all()


def test_a_page_leaves_pairs_blank_that_may_be_unrelated() -> None:
    X, y, tasks, _ = families(4)
    model = MTRLRegressor(reg_lambda=0.1, common=0.0).fit(X, y, tasks=tasks)
    found = model.correlation_intervals(X, y, tasks, n_groups=8)
    page = model_page(model, X, y, tasks, comparison=False, intervals=found)
    heat = next(item for item in items(page, HeatMap) if len(item.panels) == 2)
    order = [int(np.flatnonzero(model.tasks_.astype(str) == name)[0]) for name in heat.labels]
    (_, learned), (_, clear) = heat.panels
    assert (np.isnan(clear) == ~found.without_zero[np.ix_(order, order)]).all()
    assert learned[~np.isnan(clear)].tolist() == clear[~np.isnan(clear)].tolist()
    assert len(next(item for item in items(model_page(model), HeatMap)).panels) == 1


def test_the_experiment_draws_unrelated_families() -> None:
    X, _, tasks, weights = intervals.families(0, rows=5, features=10, noise=2.0)
    assert X.shape == (14 * 5, 10)
    product = weights @ weights.T
    same = np.arange(14)[:, None] // 2 == np.arange(14) // 2
    assert product[same] == pytest.approx(product[0, 0])
    assert product[~same] == pytest.approx(0.0, abs=1e-9)
    assert np.bincount(tasks).tolist() == [5] * 14


def test_intervals_follow_the_tasks_of_the_model() -> None:
    """Also with a task that was left out, one without weights, and one that was added later."""
    X, y, tasks, _ = families(4)
    first = tasks[0]
    labels = np.where(tasks == first, 1, np.where(y > 0, 1, -1))
    model = MTRLClassifier(on_single_class="constant", common=0.0).fit(X, labels, tasks=tasks)
    found = model.correlation_intervals(X, labels, tasks, n_groups=3)
    assert found.lower.index.tolist() == model.tasks_.tolist()
    others = [name for name in model.tasks_.tolist() if name != first]
    assert found.lower.loc[first, others].tolist() == [-1.0] * 3
    assert found.p_value.loc[first, others].isna().all()
    assert found.p_value.loc[others[0], others].notna().all()

    late = tasks == model.tasks_[0]
    grown = MTRLRegressor(reg_lambda=0.1, common=0.0).fit(X[~late], y[~late], tasks=tasks[~late])
    grown.add_task(X[late], y[late], model.tasks_[0])
    intervals_after = grown.correlation_intervals(X, y, tasks, n_groups=4)
    assert intervals_after.lower.index.tolist() == grown.tasks_.tolist()
    value = grown.task_correlation_
    assert ((intervals_after.lower <= value) & (value <= intervals_after.upper)).all(axis=None)

    rows = np.where(late[:, None], 0.0, X)
    nothing = MTRLRegressor(reg_lambda=0.1, common=0.0, fit_intercept=False).fit(rows, y, tasks=tasks)
    silent = nothing.correlation_intervals(rows, y, tasks, n_groups=3)
    assert silent.lower.iloc[0].tolist() == [1, -1, -1, -1]
    assert silent.upper.iloc[0].tolist() == [1, 1, 1, 1]


def test_what_has_no_intervals_is_refused() -> None:
    X, y, tasks, _ = families(4)
    with pytest.raises(ValueError, match="requires relationship='learned'"):
        MTRLRegressor(relationship="independent").fit(X, y, tasks=tasks).correlation_intervals(X, y, tasks)
    wide = np.column_stack([y, -y])
    with pytest.raises(ValueError, match="requires tasks with rows of their own"):
        MTRLRegressor().fit(X, wide).correlation_intervals(X, wide)
    model = MTRLRegressor().fit(X, y, tasks=tasks)
    for wrong in (1, 2.5, "3"):
        with pytest.raises(ValueError, match="n_groups must be a whole number of at least 2"):
            model.correlation_intervals(X, y, tasks, n_groups=wrong)


def test_refits_that_did_not_converge_warn() -> None:
    X, y, tasks, _ = families(4)
    model = MTRLRegressor(reg_lambda=1e-3).fit(X, y, tasks=tasks).set_params(max_rounds=1)
    with pytest.warns(NotConvergedWarning, match="stopped after max_rounds=1"):
        model.correlation_intervals(X, y, tasks, n_groups=2)
