"""The accounting against the definition: the hockey-stick divergence of two Gaussians, integrated numerically."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from dmtrl.federation.protection.noise.accounting import delta_of, epsilon_of, mu_of, sigma_of, total_mu

MUS = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
EPSILONS = (0.1, 0.5, 1.0, 3.0, 8.0)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_delta_is_the_hockey_stick_divergence(mu: float, epsilon: float) -> None:
    start = mu / 2 + epsilon / mu  # where the privacy loss exceeds epsilon

    def excess(x: float) -> float:
        return float(norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x))

    expected, _ = quad(excess, start, start + 40.0, epsabs=1e-15, epsrel=1e-11)
    assert delta_of(epsilon, mu) == pytest.approx(expected, rel=1e-6, abs=1e-15)


@settings(max_examples=50, deadline=None)
@given(st.floats(0.05, 20.0), st.floats(1e-9, 0.1))
def test_epsilon_and_mu_are_inverse(epsilon: float, delta: float) -> None:
    mu = mu_of(epsilon, delta)
    assert delta_of(epsilon, mu) <= delta, "the budget is never exceeded by rounding"
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)


def test_composition_is_one_release_of_the_sum() -> None:
    """T releases with sigma sqrt(T) are as private as one with sigma: the joint density is that of one Gaussian."""
    mu = 0.7
    sigma = sigma_of(2.0, mu, releases=9)
    assert total_mu([2.0 / sigma] * 9) == pytest.approx(mu)
    # a Monte Carlo estimate of delta for three releases, from the definition
    rng, parts = np.random.default_rng(0), np.array([0.3, 0.4, 0.5])
    x = rng.standard_normal((200_000, 3)) + parts
    loss = (x * parts - parts**2 / 2).sum(axis=1)
    estimate = np.maximum(1.0 - np.exp(0.5 - loss), 0.0)
    assert delta_of(0.5, total_mu(parts)) == pytest.approx(estimate.mean(), abs=5 * estimate.std() / math.sqrt(len(x)))


def test_no_noise_is_no_privacy_and_no_release_costs_nothing() -> None:
    assert delta_of(1.0, 0.0) == 0.0
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert delta_of(1.0, 100.0) > 0.999


def test_the_known_calibration() -> None:
    """Balle and Wang (2018), analytic Gaussian mechanism: epsilon 1, delta 1e-5 needs sigma 3.730632 per unit."""
    assert sigma_of(1.0, mu_of(1.0, 1e-5)) == pytest.approx(3.7306, abs=1e-3)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0)])
def test_impossible_budgets_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        mu_of(epsilon, delta)


# sigma per unit of sensitivity, releases, delta, and epsilon as dp-accounting 0.6 computes it (support/dp_oracle.py)
DP_ACCOUNTING = [
    (0.6, 1, 1e-5, 8.003691), (0.6, 1, 1e-3, 5.979015), (0.6, 4, 1e-5, 19.130768), (0.6, 4, 1e-3, 15.153356),
    (0.6, 20, 1e-5, 58.777360), (0.6, 20, 1e-3, 49.976734), (2.0, 1, 1e-5, 1.993091), (2.0, 1, 1e-3, 1.352276),
    (2.0, 4, 1e-5, 4.377178), (2.0, 4, 1e-3, 3.138671), (2.0, 20, 1e-5, 11.480023), (2.0, 20, 1e-3, 8.787283),
    (5.0, 1, 1e-5, 0.725522), (5.0, 1, 1e-3, 0.453920), (5.0, 4, 1e-5, 1.554982), (5.0, 4, 1e-3, 1.035708),
    (5.0, 20, 1e-5, 3.848610), (5.0, 20, 1e-3, 2.735408), (20.0, 1, 1e-5, 0.160042), (20.0, 1, 1e-3, 0.084018),
    (20.0, 4, 1e-5, 0.340669), (20.0, 4, 1e-3, 0.197534), (20.0, 20, 1e-5, 0.819728), (20.0, 20, 1e-3, 0.518418),
]  # fmt: skip


@pytest.mark.parametrize(("sigma", "releases", "delta", "epsilon"), DP_ACCOUNTING)
def test_equal_to_dp_accounting(sigma: float, releases: int, delta: float, epsilon: float) -> None:
    assert epsilon_of(total_mu([1 / sigma] * releases), delta) == pytest.approx(epsilon, abs=1e-3)
