"""Does a loss fit together? `check_loss` holds its members against each other and says where they disagree.

Room: beside the losses. It reads the loss table and the compiled scalars and nothing else; no solver calls it. Only the value
is believed: it is tried for convexity and its two constants, and what conjugate, domain and step should be is found from it
by scalar search. Losses are convex in z, so golden section is all the optimisation there is.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dmtrl import kernels
from dmtrl.losses import CLASSIFICATION, REGRESSION, AnyLoss, CustomLoss, Loss, get_loss

Function = Callable[..., float]

LABELS = (-3.0, -0.4, 0.0, 0.7, 5.0)
FRACTIONS = np.array([0.01, 0.1, 0.4, 0.9, 0.99])  # of a bounded domain
DISTANCES = np.array([0.01, 0.1, 1.0, 5.0, 25.0])  # from the one end of a half line
STEP_SIZES = (0.0, 1e-12, 1e-3, 1.0, 1e3, 1e8)  # zero is met in earnest: a row of zeros has sq = 0
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class LossError(ValueError):
    """A loss whose members disagree; the message lists every disagreement."""


class _Findings:
    """One sentence for each kind of disagreement: the point where it was met first, at how many, and what to do."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.first: dict[str, tuple[str, str]] = {}

    def add(self, what: str, advice: str, **point: float) -> None:
        self.count[what] += 1
        self.first.setdefault(what, (", ".join(f"{k} = {float(v):.9g}" for k, v in point.items()), advice))

    def fail_if_any(self, name: str) -> None:
        lines = [f"check_loss: the loss {name!r} does not fit together."]
        for what, (point, advice) in self.first.items():
            more = f", and at {self.count[what] - 1} more points" if self.count[what] > 1 else ""
            lines.append(f"- {what}{f' at {point}' if point else ''}{more}: {advice}.")
        if self.first:
            raise LossError("\n".join(lines))


@dataclass(frozen=True)
class _Case:
    """A loss at one label."""

    loss: AnyLoss
    label: float
    value: Function  # of z
    conjugate: Function  # of a
    step: Function  # of a, z, sq
    low: float
    high: float
    findings: _Findings

    def add(self, what: str, advice: str, **point: float) -> None:
        self.findings.add(what, advice, label=self.label, **point)


def check_loss(loss: str | AnyLoss, labels: Sequence[float] | None = None, *, seed: int = 0) -> None:
    """Raise LossError with a sentence for every disagreement between value, conjugate, domain, step and constants.

    `labels` are the labels to try: by default -1 and +1 for classification, else a spread of reals on which the loss is
    defined. `seed` draws the random ones among the points.
    """
    loss, findings = get_loss(loss), _Findings()
    if isinstance(loss, Loss):  # the compiled scalars: much quicker here than the members that take arrays
        table = (kernels.loss_value, kernels.loss_conjugate, kernels.loss_step)
        value, conjugate, step = (partial(function, loss.id, loss.param) for function in table)
    else:
        value, conjugate, step = loss.value, loss.conjugate, loss.step
        for name in ("value", "conjugate", "step"):
            if not hasattr(getattr(loss, name), "py_func"):
                findings.add(f"{name} is not compiled and cannot run in the kernels", "decorate with @njit")
    if loss.kind not in (CLASSIFICATION, REGRESSION):
        findings.add(f"kind is {loss.kind!r}", f"make it {CLASSIFICATION!r} or {REGRESSION!r}")
    for name in ("smoothness", "lipschitz"):
        if not getattr(loss, name) > 0:
            findings.add(f"{name} is {getattr(loss, name)!r}", "give a positive bound, or math.inf for none")
    value = _guarded("value", value, ("z", "label"), findings)
    conjugate = _guarded("conjugate", conjugate, ("a", "label"), findings)
    step = _guarded("step", step, ("a", "z", "label", "sq"), findings)
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        for label in _labels(loss, labels):
            value(0.0, label), conjugate(0.0, label), step(0.0, 0.0, label, 1.0)
            if any("raises" in what for what in findings.count):
                break  # a function that does not even compile would be compiled anew at every point
            low, high = loss.domain(label)
            case = _Case(loss, label, lambda z, y=label: value(z, y), lambda a, y=label: conjugate(a, y),
                         lambda a, z, sq, y=label: step(a, z, y, sq), float(low), float(high), findings)  # fmt: skip
            if _check_value(case, rng) and _check_conjugate(case):
                _check_step(case, rng)
    findings.fail_if_any(loss.name)


def _labels(loss: AnyLoss, labels: Sequence[float] | None) -> list[float]:
    if labels is not None:
        chosen = [float(label) for label in labels]
        loss.check_labels(np.array(chosen), "check_loss")
        return chosen
    chosen = []
    for label in (-1.0, 1.0) if loss.kind == CLASSIFICATION else LABELS:
        try:
            loss.check_labels(np.array([label]), "check_loss")
        except ValueError:
            continue
        except Exception:  # an author's function that fails is told of when it is called again
            pass
        chosen.append(label)
    if not chosen:
        raise LossError(f"check_loss: the loss {loss.name!r} is defined on none of the usual labels: pass labels=[...]")
    return chosen


def _guarded(name: str, function: Function, arguments: tuple[str, ...], findings: _Findings) -> Function:
    def call(*numbers: float) -> float:
        try:
            return float(function(*numbers))
        except Exception as error:  # whatever an author's function raises becomes a sentence
            reason = (str(error).strip().splitlines() or ["no reason given"])[0]
            advice = f"it has to return a number everywhere ({reason})"
            findings.add(f"{name} raises {type(error).__name__}", advice, **dict(zip(arguments, numbers, strict=True)))
            return math.nan

    return call


def _check_value(case: _Case, rng: np.random.Generator) -> bool:
    """Finite, convex, within its constants. False where it is not convex: nothing else can be judged then."""
    loss, judged = case.loss, True
    tame = math.isfinite(loss.smoothness) or math.isfinite(loss.lipschitz)  # such a loss cannot overflow far out
    for width in (0.1, 3.0, 20.0, 1e4):
        for centre in (0.0, case.label, rng.normal(scale=3.0)):
            z = centre + width * np.linspace(-1.0, 1.0, 201)
            l = np.array([case.value(point) for point in z.tolist()])
            if not np.isfinite(l).all():
                if tame or width < 100:
                    case.add("the value is not finite", "write it so that it does not overflow, or leave out this label",
                             z=z[np.argmin(np.isfinite(l))])  # fmt: skip
                    judged = False
                z, l = z[np.isfinite(l)], l[np.isfinite(l)]
            if len(z) < 3:
                continue
            noise = 1e-14 * (1.0 + abs(l) + abs(z) + abs(case.label))
            slopes, blur = np.diff(l) / np.diff(z), (noise[1:] + noise[:-1]) / np.diff(z)
            rise, wide = np.diff(slopes), blur[1:] + blur[:-1]
            left, right = 2 * rng.integers(len(z) // 2, size=(2, 400)) + rng.integers(2) * (len(z) % 2 == 0)
            middle = (left + right) // 2
            chord = np.interp(z[middle], z, l) - l[left] - (l[right] - l[left]) * (
                (z[middle] - z[left]) / np.where(left == right, 1.0, z[right] - z[left])
            )
            for at, wrong in (
                (z[1:-1], rise < -wide),
                (z[middle], chord > 2 * noise[middle] + noise[left] + noise[right]),
            ):
                if wrong.any():
                    case.add("the value is not convex in z", "the method needs a convex loss; conjugate and step are "
                             "looked at only after that", z=at[np.argmax(wrong)])  # fmt: skip
                    judged = False
            steep = rise / (z[2:] - z[:-2]) * 2
            wrong = rise > loss.smoothness * (1 + 1e-9) * (z[2:] - z[:-2]) / 2 + wide
            if wrong.any():
                case.add(f"the value bends more than smoothness = {loss.smoothness:g} allows",
                         f"l'' is {steep[np.argmax(wrong)]:.6g} there; raise the constant (math.inf at a kink)",
                         z=z[1:-1][np.argmax(wrong)])  # fmt: skip
            wrong = abs(slopes) > loss.lipschitz * (1 + 1e-9) + blur
            if wrong.any():
                case.add(f"the value is steeper than lipschitz = {loss.lipschitz:g} allows",
                         f"the slope is {slopes[np.argmax(wrong)]:.6g} there; raise the constant (math.inf if unbounded)",
                         z=z[np.argmax(wrong)])  # fmt: skip
    return judged
