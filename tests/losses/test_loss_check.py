"""check_loss: a consistent loss passes, and every kind of violation is reported."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numba import njit
from test_losses import BUILTIN

from dmtrl.exceptions import LossError
from dmtrl.losses import CLASSIFICATION, CustomLoss, Softmax, scalar
from dmtrl.losses import builtin as losses
from dmtrl.losses.check import check_loss
from support.losses_by_hand import EXPECTILE, expectile_step


@njit
def logcosh_value(z, y):
    r = abs(y - z)
    return r + np.log1p(np.exp(-2.0 * r)) - np.log(2.0)


@njit
def xlogx(x):
    return x * np.log(x) if x > 0 else 0.0


@njit
def logcosh_conjugate(a, y):
    """-l'(z) = tanh(y - z), so r = atanh(a), and a atanh(a) - log cosh(atanh(a)) is the entropy below."""
    return np.inf if abs(a) > 1 else 0.5 * (xlogx(1.0 + a) + xlogx(1.0 - a)) - a * y


@njit
def logcosh_step(a, z, y, sq):
    """r = atanh(a') solves r + sq tanh(r) = y - z + sq a; the left side grows in r, so bisection will do."""
    top = y - z + sq * a
    low, high = top - sq, top + sq
    for _ in range(200):
        r = 0.5 * (low + high)
        if r + sq * np.tanh(r) > top:
            high = r
        else:
            low = r
    return np.tanh(0.5 * (low + high))


LOGCOSH = CustomLoss(
    "logcosh",
    logcosh_value,
    logcosh_conjugate,
    logcosh_step,
    domain=lambda y: (-1.0, 1.0),
    smoothness=1.0,
    lipschitz=1.0,
)


@pytest.mark.parametrize("loss", [*BUILTIN, EXPECTILE, LOGCOSH], ids=lambda loss: f"{loss.name}-{loss.param:g}")
def test_check_loss_passes(loss: Any) -> None:
    check_loss(loss)


def test_check_loss_takes_names_labels_and_seeds() -> None:
    check_loss("logistic", seed=7)
    check_loss("poisson", [0, 3])
    with pytest.raises(ValueError, match="the poisson loss needs non-negative counts"):
        check_loss("poisson", [2.0, -1.0])
    with pytest.raises(ValueError, match="one score; the softmax loss has 3"):
        check_loss(Softmax(3))


@njit
def ramp_value(z, y):
    return min(max(1.0 - y * z, 0.0), 1.0)


@njit
def hinge_conjugate(a, y):
    return np.inf if a * y < 0 or a * y > 1 else -a * y


@njit
def hinge_step(a, z, y, sq):
    return y * min(max(a * y + (1.0 - y * z) / max(sq, 1e-100), 0.0), 1.0)


@njit
def hinge_step_without_care_for_zero(a, z, y, sq):
    return y * min(max(a * y + (1.0 - y * z) / sq, 0.0), 1.0)


@njit
def hinge_value(z, y):
    return max(1.0 - y * z, 0.0)


HINGE = CustomLoss(
    "my hinge",
    hinge_value,
    hinge_conjugate,
    hinge_step,
    domain=lambda y: (0.0, 1.0) if y > 0 else (-1.0, 0.0),
    kind="classification",
    lipschitz=1.0,
)


@njit
def conjugate_too_large(a, y):
    return 0.6 * a * a / (0.8 if a >= 0 else 0.2) - a * y


@njit
def conjugate_too_small(a, y):
    return 0.4 * a * a / (0.8 if a >= 0 else 0.2) - a * y


@njit
def conjugate_never_infinite(a, y):
    return -a * y


@njit
def step_of_half_the_length(a, z, y, sq):
    return a + 0.5 * (expectile_step(a, z, y, sq) - a)


@njit
def step_that_forgets_sq(a, z, y, sq):
    return expectile_step(a, z, y, 0.0)


@njit
def step_without_a_clip(a, z, y, sq):
    return a + (1.0 - y * z) * y / max(sq, 1e-100)


@njit
def naive_logistic(z, y):
    return np.log(1.0 + np.exp(-y * z))


@njit
def dented(z, y):
    return 0.5 * (z - y) ** 2 + 0.05 * np.cos(10.0 * z)


@njit
def counts_value(z, y):
    return np.exp(z) - y * z + (y * np.log(y) if y > 0 else 0.0) - y if y >= 0 else np.inf


@njit
def not_typed(a, z, y, sq):
    return a + "sq"


def changed(loss: Any, **members: Any) -> Any:
    return dataclasses.replace(loss, **members)


def unit_interval(_: float) -> tuple[float, float]:
    return -1.0, 1.0


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (
            changed(EXPECTILE, conjugate=conjugate_too_large),
            r"the conjugate is not the supremum of .* at label = .*, z =",
        ),
        (changed(EXPECTILE, conjugate=conjugate_too_small), r"Fenchel-Young fails"),
        (changed(HINGE, conjugate=conjugate_never_infinite), r"the conjugate is not infinite outside the domain at"),
        (changed(EXPECTILE, step=step_of_half_the_length), r"the step is not the maximiser at label = .*, sq ="),
        (changed(EXPECTILE, step=step_that_forgets_sq), r"the step is not the maximiser at label = .*, sq ="),
        (changed(HINGE, step=step_without_a_clip), r"the step leaves the domain at .*clip it to"),
        (changed(HINGE, step=hinge_step_without_care_for_zero), r"step raises ZeroDivisionError at .*sq = 0"),
        (changed(EXPECTILE, domain=unit_interval), r"finite outside the domain at .*widen it"),
        (changed(LOGCOSH, domain=lambda y: (-2.0, 2.0)), r"infinite inside the domain at .*narrow it"),
        (changed(HINGE, domain=lambda y: (0.0, 1.0)), r"the conjugate is not finite inside the domain at label = -1"),
        (changed(HINGE, domain=lambda y: (0.5, 1.0)), r"zero is not in the domain"),
        (changed(HINGE, value=ramp_value), r"the value is not convex in z at label = "),
        (changed(EXPECTILE, value=dented), r"the value is not convex in z at label = "),
        (changed(HINGE, value=naive_logistic), r"the value is not finite at label = "),
        (changed(LOGCOSH, lipschitz=0.9), r"\|l'\| exceeds lipschitz = 0.9 at label = .*raise it"),
        (changed(LOGCOSH, smoothness=0.9), r"l'' exceeds smoothness = 0.9 at label = .*raise it"),
        (changed(HINGE, smoothness=10.0), r"l'' exceeds smoothness = 10 at .*math.inf at a kink"),
        (changed(HINGE, step=hinge_step.py_func), r"step is not compiled.*: decorate with @njit"),
        (changed(HINGE, step=not_typed), r"step raises TypingError"),
        (changed(losses.huber(1.0), lipschitz=0.5), r"\|l'\| exceeds lipschitz = 0.5"),
        (changed(losses.logistic(), smoothness=0.2), r"l'' exceeds smoothness = 0.2"),
    ],
)
def test_check_loss_catches(loss: Any, sentence: str) -> None:
    with pytest.raises(LossError, match=sentence):
        check_loss(loss, None if loss.kind == CLASSIFICATION else [0.7])


def test_check_loss_lists_everything_at_once() -> None:
    broken = changed(
        EXPECTILE, conjugate=conjugate_too_small, step=expectile_step.py_func, smoothness=0.5, lipschitz=3.0
    )
    with pytest.raises(LossError) as caught:
        check_loss(broken)
    lines = str(caught.value).splitlines()
    assert "'expectile' violates its contract" in lines[0]
    for part in ("njit", "smoothness", "lipschitz", "Fenchel-Young", "supremum", "maximiser"):
        assert sum(part in line for line in lines[1:]) == 1, part


def test_a_non_convex_loss_is_reported_as_that_alone() -> None:
    with pytest.raises(LossError, match="convex") as caught:
        check_loss(changed(HINGE, value=ramp_value))
    assert "maximiser" not in str(caught.value)


def test_check_loss_leaves_out_labels_with_an_infinite_loss() -> None:
    poisson = losses.poisson()
    counts = CustomLoss(
        "counts",
        counts_value,
        njit(lambda a, y: scalar.loss_conjugate(9, 0.0, a, y)),
        njit(lambda a, z, y, sq: scalar.loss_step(9, 0.0, a, z, y, sq)),
        domain=poisson.domain,
    )
    check_loss(counts)
    with pytest.raises(LossError, match="the value is not finite at label = -2"):
        check_loss(counts, [-2.0])
