"""How much privacy a sequence of noisy releases costs: Gaussian differential privacy, in closed form.

A release adds Gaussian noise with standard deviation sigma to numbers that change by at most Delta (in Euclidean norm)
when one row is replaced. What an attacker can learn from it is a test between N(0, 1) and N(mu, 1), with mu =
Delta / sigma. Releases compose exactly: mu^2 adds up, also if a release was chosen after seeing the ones before (Dong,
Roth and Su 2022). mu says the same as a whole curve of pairs (epsilon, delta):

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)
"""

import math
from collections.abc import Iterable

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dmtrl.federation.study.privacy_terms import Privacy


def total_mu(mus: Iterable[float]) -> float:
    """mu of several releases on the same rows."""
    return math.sqrt(math.fsum(mu * mu for mu in mus))


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta for which releases with this mu are (epsilon, delta)-differentially private."""
    if mu == 0:
        return 0.0
    second = math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
    return max(float(ndtr(mu / 2 - epsilon / mu)) - second, 0.0)


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 for which releases with this mu are (epsilon, delta)-differentially private."""
    _check_delta(delta)
    if delta_of(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while delta_of(high, mu) > delta:
        high *= 2.0
    return float(brentq(lambda epsilon: delta_of(epsilon, mu) - delta, 0.0, high, xtol=1e-12, rtol=1e-12))


def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-differentially private: the budget of a study."""
    _check_delta(delta)
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon must be positive and finite, got {epsilon!r}")
    high = 1.0
    while delta_of(epsilon, high) <= delta:
        high *= 2.0
    mu = float(brentq(lambda mu: delta_of(epsilon, mu) - delta, 0.0, high, xtol=1e-13, rtol=1e-13))
    return mu * (1.0 - 1e-12)  # on the private side of the root


def cost_of(privacy: Privacy, epsilon: float = math.inf) -> float:
    """What a whole study costs, as mu; with a smaller epsilon if a site wants more privacy."""
    return mu_of(min(epsilon, privacy.epsilon), privacy.delta)


def sigma_of(sensitivity: float, mu: float, releases: int = 1) -> float:
    """The standard deviation of the noise of each of `releases` releases that cost mu together."""
    return sensitivity * math.sqrt(releases) / mu


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, got {delta!r}")
