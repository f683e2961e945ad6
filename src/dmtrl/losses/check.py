"""The conformance suite for losses: `check_loss` tests the members of a loss against each other.

The value is the reference once it is convex: conjugate and domain are compared with suprema found by search, and the
step with the best point that a search on the conjugate finds.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from dmtrl.exceptions import LossError
from dmtrl.losses import scalar
from dmtrl.losses.base import AnyLoss
from dmtrl.losses.builtin import CLASSIFICATION, Loss, get_loss
from dmtrl.numerics.violations import Violations

Function = Callable[..., float]
LABELS = (-3.0, -0.4, 0.0, 0.7, 5.0)  # counts use the last three
FRACTIONS = np.array([0.01, 0.1, 0.4, 0.9, 0.99])  # of a bounded domain
DISTANCES = np.array([-25.0, -5.0, -1.0, -0.1, -0.01, 0.01, 0.1, 1.0, 5.0, 25.0])  # from its finite end, or from zero
STEP_SIZES = (0.0, 1e-12, 1e-2, 1.0, 1e8)  # a row of zeros has sq = 0
SLOPES = "the domain is the closure of all slopes -l'(z)"


def check_loss(loss: str | AnyLoss, labels: Sequence[float] | None = None, *, seed: int = 0) -> None:
    """Raise LossError if a loss violates its contract (`AnyLoss`). The message lists every kind of violation.

    Parameters
    ----------
    loss : str or loss
    labels : sequence of float, optional
        The labels to try; by default -1 and 1 for classification, else reals with a finite loss.
    seed : int
        Seed of the random points.
    """
    loss, violations, rng = get_loss(loss), Violations(), np.random.default_rng(seed)
    if loss.outputs != 1:
        raise ValueError(f"check_loss tests losses of one score; the {loss.name} loss has {loss.outputs}")
    for name in () if isinstance(loss, Loss) else ("value", "conjugate", "step"):
        if not hasattr(getattr(loss, name), "py_func"):
            violations.add(f"{name} is not compiled and cannot run in the kernels", "decorate with @njit")

    def at(label: float) -> _Check:
        return _Check(loss, float(label), rng, violations)

    with np.errstate(all="ignore"):
        if labels is None:
            usual = (-1.0, 1.0) if loss.kind == CLASSIFICATION else LABELS[2 * (loss.id == scalar.POISSON) :]
            labels = [y for y in usual if not (check := at(y)).works() or math.isfinite(check.value(0.0))] or usual
        for check in map(at, labels):
            if check.works() and check.try_value():
                check.try_conjugate()
                check.try_step()
    if violations:
        raise LossError(violations.message(f"the loss {loss.name!r} violates its contract:"))


class _Check:
    """The checks of a loss at one label."""

    def __init__(self, loss: AnyLoss, label: float, rng: np.random.Generator, violations: Violations) -> None:
        self.loss, self.label, self.rng, self.violations = loss, label, rng, violations
        value, conjugate, step = loss.value, loss.conjugate, loss.step
        if isinstance(loss, Loss):  # the compiled scalars are faster than the methods, which accept arrays
            loss.check_labels(np.array([label]), "check_loss")
            table = (scalar.loss_value, scalar.loss_conjugate, scalar.loss_step)
            value, conjugate, step = (partial(function, loss.id, loss.param) for function in table)
        self.value = self.guarded("value", lambda z: value(z, label), "z")
        self.conjugate = self.guarded("conjugate", lambda a: conjugate(a, label), "a")
        self.step = self.guarded("step", lambda a, z, sq: step(a, z, label, sq), "a", "z", "sq")
        self.low, self.high = (float(end) for end in loss.domain(label))

    def add(self, what: str, advice: str, **point: float) -> None:
        where = "".join(f", {name} = {float(number):.9g}" for name, number in point.items())
        self.violations.add(what, advice, f" at label = {self.label:g}{where}" if where else "")

    def works(self) -> bool:
        """Whether no function raises; else numba would recompile a failing function at every point."""
        before = len(self.violations)
        self.value(0.0), self.conjugate(0.0), self.step(0.0, 0.0, 1.0)
        return len(self.violations) == before

    def absent(self, wrong: np.ndarray, z: np.ndarray, what: str, advice: str, **point: float) -> bool:
        for i in np.flatnonzero(wrong)[:1]:
            self.add(what, advice, z=z[i], **point)
        return not wrong.any()

    def guarded(self, name: str, function: Function, *names: str) -> Function:
        def call(*numbers: float) -> float:
            try:
                return float(function(*numbers))
            except Exception as error:  # every exception becomes a violation
                advice = f"it must return a number ({str(error).strip().partition(chr(10))[0]})"
                self.add(f"{name} raises {type(error).__name__}", advice, **dict(zip(names, numbers, strict=True)))
                return math.nan

        return call

    def inside(self) -> list[float]:
        """Return points of the domain, including its ends and zero."""
        low, high = self.low, self.high
        end = next(filter(math.isfinite, (low, high)), 0.0)
        points = low + (high - low) * FRACTIONS if math.isfinite(high - low) else end + DISTANCES[::2]
        return [a for a in sorted({*points.tolist(), 0.0, low, high}) if low <= a <= high and math.isfinite(a)]

    def try_value(self) -> bool:
        """Check that the value is finite, convex and within its constants. Return False if it is not convex."""
        smoothness, lipschitz, good = self.loss.smoothness, self.loss.lipschitz, True
        tame = math.isfinite(min(smoothness, lipschitz))  # such a loss grows slowly and must not overflow
        for width, centre in itertools.product((0.1, 3.0, 20.0, 1e4), (0.0, self.label, self.rng.normal(scale=3.0))):
            z = centre + width * np.linspace(-1.0, 1.0, 201)
            v = np.array([self.value(point) for point in z.tolist()])
            finite = np.isfinite(v)
            if tame or width < 100:
                good &= self.absent(~finite, z, "the value is not finite", "fix it or drop the label") or width > 100
            z, v = z[finite], v[finite]
            if len(z) < 3:
                continue
            noise = 1e-14 * (1.0 + abs(v) + abs(z) + abs(self.label))
            slopes, blur = np.diff(v) / np.diff(z), (noise[1:] + noise[:-1]) / np.diff(z)
            rise, blurs, widths = np.diff(slopes), blur[1:] + blur[:-1], (z[2:] - z[:-2]) / 2
            left, right = 2 * self.rng.integers((len(z) + 1) // 2, size=(2, 300))
            mid = (left + right) // 2
            hump = v[mid] - (v[left] + v[right]) / 2 > noise[left] + noise[mid] + noise[right]
            for wrong, where in ((rise < -blurs, z[1:-1]), (hump, z[mid])):
                good &= self.absent(wrong, where, "the value is not convex in z", "only convex losses have a dual")
            wrong = rise > smoothness * (1 + 1e-9) * widths + blurs
            self.absent(wrong, z[1:-1], f"l'' exceeds smoothness = {smoothness:g}", "raise it (math.inf at a kink)")
            wrong = abs(slopes) > lipschitz * (1 + 1e-9) + blur
            self.absent(wrong, z[:-1], f"|l'| exceeds lipschitz = {lipschitz:g}", "raise it (math.inf if unbounded)")
        return good

    def try_conjugate(self) -> None:
        """Check the Fenchel-Young inequality, and that the conjugate is the supremum and finite only in the domain."""
        low, high = self.low, self.high
        if not (low <= 0.0 <= high and math.isfinite(self.conjugate(0.0))):
            advice = "the solvers start there, so l must be bounded below; fix it or leave out the label"
            self.add("zero is not in the domain with a finite conjugate", advice, a=0.0)
        for a in self.inside():
            c, (best, top, bounded) = self.conjugate(a), self.supremum(a)
            if low < a < high and not math.isfinite(c):
                self.add("the conjugate is not finite inside the domain", f"fix either; {SLOPES}", a=a)
            if low < a < high and not bounded:
                self.add("sup of -a z - l(z) is infinite inside the domain", f"narrow it; {SLOPES}", a=a)
            if bounded and math.isfinite(c) and abs(top - c) > 1e-6 * (1 + abs(c) + abs(a * best)):
                advice = f"it is {c:.9g} and should be {top:.9g}; derive it from the value"
                self.add("the conjugate is not the supremum of -a z - l(z)", advice, z=best, a=a)
            z = self.label + DISTANCES
            v = np.array([self.value(point) for point in z.tolist()])
            wrong = v + c + a * z < -1e-9 * (1 + abs(v) + abs(c) + abs(a * z))
            self.absent(wrong, z, "Fenchel-Young fails: l(z) + l*(-a) + a z < 0", "the conjugate is too small", a=a)
        for a in filter(math.isfinite, (low - 1.0, low - 0.01, high + 0.01, high + 1.0)):
            if self.conjugate(a) != math.inf:
                self.add("the conjugate is not infinite outside the domain", f"fix either; {SLOPES}", a=a)
            if self.supremum(a)[2]:
                self.add("sup of -a z - l(z) is finite outside the domain", f"widen it; {SLOPES}", a=a)

    def supremum(self, a: float) -> tuple[float, float, bool]:
        return _maximise(lambda z: -a * z - self.value(z), -math.inf, math.inf, 0.0, 1e9)

    def gain(self, a: float, z: float, sq: float, c: float, new: float) -> float:
        return c - self.conjugate(new) - (new - a) * z - sq * (new - a) * (new - a) / 2

    def try_step(self) -> None:
        """Check that the step stays in the domain and is as good as the best point that a search finds."""
        points = [0.0, self.label, -1.0, 1.0, 15.0, -1e3, 1e3, self.rng.normal(), self.rng.normal()]
        for a, z, sq in itertools.product(self.inside(), points, STEP_SIZES):
            new, c = self.step(a, z, sq), self.conjugate(a)
            if not self.low <= new <= self.high:
                advice = f"it goes to {new:.9g}; clip it to [{self.low:g}, {self.high:g}]"
                self.add("the step leaves the domain", advice, z=z, a=a, sq=sq)
            elif math.isfinite(c) and math.isfinite(self.value(z)):
                gain = partial(self.gain, a, z, sq, c)
                best, most, _ = _maximise(gain, self.low, self.high, a, 1e300)
                noise = 1e-10 * (1 + abs(c) + abs(self.conjugate(new)) + abs(a * z) + abs(new * z))
                if not gain(new) >= (1 - 1e-6) * most - noise:
                    advice = f"it goes to {new:.9g}, {best:.9g} is better; derive it from the conjugate"
                    self.add("the step is not the maximiser", advice, z=z, a=a, sq=sq)


def _maximise(f: Function, low: float, high: float, start: float, reach: float) -> tuple[float, float, bool]:
    """Return the maximiser of a concave f on [low, high], its value, and whether f stops growing within `reach`."""
    points, bounded = [start], True
    for sign, end in ((-1.0, low), (1.0, high)):
        length, here = 1.0, f(start)
        while (x := start + sign * length) * sign < end * sign and (there := f(x)) > here and bounded:
            here, length, bounded = there, 2.0 * length, length < reach
        points.append(x if x * sign < end * sign else end)
    left, right = points[1:]
    while right - left > 1e-12 * max(abs(left), abs(right)) + 1e-30:
        third = 0.382 * (right - left)  # golden section
        if f(left + third) >= f(right - third):
            right -= third
        else:
            left += third
    points.append((left + right) / 2)
    values = [-math.inf if math.isnan(number) else number for number in map(f, points)]
    return points[int(np.argmax(values))], max(values), bounded
