"""Intervals of task correlations: their formula, and what they say about tasks that are known to be unrelated.

The level is measured by `dmtrl reproduce intervals`, which takes longer than a test may.
"""

import numpy as np
import pytest
from scipy import stats

from dmtrl import MTRLRegressor
from dmtrl.estimators.correlations import fisher_intervals
from dmtrl.lab.experiments import intervals
from dmtrl.report.content import HeatMap
from dmtrl.report.model_page import model_page
from support.model_pages import families, items


def test_the_formula_has_the_level_of_a_sample_correlation() -> None:
    """The correlation of two columns: 90 % of the intervals contain the true one. Resamples are drawn independently
    from its sampling distribution, so the only error is that of their number."""
    rng = np.random.default_rng(0)
    truth, n, resamples, inside = 0.5, 60, 20, 0
    covariance = np.array([[1.0, truth], [truth, 1.0]])
    for _ in range(400):
        rows = rng.multivariate_normal(np.zeros(2), covariance, size=(resamples + 1, n))
        found = np.array([np.corrcoef(sample.T) for sample in rows])
        low, high = fisher_intervals(found[0], found[1:], np.array([10**6, 10**6]), 0.9)
        inside += low[0, 1] <= truth <= high[0, 1]
    assert inside / 400 == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / 400))


def test_few_resamples_and_few_rows_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    estimate = np.array([[1.0, 0.3], [0.3, 1.0]])
    draws = np.repeat(estimate[None], 6, axis=0)
    draws[:, 0, 1] = draws[:, 1, 0] = np.tanh(np.arctanh(0.3) + 0.1 * rng.normal(size=6))
    low, high = fisher_intervals(estimate, draws, np.array([50, 10]), 0.8)
    spread = np.arctanh(draws[:, 0, 1]).std(ddof=1) * np.sqrt(10 / 9)
    half = stats.t.ppf(0.9, 5) * spread
    assert [low[0, 1], high[0, 1]] == pytest.approx(np.tanh(np.arctanh(0.3) + np.array([-half, half])))
    assert low.diagonal().tolist() == high.diagonal().tolist() == [1.0, 1.0]
    infinite = fisher_intervals(np.ones((2, 2)), np.ones((6, 2, 2)), np.array([50, 10]), 0.8)
    assert np.isfinite(infinite).all()


def test_a_task_with_one_row_is_never_clear() -> None:
    """Its resamples do not vary."""
    X, y, tasks, _ = families(4)
    keep = (tasks != tasks[0]) | (np.arange(len(tasks)) == 0)
    model = MTRLRegressor(reg_lambda=0.1, common=0.0).fit(X[keep], y[keep], tasks=tasks[keep])
    found = model.correlation_intervals(X[keep], y[keep], tasks[keep], n_resamples=4)
    i = model.tasks_.tolist().index(tasks[0])
    others = np.delete(np.arange(len(model.tasks_)), i)
    lower, upper, share = (np.asarray(part) for part in (found.lower, found.upper, found.sign_share))
    assert (lower[i, others] == -1).all()
    assert (upper[others, i] == 1).all()
    assert np.isnan(share[i, others]).all()
    assert lower[i, i] == upper[i, i] == share[i, i] == 1
    assert not found.without_zero[i, others].any()
    assert np.isfinite(share[np.ix_(others, others)]).all()


def test_a_page_leaves_pairs_blank_that_may_be_unrelated() -> None:
    X, y, tasks, _ = families(4)
    model = MTRLRegressor(reg_lambda=0.1, common=0.0).fit(X, y, tasks=tasks)
    found = model.correlation_intervals(X, y, tasks, n_resamples=8)
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
