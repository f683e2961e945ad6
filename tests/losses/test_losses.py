"""Every loss by property and by oracle: textbook formulas, Fenchel-Young, numeric derivatives, scalar minimisation.

`check_loss` is held to the same losses, and to losses broken on purpose.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import xlogy

from dmtrl.losses import Loss, get_loss, scalar
from dmtrl.losses import builtin as losses
from support.losses_by_hand import halved_absolute

BUILTIN = [
    losses.hinge(),
    losses.smoothed_hinge(1.0),
    losses.smoothed_hinge(0.05),
    losses.smoothed_hinge(4.0),
    losses.squared_hinge(),
    losses.logistic(),
    losses.squared(),
    losses.absolute(),
    losses.epsilon_insensitive(0.0),
    losses.epsilon_insensitive(0.5),
    losses.huber(0.1),
    losses.huber(1.35),
    losses.huber(20.0),
    losses.quantile(0.5),
    losses.quantile(0.07),
    losses.quantile(0.95),
    losses.poisson(),
]
SMOOTH = [loss for loss in BUILTIN if loss.differentiable]

# l as a function of the margin y z, of the residual r = y - z, or of z and y: written down as in the textbooks.
TEXTBOOK: dict[str, Callable[..., float]] = {
    "hinge": lambda z, y, _: max(0.0, 1 - y * z),
    "squared_hinge": lambda z, y, _: max(0.0, 1 - y * z) ** 2 / 2,
    "smoothed_hinge": lambda z, y, g: (
        0.0 if y * z >= 1 else (1 - y * z) ** 2 / (2 * g) if y * z > 1 - g else 1 - y * z - g / 2
    ),
    "logistic": lambda z, y, _: math.log(1 + math.exp(-y * z)),
    "squared": lambda z, y, _: (z - y) ** 2 / 2,
    "absolute": lambda z, y, _: abs(z - y),
    "epsilon_insensitive": lambda z, y, e: max(0.0, abs(z - y) - e),
    "huber": lambda z, y, d: (z - y) ** 2 / 2 if abs(z - y) < d else d * abs(z - y) - d * d / 2,
    "quantile": lambda z, y, q: max(q * (y - z), (1 - q) * (z - y)),
    "poisson": lambda z, y, _: math.exp(z) - y * z + float(xlogy(y, y)) - y,
}

each = pytest.mark.parametrize("loss", BUILTIN, ids=lambda loss: f"{loss.name}-{loss.param:g}")
each_smooth = pytest.mark.parametrize("loss", SMOOTH, ids=lambda loss: f"{loss.name}-{loss.param:g}")
quick = settings(max_examples=25)

unit = st.floats(0, 1) | st.sampled_from([0.0, 1.0])
moderate = st.floats(-8, 8)
extreme = st.floats(-1e6, 1e6) | st.sampled_from([-1e6, -1e3, -700.0, 0.0, 1.0, 700.0, 1e3, 1e6])
size = st.floats(-12, 8).map(lambda power: 10.0**power) | st.sampled_from([0.0, 1e-12, 1.0, 1e8])


def label(loss: Loss, u: float) -> float:
    """A label of the loss from a number in [0, 1]."""
    if loss.kind == losses.CLASSIFICATION:
        return 1.0 if u < 0.5 else -1.0
    return 30.0 * u if loss.name == "poisson" else 40.0 * (u - 0.5)


def dual(loss: Loss, y: float, u: float, far: float = 50.0) -> float:
    """A feasible a; u = 0 and 1 are the ends of the domain, or `far` away where it has none."""
    low, high = (min(max(end, -far), far) for end in loss.domain(y))
    return min(max(low + u * (high - low), low), high)


def bracket(loss: Loss, a: float, z: float, y: float) -> tuple[float, float]:
    """l(z) + l*(-a) + a z and the size of its terms."""
    terms = loss.value(z, y), loss.conjugate(a, y), a * z
    return sum(terms), 1.0 + sum(map(abs, terms))


def minimum(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """scipy's bounded minimiser, with the ends it never touches."""
    found = minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": 1e-11, "maxiter": 300})
    return min((float(function(x)), float(x)) for x in (found.x, low, high))


@each
@quick
@given(u=unit, z=moderate)
def test_value_is_the_textbook_formula(loss: Loss, u: float, z: float) -> None:
    y = label(loss, u)
    assert loss.value(z, y) == pytest.approx(TEXTBOOK[loss.name](z, y, loss.param), rel=1e-12, abs=1e-12)


@each
@quick
@given(u=unit, v=unit, z=extreme)
def test_fenchel_young(loss: Loss, u: float, v: float, z: float) -> None:
    assume(loss.name != "poisson" or z < 700)
    y = label(loss, u)
    gap, scale = bracket(loss, dual(loss, y, v), z, y)
    assert gap >= -1e-13 * scale


@each_smooth
@quick
@given(u=unit, z=st.floats(-30, 30))
def test_fenchel_young_is_tight_at_the_slope(loss: Loss, u: float, z: float) -> None:
    y = label(loss, u)
    low, high = loss.domain(y)
    a = loss.slope(z, y)
    assert low <= a <= high
    gap, scale = bracket(loss, a, z, y)
    assert abs(gap) <= 1e-12 * scale


@each
@quick
@given(u=unit, v=unit)
def test_conjugate_is_the_supremum(loss: Loss, u: float, v: float) -> None:
    y = label(loss, u)
    a = dual(loss, y, v)
    lowest, z = minimum(lambda z: a * z + loss.value(z, y), -120.0, 120.0)
    assert loss.conjugate(a, y) == pytest.approx(-lowest, rel=1e-6, abs=1e-6 * (1 + abs(a * z)))


@each
@quick
@given(u=unit, beyond=st.floats(1e-9, 1e3))
def test_conjugate_is_infinite_outside_the_domain(loss: Loss, u: float, beyond: float) -> None:
    y = label(loss, u)
    low, high = loss.domain(y)
    assert low <= 0 <= high
    assert math.isinf(low) or loss.conjugate(low - beyond, y) == math.inf
    assert math.isinf(high) or loss.conjugate(high + beyond, y) == math.inf


@each
@quick
@given(u=unit, v=unit, z=moderate, sq=st.floats(-4, 3).map(lambda power: 10.0**power) | st.just(0.0))
@example(u=0.0, v=1.0, z=0.3, sq=0.0)
def test_step_is_the_scalar_minimiser(loss: Loss, u: float, v: float, z: float, sq: float) -> None:
    y = label(loss, u)
    a = dual(loss, y, v)

    def objective(new: float) -> float:
        return loss.conjugate(new, y) + (new - a) * z + sq * (new - a) ** 2 / 2

    low, high = (min(max(end, -4e3), 4e3) for end in loss.domain(y))
    lowest, x = minimum(objective, low, high)
    new = loss.step(a, z, y, sq)
    assert low <= new <= high
    assert objective(new) <= lowest + 1e-12 * (1 + abs(x * z) + abs(a * z) + abs(loss.conjugate(x, y)))
    if sq > 0:  # strongly convex: what is as low is also near
        assert abs(new - x) <= 1e-4 * (1 + abs(x)) + math.sqrt(1e-6 / sq)


@each
@settings(max_examples=50)
@given(u=unit, v=unit, z=extreme, sq=size)
@example(u=0.0, v=0.1875, z=0.0, sq=1e8)
def test_step_at_extremes_stays_feasible_and_optimal(loss: Loss, u: float, v: float, z: float, sq: float) -> None:
    """The step is optimal exactly if Fenchel-Young is tight at the z it leads to, z + sq (a' - a)."""
    y = label(loss, u)
    low, high = loss.domain(y)
    a = dual(loss, y, v)
    new = loss.step(a, z, y, sq)
    assert low <= new <= high
    assert math.isfinite(new)
    assert math.isfinite(loss.conjugate(new, y)) or (loss.name == "poisson" and z > 700)
    after = z + sq * (new - a)
    if loss.name != "poisson" or after < 700:
        gap, scale = bracket(loss, new, after, y)
        rounding = 4e-16 * (abs(z) + abs(y) + sq * (abs(a) + abs(new)))  # of `after`, times the slope there
        assert abs(gap) <= 1e-12 * scale + rounding * (1 + abs(new) + rounding)


@each
def test_step_is_optimal_at_many_ordinary_points(loss: Loss) -> None:
    """Thousands of points: a Newton iteration may cycle at one start in a hundred, which a few examples miss."""
    rng = np.random.default_rng(0)
    z, sq = rng.normal(scale=4.0, size=4000), 10.0 ** rng.uniform(-4, 3, size=4000)
    y = np.array([label(loss, u) for u in rng.random(4000)])
    u = np.where(rng.random(4000) < 0.5, rng.integers(2, size=4000), rng.random(4000))
    a = np.array([dual(loss, *pair) for pair in zip(y, u, strict=True)])
    a[:1000] = 0.0  # where the solvers start
    new = loss.step(a, z, y, sq)
    after = z + sq * (new - a)
    terms = np.array([loss.value(after, y), loss.conjugate(new, y), new * after])
    rounding = 4e-16 * (abs(z) + abs(y) + sq * (abs(a) + abs(new))) * (1 + abs(new))
    assert (abs(terms.sum(axis=0)) <= 1e-12 * (1 + abs(terms).sum(axis=0)) + rounding).all()


def test_poisson_step_for_a_large_score() -> None:
    """r = y - a' solves log r + r = z + 1 for sq = 1, a = 0, y = 1; the answer is near z, not near exp(z)."""
    r = 1.0 - losses.poisson().step(0.0, 600.0, 1.0, 1.0)
    assert math.log(r) + r == pytest.approx(601.0, rel=1e-12)


@each_smooth
@quick
@given(u=unit, z=moderate)
def test_slope_is_minus_the_derivative(loss: Loss, u: float, z: float) -> None:
    y, h = label(loss, u), 1e-5
    numeric = (loss.value(z - h, y) - loss.value(z + h, y)) / (2 * h)
    bend = loss.smoothness if math.isfinite(loss.smoothness) else math.exp(z + h)
    assert abs(loss.slope(z, y) - numeric) <= h * bend + 1e-9 * (1 + abs(loss.value(z, y)))


@each_smooth
@quick
@given(u=unit, z=moderate)
def test_curvature_is_the_second_derivative_away_from_kinks(loss: Loss, u: float, z: float) -> None:
    y, h = label(loss, u), 1e-5
    kinks = {
        "smoothed_hinge": [y, y * (1 - loss.param)],
        "squared_hinge": [y],
        "huber": [y - loss.param, y + loss.param],
    }
    assume(all(abs(z - kink) > 2 * h for kink in kinks.get(loss.name, [])))
    numeric = (loss.slope(z - h, y) - loss.slope(z + h, y)) / (2 * h)
    curvature = scalar.loss_curvature(loss.id, loss.param, z, y)
    assert curvature == pytest.approx(numeric, rel=1e-6, abs=1e-7)


@each
@quick
@given(u=unit, z=st.floats(-100, 100), distance=st.floats(1e-3, 10))
def test_constants_are_bounds(loss: Loss, u: float, z: float, distance: float) -> None:
    y = label(loss, u)
    here, there = loss.value(z, y), loss.value(z + distance, y)
    assert abs(there - here) <= loss.lipschitz * distance + 1e-12 * (1 + abs(here))
    if math.isfinite(loss.smoothness):
        change = abs(loss.slope(z + distance, y) - loss.slope(z, y))
        assert change <= loss.smoothness * distance * (1 + 1e-12) + 1e-12


@each
def test_constants_are_the_smallest_bounds(loss: Loss) -> None:
    z = np.linspace(-60, 60, 24001)
    steepest, most_bent = 0.0, 0.0
    for y in (label(loss, 0.0), label(loss, 0.6), label(loss, 1.0)):
        slopes = np.diff(loss.value(z, y)) / np.diff(z)
        steepest = max(steepest, abs(slopes).max())
        most_bent = max(most_bent, (np.diff(slopes) / np.diff(z)[1:]).max())
    if math.isfinite(loss.lipschitz):
        assert steepest == pytest.approx(loss.lipschitz, rel=1e-6)
    else:
        assert steepest > 30
    if math.isfinite(loss.smoothness):
        assert most_bent == pytest.approx(loss.smoothness, rel=1e-4)
    else:
        assert most_bent > 50


def test_members_take_arrays() -> None:
    z, y = np.array([[0.5], [2.0]]), np.array([1.0, -1.0])
    np.testing.assert_allclose(losses.hinge().value(z, y), [[0.5, 1.5], [0.0, 3.0]])
    assert losses.squared().step(np.zeros(0), 0.0, 0.0, 1.0).shape == (0,)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: losses.huber(0.0), "the huber loss needs delta > 0, got 0.0"),
        (lambda: losses.huber(math.nan), "the huber loss needs delta > 0, got nan"),
        (lambda: losses.smoothed_hinge(-1.0), "the smoothed_hinge loss needs gamma > 0, got -1.0"),
        (lambda: losses.smoothed_hinge(math.inf), "the smoothed_hinge loss needs gamma > 0, got inf"),
        (lambda: losses.quantile(1.5), "the quantile loss needs a quantile between 0 and 1, got 1.5"),
        (lambda: losses.quantile(0.0), "the quantile loss needs a quantile between 0 and 1, got 0.0"),
        (lambda: losses.epsilon_insensitive(-0.1), "the epsilon_insensitive loss needs epsilon >= 0, got -0.1"),
        (lambda: get_loss("hinges"), "unknown loss 'hinges'; choose one of absolute, .*, or pass a Loss"),
        (lambda: losses.hinge().slope(0.0, 1.0), "the hinge loss is not differentiable"),
    ],
)
def test_bad_parameters_are_refused_with_a_sentence(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        make()


@pytest.mark.parametrize(
    ("loss", "y", "sentence"),
    [
        ("poisson", [3.0, -1.0], r"task 4, row 1: the poisson loss needs non-negative counts, found -1"),
        ("hinge", [1.0, 1.0, 0.0], r"task 4, row 2: the hinge loss needs labels -1 and \+1, found 0"),
        ("logistic", [2.0], r"task 4, row 0: the logistic loss needs labels -1 and \+1, found 2"),
    ],
)
def test_wrong_labels_are_refused_with_the_row(loss: str, y: list[float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        get_loss(loss).check_labels(np.array(y), "task 4")


def test_right_labels_are_taken() -> None:
    get_loss("poisson").check_labels(np.array([0.0, 2.5]), "here")
    get_loss("hinge").check_labels(np.array([1.0, -1.0]), "here")
    get_loss("squared").check_labels(np.array([-7.0]), "here")
    halved_absolute().check_labels(np.array([-7.0, 3.0]), "here")


def test_get_loss() -> None:
    assert {name: get_loss(name).name for name in losses.BUILTIN} == {name: name for name in losses.BUILTIN}
    own = halved_absolute()
    assert get_loss(own) is own
    assert len({get_loss(name).id for name in losses.BUILTIN} | {scalar.CUSTOM}) == len(losses.BUILTIN) + 1
