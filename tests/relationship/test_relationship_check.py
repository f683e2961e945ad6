"""check_relationship: the built-in relationships pass, and every kind of violation is reported."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from dmtrl import RelationshipError, check_relationship
from dmtrl.relationship import Fixed, FreeIntercept, Learned, Prox, TaskCovariance, graph, independent, shared

CHAIN = sparse.diags([np.ones(4), np.ones(4)], [-1, 1])
SINGULAR = np.outer(np.arange(1.0, 6.0), np.arange(1.0, 6.0))


@pytest.mark.parametrize(
    "relationship",
    [
        "learned", "independent", "shared", Learned(0.1), Learned(1.0), shared(5, 0.9, tau=0.5), shared(5, 1.0),
        graph(CHAIN), graph(CHAIN, tau=1.0), SINGULAR, SINGULAR + np.eye(5), Fixed(TaskCovariance.identity(5), 2.0),
        FreeIntercept(Learned(0.3), 0.01), FreeIntercept(Learned(), 1.0), FreeIntercept(independent(5), 0.1),
        Learned(kappa=0.2), Learned(0.4, 0.2), Learned(0.1, 10.0), FreeIntercept(Learned(0.3, 0.2), 0.01),
        Fixed(TaskCovariance.from_dense(SINGULAR), 0.5, kappa=0.3), shared(5, 1.0, kappa=0.1),
        FreeIntercept(Learned(0.3), np.arange(1.0, 6.0)), FreeIntercept(Learned(), 2.0, centre=0.1),
        FreeIntercept(Learned(0.3, 0.2), np.array([0.1, 1.0, 5.0, 20.0, 0.3]), centre=0.01),
        FreeIntercept(independent(5), np.arange(1.0, 6.0), columns=2, centre=0.5),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)  # fmt: skip
@pytest.mark.parametrize("seed", [0, 1])
def test_built_in_relationships_pass(relationship: Any, seed: int) -> None:
    check_relationship(relationship, seed=seed)


@pytest.mark.parametrize(
    "relationship", ["learned", "shared", SINGULAR, FreeIntercept(Learned(), 0.1), Learned(0.2), Learned(2.0)]
)
def test_small_steps(relationship: Any) -> None:
    check_relationship(relationship, steps=(1e-3, 1e-2))


@pytest.mark.parametrize("t", [1e-3, 1e-2, 0.1, 1.0])
@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_a_common_component_never_makes_the_proximal_point_worse(t: float, tau: float) -> None:
    """The objective must be below that of the start, also for small t."""
    for seed in range(30):
        V, relationship = np.random.default_rng(seed).normal(size=(5, 8)), Learned(tau)
        found = relationship.prox(V.copy(), t, np.zeros(8))
        start = t * relationship.penalty(V, np.zeros(8))  # W = V, no common component
        assert 0.5 * np.sum((found.W - V) ** 2) + t * found.penalty <= start * (1.0 + 1e-9)


def test_shapes_can_be_chosen() -> None:
    check_relationship("learned", tasks=2, features=[1])
    check_relationship(np.diag([1.0, 2.0, 3.0]), tasks=3)
    with pytest.raises(RelationshipError, match="start raises ValueError: the task relationship has 3 tasks"):
        check_relationship(np.eye(3), tasks=4)


class SmallConjugate(Learned):
    def conjugate(self, B: np.ndarray) -> float:
        return 0.8 * super().conjugate(B)


class LargeConjugate(Learned):
    def conjugate(self, B: np.ndarray) -> float:
        return 1.2 * super().conjugate(B)


class FixedLargeConjugate(Fixed):
    def w_conjugate(self, B: np.ndarray, covariance: TaskCovariance) -> float:
        return 1.2 * self.conjugate(B)


class HalfwayProx(Learned):
    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        W = super().prox(V, t / 2, common).W
        return Prox(W, self.penalty(W, common), self.update(W), common)


class UnscaledSigma(Learned):
    def update(self, W: np.ndarray, smoothing: float = 0.0) -> TaskCovariance:
        found = super().update(W, smoothing)
        return TaskCovariance(found.basis, 2 * found.values, 2 * found.floor)


class NotConvex(Learned):
    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        return float(np.sqrt(np.abs(W)).sum())


class Shifted(Learned):
    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        return super().penalty(W, common) + 1.0


class WrongPenaltyOfProx(Learned):
    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        found = super().prox(V, t, common)
        return Prox(found.W, 0.5 * found.penalty, found.covariance, found.common)


class FlatProx(Learned):
    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        found = super().prox(V, t, common)
        return Prox(found.W.ravel(), found.penalty, found.covariance, found.common)


class Overwriting(Learned):
    def conjugate(self, B: np.ndarray) -> float:
        value = super().conjugate(B)
        B *= 2.0
        return value


class SaysFixed(Learned):
    learned = False


class ForgetsTau(Learned):
    def only(self, tasks: np.ndarray) -> Learned:
        return Learned()


@pytest.mark.parametrize(
    ("relationship", "sentence"),
    [
        (SmallConjugate(), r"Fenchel-Young fails: .* with 3 features"),
        (LargeConjugate(), r"g\(W\) \+ g\*\(B\) is not <W, B> at the proximal point with 3 features, t = "),
        (FixedLargeConjugate(TaskCovariance.identity(5)), r"w_conjugate exceeds the conjugate"),
        (HalfwayProx(), r"prox is not the minimiser with 3 features, t = .*derive it from the penalty"),
        (UnscaledSigma(), r"the trace of update is not one .*it is 2; divide by it"),
        (NotConvex(), r"the penalty is not convex"),
        (Shifted(), r"the penalty of W = 0 is not zero with 3 features.*: it is 1"),
        (WrongPenaltyOfProx(), r"prox and penalty disagree about the penalty"),
        (FlatProx(), r"prox returns the wrong type or shape .*W of shape \(5, 3\)"),
        (Overwriting(), r"conjugate changes its argument .*work on a copy"),
        (SaysFixed(), r"update changes Sigma although learned is False"),
        (ForgetsTau(0.5), r"only changes learned, tau or kappa with 2 tasks"),
        (Fixed(TaskCovariance(np.zeros((5, 0)), np.zeros(0), 1.0)), r"the trace of start is not one: it is 5"),
    ],
    ids=lambda one: "" if isinstance(one, str) else type(one).__name__,
)
def test_check_relationship_reports(relationship: Any, sentence: str) -> None:
    with pytest.raises(RelationshipError, match=sentence):
        check_relationship(relationship)


def test_every_violation_is_listed_once() -> None:
    class Broken(UnscaledSigma, SmallConjugate, SaysFixed):
        name = "broken"

    with pytest.raises(RelationshipError) as caught:
        check_relationship(Broken())
    lines = str(caught.value).splitlines()
    assert lines[0] == "the relationship 'broken' violates its contract:"
    for part in ("trace of update", "Fenchel-Young", "although learned"):
        assert sum(part in line for line in lines[1:]) == 1, part


def test_missing_members_are_listed() -> None:
    class Incomplete:
        name, tau = "incomplete", 0.0

        def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> None: ...

    with pytest.raises(RelationshipError) as caught:
        check_relationship(Incomplete())
    missing = {line.split()[1] for line in str(caught.value).splitlines()[1:]}
    assert missing == {"learned", "kappa", "start", "update", "penalty", "conjugate", "w_conjugate"}
