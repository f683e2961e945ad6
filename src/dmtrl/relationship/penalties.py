"""How tasks relate: the penalty on W that a relationship stands for, and Sigma from W.

Room: above covariance, below worker and coordinator. A relationship is a convex penalty g(W) = lambda * penalty(W)
and knows six things: its penalty, the conjugate, the proximal map of the penalty, Sigma from W (the Omega-step)
and the strength `common` of a component shared by all tasks. `Fixed` covers every given Sigma (independent, shared,
a covariance, a graph); `Learned` is the paper's trace-one Sigma, for which the penalty is half the squared nuclear
norm (13).
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.linalg import block_diag

from dmtrl.numerics.rowwise import centred_gram, over_rows
from dmtrl.protocol.message import Message
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.relationship.spectrum import ENOUGH, from_gram, largest_singular_value, nuclear_norm, short_side

_SEEN, _OUTSTANDING = 1e-3, 0.1  # of the largest singular value of W: a direction its tasks lie in, and mostly so
_FEW_DIRECTIONS, _SHARE_OF_ALL = 16, 1 / 8  # the latter of all features, and of all tasks


@dataclass(frozen=True)
class Prox:
    """The result of a proximal map: W, its penalty (an upper bound is enough), the Sigma of its tasks' own part,
    and the shared part w_0 (for a warm start)."""

    W: np.ndarray
    penalty: float
    covariance: TaskCovariance
    common: np.ndarray


class Relationship(Protocol):
    name: str
    learned: bool
    tau: float

    def start(self, m: int) -> TaskCovariance:
        """Sigma before anything is known, without the common component."""

    def update(self, W: np.ndarray, smoothing: float = 0.0) -> TaskCovariance:
        """Sigma from the tasks' own part of W: the Omega-step."""

    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        """argmin_W |W - V|^2 / 2 + t penalty(W); V is the caller's gift and may be written over."""

    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        """penalty(W), or an upper bound of it when part of W is written as `common`."""

    def conjugate(self, B: np.ndarray) -> float:
        """sup_W <W, B> - penalty(W)."""

    def w_conjugate(self, B: np.ndarray, covariance: TaskCovariance) -> float:
        """The same for the W-step, in which Sigma is held at `covariance`: tr(B^T Sigma B) / 2."""


class Fixed:
    """A Sigma that is given; with tau > 0, Sigma + tau 1 1^T."""

    learned = False

    def __init__(self, covariance: TaskCovariance, tau: float = 0.0, name: str = "covariance"):
        self.name = name
        self.tau = _check_tau(tau)
        self.covariance = covariance
        self._total = covariance.plus_common(tau)

    def start(self, m: int) -> TaskCovariance:
        if self.covariance.m != m:
            raise ValueError(f"the given task relationship is for {self.covariance.m} tasks, the data has {m}")
        return self.covariance

    def only(self, tasks: np.ndarray) -> "Fixed":
        """The same between these tasks, by number."""
        return Fixed(self.covariance.only(tasks), self.tau, self.name)

    def update(self, W: np.ndarray, smoothing: float = 0.0) -> TaskCovariance:
        return self.covariance

    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        W = self._total.shrink(V, t)
        # (V - W) / t is the B with W = Sigma B, so the penalty needs no inverse
        return Prox(W, 0.5 * self._total.quadratic((V - W) / t), self.covariance, common)

    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        return 0.5 * self._total.inverse_quadratic(W)

    def conjugate(self, B: np.ndarray) -> float:
        return 0.5 * self._total.quadratic(B)

    def w_conjugate(self, B: np.ndarray, covariance: TaskCovariance) -> float:
        return self.conjugate(B)


class Learned:
    """Sigma learned with trace one: penalty |W|_*^2 / 2, conjugate |B|_op^2 / 2; with tau > 0 see (22)-(24)."""

    learned = True
    name = "learned"

    def __init__(self, tau: float = 0.0):
        self.tau = _check_tau(tau)

    def only(self, tasks: np.ndarray) -> "Learned":
        return self

    def start(self, m: int) -> TaskCovariance:
        return TaskCovariance.identity(m)

    def update(self, W: np.ndarray, smoothing: float = 0.0) -> TaskCovariance:
        """(W W^T + eps^2 I)^1/2 over its trace (12), eps = smoothing * the largest singular value of W."""
        if W.shape[0] <= W.shape[1]:
            s, basis = short_side(W, exact=True)
        else:
            basis, s, _ = np.linalg.svd(W, full_matrices=False)
        if len(s) == 0 or s[0] == 0:
            return TaskCovariance.identity(len(W))
        s = s / s[0]
        keep = s > 1e-13
        basis, s = basis[:, keep], s[keep]
        values = np.sqrt(s**2 + smoothing**2) - smoothing
        trace = values.sum() + len(W) * smoothing
        return TaskCovariance(basis, values / trace, smoothing / trace)

    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        return self.prox_into(None, V, t, common)

    def prox_into(self, out: np.ndarray | None, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        """The same with W written into `out`, which may be V."""
        if self.tau == 0:
            W, covariance, size = nuclear_prox(V, t, out=out)
            return Prox(W, 0.5 * size**2, covariance, common)
        w0 = self._common(V, t, common)
        W, covariance, size = nuclear_prox(V, t, w0, out)
        return Prox(W, 0.5 * size**2 + 0.5 * float(w0 @ w0) / self.tau, covariance, w0)

    def _common(self, V: np.ndarray, t: float, common: np.ndarray) -> np.ndarray:
        m, d = V.shape
        if d <= m:
            return _common_component(V, t, m + t / self.tau, common)
        # w_0 stays in the span of V's rows and of where it begins: look for it in these m + 1 coordinates
        span = np.vstack([V, common])
        s, vectors = short_side(span)
        seen = s > 1e-7 * s[0]
        s, vectors = s[seen], vectors[:, seen]
        inside = vectors * s
        return np.asarray((vectors @ (_common_component(inside[:m], t, m + t / self.tau, inside[m]) / s)) @ span)

    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        if self.tau == 0:
            return 0.5 * nuclear_norm(W) ** 2
        return 0.5 * nuclear_norm(W, common) ** 2 + 0.5 * float(common @ common) / self.tau

    def conjugate(self, B: np.ndarray) -> float:
        shared = B.sum(axis=0)
        return 0.5 * largest_singular_value(B) ** 2 + 0.5 * self.tau * float(shared @ shared)

    def w_conjugate(self, B: np.ndarray, covariance: TaskCovariance) -> float:
        shared = B.sum(axis=0)
        return 0.5 * covariance.quadratic(B) + 0.5 * self.tau * float(shared @ shared)


class FreeIntercept:
    """Any relationship on all columns but the last, which is an intercept with a small ridge of its own (weight
    over lambda).

    The penalty is a sum over the two parts, so its proximal map and its conjugate are too. The proximal point is
    written over V, which those who call it here have made for it.
    """

    def __init__(self, base: Relationship, weight: float):
        if not (weight > 0 and np.isfinite(weight)):
            raise ValueError(f"the intercept's own penalty must be positive, got {weight!r}")
        self.base, self.weight = base, weight
        self.name, self.learned, self.tau = base.name, base.learned, base.tau

    def start(self, m: int) -> TaskCovariance:
        return self.base.start(m)

    def update(self, W: np.ndarray, smoothing: float = 0.0) -> TaskCovariance:
        return self.base.update(W[:, :-1], smoothing)

    def prox(self, V: np.ndarray, t: float, common: np.ndarray) -> Prox:
        own, inside = V[:, :-1], common[:-1]
        if type(self.base) is Learned:  # not one that has a prox of its own
            inner = self.base.prox_into(own, own, t, inside)
        else:
            inner = self.base.prox(own, t, inside)
        intercept = V[:, -1] / (1.0 + t * self.weight)
        penalty = inner.penalty + 0.5 * self.weight * float(intercept @ intercept)
        if inner.W is not own:
            own[:] = inner.W
        V[:, -1] = intercept
        return Prox(V, penalty, inner.covariance, np.append(inner.common, 0.0))

    def penalty(self, W: np.ndarray, common: np.ndarray) -> float:
        return self.base.penalty(W[:, :-1], common[:-1]) + 0.5 * self.weight * float(W[:, -1] @ W[:, -1])

    def conjugate(self, B: np.ndarray) -> float:
        return self.base.conjugate(B[:, :-1]) + 0.5 * float(B[:, -1] @ B[:, -1]) / self.weight

    def w_conjugate(self, B: np.ndarray, covariance: TaskCovariance) -> float:
        return self.base.w_conjugate(B[:, :-1], covariance) + 0.5 * float(B[:, -1] @ B[:, -1]) / self.weight


@dataclass(frozen=True)
class Metric:
    """M = F F^T + floor I between features, in which weights are measured from centres F c of the tasks (36)."""

    directions: np.ndarray  # F, features x r
    centre: np.ndarray  # c of each task, tasks x r
    floor: float

    @property
    def longest(self) -> float:
        """The largest step that it takes along one of its directions."""
        return float(np.square(self.directions).sum(axis=0).max()) + self.floor

    def weights(self, b: np.ndarray) -> np.ndarray:
        """Where b of the same tasks leads (37)."""
        F = self.directions
        return np.asarray((self.centre + b @ F) @ F.T + self.floor * b)

    @classmethod
    def told(cls, message: Message) -> "Metric":
        """That came with a message."""
        return cls(message.arrays["directions"], message.arrays["centre"], float(message.scalars["floor"]))


def feature_metric(relationship: Relationship, W: np.ndarray, lam: float, step: float) -> Metric | None:
    """With the covariance of the features at W held, lam * penalty is the sum over tasks of w . M^-1 w / 2 (36). None
    where the directions that stand out are many beside tasks or features, or not the whole story. A free intercept is
    held at its present value, as a proximal step would hold it.
    """
    if isinstance(relationship, FreeIntercept):
        inner = feature_metric(relationship.base, W[:, :-1], lam, step)
        if inner is None:
            return None
        width = float(np.sqrt(step))
        centre = np.column_stack([inner.centre, W[:, -1] / width])
        return Metric(block_diag(inner.directions, width), centre, inner.floor)
    if type(relationship) is not Learned or relationship.tau:
        return None
    s, vectors = short_side(W)
    if not (len(s) and s[0] > 0):
        return None
    seen, few = int((s > _SEEN * s[0]).sum()), int(min(_FEW_DIRECTIONS, _SHARE_OF_ALL * min(W.shape)))
    rank = seen if seen <= few else int((s > _OUTSTANDING * s[0]).sum())
    if rank > few:
        return None
    rest = float(s[rank:seen].sum())
    s, vectors = s[:rank], vectors[:, :rank]
    if W.shape[0] <= W.shape[1]:
        vectors = W.T @ vectors / s
    scale = 1.0 / (lam * (s.sum() + rest))
    floor = scale * rest / max(seen - rank, 1)  # as in one of the other directions
    return Metric(vectors * np.sqrt(scale * s - floor), np.zeros((len(W), rank)), floor)


def nuclear_prox(
    V: np.ndarray, t: float, centre: np.ndarray | None = None, out: np.ndarray | None = None
) -> tuple[np.ndarray, TaskCovariance, float]:
    """argmin_W |W - V|^2 / 2 + t |W - centre|_*^2 / 2 (18), Sigma and the nuclear norm of W - centre. W is written into
    `out`, which may be V."""
    if centre is not None and V.shape[0] <= V.shape[1]:
        away = np.subtract(V, centre, out=out)
        W, covariance, size = nuclear_prox(away, t, out=away)
        W += centre
        return W, covariance, size
    W = np.empty(V.shape) if out is None else out
    s, vectors = short_side(V) if centre is None else from_gram(centred_gram(V, centre))
    shrunk = _shrink(s, t)
    rank = len(shrunk)
    if rank == 0:
        W[:] = 0.0 if centre is None else centre
        return W, TaskCovariance.identity(len(V)), 0.0
    # what is kept, or the threshold below which nothing is, may lie below what the Gram matrix can tell
    if min(s[rank - 1], t * shrunk.sum()) < ENOUGH * s[0]:
        s, vectors = short_side(V if centre is None else V - centre, exact=True)
        shrunk = _shrink(s, t)
        rank = len(shrunk)
    s, vectors, size = s[:rank], vectors[:, :rank], float(shrunk.sum())
    if V.shape[0] <= V.shape[1]:
        left, outward = vectors, vectors * (shrunk / s)

        def shrink_columns(columns: slice) -> None:
            np.matmul(outward, vectors.T @ V[:, columns], out=W[:, columns])

        over_rows(shrink_columns, *V.T.shape)
    else:
        left, inward, outward = np.empty((len(V), rank)), vectors / s, (vectors * shrunk).T

        def shrink_rows(rows: slice) -> None:  # in pieces: no centred copy of V
            np.matmul(V[rows] if centre is None else V[rows] - centre, inward, out=left[rows])
            np.matmul(left[rows], outward, out=W[rows])
            if centre is not None:
                W[rows] += centre

        over_rows(shrink_rows, *V.shape)
    return W, TaskCovariance(left, shrunk / size, 0.0), size


def _common_component(V: np.ndarray, t: float, weight: float, w0: np.ndarray) -> np.ndarray:
    """The fixed point of (24) in w_0 alone, by Anderson acceleration.

    The rows of V - mean sum to zero, so (V - w_0)^T (V - w_0) is their Gram matrix plus m (mean - w_0)(mean - w_0)^T:
    V is read once, and each turn costs an eigen-decomposition of the size of its columns.
    """
    m, mean = len(V), V.mean(axis=0)
    spread = centred_gram(V, mean)
    points: list[np.ndarray] = []
    moves: list[np.ndarray] = []
    last = np.inf
    for _ in range(20):  # the next round goes on from this w_0, so nearly exact is enough
        away = mean - w0
        s, vectors = from_gram(spread + m * np.outer(away, away))
        shrunk = _shrink(s, t)
        kept = vectors[:, : len(shrunk)]
        image = m * (mean - kept @ ((away @ kept) * shrunk / s[: len(shrunk)])) / weight
        move = image - w0
        length = float(np.linalg.norm(move))
        if length <= 1e-6 * (np.linalg.norm(image) + 1e-300):
            break
        if length > 2 * last:  # the extrapolation misled: go on plainly from here
            points, moves = [], []
        last = length
        points, moves = [*points[-5:], w0], [*moves[-5:], move]
        w0 = image
        if len(moves) > 1:
            differences = np.diff(np.array(moves), axis=0).T
            mix = np.linalg.lstsq(differences, move, rcond=1e-10)[0]
            w0 = image - (np.diff(np.array(points), axis=0).T + differences) @ mix
    return w0


def _shrink(s: np.ndarray, t: float) -> np.ndarray:
    """The singular values of the proximal point: those that stay above zero."""
    sizes = np.cumsum(s) / (1.0 + t * np.arange(1, len(s) + 1))
    active = np.flatnonzero(s > t * sizes)
    if len(active) == 0:
        return s[:0]
    rank = active[-1] + 1
    kept: np.ndarray = s[:rank] - t * sizes[rank - 1]
    return kept


def _check_tau(tau: float) -> float:
    if not (tau >= 0 and np.isfinite(tau)):
        raise ValueError(f"common (the strength of the shared component) must be at least 0 and finite, got {tau!r}")
    return float(tau)


def independent(m: int, tau: float = 0.0) -> Fixed:
    """Single-task learning: Sigma = I / m."""
    return Fixed(TaskCovariance.identity(m), tau, "independent")


def shared(m: int, correlation: float = 0.5, tau: float = 0.0) -> Fixed:
    """All tasks equally related: the same correlation between any two."""
    if not 0 <= correlation <= 1:
        raise ValueError(f"the correlation of a shared relationship must lie between 0 and 1, got {correlation!r}")
    ones = np.full((m, 1), m**-0.5)
    return Fixed(TaskCovariance(ones, np.array([correlation]), (1 - correlation) / m), tau, "shared")


def graph(adjacency: Any, strength: float = 1.0, tau: float = 0.0) -> Fixed:
    return Fixed(TaskCovariance.from_graph(adjacency, strength), tau, "graph")


def covariance(sigma: np.ndarray, tau: float = 0.0) -> Fixed:
    return Fixed(TaskCovariance.from_dense(sigma), tau, "covariance")


def is_learned(relationship: Any) -> bool:
    """Whether a relationship, as an object or by name, is learned from the data."""
    return isinstance(relationship, Learned) or (isinstance(relationship, str) and relationship == "learned")


def get_relationship(relationship: Any, m: int, tau: float = 0.0) -> Relationship:
    """A relationship by name, from a covariance array, from a sparse graph, or the object itself."""
    if isinstance(relationship, str):
        if relationship == "learned":
            return Learned(tau)
        if relationship in ("independent", "shared"):
            return independent(m, tau) if relationship == "independent" else shared(m, tau=tau)
        raise ValueError(
            f"unknown relationship {relationship!r}; choose learned, independent, shared, "
            "a covariance (array), a graph (sparse adjacency), or a Relationship"
        )
    if relationship is None:
        raise ValueError("relationship is None; for tasks without relations use 'independent'")
    if isinstance(relationship, TaskCovariance):
        return Fixed(relationship, tau)
    if hasattr(relationship, "prox"):
        if tau and relationship.tau != tau:
            raise ValueError(f"common={tau:g} was given twice: the relationship object has {relationship.tau:g}")
        return relationship
    if hasattr(relationship, "tocsr"):
        return graph(relationship, tau=tau)
    return covariance(np.asarray(relationship), tau)
