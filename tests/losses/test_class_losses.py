"""The losses of several scores by property and by oracle: textbook formulas, Fenchel-Young, derivatives, cvxpy."""

import math

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp, softmax, xlogy

from dmtrl import losses
from support.oracles import optimum

K = 4
LOSSES = [
    losses.Softmax(K),
    losses.Softmax(K, (0, 1, 3)),
    losses.OneVsRest(K, binary=losses.logistic()),
    losses.OneVsRest(K, (0, 1, 3), binary=losses.hinge()),
]
SOFTMAX = LOSSES[:2]
each = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.name}-{loss.possible}")
each_softmax = pytest.mark.parametrize("loss", SOFTMAX, ids=lambda loss: f"{loss.possible}")
quick = settings(max_examples=25)
seeds = st.integers(0, 10**6)


def draw(loss, seed, spread=3.0):
    """Scores, a label, and feasible dual variables, some of them on the boundary."""
    rng = np.random.default_rng(seed)
    some = np.flatnonzero(loss.mask)
    z, y = spread * rng.normal(size=K), int(rng.choice(some))
    a = np.zeros(K)
    if isinstance(loss, losses.Softmax):
        share = rng.dirichlet(np.full(len(some), rng.choice([0.05, 1.0])))
        a[some] = (some == y) - share
    else:
        low, high = loss.domain(y)
        a = low + (high - low) * np.clip(rng.normal(0.5, 0.5, size=K), 0, 1)
    return z, y, a


def textbook(loss, z, y):
    some = np.flatnonzero(loss.mask)
    if isinstance(loss, losses.Softmax):
        return logsumexp(z[some]) - z[y]
    signs = np.where(some == y, 1.0, -1.0)
    margin = signs * z[some]
    return float((np.logaddexp(0, -margin) if loss.binary.name == "logistic" else np.maximum(0, 1 - margin)).sum())


@each
@quick
@given(seed=seeds)
def test_values_and_fenchel_young(loss, seed):
    z, y, a = draw(loss, seed)
    value, conjugate = loss.value(z, y), loss.conjugate(a, y)
    assert value == pytest.approx(textbook(loss, z, y), rel=1e-12, abs=1e-12)
    assert math.isfinite(conjugate)
    assert value + conjugate + a @ z >= -1e-9
    low, high = loss.domain(y)
    assert ((low - 1e-12 <= a) & (a <= high + 1e-12)).all()


@each
@quick
@given(seed=seeds)
def test_lipschitz_bounds_the_gradient(loss, seed):
    """And no smaller number does: -a is a gradient for every a of the domain, up to closure."""
    _, y, a = draw(loss, seed)
    assert np.linalg.norm(a) <= loss.lipschitz * (1 + 1e-12)
    if not isinstance(loss, losses.Softmax):
        low, high = loss.domain(y)
        assert np.linalg.norm(np.maximum(-low, high)) == pytest.approx(loss.lipschitz)


@each_softmax
@quick
@given(seed=seeds)
def test_softmax_conjugate_is_the_negative_entropy_and_infinite_elsewhere(loss, seed):
    z, y, a = draw(loss, seed)
    share = np.eye(K)[y] - a
    assert loss.conjugate(a, y) == pytest.approx(xlogy(share, share).sum(), abs=1e-9)
    assert loss.conjugate(np.zeros(K), y) == 0
    assert loss.conjugate(a + 0.1, y) == math.inf  # does not sum to zero
    assert loss.conjugate(2.0 * (np.eye(K)[y] - np.eye(K)[(y + 1) % K]), y) == math.inf  # a negative share
    assert loss.value(z + 7.0, y) == pytest.approx(loss.value(z, y), abs=1e-9)
    chance = np.exp(log_softmax(np.where(loss.mask, z, -np.inf)))
    np.testing.assert_allclose(loss.slope(z, y), np.eye(K)[y] - chance, atol=1e-12)
    at_slope = loss.slope(z, y)
    assert loss.value(z, y) + loss.conjugate(at_slope, y) + at_slope @ z == pytest.approx(0, abs=1e-9)


@each
@settings(max_examples=40)
@given(seed=seeds, power=st.floats(-10, 4))
def test_a_step_is_the_best_one(loss, seed, power):
    """Its bracket is zero at the scores to which it leads, which characterises the maximum."""
    z, y, a = draw(loss, seed)
    sq = 10.0**power
    new = loss.step(a, z, y, sq)
    moved = z + sq * (new - a)
    scale = 1 + abs(loss.value(moved, y)) + abs(new @ moved)
    assert loss.value(moved, y) + loss.conjugate(new, y) + new @ moved == pytest.approx(0, abs=1e-6 * scale)


@pytest.mark.parametrize("sq", [0.01, 1.0, 100.0])
def test_softmax_step_against_cvxpy(sq):
    loss = losses.Softmax(K)
    z, y, a = draw(loss, 3)
    share = cp.Variable(K)
    change = (np.eye(K)[y] - a) - share
    gain = cp.sum(cp.entr(share)) - z @ change - sq / 2 * cp.sum_squares(change)
    optimum(cp.Maximize(gain), [cp.sum(share) == 1])
    np.testing.assert_allclose(np.eye(K)[y] - loss.step(a, z, y, sq), share.value, atol=1e-5)


def test_extreme_scores_do_not_overflow():
    loss = losses.Softmax(3)
    for size in (1e3, 1e6):
        z = np.array([size, -size, 0.0])
        assert loss.value(z, 0) == 0
        assert loss.value(z, 1) == pytest.approx(2 * size)
        step = loss.step(np.zeros(3), z, 1, 1.0)
        assert np.isfinite(step).all()
        assert math.isfinite(loss.conjugate(step, 1))
    np.testing.assert_allclose(loss.slope(np.zeros(3), 2), [-1 / 3, -1 / 3, 2 / 3])
    np.testing.assert_allclose(softmax(np.zeros(3)), 1 / 3)


def test_labels_are_checked():
    with pytest.raises(ValueError, match="task 'a', row 1: the softmax loss needs labels from 0 to 2, found 3"):
        losses.Softmax(3).check_labels(np.array([0.0, 3.0]), "task 'a'")
    with pytest.raises(ValueError, match="needs the labels 0, 2, found 1"):
        losses.Softmax(3, (0, 2)).check_labels(np.array([1.0]), "task 'a'")
    for outputs in (1, 2.5, "3"):
        with pytest.raises(ValueError, match="at least two classes"):
            losses.Softmax(outputs)
    with pytest.raises(ValueError, match="possible must list"):
        losses.Softmax(3, (3,))
    with pytest.raises(ValueError, match="a loss for two classes"):
        losses.OneVsRest(3, binary=losses.squared())
