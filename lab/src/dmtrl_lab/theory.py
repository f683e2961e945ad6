"""The paper's convergence bounds as functions: sufficient numbers of local steps and rounds.

Equation numbers are those of docs/math.md. The bounds hold for one W-step (Sigma fixed) of the paper's Algorithms 1 and
2: uniform sampling, and a local problem for each task or shard of a task. They do not cover shuffled passes,
blocks of tasks or the Omega-step. `step` is s_i = rho sigma_ii / lambda, where rho is eta times `paper_rho` (8) or
`spectral_rho` (9) of the task covariance. Theta is the local accuracy: E[F_i* - F_i(delta_i)] <= Theta (F_i* - F_i(0)).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.losses import CLASSIFICATION, AnyLoss, get_loss

Numbers = Sequence[float] | np.ndarray
NEEDS_GAP = "for a loss that is not smooth, the steps depend on the initial gap of the task (27); pass gap"


@dataclass(frozen=True)
class TaskFacts:
    """What the bounds need to know about a task: constants of its loss, and of its rows x_j with weights p_j."""

    n: int
    smoothness: float  # largest curvature of the loss, 1/gamma; may be infinite
    width: float  # of the interval of feasible alpha; may be infinite
    max_norm: float  # max_j p_j |x_j|^2
    norm_sum: float  # sum_j p_j^2 |x_j|^2
    pi: float  # (25)
    mass: float = 1.0  # sum_j p_j: one for a task, its share for a shard

    def __post_init__(self) -> None:
        _require(self.n >= 1, f"a task needs at least one row, got n = {self.n}")
        for name in ("smoothness", "width", "max_norm", "norm_sum", "pi", "mass"):
            value = getattr(self, name)
            _require(value >= 0, f"{name} must be non-negative, got {value!r}")
        finite = math.isfinite(self.max_norm + self.norm_sum + self.pi + self.mass)
        _require(finite, "the rows of a task must be finite")
        _require(self.smooth or self.bounded, "smoothness or width must be finite; otherwise no bound is known")

    @property
    def smooth(self) -> bool:
        return math.isfinite(self.smoothness)

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.width)

    def local_rate(self, step: float) -> float:
        """Return the expected share of the error that one coordinate step removes (26)."""
        return 1.0 / (self.n * (1.0 + self.smoothness * _checked_step(step) * self.max_norm))

    def half_radius(self, step: float) -> float:
        """Return r^2 / 2 (27)."""
        return 0.5 * _checked_step(step) * self.width**2 * self.norm_sum

    @classmethod
    def of(cls, loss: str | AnyLoss, X: Any, y: np.ndarray, p: np.ndarray | None = None) -> "TaskFacts":
        """From rows, dense or CSR. p is 1/n by default; a shard has its part of p."""
        p = _row_weights(X, p)
        q = X.multiply(X).sum(axis=1) if sparse.issparse(X) else (np.asarray(X, dtype=float) ** 2).sum(axis=1)
        pq = p * np.asarray(q).ravel()
        facts = _loss_facts(get_loss(loss), np.unique(y))
        return cls(len(p), *facts, float(pq.max()), float(p @ pq), pi(X, p), float(p.sum()))

    @classmethod
    def even(cls, loss: str | AnyLoss, n: int, q: float = 1.0) -> "TaskFacts":
        """The paper's setting: n rows of equal weight with |x|^2 <= q. Coarser than `of`; needs no data."""
        _require(n >= 1, f"a task needs at least one row, got n = {n}")
        loss = get_loss(loss)
        labels = np.array([-1.0, 1.0]) if loss.kind == CLASSIFICATION else np.zeros(1)
        return cls(n, *_loss_facts(loss, labels), max_norm=q / n, norm_sum=q / n, pi=q)


def _loss_facts(loss: AnyLoss, labels: np.ndarray) -> tuple[float, float]:
    """Return 1/gamma and the width of the dual domain. Raise ValueError if both are infinite."""
    intervals = [loss.domain(float(label)) for label in labels]
    width = min(max(high - low for low, high in intervals), 2.0 * loss.lipschitz)
    message = f"the {loss.name} loss has neither bounded curvature nor a bounded dual domain, so no bound is known"
    _require(math.isfinite(loss.smoothness) or math.isfinite(width), message)
    return loss.smoothness, width


def _row_weights(X: Any, p: np.ndarray | None) -> np.ndarray:
    n = X.shape[0]
    _require(X.ndim == 2 and n > 0, f"X must be two-dimensional with at least one row, got shape {X.shape}")
    if p is None:
        return np.full(n, 1.0 / n)
    p = np.asarray(p, dtype=float)
    good = p.shape == (n,) and bool((p >= 0).all()) and p.sum() <= 1 + 1e-9
    _require(good, f"p must contain {n} non-negative weights with a sum of at most one")
    return p


def pi(X: Any, p: np.ndarray | None = None) -> float:
    """Return lambda_max(sum_j p_j x_j x_j^T) (25): the smallest pi with |sum_j p_j v_j x_j|^2 <= pi sum_j p_j v_j^2.

    With p_j = 1/n it is the paper's pi_i (its numerator not squared) over n.
    """
    A = sparse.diags(np.sqrt(_row_weights(X, p))) @ X
    gram = A.T @ A if A.shape[1] <= A.shape[0] else A @ A.T
    gram = gram.toarray() if sparse.issparse(gram) else gram
    return max(float(np.linalg.eigvalsh(gram)[-1]), 0.0) if gram.size else 0.0


def local_progress(facts: TaskFacts, step: float, gap: float) -> float:
    """Return a lower bound of F_i* - F_i(0), the progress of an exact local solve. Bounded domains only (27).

    gap: the task's part of the duality gap at the start of the round, sum_j p_j [l(z_j) + l*(-alpha_j) + alpha_j z_j].
    """
    _require(facts.bounded, "local_progress needs a loss with a bounded dual domain")
    _require(0 <= gap < math.inf, f"the gap of a task must be finite and non-negative, got {gap!r}")
    R = _checked_step(step) * facts.pi * facts.width**2 * facts.mass
    return gap * gap / (2.0 * R) if gap < R else gap - R / 2.0


def local_theta(facts: TaskFacts, steps: int, step: float, gap: float | None = None) -> float:
    """Return the Theta of `steps` = H uniform SDCA steps: (26) for a smooth loss, (27) for a bounded domain.

    (27) needs the task's gap at the start of the round. If both apply, the smaller one. One means no guarantee.
    """
    _require(steps >= 0, f"steps must be non-negative, got {steps}")
    _require(facts.smooth or gap is not None, NEEDS_GAP)
    theta = (1.0 - facts.local_rate(step)) ** steps if facts.smooth else 1.0
    if facts.bounded and gap is not None:
        gain = local_progress(facts, step, gap)
        left = 1.0 + facts.half_radius(step) / gain if gain > 0 else 0.0
        theta = min(theta, left * facts.n / (facts.n + steps))
    return theta


def local_steps(facts: TaskFacts, theta: float, step: float, gap: float | None = None) -> int:
    """Return H, a sufficient number of uniform SDCA steps for Theta, (26) or (27); the inverse of `local_theta`.

    Unweighted and smooth: at most (n + rho sigma_ii max|x|^2 / (lambda gamma)) log(1/Theta), rounded up.
    """
    _require(0 < theta < 1, f"theta must be between 0 (an exact local solve) and 1, got {theta!r}")
    _require(facts.smooth or gap is not None, NEEDS_GAP)
    bounds: list[int] = []
    if facts.smooth:
        bounds.append(_contractions(facts.local_rate(step), theta))
    if facts.bounded and gap is not None:
        gain = local_progress(facts, step, gap)
        share = (1.0 - theta + facts.half_radius(step) / gain) / theta if gain > 0 else 0.0
        bounds.append(math.ceil(facts.n * share))
    return min(bounds)


@dataclass(frozen=True)
class Rounds:
    """A sufficient number of rounds.

    It holds for the last alpha if `average_from` is None. Otherwise it holds for the average of the alphas after
    average_from, ..., total - 1 rounds, and for the best of them.
    """

    total: int
    average_from: int | None = None


def rounds(
    facts: Sequence[TaskFacts],
    step: Numbers,
    *,
    gap: float,
    start: float,
    theta: float = 0.0,
    eta: float = 1.0,
) -> Rounds:
    """Return T, the rounds after which the expected duality gap of the W-step is at most `gap`; (28) or (29).

    start: an upper bound of D* - D(alpha^0), such as the duality gap at the start (for alpha = 0, the sum of the tasks'
    losses at W = 0). theta: the largest Theta of the tasks, 0 for exact local solves. The smaller bound counts.
    """
    _require(len(facts) == len(step) > 0, f"pass one step per task, got {len(step)} for {len(facts)} tasks")
    _require(0 < gap < math.inf, f"gap must be positive and finite, got {gap!r}")
    _require(0 <= start < math.inf, f"start must be finite and non-negative, got {start!r}")
    _require(0 <= theta < 1, f"theta must be in [0, 1), got {theta!r}")
    _require(0 < eta <= 1, f"eta must be in (0, 1], got {eta!r}")
    share = eta * (1.0 - theta)
    curvature = [_checked_step(s) * task.pi for task, s in zip(facts, step, strict=True)]
    bounds: list[Rounds] = []
    if all(task.smooth for task in facts):
        worst = max(task.smoothness * c for task, c in zip(facts, curvature, strict=True))
        kappa = share / (1.0 + worst)
        bounds.append(Rounds(_contractions(kappa, kappa * gap / start) if start > 0 else 0))
    if all(task.bounded for task in facts):
        R = sum(c * task.width**2 * task.mass for task, c in zip(facts, curvature, strict=True))
        # D* - D <= (1 - share)^t start + R/2, until it is R or, for a small R, gap/2
        first = _contractions(share, max(R, gap - R) / (2.0 * start)) if start > 0 else 0
        average_from = first + math.ceil(max(0.0, 2.0 / share * (2.0 * R / gap - 1.0)))
        bounds.append(Rounds(average_from + math.ceil(max(1.0, R / gap) / share), average_from))
    _require(bool(bounds), "the losses must be all smooth or all Lipschitz")
    return min(bounds, key=lambda bound: bound.total)


def steps_per_task(facts: Sequence[TaskFacts], theta: float, step: Numbers, gaps: Numbers | None = None) -> np.ndarray:
    """Return H_i of each task such that all reach the same Theta.

    With one H for all, the largest task determines Theta. `gaps` as in `local_steps`; for a nearly solved task, (27)
    gives impractically many steps, so cap the result.
    """
    start = [None] * len(facts) if gaps is None else [float(gap) for gap in gaps]
    same = len(facts) == len(step) == len(start)
    _require(same, f"pass one step and one gap per task, got {len(step)} and {len(start)} for {len(facts)} tasks")
    H = [local_steps(task, theta, s, gap) for task, s, gap in zip(facts, step, start, strict=True)]
    return np.array([min(steps, 2**62) for steps in H], dtype=np.int64)


def _contractions(rate: float, target: float) -> int:
    """Return the smallest k with (1 - rate)^k <= target."""
    if target >= 1:
        return 0
    return 1 if rate >= 1 else math.ceil(math.log(target) / math.log1p(-rate))


def _checked_step(step: float) -> float:
    _require(0 <= step < math.inf, f"step must be finite and non-negative, got {step!r}")
    return float(step)


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)
