"""TaskCovariance: Sigma as an operator, low rank plus a multiple of the identity.

Every operation of the solvers costs O(m r), so m may be 100,000. Arrays W, B and V are (m, d): tasks are rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import eigsh

from dmtrl import notebook
from dmtrl.numerics.rowwise import gram

DENSE_LIMIT = 5000  # tasks; above it no (m, m) array is built
_EXACT_RHO_LIMIT = 300  # tasks; above it rho is a safe upper bound instead of a dense eigenvalue


@dataclass(frozen=True)
class TaskCovariance:
    """Sigma = Q diag(values) Q^T + floor I, for m tasks.

    Attributes
    ----------
    basis : ndarray of shape (m, r)
        Q, with orthonormal columns.
    values : ndarray of shape (r,)
        Non-negative.
    floor : float
    """

    basis: np.ndarray
    values: np.ndarray
    floor: float

    @classmethod
    def identity(cls, m: int) -> "TaskCovariance":
        """Return I / m.

        Parameters
        ----------
        m : int
            Number of tasks.
        """
        return cls(np.zeros((m, 0)), np.zeros(0), 1.0 / m)

    @classmethod
    def from_dense(cls, sigma: np.ndarray) -> "TaskCovariance":
        """Return a given covariance, scaled to trace one. Raise ValueError if it is not a covariance.

        Parameters
        ----------
        sigma : array-like of shape (m, m)
            A symmetric positive semidefinite matrix.
        """
        sigma = np.asarray(sigma, dtype=float)
        if sigma.ndim != 2 or sigma.shape[0] != sigma.shape[1]:
            raise ValueError(f"a task covariance must be square, got shape {sigma.shape}")
        if not np.isfinite(sigma).all():
            i, j = np.argwhere(~np.isfinite(sigma))[0]
            raise ValueError(f"the task covariance is not finite at row {i}, column {j}")
        if not np.allclose(sigma, sigma.T, rtol=1e-8, atol=1e-10 * np.abs(sigma).max(initial=0)):
            raise ValueError("a task covariance must be symmetric; if it is up to rounding, pass (S + S.T) / 2")
        trace = np.trace(sigma)
        if not trace > 0:
            raise ValueError(
                f"a task covariance must have a positive trace, got {trace:g}; "
                "for the adjacency matrix of a graph, pass a sparse matrix or use dmtrl.relationship.graph"
            )
        values, basis = np.linalg.eigh((sigma + sigma.T) / (2 * trace))
        if values[0] < -1e-10:
            raise ValueError(
                f"a task covariance must be positive semidefinite; its smallest eigenvalue is {values[0] * trace:g}"
            )
        # Keep zeros exact: rho divides by the diagonal, and rounding there would make it huge.
        floor = values[0] if values[0] > 1e-14 else 0.0
        basis[np.diag(sigma) == 0] = 0.0
        keep = values > floor + 1e-14
        return cls(basis[:, keep], values[keep] - floor, floor)

    @classmethod
    def from_graph(cls, adjacency: object, strength: float = 1.0, rank: int = 256) -> "TaskCovariance":
        """Return Sigma proportional to (I + strength L)^-1, with L the Laplacian: edges pull tasks together.

        Up to DENSE_LIMIT tasks Sigma is exact. Above, the `rank` smoothest directions are exact, and all others get the
        smallest value among these.

        Parameters
        ----------
        adjacency : array-like or sparse matrix of shape (m, m)
            Symmetric, non-negative edge weights.
        strength : float, default=1.0
            How strongly an edge pulls its tasks together.
        rank : int, default=256
            Number of exact directions above DENSE_LIMIT tasks.
        """
        A = sparse.csr_matrix(adjacency, dtype=float, copy=True)  # its diagonal is changed
        if A.shape[0] != A.shape[1]:
            raise ValueError(f"a task graph must be square, got shape {A.shape}")
        if not np.isfinite(A.data).all() or (A.data < 0).any():
            raise ValueError("the edge weights of a task graph must be finite and non-negative")
        if abs(A - A.T).max() > 1e-10 * max(abs(A).max(), 1e-300):
            raise ValueError("a task graph must be symmetric: the weights of i-j and j-i differ")
        if not (strength > 0 and np.isfinite(strength)):
            raise ValueError(f"the strength of a task graph must be positive, got {strength!r}")
        A.setdiag(0)
        m = A.shape[0]
        L = sparse.diags(np.asarray(A.sum(axis=1)).ravel()) - A
        if m <= DENSE_LIMIT:
            return cls.from_dense(np.linalg.inv(np.eye(m) + strength * L.toarray()))
        smooth, basis = eigsh(L.tocsc(), k=rank, sigma=-1e-3, which="LM")
        values = 1.0 / (1.0 + strength * np.maximum(smooth, 0.0))
        floor = values.min()
        trace = (values - floor).sum() + m * floor
        return cls(basis, (values - floor) / trace, floor / trace)

    @property
    def m(self) -> int:
        return len(self.basis)

    def apply(self, B: np.ndarray) -> np.ndarray:
        """Return Sigma B, of shape (m, d).

        Parameters
        ----------
        B : ndarray of shape (m, d)
            One row per task.
        """
        return self.basis @ (self.values[:, None] * gram(self.basis, B)) + self.floor * B

    def shrink(self, V: np.ndarray, t: float) -> np.ndarray:
        """Return Sigma (Sigma + t I)^-1 V, the proximal map of a fixed Sigma (19), of shape (m, d).

        Parameters
        ----------
        V : ndarray of shape (m, d)
            One row per task.
        t : float
            Step size.
        """
        low = self.floor / (self.floor + t)
        gain = (self.values + self.floor) / (self.values + self.floor + t) - low
        return self.basis @ (gain[:, None] * gram(self.basis, V)) + low * V

    def quadratic(self, B: np.ndarray) -> float:
        """Return tr(B^T Sigma B).

        Parameters
        ----------
        B : ndarray of shape (m, d)
            One row per task.
        """
        inside = gram(self.basis, B)
        own = float(self.values @ np.einsum("ij,ij->i", inside, inside))
        return own + (self.floor * float(np.einsum("ij,ij->", B, B)) if self.floor else 0.0)

    def inverse_quadratic(self, W: np.ndarray) -> float:
        """Return tr(W^T Sigma^-1 W), which is infinite if W is not in the range of Sigma.

        Parameters
        ----------
        W : ndarray of shape (m, d)
            One row per task.
        """
        inside = self.basis.T @ W
        left = float(((W - self.basis @ inside) ** 2).sum())
        # Rounding moves a W in the range of Sigma out of it by about 1e-16.
        beyond = 0.0 if left <= 1e-28 * float((W**2).sum()) else np.inf
        outside = left / self.floor if self.floor > 0 else beyond
        return float((inside**2 / (self.values + self.floor)[:, None]).sum() + outside)

    def solve(self, W: np.ndarray) -> np.ndarray:
        """Return Sigma^-1 W, of shape (m, d); for a singular Sigma its pseudo-inverse times W.

        Parameters
        ----------
        W : ndarray of shape (m, d)
            One row per task.
        """
        inside = self.basis.T @ W
        solved = self.basis @ (inside / (self.values + self.floor)[:, None])
        if self.floor > 0:
            solved += (W - self.basis @ inside) / self.floor
        return np.asarray(solved)

    def diagonal(self) -> np.ndarray:
        """Return the diagonal of Sigma."""
        return (self.basis**2) @ self.values + self.floor

    def trace(self) -> float:
        """Return the trace of Sigma."""
        return float(self.values.sum() + self.m * self.floor)

    def factor(self) -> np.ndarray:
        """Return F (m, r) with Sigma = F F^T + floor I."""
        return self.basis * np.sqrt(self.values)

    def block(self, tasks: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return Sigma[tasks, tasks] as an array.

        Parameters
        ----------
        tasks : sequence of int
            Task numbers.
        """
        tasks = np.arange(self.m)[list(tasks)]
        F = self.factor()[tasks]
        return F @ F.T + self.floor * (tasks[:, None] == tasks[None, :])

    def dense(self) -> np.ndarray:
        """Return Sigma as an array. Raise ValueError above DENSE_LIMIT tasks."""
        if self.m > DENSE_LIMIT:
            raise ValueError(
                f"the covariance of {self.m} tasks is too large for an array ({self.m**2:,} numbers); "
                "use block(tasks) for some of them"
            )
        return self.block(np.arange(self.m))

    def only(self, tasks: np.ndarray) -> "TaskCovariance":
        """Return Sigma[tasks, tasks], scaled to trace one.

        Parameters
        ----------
        tasks : ndarray of int
            Task numbers.
        """
        F = self.factor()[tasks]
        basis, s, _ = np.linalg.svd(F, full_matrices=False)
        basis[~F.any(axis=1)] = 0.0  # keep zeros exact, as in from_dense
        trace = float((s**2).sum()) + len(tasks) * self.floor
        if not trace > 0:
            raise ValueError("the task covariance of these tasks is zero, so their weights would be zero")
        keep = s**2 > 1e-14 * trace
        return TaskCovariance(basis[:, keep], s[keep] ** 2 / trace, self.floor / trace)

    def correlation(self) -> np.ndarray:
        """Return the task correlation matrix. A task without variance has correlation zero with all others."""
        sigma = self.dense()
        scale = np.sqrt(np.diag(sigma))
        with np.errstate(divide="ignore", invalid="ignore"):
            correlation = np.where(np.outer(scale, scale) > 0, sigma / np.outer(scale, scale), 0.0)
        np.fill_diagonal(correlation, 1.0)
        return np.clip(correlation, -1.0, 1.0)

    def _repr_html_(self) -> str:
        facts = [("tasks", self.m), ("rank", len(self.values)), ("floor", f"{self.floor:.3g}")]
        small = self.m <= notebook.MAX_CELLS
        shown = notebook.text("Correlations") + notebook.heat_map(self.correlation(), range(self.m)) if small else ""
        return notebook.section(notebook.text("Task covariance"), notebook.facts(facts), shown)

    def plus_common(self, tau: float) -> "TaskCovariance":
        """Return Sigma + tau 1 1^T: a component that all tasks share (docs/math.md section 7).

        Parameters
        ----------
        tau : float
            Strength of the common component.
        """
        if tau == 0:
            return self
        F = np.column_stack([self.factor(), np.full(self.m, np.sqrt(tau))])
        basis, s, _ = np.linalg.svd(F, full_matrices=False)
        keep = s**2 > 1e-15 * (s**2).max()
        return TaskCovariance(basis[:, keep], s[keep] ** 2, self.floor)

    def plus_own(self, kappa: float) -> "TaskCovariance":
        """Return Sigma + kappa I: a part of each task's weights that is not related to other tasks (section 14).

        Parameters
        ----------
        kappa : float
            Strength of the own parts.
        """
        return self if kappa == 0 else TaskCovariance(self.basis, self.values, self.floor + kappa)

    def paper_rho(self, unit_tasks: np.ndarray | None = None) -> float:
        """Return `max_i sum_i' |sigma_ii'| / sigma_ii`, the paper's bound (8).

        Parameters
        ----------
        unit_tasks : ndarray of int, default=None
            The task of each unit. None means one unit per task.
        """
        F = self.factor()
        F = F if unit_tasks is None else F[unit_tasks]
        tasks = np.arange(self.m) if unit_tasks is None else unit_tasks
        diagonal = (F**2).sum(axis=1) + self.floor
        worst = 1.0
        height = max(1, min(1024, (1 << 24) // max(len(F), 1)))  # rows at a time: at most 128 MiB
        for start in range(0, len(F), height):
            rows = slice(start, start + height)
            same = tasks[rows, None] == tasks[None, :]
            sums = np.abs(F[rows] @ F.T + self.floor * same).sum(axis=1)
            live = diagonal[rows] > 0
            if live.any():
                worst = max(worst, float((sums[live] / diagonal[rows][live]).max()))
        return worst

    def spectral_rho(self, unit_tasks: np.ndarray | None = None) -> float:
        """Return the smallest safe rho (9).

        Exact up to a few hundred units. Above, it is the low-rank value (11): safe, exact if floor is zero, and
        otherwise above the exact value by at most the number of workers that share a task.

        Parameters
        ----------
        unit_tasks : ndarray of int, default=None
            The task of each unit. None means one unit per task.
        """
        tasks = np.arange(self.m) if unit_tasks is None else np.sort(unit_tasks)
        F = self.factor()[tasks]
        if self.floor > 0 and len(tasks) <= _EXACT_RHO_LIMIT:
            # floor * [same task] is floor G G^T with G the unit-to-task incidence
            distinct, column = np.unique(tasks, return_inverse=True)
            G = np.zeros((len(tasks), len(distinct)))
            G[np.arange(len(tasks)), column] = np.sqrt(self.floor)
            return _projector_rho(np.hstack([F, G]))
        if self.floor == 0:
            return _projector_rho(F)
        shards = int(np.bincount(tasks).max(initial=1))
        apart = max(_projector_rho(F), float(shards))  # F F^T and the floor bounded separately
        return min(apart, _projector_rho(F, self.floor, shards))


def _projector_rho(F: np.ndarray, floor: float = 0.0, shards: int = 0) -> float:
    """Return lambda_max of the sum over units of the projectors on their rows of F (11).

    With a floor, f f^T / (|f|^2 + floor) instead, plus shards times the floor's largest share of a unit.
    """
    if F.shape[1] == 0:
        return float(max(shards, 1))
    size = (F**2).sum(axis=1) + floor
    scaled = F[size > 0] / np.sqrt(size[size > 0, None])
    rest = shards * floor / float(size.min()) if floor > 0 else 0.0
    return max(float(np.linalg.eigvalsh(scaled.T @ scaled)[-1]) + rest, 1.0)
