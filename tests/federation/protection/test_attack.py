"""An attacker who knows all rows but one, and both candidates for it: the strongest membership attack there is.

The score of a release is its likelihood ratio between the two data sets. With Gaussian noise it is a shift of mu =
distance / sigma, so the attack measures mu itself; and no threshold may beat (epsilon, delta).
"""

import math

import numpy as np
import pytest

from dmtrl.data.task_data import TaskData
from dmtrl.federation.protection.noise.accounting import mu_of
from dmtrl.federation.protection.noise.coordinator import ask_in_process, private_moments
from dmtrl.federation.protection.noise.moments import Noise
from dmtrl.federation.protection.noise.releases import step_size
from dmtrl.federation.study.privacy_terms import MOMENTS, NEWTON, ROUNDS, Privacy
from dmtrl.losses import get_loss

TRIALS = 500
MODES = [
    (Privacy(MOMENTS, 2.0, 1e-3, row_norm=1.0, slope=2.0, releases=1), "squared"),
    (Privacy(NEWTON, 2.0, 1e-3, row_norm=1.0, slope=1.0, releases=3), "logistic"),
    (Privacy(ROUNDS, 2.0, 1e-3, row_norm=1.0, slope=1.0, releases=3), "hinge"),
]


def _neighbours(loss: str) -> tuple[TaskData, TaskData]:
    """Twelve rows; the first is replaced by one that differs as much as possible."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 2))
    X[0], other = (9.0, 0.0), X.copy()
    other[0] = (0.0, 9.0) if loss == "squared" else (9.0, 0.0)
    y = np.where(rng.random(12) < 0.5, 1.0, -1.0)
    y[0], labels = 1.0, y.copy()
    y[0], labels[0] = (5.0, -5.0) if loss == "squared" else (1.0, -1.0)
    return TaskData.from_long(X, y), TaskData.from_long(other, labels)


def _transcripts(privacy: Privacy, loss: str, data: TaskData, noise: Noise, trials: int) -> np.ndarray:
    """All releases of a run, as one vector of numbers in units of their noise."""
    made, rng, found = get_loss(loss), np.random.default_rng(5), []
    ask, width = ask_in_process(privacy, made, data, noise, float(np.abs(data.y).max())), data.X.shape[1] + 1
    points = [0.1 * t * rng.standard_normal((1, width)) for t in range(privacy.releases)]
    for _ in range(trials):
        answers = [ask(t, point, step_size(privacy, made)) for t, point in enumerate(points)]
        found.append(np.concatenate([(answer.values / answer.std[:, None]).ravel() for answer in answers]))
    return np.array(found)


def _scores(privacy: Privacy, loss: str, noise: Noise, trials: int) -> tuple[np.ndarray, np.ndarray]:
    one, other = _neighbours(loss)
    silent = [_transcripts(privacy, loss, data, np.zeros, 1)[0] for data in (one, other)]
    direction = silent[1] - silent[0]
    direction /= np.linalg.norm(direction)
    return tuple(  # type: ignore[return-value]
        (_transcripts(privacy, loss, data, noise, trials) - silent[0]) @ direction for data in (one, other)
    )


@pytest.mark.parametrize(("privacy", "loss"), MODES)
def test_the_attack_finds_no_more_than_epsilon_allows(privacy: Privacy, loss: str) -> None:
    rng = np.random.default_rng(1)
    trials = TRIALS if privacy.mode != ROUNDS else TRIALS // 3
    without, within = _scores(privacy, loss, rng.standard_normal, trials)
    found, error = within.mean() - without.mean(), math.sqrt(2.0 / trials)
    assert found <= mu_of(privacy.epsilon, privacy.delta) + 4 * error
    assert found >= 0.3 * mu_of(privacy.epsilon, privacy.delta), "the attack is a strong one"
    for threshold in np.quantile(without, [0.5, 0.8, 0.9, 0.97]):
        hit, false_alarm = (within > threshold).mean(), (without > threshold).mean()
        slack = 4 * (math.sqrt(hit / trials) + math.exp(privacy.epsilon) * math.sqrt(false_alarm / trials))
        assert hit <= math.exp(privacy.epsilon) * false_alarm + privacy.delta + slack


@pytest.mark.parametrize(("privacy", "loss"), MODES)
def test_the_attack_finds_the_row_when_noise_is_switched_off(privacy: Privacy, loss: str) -> None:
    without, within = _scores(privacy, loss, np.zeros, 3)
    assert within.min() > without.max() + 0.1


def test_moments_in_one_process_are_attacked_like_those_of_a_site() -> None:
    """private_moments: the whole result is a function of the noisy vector; its slope entries shift by at most mu."""
    one, other = _neighbours("squared")
    rng, options = np.random.default_rng(2), {"epsilon": 2.0, "delta": 1e-3, "row_norm": 1.0, "label_bound": 2.0}
    silent = [private_moments(data, noise=np.zeros, **options).c for data in (one, other)]  # type: ignore[arg-type]
    shift = silent[1] - silent[0]
    drawn = [
        [float((private_moments(data, noise=rng.standard_normal, **options).c * shift).sum()) for _ in range(TRIALS)]  # type: ignore[arg-type]
        for data in (one, other)
    ]
    found = (np.mean(drawn[1]) - np.mean(drawn[0])) / np.std(drawn[0])
    assert 0.2 < found <= mu_of(2.0, 1e-3) + 4 * math.sqrt(2.0 / TRIALS)
