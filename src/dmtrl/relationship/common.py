"""The proximal map of half the squared nuclear norm beside a common component (docs/math.md section 7).

With the singular values s and right singular vectors Q of V - w_0, the own part of the proximal point is (V - w_0)
Q diag(f) Q^T with f = shrunk / s (18). Holding these directions and factors fixed makes the penalty quadratic, and then
the best w_0 has a closed form (24.1). Repeating that never increases the objective, and usually one or two
decompositions of a min(m, d) square matrix are enough.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from dmtrl.numerics.rowwise import centred_gram, gram, over_rows
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.relationship.spectrum import ENOUGH, from_gram, short_side, shrink

_MOST_TURNS = 50
_CLOSE = 1e-8  # relative move of w_0, where the start is not from the round before
_SHARE = 0.1  # of the first move, where it is
_SMALL = 0.02  # relative first move that is small enough at once, where it is,
_STRONG = 30.0  # unless the common part is this strong: then moves shrink slowly
_MEMORY = 3  # moves that an extrapolation looks back on


class CommonProx(NamedTuple):
    W: np.ndarray
    common: np.ndarray
    covariance: TaskCovariance
    own_penalty: float  # half the squared nuclear norm of W - common, or an upper bound


def common_prox(V: np.ndarray, t: float, tau: float, start: np.ndarray) -> CommonProx:
    """Return argmin |W - V|^2 / 2 + t (|W - w_0|_*^2 + |w_0|^2 / tau) / 2 over W and w_0.

    W is written over V. A start other than zero comes from the round before: its error falls with the distance between
    the rounds, so a tenth of it is enough.
    """
    rows = (_Narrow if len(V) > V.shape[1] else _Wide)(V)
    strength, warm = len(V) * tau / t, bool(start.any())
    w0, image, last, lowest, first = start, start, np.inf, np.inf, 0.0
    points: list[np.ndarray] = []
    moves: list[np.ndarray] = []
    for turn in range(_MOST_TURNS):
        now = rows.decompose(w0, t)
        value = now.objective(t) + 0.5 * t / tau * float(w0 @ w0)
        if moves and value > lowest * (1.0 + 1e-12):  # the extrapolation overshot
            points, moves, last, w0 = [], [], np.inf, image
            continue
        at, lowest, image = now, value, rows.best_common(now, strength)
        move = image - w0
        length, size = float(np.linalg.norm(move)), float(np.linalg.norm(image))
        first = first or length
        enough = _SHARE * first if turn else (_SMALL * size if strength <= _STRONG else 0.0)
        if length <= max(_CLOSE * size, enough if warm else 0.0):
            break
        if length > 2 * last:
            points, moves = [], []
        last = length
        points, moves = [*points[1 - _MEMORY :], w0], [*moves[1 - _MEMORY :], move]
        w0 = _extrapolated(points, moves, image)
    return rows.finish(at, image, t)


def _extrapolated(points: list[np.ndarray], moves: list[np.ndarray], image: np.ndarray) -> np.ndarray:
    """Anderson acceleration: the combination of the last images whose moves cancel best."""
    if len(moves) < 2:
        return image
    turned = np.diff(np.array(moves), axis=0).T
    mix = np.linalg.lstsq(turned, moves[-1], rcond=1e-10)[0]
    return np.asarray(image - (np.diff(np.array(points), axis=0).T + turned) @ mix)


class _Decomposition(NamedTuple):
    """Singular values and vectors of V - w_0, of those that the proximal map does not shrink to zero."""

    w0: np.ndarray
    away: np.ndarray  # mean - w_0
    s: np.ndarray
    vectors: np.ndarray  # of the shorter side
    shrunk: np.ndarray
    removed: float  # sum of squares of what the proximal map takes away
    largest: float

    def objective(self, t: float) -> float:
        return 0.5 * (self.removed + t * float(self.shrunk.sum()) ** 2)

    def blurred(self, t: float) -> bool:
        """Whether a Gram matrix does not resolve singular values as small as these."""
        return len(self.s) > 0 and min(self.s[-1], t * float(self.shrunk.sum())) < ENOUGH * self.largest


def _cut(w0: np.ndarray, away: np.ndarray, s: np.ndarray, vectors: np.ndarray, t: float) -> _Decomposition:
    shrunk = shrink(s, t)
    rank = len(shrunk)
    removed = float(s @ s) - 2 * float(s[:rank] @ shrunk) + float(shrunk @ shrunk)
    return _Decomposition(w0, away, s[:rank], vectors[:, :rank], shrunk, removed, float(s[0]) if len(s) else 0.0)


class _Rows(ABC):
    """V, of which each subclass has the Gram matrix of one side. W is written over it."""

    def __init__(self, V: np.ndarray):
        self.V, self.mean = V, V.mean(axis=0)

    def best_common(self, at: _Decomposition, strength: float) -> np.ndarray:
        """The best w_0 for fixed directions and factors (24.1)."""
        everywhere = strength / (1.0 + strength)
        kept = strength * (1.0 - at.shrunk / at.s)
        inside = (kept / (1.0 + kept) - everywhere) * self.along(at, self.mean)
        return everywhere * self.mean + self.across(at, inside)

    def finish(self, at: _Decomposition, w0: np.ndarray, t: float) -> CommonProx:
        """The proximal point for w_0 with the directions and factors of a decomposition at another w_0, near it."""
        m, size = len(self.V), float(at.shrunk.sum())
        if len(at.s) == 0:
            self.V[:] = w0
            return CommonProx(self.V, w0, TaskCovariance.identity(m), 0.0)
        if at.blurred(t):
            at = self.decompose(w0, t, exact=True)
            size = float(at.shrunk.sum())
        before, shift = self.along(at, at.away), self.along(at, at.w0 - w0)
        # |R|_*^2 <= tr(R Phi^-1 R^T) for Phi = Q diag(shrunk) Q^T / size, with equality for w_0 of the decomposition
        squares = at.s**2 + m * shift * (2.0 * before + shift)
        own_penalty = 0.5 * size * float((at.shrunk / at.s**2) @ squares)
        left = self.write(at, w0, shift)
        return CommonProx(self.V, w0, TaskCovariance(left, at.shrunk / size, 0.0), own_penalty)

    @abstractmethod
    def decompose(self, w0: np.ndarray, t: float, exact: bool = False) -> _Decomposition: ...

    @abstractmethod
    def along(self, at: _Decomposition, x: np.ndarray) -> np.ndarray:
        """Q^T x."""

    @abstractmethod
    def across(self, at: _Decomposition, x: np.ndarray) -> np.ndarray:
        """Q x."""

    @abstractmethod
    def write(self, at: _Decomposition, w0: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Write w_0 + (left s + 1 shift^T) diag(f) Q^T over V; returns the left singular vectors."""


class _Narrow(_Rows):
    """More tasks than features. The rows of V - mean sum to zero, so the Gram matrix of V - w_0 is that of V - mean
    plus m away away^T: V is read once."""

    def __init__(self, V: np.ndarray):
        super().__init__(V)
        self.spread = centred_gram(V, self.mean)

    def decompose(self, w0: np.ndarray, t: float, exact: bool = False) -> _Decomposition:
        away = self.mean - w0
        if exact:
            return _cut(w0, away, *short_side(self.V - w0, exact=True), t)
        return _cut(w0, away, *from_gram(self.spread + len(self.V) * np.outer(away, away)), t)

    def along(self, at: _Decomposition, x: np.ndarray) -> np.ndarray:
        return np.asarray(x @ at.vectors)

    def across(self, at: _Decomposition, x: np.ndarray) -> np.ndarray:
        return np.asarray(at.vectors @ x)

    def write(self, at: _Decomposition, w0: np.ndarray, shift: np.ndarray) -> np.ndarray:
        left, inward, outward = np.empty((len(self.V), len(at.s))), at.vectors / at.s, (at.vectors * at.shrunk).T
        constant = w0 + (shift / at.s) @ outward

        def shrink_rows(rows: slice) -> None:  # in blocks: avoids a centred copy of V
            np.matmul(self.V[rows] - at.w0, inward, out=left[rows])
            np.matmul(left[rows], outward, out=self.V[rows])
            self.V[rows] += constant

        over_rows(shrink_rows, *self.V.shape)
        return left


class _Wide(_Rows):
    """At least as many features as tasks. `self.V` is V - mean until the end, and V - w_0 is that plus 1 away^T."""

    def __init__(self, V: np.ndarray):
        super().__init__(V)
        V -= self.mean
        self.spread = gram(V.T)

    def decompose(self, w0: np.ndarray, t: float, exact: bool = False) -> _Decomposition:
        away = self.mean - w0
        if exact:
            return _cut(w0, away, *short_side(self.V + away, exact=True), t)
        cross = self.V @ away
        return _cut(w0, away, *from_gram(self.spread + cross[:, None] + cross + float(away @ away)), t)

    def along(self, at: _Decomposition, x: np.ndarray) -> np.ndarray:
        return np.asarray((self.V @ x + float(at.away @ x)) @ at.vectors / at.s)

    def across(self, at: _Decomposition, x: np.ndarray) -> np.ndarray:
        left = at.vectors @ (x / at.s)
        return np.asarray(left @ self.V + float(left.sum()) * at.away)

    def write(self, at: _Decomposition, w0: np.ndarray, shift: np.ndarray) -> np.ndarray:
        factor = (at.vectors * (at.shrunk / at.s) + shift * at.shrunk / at.s**2) @ at.vectors.T
        total = factor.sum(axis=1)[:, None]

        def shrink_columns(columns: slice) -> None:
            self.V[:, columns] = factor @ self.V[:, columns] + (total * at.away[columns] + w0[columns])

        over_rows(shrink_columns, *self.V.T.shape)
        return at.vectors
