"""The sensitivity bounds, attacked with neighbouring data sets: random ones, and ones that a search made worse."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize

from dmtrl.data.task_data import TaskData
from dmtrl.federation.protection.noise import moments
from dmtrl.federation.protection.noise.coordinator import private_moments
from dmtrl.federation.protection.noise.moments import MomentFormat, clip_rows
from dmtrl.federation.protection.noise.releases import Releases, largest_entry, moment_format, step_size
from dmtrl.federation.protection.noise.sensitivity import (
    MomentWeights,
    dual_sensitivity,
    gap_for,
    gap_rounding,
    moments_sensitivity,
)
from dmtrl.federation.study.privacy_terms import MOMENTS, NEWTON, ROUNDS, Privacy
from dmtrl.losses import BUILTIN, CLASSIFICATION, get_loss
from support.releases import blocks_of, replaced

LIPSCHITZ = sorted(name for name, make in BUILTIN.items() if math.isfinite(make().lipschitz))
SMOOTH = ["logistic", "huber", "smoothed_hinge", "squared_hinge"]
WEIGHTS = [MomentWeights(), MomentWeights(0.5, math.sqrt(0.5), 0.5, 1.0, 1.0), MomentWeights(2.0, 0.3, 1.0, 0.5, 3.0)]


def _unit(x: np.ndarray) -> np.ndarray:
    return x / max(float(np.linalg.norm(x)), 1.0)


def _distance(form: MomentFormat, v: np.ndarray) -> float:
    """Between the moments of two rows; v holds both rows, squashed into the bounds."""
    d = form.features
    one, other = v[: d + 2], v[d + 2 :]
    vectors = []
    for part in (one, other):
        k = np.array([np.clip(part[d], 0, 1) if form.varying else 1.0])
        vectors.append(form.vector(_unit(part[:d])[None], k, np.array([np.clip(part[d + 1], -1, 1)])))
    return float(np.linalg.norm(vectors[0] - vectors[1]))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("varying", [False, True])
def test_the_moments_bound_holds_and_is_attained(weights: MomentWeights, varying: bool) -> None:
    rng, d = np.random.default_rng(0), 3
    form = MomentFormat(d, 1.0, 1.0, 1.0, varying, weights)
    bound = moments_sensitivity(weights, varying)
    draws = rng.standard_normal((1000, 2 * (d + 2))) * 3
    found = [_distance(form, v) for v in draws]
    assert max(found) <= bound * (1 + 1e-9)
    best = 0.0
    for start in draws[np.argsort(found)[-3:]]:
        worst = minimize(lambda v: -_distance(form, v), start, method="Nelder-Mead", options={"maxiter": 1500})
        best = max(best, -worst.fun)
    assert best <= bound * (1 + 1e-9), "a search finds no worse pair of rows"
    assert best >= 0.97 * bound, "and the bound is no larger than it must be"


@pytest.mark.parametrize("loss", ["squared", *SMOOTH])
def test_one_replaced_row_moves_moments_by_no_more_than_said(loss: str) -> None:
    """Whole data sets with outliers far beyond the bounds: clipping is part of what is tested."""
    rng, mode = np.random.default_rng(1), MOMENTS if loss == "squared" else NEWTON
    privacy = Privacy(mode, 1.0, row_norm=1.5, slope=min(get_loss(loss).lipschitz, 2.0), releases=1)
    moved = []
    for _ in range(200):
        blocks, other = replaced(rng, loss, privacy.row_norm, rows=8, features=3)
        point = rng.standard_normal((1, 4)) * rng.choice([0.0, 1.0, 5.0])
        one, two = (Releases(privacy, get_loss(loss), part).exact(point, 0.0) for part in (blocks, other))
        np.testing.assert_array_equal(one.sensitivity, two.sensitivity)
        moved.append(np.linalg.norm(one.values - two.values) / one.sensitivity[0])
    assert max(moved) <= 1 + 1e-9
    assert max(moved) > 0.4, "the neighbours are bad enough to test something"


@pytest.mark.parametrize("loss", LIPSCHITZ)
def test_one_replaced_row_moves_b_by_no_more_than_said(loss: str) -> None:
    """All Lipschitz losses, with local solutions that are only as accurate as the verified gap."""
    rng = np.random.default_rng(2)
    privacy = Privacy(ROUNDS, 1.0, row_norm=1.5, slope=get_loss(loss).lipschitz, releases=1)
    moved = []
    for _ in range(150):
        blocks, other = replaced(rng, loss, privacy.row_norm, rows=6, features=2)
        centre = rng.standard_normal((1, 3)) * rng.choice([0.0, 1.0, 20.0])
        step = step_size(privacy, get_loss(loss)) * rng.choice([0.01, 1.0, 100.0])
        one, two = (Releases(privacy, get_loss(loss), part, 1e3).exact(centre, step) for part in (blocks, other))
        np.testing.assert_array_equal(one.sensitivity, two.sensitivity)
        moved.append(np.linalg.norm(one.values - two.values) / one.sensitivity[0])
    assert max(moved) <= 1 + 1e-9
    assert max(moved) > 0.5, "the neighbours are bad enough to test something"


@pytest.mark.parametrize("loss", ["logistic", "hinge", "absolute"])
def test_inexact_local_solutions_are_inside_the_ball_of_their_gap(loss: str) -> None:
    """(7.1): b with a gap g lies within sqrt(2 g / s) of the exact b."""
    rng, step = np.random.default_rng(3), 2.0
    privacy = Privacy(ROUNDS, 1.0, row_norm=1.5, slope=get_loss(loss).lipschitz, releases=1)
    for _ in range(30):
        blocks, _ = replaced(rng, loss, privacy.row_norm, rows=12, features=3)
        releases, centre = Releases(privacy, get_loss(loss), blocks), rng.standard_normal((1, 4))
        exact, _ = releases._solve(centre, step, np.array([1e-13]))
        for accuracy in (1e-1, 1e-2, 1e-4):
            rough, gap = releases._solve(centre, step, np.array([accuracy]))
            assert np.linalg.norm(rough - exact) <= math.sqrt(2 * gap[0] / step) + 1e-6


@pytest.mark.parametrize("loss", LIPSCHITZ)
def test_no_rows_make_a_release_at_the_largest_points_fail(loss: str) -> None:
    """Rows that are all the same, all opposite, mixed or nearly zero: every site answers, with noise of the
    same size, which depends on the request alone."""
    rng, made, n = np.random.default_rng(5), get_loss(loss), 20_000
    classes = made.kind == CLASSIFICATION
    target = None if classes else (-20.0, 20.0)
    privacy = Privacy(ROUNDS, 1.0, row_norm=2.0, slope=made.lipschitz, releases=1)
    point = np.full((1, 4), largest_entry(target)) * [1.0, -1.0, 1.0, -1.0]
    rows = clip_rows(np.full((n, 3), [5.0, -5.0, 5.0]), 2.0)
    mixed = clip_rows(rng.standard_normal((n, 3)) * 3, 2.0)
    tiny = np.full((n, 3), 1e-3)
    labels = [np.full(n, -1.0), np.where(rng.random(n) < 0.5, 1.0, -1.0), np.full(n, 1.0)]
    sizes = set()
    for X in (rows, -rows, mixed, tiny):
        for y in labels:
            scaled = y if classes else 20.0 * y
            releases = Releases(privacy, made, blocks_of(X, scaled), 20.0)
            sizes.add(float(releases.exact(point, step_size(privacy, made)).sensitivity[0]))
    assert len(sizes) == 1


def test_the_rounding_bound_covers_the_error_of_a_computed_gap() -> None:
    """Against the same sums in exact arithmetic, of rows and dual variables that are as large as they may be."""
    rng, n, d, slope, step = np.random.default_rng(6), 3000, 3, 1.0, 2.0
    X = np.column_stack([clip_rows(rng.standard_normal((n, d)) * 9, 1.5), np.ones(n)])
    norm, label = math.hypot(1.5, 1.0), 50.0
    y, a = label * rng.choice([-1.0, 1.0], n), rng.choice([-1.0, 1.0], n)
    for size in (0.0, 1.0, 1e4):
        c = size * rng.standard_normal(d + 1)
        b = a @ X / n
        u = c + step * b
        computed = sum(((abs(X @ u - y) - a * y + a * (X @ u)) / n).tolist())
        exact_b = [sum((Fraction(v) for v in (column * a).tolist()), Fraction(0)) / n for column in X.T]
        exact_u = [Fraction(v) for v in u.tolist()]
        off = [v - Fraction(k) - Fraction(step) * w for v, k, w in zip(exact_u, c.tolist(), exact_b, strict=True)]
        scores = [sum((Fraction(v) * w for v, w in zip(x, exact_u, strict=True)), Fraction(0)) for x in X.tolist()]
        terms = [abs(z - Fraction(v)) - Fraction(k * v) for z, v, k in zip(scores, y.tolist(), a.tolist(), strict=True)]
        exact = sum(terms, Fraction(0)) / n + sum((v * w for v, w in zip(exact_u, exact_b, strict=True)), Fraction(0))
        exact += sum((v * v for v in off), Fraction(0)) / Fraction(2 * step)
        bound = gap_rounding(norm, slope, label, np.array([n]), c[None], step)[0]
        assert abs(float(Fraction(computed) - exact)) <= bound


def test_the_gap_adds_its_share_to_the_sensitivity() -> None:
    rows = np.array([10, 1000])
    exact = dual_sensitivity(2.0, 1.0, rows, np.zeros(2), 3.0)
    gap = gap_for(0.05, 2.0, 1.0, rows, 3.0)
    np.testing.assert_allclose(dual_sensitivity(2.0, 1.0, rows, gap, 3.0), 1.05 * exact)
    np.testing.assert_allclose(exact, 2 * 2.0 / rows)


def test_rows_are_shortened_and_never_lengthened() -> None:
    X = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    np.testing.assert_allclose(clip_rows(X, 1.0), [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])


@pytest.mark.parametrize("loss", SMOOTH)
def test_slope_and_curvature_are_derivatives_of_the_mean_loss(loss: str) -> None:
    rng, made = np.random.default_rng(4), get_loss(loss)
    privacy = Privacy(NEWTON, 1.0, row_norm=3.0, slope=1e3, releases=1)  # wide bounds: nothing is clipped
    X = clip_rows(rng.standard_normal((40, 2)), 3.0)
    y = np.where(rng.random(40) < 0.5, 1.0, -1.0) if made.kind == CLASSIFICATION else rng.standard_normal(40)
    w = rng.standard_normal(3) * 0.3
    vector = Releases(privacy, made, blocks_of(X, y)).exact(w[None], 0.0).values[0]
    A, c = moment_format(privacy, made, 2).quadratic(vector)

    def mean(v: np.ndarray) -> float:
        return float(np.mean(made.value(X @ v[:2] + v[2], y)))

    h = 1e-5
    numeric = [(mean(w + h * e) - mean(w - h * e)) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(-c, numeric, atol=1e-6)
    if loss == "logistic":  # the others have kinks in the slope
        slopes = [_slope(privacy, made, X, y, w + s * 1e-4 * e) for e in np.eye(3) for s in (1, -1)]
        hessian = [-(slopes[2 * i] - slopes[2 * i + 1]) / 2e-4 for i in range(3)]
        np.testing.assert_allclose(A, hessian, atol=1e-6)


def _slope(privacy: Privacy, loss: object, X: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    vector = Releases(privacy, loss, blocks_of(X, y)).exact(w[None], 0.0).values[0]  # type: ignore[arg-type]
    return moment_format(privacy, loss, 2).quadratic(vector)[1]  # type: ignore[arg-type]


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_noise_is_finite_at_both_ends_of_the_randomness(byte: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments.os, "urandom", lambda count: byte * count)
    noise = moments.system_noise((2, 3))
    assert noise.shape == (2, 3)
    assert np.isfinite(noise).all()
    assert (np.abs(noise) > 8).all(), "the ends are the largest numbers"


def test_moments_of_sparse_rows_are_those_of_the_same_dense_rows() -> None:
    rng = np.random.default_rng(7)
    X, y = rng.standard_normal((30, 3)) * (rng.random((30, 3)) < 0.5), rng.standard_normal(30)
    found = [
        private_moments(TaskData.from_list([(kind(X), y)]), epsilon=1.0, row_norm=1.0, label_bound=2.0, noise=np.zeros)
        for kind in (np.asarray, sparse.csr_matrix)
    ]
    np.testing.assert_allclose(found[1].A, found[0].A, rtol=1e-12)
    np.testing.assert_allclose(found[1].c, found[0].c, rtol=1e-12, atol=1e-15)
