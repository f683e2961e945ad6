"""Noisy second moments of a task's rows (modes A and B), and what the coordinator makes of them.

A task releases the curvature and the slope of its mean loss at a point. Whoever has them has a quadratic model of the
loss, and everything after that is post-processing: lambda, relations, certificates.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import ndtri

from dmtrl.data.task_data import TaskData
from dmtrl.federation.protection.noise.sensitivity import MomentWeights, moments_sensitivity
from dmtrl.solver.api import solve
from dmtrl.solver.execution import Execution
from dmtrl.solver.outcome import Outcome
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings

Noise = Callable[[tuple[int, ...]], np.ndarray]  # standard normal numbers of a shape


def dense(X: Any) -> np.ndarray:
    """Rows as an array of floats; sparse ones are filled up, because their moments are dense anyway."""
    return np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=float)


def clip_rows(X: np.ndarray, row_norm: float) -> np.ndarray:
    """Shorten rows to at most this norm."""
    norms = np.sqrt((X * X).sum(axis=1))
    return np.asarray(X * np.minimum(1.0, row_norm / np.maximum(norms, 1e-300))[:, None])


@dataclass(frozen=True)
class MomentFormat:
    """How the moments of a task become a vector with a known sensitivity, and back.

    row_norm, curvature, slope: bounds of rows, of l'' and of l'. varying: whether l'' differs between rows.
    """

    features: int
    row_norm: float
    curvature: float
    slope: float
    varying: bool
    weights: MomentWeights = field(default_factory=MomentWeights)

    @property
    def size(self) -> int:
        d = self.features
        return d * (d + 1) // 2 + 2 * d + 1 + self.varying

    def sensitivity(self, rows: int) -> float:
        """Of the vector of a task, to the replacement of one of its rows."""
        return moments_sensitivity(self.weights, self.varying) / rows

    def vector(self, X: np.ndarray, curvature: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """The weighted moments of rows whose norm is at most `row_norm`; slopes are clipped."""
        w, n = self.weights, len(X)
        X, k = X / self.row_norm, np.clip(curvature / self.curvature, 0.0, 1.0)
        a = np.clip(slope / self.slope, -1.0, 1.0)
        upper = np.triu_indices(self.features)
        second = w.curvature * (X.T @ (k[:, None] * X) / n)[upper] * _multiples(self.features)
        parts = [second, w.cross * (k @ X) / n, w.slope * (a @ X) / n, [w.intercept * a.mean()]]
        if self.varying:
            parts.append([w.constant * k.mean()])
        return np.concatenate(parts)

    def quadratic(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The curvature (d + 1, d + 1) and the slope (d + 1) of the mean loss, the intercept last."""
        w, d = self.weights, self.features
        second, cross, slope, rest = np.split(vector, np.cumsum([d * (d + 1) // 2, d, d]))
        A, c = np.zeros((d + 1, d + 1)), np.empty(d + 1)
        A[np.triu_indices(d)] = second / _multiples(d) / w.curvature * self.row_norm**2
        A[:d, d] = cross / w.cross * self.row_norm
        A[d, d] = rest[1] / w.constant if self.varying else 1.0
        A = np.triu(A) + np.triu(A, 1).T
        c[:d], c[d] = slope / w.slope * self.row_norm, rest[0] / w.intercept
        return self.curvature * A, self.slope * c

    def spectral_noise(self, std: float) -> float:
        """About the largest eigenvalue of the noise in the curvature: that of a random symmetric matrix."""
        entry = std / (math.sqrt(2.0) * self.weights.curvature) * self.row_norm**2 * self.curvature
        return 2.0 * entry * math.sqrt(self.features)


def _multiples(d: int) -> np.ndarray:
    """1 for diagonal and sqrt(2) for other entries of an upper triangle: the vector has the norm of the matrix."""
    i, j = np.triu_indices(d)
    return np.where(i == j, 1.0, math.sqrt(2.0))


@dataclass(frozen=True)
class Quadratics:
    """Quadratic models w^T A w / 2 - c^T w of the mean loss of each task; the intercept is the last column.

    `floor`: of each task; eigenvalues of A are raised to it, so that noise does not make a loss unbounded.
    """

    A: np.ndarray
    c: np.ndarray
    floor: np.ndarray

    @classmethod
    def mean(cls, models: Sequence["Quadratics"]) -> "Quadratics":
        """The mean of several models of the same losses; their noise averages out."""
        A, c = np.mean([one.A for one in models], axis=0), np.mean([one.c for one in models], axis=0)
        return cls(A, c, np.sqrt(np.sum([one.floor**2 for one in models], axis=0)) / len(models))

    def solve(self, names: Sequence[str], reg_lambda: float, common: float, settings: Settings) -> Outcome:
        """Return the certified solution of the multi-task problem with these models instead of the losses.

        The intercepts have no penalty and are eliminated. The rest of a model is the squared loss of d pseudo-rows, the
        square root of its curvature, so that the ordinary solver and its certificate apply.
        """
        m, d = len(self.c), self.c.shape[1] - 1
        rows, labels, crosses = [], [], []
        for A, c, floor in zip(self.A, self.c, self.floor, strict=True):
            A = _repaired(A, floor)
            cross = A[:d, d] / A[d, d]
            values, vectors = np.linalg.eigh(A[:d, :d] - np.outer(cross, A[:d, d]))
            roots = np.sqrt(np.maximum(values, 1e-9 * float(values.max())))
            rows.append(math.sqrt(d) * roots[:, None] * vectors.T)
            labels.append(math.sqrt(d) * (vectors.T @ (c[:d] - c[d] * cross)) / roots)
            crosses.append((c[d] / A[d, d], cross))
        data = TaskData.from_list(list(zip(rows, labels, strict=True)), list(names))
        found = solve(
            Problem.of(data, loss="squared", reg_lambda=reg_lambda, common=common), Execution(settings=settings)
        )
        intercept = np.array([at_zero - cross @ w for (at_zero, cross), w in zip(crosses, found.W, strict=True)])
        W, dual = np.column_stack([found.W, intercept]), np.column_stack([found.dual.B, np.zeros(m)])
        return replace(found, W=W, common=np.append(found.common, 0.0), dual=replace(found.dual, B=dual))


def _repaired(A: np.ndarray, floor: float) -> np.ndarray:
    """A with eigenvalues of at least `floor`."""
    values, vectors = np.linalg.eigh(A)
    least = max(floor, 1e-9 * float(np.abs(values).max()), 1e-300)
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)


def system_noise(shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal numbers from the operating system's randomness, which no seed can repeat."""
    bits = np.frombuffer(os.urandom(8 * math.prod(shape)), dtype=np.uint64) >> np.uint64(12)
    return np.asarray(ndtri((bits.astype(float) + 0.5) * 2.0**-52)).reshape(shape)  # 52 bits: adding 0.5 is exact
