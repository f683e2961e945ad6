"""Random Fourier features against the exact kernel, splines against their definition, and both in the estimators."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import SplineTransformer

from dmtrl import RFF, MTRLClassifier, MTRLRegressor, MTRLRegressorCV, Splines, export, load
from dmtrl.estimators.feature_maps import candidate_maps

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


def test_features_and_random_features_side_by_side():
    both = RFF(100, 0.1, linear=True).fit(X)
    Z = both.transform(X)
    np.testing.assert_allclose(Z[:, 5:], RFF(100, 0.1).fit_transform(X))
    np.testing.assert_allclose(Z[:, :5], X * both.scale_)
    centred = Z[:, :5] - Z[:, :5].mean(axis=0)
    assert np.square(centred).sum(axis=1).mean() == pytest.approx(1.0, rel=0.05)
    rows = sparse.random_array((40, 5), density=0.3, rng=np.random.default_rng(0), format="csr")
    np.testing.assert_allclose(both.transform(rows).toarray(), both.transform(rows.toarray()))
    assert len(both.get_feature_names_out()) == 105


def test_a_wider_kernel_has_a_smaller_gamma():
    np.testing.assert_allclose(RFF(50, 0.4, width=2.0).fit_transform(X), RFF(50, 0.1).fit_transform(X))
    with pytest.raises(ValueError, match="width must be positive"):
        RFF(width=0).fit(X)


@pytest.mark.parametrize(("truth", "expected"), [("line", "features"), ("curve", "random"), ("both", "side by side")])
def test_cross_validation_chooses_the_map(truth, expected, tmp_path):
    rng = np.random.default_rng(1)
    x, tasks = rng.uniform(-2, 2, size=(160, 2)), np.repeat(["a", "b"], 80)
    line, curve = x @ [2.0, -1.0], 2.0 * np.sin(3 * x[:, 0])
    y = {"line": line, "curve": curve, "both": 20 * line + curve}[truth] + 0.3 * rng.normal(size=160)
    maps = [None, RFF(60, gamma=2.0), RFF(60, gamma=2.0, linear=True)]
    options = {"lambdas": np.logspace(0, -5, 6), "commons": [1.0], "owns": [0.0], "cv": 3}
    model = MTRLRegressorCV(feature_map=maps, **options).fit(x, y, tasks=tasks)
    chosen = {"features": None, "random": False, "side by side": True}[expected]
    assert (model.feature_map_ is None) if chosen is None else (model.feature_map_.linear == chosen)
    alone = [MTRLRegressorCV(feature_map=one, **options).fit(x, y, tasks=tasks) for one in maps]
    best = int(np.argmin([one.cv_results_.mean("squared_error").min() for one in alone]))
    assert model.predict(x, tasks=tasks).tobytes() == alone[best].predict(x, tasks=tasks).tobytes()
    for path, one in zip(model.map_results_, alone, strict=True):
        assert path.squared_error.tobytes() == one.cv_results_.squared_error.tobytes()
    assert model.metrics_.overall == alone[best].metrics_.overall
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").predict(x, tasks=tasks).tobytes() == model.predict(x, tasks=tasks).tobytes()
    assert model.correlation_intervals(x, y, tasks, n_groups=2).lower.shape == (2, 2)


def test_lists_of_maps_that_cannot_be_used_are_refused(tmp_path):
    x, y, tasks = X[:40], X[:40, 0], np.repeat(["a", "b"], 20)
    with pytest.raises(ValueError, match="feature_map is an empty list"):
        MTRLRegressorCV(feature_map=[]).fit(x, y, tasks=tasks)
    with pytest.raises(ValueError, match="only a CV estimator accepts a list"):
        MTRLRegressor(feature_map=[None, "rff"]).fit(x, y, tasks=tasks)
    with pytest.raises(ValueError, match="several feature maps has no checkpoints"):
        MTRLRegressorCV(feature_map="auto").fit(x, y, tasks=tasks, checkpoint=tmp_path / "here")


def test_splines_are_scikit_learns_with_knots_that_always_lie_apart():
    ours = Splines(4).fit(X)
    theirs = SplineTransformer(4, knots="quantile", extrapolation="constant").fit(X)
    np.testing.assert_allclose(ours.transform(3 * X), theirs.transform(3 * X))
    assert ours.get_feature_names_out(list("abcde")).tolist() == theirs.get_feature_names_out(list("abcde")).tolist()
    few = np.column_stack([X[:, 0], X[:, 0] > 1, np.full(200, 7.0)])  # two values; one value
    knots = Splines().fit(few).knots_
    assert (np.diff(knots, axis=0) > 0).all()
    np.testing.assert_allclose(knots[:, 1:], np.column_stack([np.linspace(0, 1, 5), np.linspace(7, 8, 5)]))
    tail = np.concatenate([np.zeros(80), np.geomspace(1, 1000, 120)])[:, None]  # many zeros, and a long tail
    assert (np.diff(Splines().fit(tail).knots_[:, 0]) > 0).all()
    assert 0.3 < np.mean(tail[tail > 0] < Splines().fit(tail).knots_[2, 0]) < 0.7
    far = np.append(np.arange(100.0), 1e9)[:, None]  # an outlier leaves the other knots where they are
    np.testing.assert_allclose(Splines().fit(far).knots_[:4, 0], [0, 25, 50, 75])
    assert np.isfinite(Splines().fit_transform(np.full((3, 1), 1e17))).all()
    with pytest.raises(ValueError, match="column 1 has values that are too large or too close"):
        Splines().fit(np.column_stack([np.arange(4), [0, 5e-324, 0, 5e-324]]))
    mapped = Splines().fit(few).transform(np.vstack([few, 1e6 + few]).astype(np.float32))
    assert mapped.dtype == np.float32
    np.testing.assert_allclose(mapped.reshape(400, 3, 7).sum(axis=2), 1.0, rtol=1e-5)


def test_a_curve_for_each_feature(tmp_path):
    rng = np.random.default_rng(2)
    x, tasks = rng.uniform(-2, 2, size=(300, 2)), np.repeat(["a", "b", "c"], 100)
    y = np.abs(x[:, 0]) + x[:, 1] ** 2 + 0.1 * rng.normal(size=300)
    train = np.arange(300) % 2 == 0
    line, curve = (
        MTRLRegressor(reg_lambda=1e-4, feature_map=given).fit(x[train], y[train], tasks=tasks[train])
        for given in (None, "splines")
    )
    line_score, score = (model.score(x[~train], y[~train], tasks=tasks[~train]) for model in (line, curve))
    assert score > 0.95 > 0.2 > line_score
    curve.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.predict(x, tasks=tasks).tobytes() == curve.predict(x, tasks=tasks).tobytes()
    for wrong in (1, 2.5, "5"):
        with pytest.raises(ValueError, match="n_knots must be a whole number of at least 2"):
            MTRLRegressor(feature_map=Splines(wrong)).fit(x, y, tasks=tasks)
    with pytest.raises(ValueError, match=r"feature map \(Splines\) .* of the data; save the model"):
        export(curve, tmp_path / "model.csv")


def test_automatic_maps_suit_the_rows():
    kinds = [type(one).__name__ for one in candidate_maps("auto", 0, X)]
    assert kinds == ["NoneType", "Splines", "RFF", "RFF", "RFF", "RFF"]
    assert "Splines" not in [type(one).__name__ for one in candidate_maps("auto", 0, sparse.csr_array(X))]
