"""Singular values by the quick routes against the SVD, also where the Gram matrix would lose them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmtrl.numerics.rowwise import gram
from dmtrl.relationship import FreeIntercept, Learned
from dmtrl.relationship.base import Prox
from dmtrl.relationship.nuclear import nuclear_prox
from dmtrl.relationship.spectrum import largest_singular_value, nuclear_norm, short_side

SHAPES = [(1, 1), (3, 40), (40, 3), (12, 13), (13, 12), (7, 7)]


def matrix(shape: tuple[int, int], smallest: float = 1e-2, seed: int = 0) -> np.ndarray:
    """Singular values from one down to `smallest`, in even ratios."""
    rng = np.random.default_rng(seed)
    k = min(shape)
    left, right = (np.linalg.qr(rng.normal(size=(n, k)))[0] for n in shape)
    return (left * np.geomspace(1.0, smallest, k)) @ right.T


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("smallest", [1e-1, 1e-9, 1e-14])
def test_all_singular_values_to_full_accuracy(shape: tuple[int, int], smallest: float) -> None:
    V = matrix(shape, smallest)
    exact = np.linalg.svd(V, compute_uv=False)
    assert largest_singular_value(V) == pytest.approx(exact[0], rel=1e-14)
    np.testing.assert_allclose(short_side(V, exact=True)[0], exact, atol=1e-15 * 20)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("exact", [False, True])
def test_vectors_of_the_shorter_side(shape: tuple[int, int], exact: bool) -> None:
    V = matrix(shape)
    s, vectors = short_side(V, exact)
    k = min(shape)
    assert vectors.shape == (k, k)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-12)
    gram = V @ V.T if shape[0] <= shape[1] else V.T @ V
    np.testing.assert_allclose(gram @ vectors, vectors * s**2, atol=1e-12)


@given(st.sampled_from(SHAPES), st.sampled_from([1e-1, 1e-6, 1e-12]), st.floats(1e-12, 10.0), st.integers(0, 99))
def test_the_proximal_point_is_that_of_a_full_svd(shape, smallest: float, t: float, seed: int) -> None:
    V = matrix(shape, smallest, seed)
    left, s, right = np.linalg.svd(V, full_matrices=False)
    # argmin over x >= 0 of |x - s|^2 / 2 + t (sum x)^2 / 2, by bisection on the sum
    low, high = 0.0, s.sum()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(s - t * middle, 0).sum() > middle else (low, middle)
    shrunk = np.maximum(s - t * high, 0.0)
    W, covariance, size = nuclear_prox(V, t)
    np.testing.assert_allclose(W, (left * shrunk) @ right, atol=1e-11)
    assert size == pytest.approx(shrunk.sum(), rel=1e-9)
    assert size == pytest.approx(np.linalg.norm(W, "nuc"), rel=1e-9)
    np.testing.assert_allclose(covariance.dense(), (left * shrunk / shrunk.sum()) @ left.T, atol=1e-9)


@pytest.mark.parametrize("seed", range(20))  # rounding decides in which draws the Gram matrix sees nothing there
def test_a_gap_in_the_spectrum_does_not_hide_what_is_below_it(seed: int) -> None:
    """Two values that the Gram matrix cannot see, below two that it can, and a threshold below all of them."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(n, 4)))[0] for n in (4, 10))
    V, t = (left * [1.0, 0.5, 4e-9, 2.8e-9]) @ right.T, 1e-10
    W, _, _ = nuclear_prox(V, t)
    shrunk = [4e-9 - 1.5e-10, 2.8e-9 - 1.5e-10]
    np.testing.assert_allclose(np.linalg.svd(W)[1][2:], shrunk, rtol=1e-3)


def test_nothing_and_zero() -> None:
    assert largest_singular_value(np.zeros((0, 3))) == 0.0
    W, covariance, size = nuclear_prox(np.zeros((3, 5)), 1.0)
    assert size == 0.0
    assert not W.any()
    np.testing.assert_allclose(covariance.dense(), np.eye(3) / 3)


@pytest.mark.parametrize("shape", [(700, 6), (6, 700), (40, 40)])
def test_around_a_centre_is_of_the_difference(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    V, centre = rng.normal(size=shape), rng.normal(size=shape[1])
    assert nuclear_norm(V, centre) == pytest.approx(np.linalg.norm(V - centre, "nuc"), rel=1e-10)
    Q = rng.normal(size=(shape[0], 3))
    np.testing.assert_allclose(gram(Q, V), Q.T @ V, atol=1e-10)


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
@pytest.mark.parametrize("smallest", [1e-2, 1e-4, 1e-6, 1e-9, 0.0])
def test_with_slack_the_nuclear_norm_is_an_upper_bound(shape: tuple[int, int], smallest: float) -> None:
    rng = np.random.default_rng(5)
    left, right = (np.linalg.qr(rng.normal(size=(n, 12)))[0] for n in shape)
    s, centre = np.geomspace(1.0, max(smallest, 1e-300), 12), rng.normal(size=shape[1])
    V = (left * s) @ right.T
    for found in (nuclear_norm(V, slack=1e-7), nuclear_norm(V + centre, centre, slack=1e-7)):
        assert s.sum() * (1 - 1e-12) <= found <= s.sum() * (1 + 1.01e-7)


@pytest.mark.parametrize("shape", [(30, 8), (8, 30), (12, 12)])
@pytest.mark.parametrize("t", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("share", [0.3, 3.0])
def test_the_common_part_follows_a_moving_argument(shape: tuple[int, int], t: float, share: float) -> None:
    """From the round before, few decompositions are made: the objective must approach that of a map from zero."""
    rng, relationship = np.random.default_rng(6), Learned(1.0 / shape[0])
    V, drift = rng.normal(size=shape) + share * rng.normal(size=shape[1]), rng.normal(size=shape)
    common = np.zeros(shape[1])
    for k in range(12):
        now = V + 0.3**k * drift
        found = relationship.prox(now.copy(), t, common)
        common = found.common
    best = relationship.prox(now.copy(), t, np.zeros(shape[1]))
    value, least = (0.5 * np.sum((one.W - now) ** 2) + t * one.penalty for one in (found, best))
    assert least * (1 - 1e-9) <= value <= least * (1 + 1e-4)
    assert found.penalty >= relationship.penalty(found.W, found.common) * (1 - 1e-6)


class Apart(Learned):
    """Does not write over its argument."""

    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        return super().prox(V.copy(), t, common)


@pytest.mark.parametrize("dtype", [int, np.float32])
@pytest.mark.parametrize("tau", [0.0, 0.5])
def test_the_prox_of_other_numbers_is_that_of_float64(dtype: type, tau: float) -> None:
    V = np.arange(12).reshape(4, 3)
    expected = Learned(tau).prox(V.astype(float), 0.1, np.zeros(3)).W
    np.testing.assert_array_equal(Learned(tau).prox(V.astype(dtype), 0.1, np.zeros(3)).W, expected)


@pytest.mark.parametrize("shape", [(50, 7), (7, 50)])
@pytest.mark.parametrize("tau", [0.0, 0.5])
@pytest.mark.parametrize("t", [0.05, 1e3])  # 1e3: all singular values are shrunk to next to nothing
def test_the_prox_is_written_over_its_argument(shape: tuple[int, int], tau: float, t: float) -> None:
    rng = np.random.default_rng(4)
    V, start = rng.normal(size=shape), np.zeros(shape[1])
    over = V.copy()
    found = Learned(tau).prox(over, t, start)
    assert found.W is over
    if tau == 0:
        np.testing.assert_allclose(over, nuclear_prox(V, t)[0], atol=1e-12)
    assert found.penalty == pytest.approx(Learned(tau).penalty(over, found.common), rel=1e-6)
    dual = (V - over) / t  # optimal for the proximal map: Fenchel-Young holds with equality
    both = found.penalty + Learned(tau).conjugate(dual)
    assert both == pytest.approx(float(np.vdot(over, dual)), rel=1e-4, abs=1e-9)
    # beside a free intercept, also from a relationship that does not write over V
    wide, ridge = np.column_stack([V, np.arange(len(V))]), 0.3
    for base in (Learned(tau), Apart(tau)):
        found = FreeIntercept(base, ridge).prox(wide.copy(), t, np.append(start, 0.0))
        np.testing.assert_allclose(found.W[:, :-1], over, atol=1e-12)
        np.testing.assert_allclose(found.W[:, -1], wide[:, -1] / (1 + t * ridge), rtol=1e-14)
