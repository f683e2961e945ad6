"""The bounds: how many local steps and how many rounds are enough, as functions.

Room: beside relationship and certificate; pure functions of numbers. Equation numbers are those of
docs/math.md. They hold for one W-step (Sigma fixed) of the paper's Algorithms 1 and 2: uniform sampling, and
a local problem for each task or shard of a task (rho "paper" or "spectral"). They say nothing of shuffled
passes, momentum, blocks of tasks or the Omega-step. `step` is s_i = rho sigma_ii / lambda with a rho safe for
eta, and Theta the share of the possible local progress that a round leaves undone:
E[F_i* - F_i(delta_i)] <= Theta (F_i* - F_i(0)).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh

from dmtrl.losses import CLASSIFICATION, AnyLoss, get_loss
from dmtrl.relationship.covariance import TaskCovariance

Numbers = Sequence[float] | np.ndarray
Whole = Sequence[int] | np.ndarray
RHO_KINDS = ("paper", "spectral", "block")
NEEDS_GAP = "on a loss that is not smooth the steps depend on the gap the task starts from (27): pass gap"
_DENSE_SIDE = 1000  # up to this many rows or columns the Gram matrix is made as an array


@dataclass(frozen=True)
class TaskFacts:
    """All that the bounds need to know of a task: its loss, and its rows x_j with weights p_j."""

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
            _require(value >= 0, f"{name} must be a number of at least 0, got {value!r}")
        finite = math.isfinite(self.max_norm + self.norm_sum + self.pi + self.mass)
        _require(finite, "the rows of a task must be finite for the bounds to mean anything")
        _require(self.smooth or self.bounded, "one of smoothness and width must be finite: no bound is known")

    @property
    def smooth(self) -> bool:
        return math.isfinite(self.smoothness)

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.width)

    def local_rate(self, step: float) -> float:
        """The share of the error that one coordinate step removes on average (26)."""
        return 1.0 / (self.n * (1.0 + self.smoothness * _checked_step(step) * self.max_norm))

    def half_radius(self, step: float) -> float:
        """r^2 / 2 (27)."""
        return 0.5 * _checked_step(step) * self.width**2 * self.norm_sum

    @classmethod
    def of(cls, loss: str | AnyLoss, X: Any, y: np.ndarray, p: np.ndarray | None = None) -> "TaskFacts":
        """From the rows themselves, dense or CSR; p is 1/n if not given. A shard has its part of p."""
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
    """(1/gamma, width of the dual domain); refuses a loss that has neither."""
    intervals = [loss.domain(float(label)) for label in labels]
    width = min(max(high - low for low, high in intervals), 2.0 * loss.lipschitz)
    sentence = f"the {loss.name} loss has neither bounded curvature nor a bounded dual domain: no bound is known"
    _require(math.isfinite(loss.smoothness) or math.isfinite(width), sentence)
    return loss.smoothness, width


def _row_weights(X: Any, p: np.ndarray | None) -> np.ndarray:
    n = X.shape[0]
    _require(X.ndim == 2 and n > 0, f"a task needs a table with at least one row, got shape {X.shape}")
    if p is None:
        return np.full(n, 1.0 / n)
    p = np.asarray(p, dtype=float)
    good = p.shape == (n,) and bool((p >= 0).all()) and p.sum() <= 1 + 1e-9
    _require(good, f"p must hold {n} weights, none negative, that sum to at most one")
    return p


def pi(X: Any, p: np.ndarray | None = None) -> float:
    """lambda_max(sum_j p_j x_j x_j^T) (25): the smallest pi with |sum_j p_j v_j x_j|^2 <= pi sum_j p_j v_j^2.

    With p_j = 1/n it is the paper's pi_i (its numerator not squared) over n.
    """
    A = sparse.diags(np.sqrt(_row_weights(X, p))) @ X
    if min(A.shape) <= _DENSE_SIDE:
        gram = A.T @ A if A.shape[1] <= A.shape[0] else A @ A.T
        gram = gram.toarray() if sparse.issparse(gram) else gram
        return max(float(np.linalg.eigvalsh(gram)[-1]), 0.0) if gram.size else 0.0
    if not abs(A).max() > 0:
        return 0.0
    normal = LinearOperator((A.shape[1], A.shape[1]), matvec=lambda v: A.T @ (A @ v), dtype=float)
    start = np.random.default_rng(0).normal(size=A.shape[1])
    return float(eigsh(normal, k=1, v0=start, return_eigenvectors=False)[0])


def rho(
    sigma: TaskCovariance,
    kind: str = "spectral",
    *,
    eta: float = 1.0,
    unit_tasks: Whole | None = None,
    owner: Whole | None = None,
) -> float:
    """A safe rho for the aggregation eta: "paper" (8), "spectral" (9), or "block" (10), which needs `owner`.

    `unit_tasks` is the task of each unit where tasks are split into shards, `owner` the worker of each unit.
    """
    _require(kind in RHO_KINDS, f"rho must be one of {', '.join(RHO_KINDS)}, got {kind!r}")
    _require((owner is not None) == (kind == "block"), "rho 'block', and no other, needs the owner of each unit")
    tasks = np.arange(sigma.m) if unit_tasks is None else np.asarray(unit_tasks)
    _require(0 < eta <= 1, f"eta must lie in (0, 1], got {eta!r}")
    if kind == "paper":
        return eta * sigma.paper_rho(tasks)
    owner = np.arange(len(tasks)) if owner is None else np.asarray(owner)
    _require(len(owner) == len(tasks), f"owner names {len(owner)} units, there are {len(tasks)}")
    return eta * sigma.spectral_rho(tasks, owner)


def local_progress(facts: TaskFacts, step: float, gap: float) -> float:
    """At least this much, F_i* - F_i(0), would a perfect local solve gain; bounded domains only (27).

    gap is the task's own part of the duality gap at the start of the round,
    sum_j p_j [l(z_j) + l*(-alpha_j) + alpha_j z_j].
    """
    _require(facts.bounded, "the gap tells the local progress only for a loss with a bounded dual domain")
    _require(0 <= gap < math.inf, f"the gap of a task must be finite and not negative, got {gap!r}")
    R = _checked_step(step) * facts.pi * facts.width**2 * facts.mass
    return gap * gap / (2.0 * R) if gap < R else gap - R / 2.0


def local_theta(facts: TaskFacts, steps: int, step: float, gap: float | None = None) -> float:
    """The Theta that `steps` = H uniform SDCA steps reach: (26) for a smooth loss, (27) for a bounded domain.

    (27) needs the task's gap at the start of the round. A loss that is both gets the better of the two. One
    means that nothing is promised.
    """
    _require(steps >= 0, f"the number of steps must not be negative, got {steps}")
    _require(facts.smooth or gap is not None, NEEDS_GAP)
    theta = (1.0 - facts.local_rate(step)) ** steps if facts.smooth else 1.0
    if facts.bounded and gap is not None:
        gain = local_progress(facts, step, gap)
        left = 1.0 + facts.half_radius(step) / gain if gain > 0 else 0.0
        theta = min(theta, left * facts.n / (facts.n + steps))
    return theta


def local_steps(facts: TaskFacts, theta: float, step: float, gap: float | None = None) -> int:
    """H: the uniform SDCA steps that are enough for Theta, (26) or (27); the inverse of `local_theta`.

    Unweighted and smooth: at most (n + rho sigma_ii max|x|^2 / (lambda gamma)) log(1/Theta), rounded up.
    """
    _require(0 < theta < 1, f"theta must lie between 0 (a perfect local solve) and 1, got {theta!r}")
    _require(facts.smooth or gap is not None, NEEDS_GAP)
    bounds: list[int] = []
    if facts.smooth:
        bounds.append(_shrinkings(facts.local_rate(step), theta))
    if facts.bounded and gap is not None:
        gain = local_progress(facts, step, gap)
        share = (1.0 - theta + facts.half_radius(step) / gain) / theta if gain > 0 else 0.0
        bounds.append(math.ceil(facts.n * share))
    return min(bounds)


@dataclass(frozen=True)
class Rounds:
    """`total` rounds are enough: for the last alpha where `average_from` is None, else for the average of the
    alphas after average_from, ..., total - 1 rounds, and for the best of these."""

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
    """T: the rounds that bring the expected duality gap of the W-step to `gap`; (28) smooth, (29) bounded.

    `start` is at least D* - D(alpha^0): the duality gap at the start will do (alpha = 0: the tasks' losses at
    W = 0, summed). theta is the tasks' largest Theta, 0 a perfect local solve. If both apply, the smaller.
    """
    _require(len(facts) == len(step) > 0, f"one step per task is needed, got {len(step)} for {len(facts)}")
    _require(0 < gap < math.inf, f"the gap to reach must be positive, got {gap!r}")
    _require(0 <= start < math.inf, f"start must be finite and not negative, got {start!r}")
    _require(0 <= theta < 1, f"theta must be at least 0 and below 1 (no progress at all), got {theta!r}")
    _require(0 < eta <= 1, f"eta must lie in (0, 1], got {eta!r}")
    share = eta * (1.0 - theta)
    curvature = [_checked_step(s) * task.pi for task, s in zip(facts, step, strict=True)]
    bounds: list[Rounds] = []
    if all(task.smooth for task in facts):
        worst = max(task.smoothness * c for task, c in zip(facts, curvature, strict=True))
        kappa = share / (1.0 + worst)
        bounds.append(Rounds(_shrinkings(kappa, kappa * gap / start) if start > 0 else 0))
    if all(task.bounded for task in facts):
        R = sum(c * task.width**2 * task.mass for task, c in zip(facts, curvature, strict=True))
        # D* - D <= (1 - share)^t start + R/2: on until it is R or, should R be that small, gap/2
        first = _shrinkings(share, max(R, gap - R) / (2.0 * start)) if start > 0 else 0
        average_from = first + math.ceil(max(0.0, 2.0 / share * (2.0 * R / gap - 1.0)))
        bounds.append(Rounds(average_from + math.ceil(max(1.0, R / gap) / share), average_from))
    _require(bool(bounds), "the tasks' losses must be all smooth or all Lipschitz for a bound on the rounds")
    return min(bounds, key=lambda bound: bound.total)


def steps_per_task(facts: Sequence[TaskFacts], theta: float, step: Numbers, gaps: Numbers | None = None) -> np.ndarray:
    """H_i of each task such that all reach the same Theta: no needless steps where tasks are small or easy.

    With one H for all, the largest task decides Theta for everybody. `gaps` as in `local_steps`; where a task is
    all but solved, (27) asks for more steps than anyone would take, so cap what comes back.
    """
    start = [None] * len(facts) if gaps is None else [float(gap) for gap in gaps]
    same = len(facts) == len(step) == len(start)
    _require(same, f"each task needs a step and a gap, got {len(step)} and {len(start)} for {len(facts)}")
    H = [local_steps(task, theta, s, gap) for task, s, gap in zip(facts, step, start, strict=True)]
    return np.array([min(steps, 2**62) for steps in H], dtype=np.int64)


def steps_in_budget(
    cost: Numbers,
    *,
    seconds: float | None = None,
    total_steps: int | None = None,
    owner: Whole | None = None,
    need: Numbers | None = None,
) -> np.ndarray:
    """H_i of each task such that all workers finish together and no task holds the round back.

    cost[i] is the time of one step of task i (about its numbers per row). The budget, either `seconds` for
    every worker or `total_steps` over all tasks, is not exceeded. A task has a worker to itself unless `owner`
    says otherwise; the tasks of one worker run in turn, with steps in proportion to `need` (default: all alike).
    With need from `steps_per_task` and a smooth loss these reach the same Theta, which `local_theta` tells.
    """
    price = np.asarray(cost, dtype=float)
    wish = np.ones(len(price)) if need is None else np.asarray(need, dtype=float)
    worker = np.arange(len(price)) if owner is None else np.unique(np.asarray(owner), return_inverse=True)[1]
    same = len(price) == len(wish) == len(worker)
    _require(same, f"cost, need and owner name {len(price)}, {len(wish)} and {len(worker)} tasks")
    good = bool((np.isfinite(price * wish) & (price > 0) & (wish > 0)).all())
    _require(good, "the cost and the need of every task must be positive and finite")
    _require((seconds is None) != (total_steps is None), "a budget is either seconds or total_steps")
    rate = wish / np.bincount(worker, weights=price * wish)[worker]  # steps per second
    length = float(seconds) if seconds is not None else float(total_steps or 0) / rate.sum()
    # a share that is a whole number up to rounding is that whole number
    steps = np.floor(length * rate * (1.0 + 1e-12)).astype(np.int64)
    short = int(np.argmin(rate)) if len(rate) else 0
    _require(bool((steps >= 1).all()), f"the budget is too small: task {short} would not get a single step")
    return steps


def _shrinkings(rate: float, target: float) -> int:
    """The smallest k with (1 - rate)^k <= target."""
    if target >= 1:
        return 0
    return 1 if rate >= 1 else math.ceil(math.log(target) / math.log1p(-rate))


def _checked_step(step: float) -> float:
    _require(0 <= step < math.inf, f"a step must be finite and not negative, got {step!r}")
    return float(step)


def _require(ok: bool, sentence: str) -> None:
    if not ok:
        raise ValueError(sentence)
