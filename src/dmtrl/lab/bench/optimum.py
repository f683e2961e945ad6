"""The optimal objective of one linear task, mean loss + lambda/2 |w|^2, with a proven error bound, in float64.

Hinge: an interior-point method on the dual, with its duality gap. Logistic: Newton, and a bound from the gradient by
strong convexity. Sparse hinge has too many columns for these: dmtrl's own certificate. No timed solver uses the first
two.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, sparse
from scipy.optimize import minimize

from dmtrl.data.task_data import TaskData
from dmtrl.solver.api import solve
from dmtrl.solver.settings import Settings

ACCURACY = 1e-9


@dataclass(frozen=True)
class Task:
    """One task with labels -1 and 1, in both precisions."""

    X: Any  # float32, C-ordered or CSR
    X64: Any  # the same numbers in float64
    y: np.ndarray
    loss: str
    lam: float

    def objective(self, w: np.ndarray) -> float:
        margin = self.y * (self.X64 @ w)
        loss = np.maximum(0.0, 1.0 - margin) if self.loss == "hinge" else np.logaddexp(0.0, -margin)
        return float(loss.mean() + 0.5 * self.lam * (w @ w))


@dataclass(frozen=True)
class Optimum:
    """The optimum is between `lower` and `value`."""

    value: float
    lower: float

    @property
    def accuracy(self) -> float:
        return (self.value - self.lower) / self.lower


def optimum(task: Task) -> Optimum:
    if task.loss == "logistic":
        return _logistic(task)
    return _sparse_hinge(task) if sparse.issparse(task.X64) else _interior_point(task)


def _logistic(task: Task) -> Optimum:
    Z = task.X64.multiply(task.y[:, None]).tocsr() if sparse.issparse(task.X64) else task.X64 * task.y[:, None]
    n, d = Z.shape
    lam = task.lam

    def value_and_gradient(w: np.ndarray) -> tuple[float, np.ndarray]:
        margin = Z @ w
        slope = 1.0 / (1.0 + np.exp(np.minimum(margin, 700.0)))
        return float(np.logaddexp(0.0, -margin).mean() + 0.5 * lam * (w @ w)), lam * w - (Z.T @ slope) / n

    def curvature_times(w: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.asarray(Z.T @ (_curvature(Z @ w) * (Z @ v)) / n + lam * v)

    if sparse.issparse(Z):
        scale = 1.0 / lam  # makes the stopping criterion match the bound below
        found = minimize(
            lambda w: tuple(scale * part for part in value_and_gradient(w)),
            np.zeros(d),
            jac=True,
            hessp=lambda w, v: scale * curvature_times(w, v),
            method="trust-ncg",
            options={"gtol": 1e-3 * np.sqrt(ACCURACY) * np.sqrt(scale), "maxiter": 200},
        )
        w = found.x
    else:
        w = np.zeros(d)
        for _ in range(100):
            value, gradient = value_and_gradient(w)
            if gradient @ gradient / (2 * lam) <= 0.1 * ACCURACY * value:
                break
            hessian = (Z.T * (_curvature(Z @ w) / n)) @ Z + lam * np.eye(d)
            step = linalg.solve(hessian, gradient, assume_a="pos")
            length = 1.0
            while value_and_gradient(w - length * step)[0] > value - 0.1 * length * (gradient @ step) and length > 1e-6:
                length /= 2
            w = w - length * step
    value, gradient = value_and_gradient(w)
    return Optimum(value, value - float(gradient @ gradient) / (2 * lam))


def _curvature(margin: np.ndarray) -> np.ndarray:
    t = 1.0 / (1.0 + np.exp(np.minimum(np.abs(margin), 700.0)))
    return np.asarray(t * (1.0 - t))


class _Interior(NamedTuple):
    """A point of the interior-point method, or a direction: a, the slack s = C - a, and both multipliers."""

    a: np.ndarray
    s: np.ndarray
    u: np.ndarray
    v: np.ndarray

    def moved(self, step: "_Interior", length: float) -> "_Interior":
        return _Interior(*(x + length * dx for x, dx in zip(self, step, strict=True)))

    def reach(self, step: "_Interior") -> float:
        """Return the longest step, at most 1, that keeps all components non-negative."""
        falling = [float((-x[dx < 0] / dx[dx < 0]).min(initial=1.0)) for x, dx in zip(self, step, strict=True)]
        return min(falling)

    @property
    def mu(self) -> float:
        return float(self.a @ self.u + self.s @ self.v) / (2 * len(self.a))


def _interior_point(task: Task) -> Optimum:
    """Maximise sum(a) - |Z^T a|^2 / 2 over 0 <= a <= C = 1 / (lambda n), by Mehrotra's predictor-corrector method.

    A step solves a system with D + Z Z^T, a diagonal plus rank d.
    """
    Z = task.X64 * task.y[:, None]
    n, d = Z.shape
    C = 1.0 / (task.lam * n)
    at = _Interior(np.full(n, 0.5 * C), np.full(n, 0.5 * C), np.ones(n), np.ones(n))
    value, lower = np.inf, -np.inf
    for _ in range(100):
        w = Z.T @ at.a
        margin = Z @ w
        value = min(value, float(0.5 * w @ w + C * np.maximum(0.0, 1.0 - margin).sum()))
        lower = max(lower, float(at.a.sum() - 0.5 * w @ w))
        if value - lower <= 0.1 * ACCURACY * lower:
            break
        diagonal = at.u / at.a + at.v / at.s
        half = Z / np.sqrt(diagonal)[:, None]
        try:
            factor = linalg.cho_factor(np.eye(d) + half.T @ half, lower=True)
        except linalg.LinAlgError:  # rounding prevents further progress; the bound stays valid
            break
        solved = partial(_direction, at, margin - 1.0 - at.u + at.v, diagonal, half, factor)
        step = solved(np.zeros(n), np.zeros(n))
        aim = at.mu * (at.moved(step, at.reach(step)).mu / at.mu) ** 3
        step = solved(aim - step.a * step.u, aim - step.s * step.v)
        at = at.moved(step, 0.995 * at.reach(step))
    return Optimum(value * task.lam, lower * task.lam)


def _direction(
    at: _Interior, residual: np.ndarray, diagonal: np.ndarray, half: np.ndarray, factor: Any,
    a_u: np.ndarray, s_v: np.ndarray,
) -> _Interior:  # fmt: skip
    """Return Newton's step towards Z Z^T a - 1 - u + v = 0 with products a u = a_u and s v = s_v."""
    root = np.sqrt(diagonal)
    right = (-residual + (a_u / at.a - at.u) - (s_v / at.s - at.v)) / root
    da = (right - half @ linalg.cho_solve(factor, half.T @ right)) / root
    return _Interior(da, -da, (a_u - at.u * da) / at.a - at.u, (s_v + at.v * da) / at.s - at.v)


def _sparse_hinge(task: Task) -> Optimum:
    """Use dmtrl in float64 to a certified gap. A competitor with a lower objective would disprove it."""
    data = TaskData.from_long(task.X64, task.y)
    settings = Settings(tol=ACCURACY, max_rounds=3000)
    found = solve(data, loss="hinge", reg_lambda=task.lam, relationship="independent", settings=settings)
    return Optimum(task.objective(found.W[0]), found.certificate.dual)
