"""The conformance suite for relationships: `check_relationship` tests one against the contract in `base`."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dmtrl.exceptions import RelationshipError
from dmtrl.numerics.violations import Violations
from dmtrl.relationship.base import Prox, Relationship
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.relationship.lookup import get_relationship

METHODS = ("start", "update", "prox", "penalty", "conjugate", "w_conjugate")
SCALES = (1e-3, 1e-2, 0.1, 1.0, 10.0)
TOLERANCE = 1e-6  # relative; the prox of a common component is iterative


def check_relationship(
    relationship: Any,
    tasks: int = 5,
    features: Sequence[int] = (3, 8),
    steps: Sequence[float] = (0.3, 1.0, 10.0),
    *,
    seed: int = 0,
) -> None:
    """Raise RelationshipError if a relationship violates its contract. The message lists every kind of violation.

    Parameters
    ----------
    relationship : Relationship, or anything else that the `relationship` parameter of `solve` accepts
    tasks : int
        Number of tasks of the random weights; for a fixed relationship, its number of tasks.
    features : sequence of int
        Numbers of features to try.
    steps : sequence of float
        Step sizes t of the proximal map to try.
    seed : int
        Seed of the random points.
    """
    made = get_relationship(relationship, tasks)
    check = _Check(made, tasks, steps, np.random.default_rng(seed))
    if check.members():
        with np.errstate(all="ignore"):
            check.run(check.start)
            if not check.violations:
                parts = (check.values, check.proximal_map, check.covariances)
                for d, part in itertools.product(features, parts):
                    check.run(part, d)
            check.run(check.subset)
    if check.violations:
        raise RelationshipError(check.violations.message(f"the relationship {check.name!r} violates its contract:"))


class _Failed(Exception):
    """A method of the relationship raised; the violation is recorded."""


class _Check:
    def __init__(self, relationship: Relationship, m: int, steps: Sequence[float], rng: np.random.Generator) -> None:
        self.relationship, self.m, self.steps, self.rng = relationship, m, steps, rng
        self.name = getattr(relationship, "name", type(relationship).__name__)
        self.violations = Violations()

    def members(self) -> bool:
        """Check attributes and methods. Return False if some are missing."""
        missing = [
            name for name in ("name", "learned", "tau", "kappa", *METHODS) if not hasattr(self.relationship, name)
        ]
        for name in missing:
            self.violations.add(f"{name} is missing", "see dmtrl.relationship.Relationship")
        for name in () if missing else ("tau", "kappa"):
            if not 0 <= getattr(self.relationship, name) < np.inf:
                self.violations.add(
                    f"{name} is {getattr(self.relationship, name)!r}", "it must be non-negative and finite"
                )
        return not missing

    def call(self, name: str, *arguments: Any, where: str, may_overwrite: int = 0) -> Any:
        """Call a method. Record a violation if it raises, or if it changes an argument after `may_overwrite`."""
        copies = [np.array(argument) if isinstance(argument, np.ndarray) else None for argument in arguments]
        try:
            result = getattr(self.relationship, name)(*arguments)
        except Exception as error:
            self.violations.add(f"{name} raises {type(error).__name__}", str(error).strip().partition("\n")[0], where)
            raise _Failed from error
        for argument, copy in list(zip(arguments, copies, strict=True))[may_overwrite:]:
            if copy is not None and not np.array_equal(argument, copy):
                self.violations.add(f"{name} changes its argument", "work on a copy", where)
        return result

    def number(self, name: str, *arguments: Any, where: str) -> float:
        return float(self.call(name, *arguments, where=where))

    def penalty(self, W: np.ndarray, where: str) -> float:
        return self.number("penalty", W, np.zeros(W.shape[1]), where=where)

    def random(self, d: int, count: int) -> list[np.ndarray]:
        """Return random weights in the range of Sigma, so that a given singular Sigma has a finite penalty."""
        sigma = self.call("start", self.m, where="")
        return [sigma.shrink(self.rng.normal(size=(self.m, d)), 1e-3) for _ in range(count)]

    def covariance(self, source: str, sigma: Any, m: int, where: str) -> None:
        if not isinstance(sigma, TaskCovariance):
            self.violations.add(f"{source} is not a TaskCovariance", f"it is a {type(sigma).__name__}", where)
        elif sigma.m != m:
            self.violations.add(f"{source} has {sigma.m} tasks", f"the weights have {m}", where)
        elif not abs(sigma.trace() - 1.0) <= TOLERANCE:
            self.violations.add(f"the trace of {source} is not one", f"it is {sigma.trace():.6g}; divide by it", where)

    def run(self, part: Callable[..., None], *arguments: int) -> None:
        with suppress(_Failed):
            part(*arguments)

    def start(self) -> None:
        self.covariance("start", self.call("start", self.m, where=""), self.m, "")

    def values(self, d: int) -> None:
        """Check that the penalty is convex, non-negative and zero at zero, and the Fenchel-Young inequality."""
        zero, where = np.zeros((self.m, d)), f" with {d} features"
        at_zero = self.penalty(zero, where)
        if abs(at_zero) > TOLERANCE:
            self.violations.add("the penalty of W = 0 is not zero", f"it is {at_zero:.6g}", where)
        if abs(conjugate := self.number("conjugate", zero, where=where)) > TOLERANCE:
            self.violations.add("the conjugate of B = 0 is not zero", f"it is {conjugate:.6g}", where)
        points, duals = self.random(d, 6), [self.rng.normal(size=(self.m, d)) for _ in range(6)]
        penalties = [self.penalty(W, where) for W in points]
        pairs = zip([zero, *points], [at_zero, *penalties], strict=True)
        for (W, g), (other, h) in itertools.combinations(pairs, 2):
            if not h >= 0:
                self.violations.add("the penalty is negative", f"it is {h:.6g}", where)
            if self.penalty((W + other) / 2, where) > (g + h) / 2 + TOLERANCE * (1 + g + h):
                self.violations.add("the penalty is not convex", "only convex penalties have a certificate", where)
        for W, B, scale, size in itertools.product(points, duals, SCALES, SCALES):
            g, c = self.penalty(scale * W, where), self.number("conjugate", size * B, where=where)
            self.fenchel_young(g, c, scale * size * float(np.vdot(W, B)), where)

    def fenchel_young(self, penalty: float, conjugate: float, product: float, where: str) -> None:
        if penalty + conjugate < product - TOLERANCE * (penalty + conjugate):
            advice = f"{penalty:.9g} + {conjugate:.9g} < {product:.9g}; the conjugate or the penalty is too small"
            self.violations.add("Fenchel-Young fails: g(W) + g*(B) < <W, B>", advice, where)

    def proximal_map(self, d: int) -> None:
        """Check that (V - W) / t is a subgradient at W = prox(V, t), which Fenchel-Young's equality proves."""
        for V, t in itertools.product([np.zeros((self.m, d)), *self.random(d, 3)], self.steps):
            where, common = f" with {d} features, t = {t:g}", np.zeros(d)
            for _ in range(5):  # an iterative prox continues from the last common component
                found = self.call("prox", V.copy(), t, common, where=where, may_overwrite=1)
                if not isinstance(found, Prox) or np.shape(found.W) != V.shape or np.shape(found.common) != (d,):
                    advice = f"return a Prox with W of shape {V.shape} and common of shape ({d},)"
                    self.violations.add("prox returns the wrong type or shape", advice, where)
                    raise _Failed
                common = found.common
            self.covariance("the covariance of prox", found.covariance, self.m, where)
            self.optimal(V, t, found, where)

    def optimal(self, V: np.ndarray, t: float, found: Prox, where: str) -> None:
        W, B = found.W, (V - found.W) / t
        g, c, product = found.penalty, self.number("conjugate", B, where=where), float(np.vdot(W, B))
        scale = abs(g) + abs(c) + abs(product) + 1e-9
        stated = self.number("penalty", W, found.common, where=where)
        if not abs(stated - g) <= TOLERANCE * scale:
            advice = f"{g:.9g} and {stated:.9g}; penalty(W, common) and Prox.penalty must agree"
            self.violations.add("prox and penalty disagree about the penalty", advice, where)
        objective = 0.5 * float(((W - V) ** 2).sum()) + t * g
        others = [V, np.zeros_like(V), *(W + s * (V - W) for s in (-0.1, -0.01, 0.01, 0.1)), 0.99 * W, 1.01 * W]
        best = min(0.5 * float(((U - V) ** 2).sum()) + t * self.penalty(U, where) for U in others)
        if best < objective - TOLERANCE * (1e-9 + t * scale):
            advice = f"its objective is {objective:.9g}, another point has {best:.9g}; derive it from the penalty"
            self.violations.add("prox is not the minimiser", advice, where)
        self.fenchel_young(g, c, product, where)
        if best >= objective and not g + c <= product + TOLERANCE * scale:
            advice = f"{g + c:.9g} and {product:.9g} at B = (V - W) / t; the prox or the conjugate is wrong"
            self.violations.add("g(W) + g*(B) is not <W, B> at the proximal point", advice, where)

    def covariances(self, d: int) -> None:
        """Check Sigma from W, and the conjugate with Sigma fixed."""
        first = self.call("start", self.m, where="")
        for W, smoothing in itertools.product([np.zeros((self.m, d)), *self.random(d, 3)], (0.0, 0.1)):
            where = f" with {d} features, smoothing = {smoothing:g}"
            sigma = self.call("update", W, smoothing, where=where)
            self.covariance("update", sigma, self.m, where)
            if not isinstance(sigma, TaskCovariance) or sigma.m != self.m:
                return
            if not self.relationship.learned and not np.allclose(sigma.dense(), first.dense(), atol=TOLERANCE):
                self.violations.add("update changes Sigma although learned is False", "set learned = True", where)
            B = self.rng.normal(size=(self.m, d))
            held, whole = self.number("w_conjugate", B, sigma, where=where), self.number("conjugate", B, where=where)
            if held > whole * (1 + TOLERANCE):
                advice = f"{held:.9g} and {whole:.9g}; Sigma fixed is a special case"
                self.violations.add("w_conjugate exceeds the conjugate", advice, where)

    def subset(self) -> None:
        """Check `only`, if the relationship has it."""
        if not hasattr(self.relationship, "only"):
            return
        part, where = self.call("only", np.array([0, self.m - 1]), where=" with 2 tasks"), " with 2 tasks"
        kept = ("learned", "tau", "kappa")
        if any(getattr(part, name) != getattr(self.relationship, name) for name in kept):
            self.violations.add("only changes learned, tau or kappa", "pass them on", where)
        self.covariance("start of only", part.start(2), 2, where)
