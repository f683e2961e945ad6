"""A free intercept is free, whatever the scale of y, the rarity of a class or the layout of X."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import HuberRegressor, LogisticRegression

from dmtrl import MTRLClassifier, MTRLRegressor
from dmtrl.losses import huber, quantile


@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_quantiles_of_tasks_that_lie_far_apart(scale: float) -> None:
    rng = np.random.default_rng(0)
    tasks = np.repeat(["low", "mid", "high"], 200)
    X = rng.normal(size=(600, 2))
    y = scale * (np.repeat([0.5, 2.0, 4.0], 200) + 0.2 * rng.normal(size=600))
    model = MTRLRegressor(loss=quantile(0.9)).fit(X, y, tasks=tasks)
    below = y <= model.predict(X, tasks=tasks)
    for name in ("low", "mid", "high"):
        assert below[tasks == name].mean() == pytest.approx(0.9, abs=0.04)


def test_a_rare_class_keeps_its_rate() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 2))
    y = rng.random(20_000) < 1 / (1 + np.exp(7.5 - X[:, 0]))
    ours = MTRLClassifier(reg_lambda=1e-3, tol=1e-5).fit(X, y)
    theirs = LogisticRegression(C=1 / (1e-3 * 20_000), tol=1e-8).fit(X, y)
    assert ours.predict_proba(X)[:, 1].mean() == pytest.approx(theirs.predict_proba(X)[:, 1].mean(), rel=0.05)
    assert ours.intercept_[0] == pytest.approx(theirs.intercept_[0], rel=0.01)


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_sparse_and_dense_agree_on_features_far_from_zero(loss: str) -> None:
    rng = np.random.default_rng(0)
    tasks = np.repeat([0, 1], 100)
    X = rng.poisson(5.0, size=(200, 4)).astype(float)
    y = X @ [1.0, -1.0, 0.5, 0.0] + 3.0 * tasks + 0.1 * rng.normal(size=200)
    dense = MTRLRegressor(loss=loss, reg_lambda=0.01, tol=1e-7).fit(X, y, tasks=tasks)
    csr = MTRLRegressor(loss=loss, reg_lambda=0.01, tol=1e-7).fit(sparse.csr_matrix(X), y, tasks=tasks)
    assert np.allclose(dense.intercept_, csr.intercept_, atol=0.02)
    assert np.allclose(dense.coef_, csr.coef_, atol=0.01)


def test_one_task_with_huber_loss_is_scikit_learns_at_its_scale() -> None:
    """HuberRegressor also fits a scale; for that scale its problem is ours with delta = epsilon * scale."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = X @ [1.0, -2.0, 0.5] + 2.0 + rng.standard_t(2, size=200)
    theirs = HuberRegressor(epsilon=1.5, alpha=1.0, tol=1e-8, max_iter=1000).fit(X, y)
    loss = huber(delta=1.5 * theirs.scale_)
    ours = MTRLRegressor(loss=loss, reg_lambda=theirs.scale_ / 200, tol=1e-9).fit(X, y)
    assert np.allclose(ours.coef_[0], theirs.coef_, atol=1e-4)
    assert ours.intercept_[0] == pytest.approx(theirs.intercept_, abs=1e-4)
