"""Random Fourier features against the exact kernel, and inside the estimators."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel

from dmtrl import RFF, MTRLClassifier, MTRLRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 5))


def kernel_error(transformer, gamma):
    Z = transformer.fit_transform(X)
    return float(np.sqrt(np.mean((Z @ Z.T - rbf_kernel(X, gamma=gamma)) ** 2)))


@pytest.mark.parametrize("gamma", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("columns", [50, 301, 2000])
def test_inner_products_approximate_the_kernel(gamma, columns):
    """The error of an average of D/2 cosines is at most sqrt(1 / D); the average over seeds leaves little to chance."""
    errors = [kernel_error(RFF(columns, gamma, seed), gamma) for seed in range(5)]
    assert np.mean(errors) < 1.1 * columns**-0.5


def test_better_than_independent_directions_with_a_phase():
    ours = np.mean([kernel_error(RFF(200, 0.1, seed), 0.1) for seed in range(10)])
    theirs = np.mean(
        [kernel_error(RBFSampler(gamma=0.1, n_components=200, random_state=seed), 0.1) for seed in range(10)]
    )
    assert ours < 0.8 * theirs


def test_every_row_has_length_one_and_the_map_is_unbiased():
    np.testing.assert_allclose(np.linalg.norm(RFF(100).fit_transform(X), axis=1), 1)
    mean = np.mean([(Z := RFF(21, 0.1, seed).fit_transform(X[:20])) @ Z.T for seed in range(400)], axis=0)
    np.testing.assert_allclose(mean, rbf_kernel(X[:20], gamma=0.1), atol=0.05)


def test_workers_need_only_the_seed():
    """Two places with other rows make the same map; another seed makes another."""
    here, there = RFF(60, 0.1, seed=7).fit(X[:50]), RFF(60, 0.1, seed=7).fit(X[50:] + 1)
    np.testing.assert_array_equal(here.directions_, there.directions_)
    np.testing.assert_array_equal(here.transform(X), there.transform(X))
    assert (RFF(60, 0.1, seed=8).fit(X).directions_ != here.directions_).all()


def test_scale_is_the_width_scikit_learn_calls_scale():
    assert RFF().fit(X).gamma_ == pytest.approx(1 / (5 * X.var()))
    assert RFF().fit(np.ones((4, 2))).gamma_ == 1.0


def test_sparse_and_float32():
    rows = np.where(RNG.random(X.shape) < 0.5, X, 0.0)
    np.testing.assert_allclose(RFF(40).fit_transform(sparse.csr_matrix(rows)), RFF(40).fit_transform(rows), atol=1e-12)
    single = RFF(40).fit_transform(rows.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, RFF(40).fit_transform(rows), atol=1e-5)


def test_more_features_than_columns_are_never_squared():
    """20,000 features and 10 columns: only as many directions are drawn as are used."""
    wide = RFF(10).fit(sparse.random(5, 20_000, density=0.01, format="csr", rng=np.random.default_rng(0)))
    assert wide.directions_.shape == (20_000, 5)


def test_one_task_is_kernel_ridge():
    y = np.sin(X[:, 0]) + np.cos(X[:, 1])
    lam, gamma = 1e-3, 0.1
    exact = KernelRidge(alpha=lam * len(y), kernel="rbf", gamma=gamma).fit(X, y)
    ours = MTRLRegressor(reg_lambda=lam, feature_map=RFF(2000, gamma), fit_intercept=False, tol=1e-6).fit(X, y)
    assert np.sqrt(np.mean((ours.predict(X) - exact.predict(X)) ** 2)) < 0.05 * y.std()


def test_maps_bend_what_a_line_cannot():
    tasks = np.repeat(["a", "b"], 100)
    ring = np.linalg.norm(X[:, :2], axis=1) > 1.2
    straight = MTRLClassifier().fit(X[:, :2], ring, tasks=tasks).score(X[:, :2], ring, tasks=tasks)
    for given in ("rff", RFF(100, 0.5), Nystroem(n_components=50, random_state=0)):
        bent = MTRLClassifier(feature_map=given, random_state=3).fit(X[:, :2], ring, tasks=tasks)
        assert bent.score(X[:, :2], ring, tasks=tasks) > max(straight + 0.2, 0.9)
        assert bent.n_features_in_ == 2
    assert MTRLClassifier(feature_map="rff").fit(X, ring).coef_.shape == (1, 300)


def test_the_estimators_seed_is_the_maps():
    a, b, c = (MTRLRegressor(feature_map="rff", random_state=s).fit(X, X[:, 0]).predict(X) for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()
