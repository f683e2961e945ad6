"""From a table to the units of one problem, and from its weights back to coefficients.

Room: beside intake, below the estimators. A unit is a task, or with more than two classes a task and a class. Here an
intercept becomes a column, X and y are centred, and rows are laid unit after unit.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import as_rows
from dmtrl.data.task_data import TaskData
from dmtrl.numerics.rowwise import row_blocks
from dmtrl.relationship.covariance import DENSE_LIMIT, TaskCovariance


@dataclass(frozen=True)
class Units:
    """`rows` are row numbers of X, unit after unit; the unit numbered used[i] owns rows[starts[i]:starts[i + 1]]."""

    rows: np.ndarray
    y: np.ndarray
    starts: np.ndarray
    names: np.ndarray  # of all units, also of those that are left out of the problem
    used: np.ndarray  # numbers of the units that are in it
    constant: np.ndarray  # the score of each unit, should it be left out
    groups: np.ndarray | None = None  # of the units in use: the same number for those that share rows


@dataclass(frozen=True)
class Coordinates:
    """How the problem sees rows and labels: from a centre, and with a constant column for the intercept."""

    x_centre: np.ndarray
    y_centre: float
    constant: float  # what stands in the last column; 0 where there is none
    y_scale: float = 1.0  # a typical distance of y from its centre

    def rows(self, X: Any, which: np.ndarray | None = None) -> Any:
        """Rows as the problem sees them, all or those numbered `which`; written once, or as they are."""
        X = as_rows(X)
        if self.constant == 0 and not self.x_centre.any():
            return X if which is None else as_rows(X[which])
        n, d = X.shape[0] if which is None else len(which), X.shape[1]
        if sparse.issparse(X):
            return _with_column(X, which, self.constant)
        seen = np.empty((n, d + (self.constant != 0)), dtype=X.dtype)
        seen[:, d:] = self.constant
        for rows in row_blocks(n, d):
            np.subtract(X[rows if which is None else which[rows]], self.x_centre, out=seen[rows, :d])
        return seen

    def weights(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """Coefficients and intercepts as rows of weights."""
        if self.constant == 0:
            return coef
        return np.column_stack([coef, (intercept - self.y_centre + coef @ self.x_centre) / self.constant])

    def coefficients(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercepts from rows of weights."""
        coef = W[..., : len(self.x_centre)]
        bias = W[..., -1] * self.constant if self.constant else np.zeros(W.shape[:-1])
        return coef, bias + self.y_centre - coef @ self.x_centre


@dataclass(frozen=True)
class Problem:
    """What the solver is given, and the way back from its coordinates; `units` without rows and labels."""

    data: TaskData
    units: Units
    coordinates: Coordinates


def pose(X: Any, units: Units, weight: np.ndarray | None, fit_intercept: bool | str, centre_y: bool) -> Problem:
    """With a free intercept (True) the origin of X and y may lie anywhere; at their centre its ridge does not bite. Its
    column is as long as a typical row, so that one step size suits both."""
    X = as_rows(X)
    x_centre, y_centre, constant = np.zeros(X.shape[1], dtype=X.dtype), 0.0, 1.0 if fit_intercept else 0.0
    per_label = None if weight is None else weight[units.rows]
    if fit_intercept is True:
        if not sparse.issparse(X):
            x_centre = _column_means(X, weight).astype(X.dtype)
        if centre_y:
            y_centre = float(np.average(units.y, weights=per_label))
        constant = float(np.sqrt(np.average(_squared_norms(X, x_centre), weights=weight))) or 1.0
    spread = float(np.sqrt(np.average((units.y - y_centre) ** 2, weights=per_label))) or 1.0
    coordinates = Coordinates(x_centre, y_centre, constant, spread)
    in_order = len(units.rows) == X.shape[0] and bool((np.diff(units.rows) == 1).all())
    rows = coordinates.rows(X, None if in_order else units.rows)
    data = TaskData(rows, units.y - y_centre, per_label, units.starts, units.names[units.used], units.groups)
    # rows and labels are in `data` now: not a second time in memory while it is solved (nor as the base of a view)
    return Problem(data, replace(units, rows=np.empty(0, dtype=int), y=np.empty(0)), coordinates)


def _squared_norms(X: Any, centre: np.ndarray) -> np.ndarray:
    if sparse.issparse(X):
        return np.asarray(X.multiply(X).sum(axis=1), dtype=float).ravel()
    squares = np.empty(len(X))
    for rows in row_blocks(*X.shape):
        away = X[rows] - centre
        squares[rows] = np.einsum("ij,ij->i", away, away)
    return squares


def _column_means(X: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Summed in float64 whatever X is: millions of float32 numbers do not add up."""
    weight = np.ones(len(X)) if weight is None else weight
    total = np.zeros(X.shape[1])
    for rows in row_blocks(*X.shape):
        total += weight[rows] @ X[rows].astype(np.float64)
    return np.asarray(total / weight.sum())


def _with_column(X: Any, which: np.ndarray | None, constant: float) -> Any:
    """A CSR matrix, or its rows `which`, with a constant last column; no other copy of its entries is made."""
    n = X.shape[0] if which is None else len(which)
    lengths = np.diff(X.indptr) if which is None else np.diff(X.indptr)[which]
    indptr = np.concatenate([[0], np.cumsum(lengths + 1, dtype=np.int64)])
    data = np.full(indptr[-1], constant, dtype=X.dtype)
    wide = max(indptr[-1], X.shape[1] + 1) > np.iinfo(np.int32).max
    indices = np.full(indptr[-1], X.shape[1], dtype=np.int64 if wide else np.int32)
    for rows in row_blocks(n, max(1, X.nnz // max(X.shape[0], 1))):
        part = X[rows if which is None else which[rows]]
        entries = slice(indptr[rows.start], indptr[rows.stop])
        own = np.ones(entries.stop - entries.start, dtype=bool)
        own[indptr[rows.start + 1 : rows.stop + 1] - entries.start - 1] = False  # where the new column stands
        data[entries][own], indices[entries][own] = part.data, part.indices
    return as_rows(type(X)((data, indices, indptr.astype(indices.dtype)), shape=(n, X.shape[1] + 1)))


def by_task(codes: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Label numbers task after task, and where each task starts among them."""
    return np.argsort(codes, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=m))])


def restrict(relationship: Any, units: Units) -> Any:
    """A given covariance or graph without the units that are left out; a labelled one in the order of the units."""
    total = len(units.names)
    if hasattr(relationship, "loc"):
        names = units.names.tolist()
        if sorted(map(str, relationship.index)) != sorted(map(str, names)):
            raise ValueError(
                "the labels of the given task covariance are not the model's tasks; see unit_names_ of a fit"
            )
        relationship = relationship.loc[names, names].to_numpy()
    if len(units.used) == total or getattr(relationship, "shape", None) != (total, total):
        return relationship
    return relationship[units.used][:, units.used]


def pad(covariance: TaskCovariance, units: Units) -> TaskCovariance:
    """Sigma over all units; one that was left out is related to nobody. Above DENSE_LIMIT units it may be given the
    variance that all have in common, for Sigma is no longer written as an array there."""
    total = len(units.names)
    if len(units.used) == total:
        return covariance
    if covariance.floor > 0 and total <= DENSE_LIMIT:
        sigma = np.zeros((total, total))
        sigma[np.ix_(units.used, units.used)] = covariance.dense()
        return TaskCovariance.from_dense(sigma)
    basis = np.zeros((total, covariance.basis.shape[1]))
    basis[units.used] = covariance.basis
    trace = 1.0 + (total - len(units.used)) * covariance.floor
    return TaskCovariance(basis, covariance.values / trace, covariance.floor / trace)


def common_part(covariance: TaskCovariance, tau: float, W: np.ndarray) -> np.ndarray:
    """tau 1^T (Sigma + tau 1 1^T)^-1 W: what a given Sigma says of a task that shares only the common component."""
    total = covariance.plus_common(tau)
    inside = total.basis.T @ W
    solved = total.basis @ (inside / (total.values + total.floor)[:, None])
    if total.floor > 0:
        solved += (W - total.basis @ inside) / total.floor
    return np.asarray(tau * solved.sum(axis=0))


def row_products(X: Any, coef: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Each row of X times the coefficients of its own task."""
    if len(coef) == 1:
        return np.asarray(X @ coef[0])
    if sparse.issparse(X):
        row = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        products = np.bincount(row, weights=X.data * coef[codes[row], X.indices], minlength=X.shape[0])
        return products.astype(coef.dtype)
    products = np.empty(X.shape[0], dtype=np.result_type(X, coef))
    for rows in row_blocks(*X.shape):
        np.einsum("ij,ij->i", X[rows], coef[codes[rows]], out=products[rows])
    return products
