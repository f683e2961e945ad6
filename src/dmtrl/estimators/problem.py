"""The problem that the solver sees: units, centred rows, and the way back from weights to coefficients.

A unit is a task. With k > 2 classes its weights are those of all classes, one after the other.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import as_rows
from dmtrl.data.task_data import TaskData
from dmtrl.numerics.rowwise import row_blocks
from dmtrl.relationship import TaskCovariance
from dmtrl.relationship.covariance import DENSE_LIMIT


@dataclass(frozen=True)
class UnitLabels:
    """The rows and numeric labels of each unit.

    Unit used[i] owns the entries starts[i]:starts[i + 1] of `rows` (row numbers of X) and `y`.
    """

    rows: np.ndarray
    y: np.ndarray
    starts: np.ndarray
    names: np.ndarray  # of all units, including the ones left out of the problem
    used: np.ndarray  # indices of the units in the problem
    constant: np.ndarray  # score of each unit if it is left out; with k > 2 classes (m, k)
    classes: np.ndarray | None = None  # sorted class labels; None for regression
    seen: np.ndarray | None = None  # (m, k): whether a task has a class; None for regression


@dataclass(frozen=True)
class Coordinates:
    """Affine map from rows and labels to the ones the solver sees."""

    x_centre: np.ndarray
    y_centre: float
    intercept: bool  # whether weights end with an intercept
    column: bool = False  # whether rows end with a column of ones, so that the intercept is one more coefficient
    y_scale: float = 1.0  # root mean square distance of y from its centre

    @classmethod
    def for_rows(
        cls, X: Any, units: UnitLabels, weight: np.ndarray | None, fit_intercept: bool | str, centre_y: bool
    ) -> "Coordinates":
        """Centre X and y for a free intercept, so that its small ridge has no visible effect."""
        x_centre, y_centre = np.zeros(X.shape[1], dtype=X.dtype), 0.0
        per_label = None if weight is None else weight[units.rows]
        if fit_intercept is True:
            if not sparse.issparse(X):
                x_centre = _column_means(X, weight).astype(X.dtype)
            if centre_y:
                y_centre = float(np.average(units.y, weights=per_label))
        spread = float(np.sqrt(np.average((units.y - y_centre) ** 2, weights=per_label))) or 1.0
        return cls(x_centre, y_centre, bool(fit_intercept), bool(fit_intercept) and fit_intercept is not True, spread)

    def rows(self, X: Any, which: np.ndarray | None = None) -> Any:
        """Transform all rows, or the rows numbered `which`. Copies at most once, and not at all for the identity."""
        X = as_rows(X)
        if not self.column and not self.x_centre.any():
            return X if which is None else as_rows(X[which])
        n, d = X.shape[0] if which is None else len(which), X.shape[1]
        if sparse.issparse(X) and self.column:
            return _with_column(X, which)
        if sparse.issparse(X):  # the rows of the fit were dense, and centred
            X, which = (X if which is None else X[which]).toarray(), None
        transformed = np.empty((n, d + self.column), dtype=X.dtype)
        transformed[:, d:] = 1.0
        for rows in row_blocks(n, d):
            np.subtract(X[rows if which is None else which[rows]], self.x_centre, out=transformed[rows, :d])
        return transformed

    def weights(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """Convert coefficients (m, d) or (m, k, d) and intercepts (m,) or (m, k) to rows of weights."""
        m = len(coef)
        if not self.intercept:
            return coef.reshape(m, -1)
        bias = intercept - self.y_centre + self._at_centre(coef)
        if self.column:
            return np.concatenate([coef, bias[..., None]], axis=-1).reshape(m, -1)
        return np.hstack([coef.reshape(m, -1), bias.reshape(m, -1)])

    def coefficients(self, W: np.ndarray, outputs: int) -> tuple[np.ndarray, np.ndarray]:
        """Convert rows of weights to coefficients and intercepts; with k > 1 outputs they have an axis of classes."""
        free = outputs if self.intercept and not self.column else 0
        own = W[..., : W.shape[-1] - free].reshape(*W.shape[:-1], outputs, -1)
        coef = own[..., : len(self.x_centre)]
        bias = W[..., W.shape[-1] - free :] if free else own[..., -1] if self.column else np.zeros(coef.shape[:-1])
        if outputs == 1:
            coef, bias = coef[..., 0, :], bias[..., 0]
        return coef, bias + self.y_centre - self._at_centre(coef)

    def _at_centre(self, coef: np.ndarray) -> np.ndarray:
        """The scores of the centre; the bits of a task do not depend on the other tasks, as they would with BLAS."""
        return np.asarray((coef * self.x_centre).sum(axis=-1))


@dataclass(frozen=True)
class FitProblem:
    """The data for the solver, and what is needed to turn its weights into a fitted estimator."""

    data: TaskData
    coordinates: Coordinates
    tasks: np.ndarray  # all, including the ones left out
    used: np.ndarray  # indices of the units in `data`
    constant: np.ndarray  # score of each unit if it is left out; with k > 2 classes (m, k)
    classes: np.ndarray | None = None
    feature_map: Any = None
    seen: np.ndarray | None = None  # (m, k): whether a task has a class; None for regression
    rows: np.ndarray | None = None  # number of rows of each task, where it is known

    @property
    def outputs(self) -> int:
        """Scores of a row: one, or one for each of more than two classes."""
        return 1 if self.classes is None or len(self.classes) == 2 else len(self.classes)

    @property
    def seen_by_units(self) -> np.ndarray:
        """Whether each unit in the problem has each class."""
        assert self.seen is not None, "a problem with more than two classes says which of them its tasks have"
        return self.seen[self.used]


def build_problem(
    X: Any, units: UnitLabels, weight: np.ndarray | None, coordinates: Coordinates, feature_map: Any = None
) -> FitProblem:
    """Arrange the rows unit after unit. X has already passed through the feature map; `weight` is per row of X."""
    in_order = len(units.rows) == X.shape[0] and bool((np.diff(units.rows) == 1).all())
    rows = coordinates.rows(X, None if in_order else units.rows)
    per_label = None if weight is None else weight[units.rows]
    y = units.y - coordinates.y_centre
    data = TaskData(rows, y, per_label, units.starts, units.names[units.used])
    return FitProblem(
        data, coordinates, units.names, units.used, units.constant, units.classes, feature_map, units.seen
    )


def _column_means(X: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Sums in float64 for any dtype of X: a float32 sum of millions of rows is not accurate."""
    weight = np.ones(len(X)) if weight is None else weight
    total = np.zeros(X.shape[1])
    for rows in row_blocks(*X.shape):
        total += weight[rows] @ X[rows].astype(np.float64)
    return np.asarray(total / weight.sum())


def _with_column(X: Any, which: np.ndarray | None) -> Any:
    """Append a column of ones to a CSR matrix, or to its rows `which`. Copies the entries once."""
    n = X.shape[0] if which is None else len(which)
    lengths = np.diff(X.indptr) if which is None else np.diff(X.indptr)[which]
    indptr = np.concatenate([[0], np.cumsum(lengths + 1, dtype=np.int64)])
    data = np.ones(indptr[-1], dtype=X.dtype)
    wide = max(indptr[-1], X.shape[1] + 1) > np.iinfo(np.int32).max
    indices = np.full(indptr[-1], X.shape[1], dtype=np.int64 if wide else np.int32)
    for rows in row_blocks(n, max(1, X.nnz // max(X.shape[0], 1))):
        part = X[rows if which is None else which[rows]]
        entries = slice(indptr[rows.start], indptr[rows.stop])
        copied = np.ones(entries.stop - entries.start, dtype=bool)
        copied[indptr[rows.start + 1 : rows.stop + 1] - entries.start - 1] = False  # entries of the new column
        data[entries][copied], indices[entries][copied] = part.data, part.indices
    return as_rows(type(X)((data, indices, indptr.astype(indices.dtype)), shape=(n, X.shape[1] + 1)))


def by_task(codes: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Label numbers sorted by task, and the start of each task among them."""
    return np.argsort(codes, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=m))])


def restrict(relationship: Any, problem: FitProblem) -> Any:
    """Remove unused units from a given covariance or graph. A labelled one is put in the order of the units."""
    total = len(problem.tasks)
    if hasattr(relationship, "loc"):
        names = problem.tasks.tolist()
        if sorted(map(str, relationship.index)) != sorted(map(str, names)):
            raise ValueError(
                "the labels of the given task covariance do not match the units of the model; "
                "fit with relationship='learned' and see tasks_ for the expected labels"
            )
        relationship = relationship.loc[names, names].to_numpy()
    if len(problem.used) == total or getattr(relationship, "shape", None) != (total, total):
        return relationship
    return relationship[problem.used][:, problem.used]


def pad(covariance: TaskCovariance, problem: FitProblem) -> TaskCovariance:
    """Extend Sigma to all units. A unit that was left out is uncorrelated with the others.

    Above DENSE_LIMIT units Sigma is never dense, and a unit that was left out has the floor as its variance.
    """
    total, used = len(problem.tasks), problem.used
    if len(used) == total:
        return covariance
    if covariance.floor > 0 and total <= DENSE_LIMIT:
        sigma = np.zeros((total, total))
        sigma[np.ix_(used, used)] = covariance.dense()
        return TaskCovariance.from_dense(sigma)
    basis = np.zeros((total, covariance.basis.shape[1]))
    basis[used] = covariance.basis
    trace = 1.0 + (total - len(used)) * covariance.floor
    return TaskCovariance(basis, covariance.values / trace, covariance.floor / trace)


def row_products(X: Any, coef: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Dot product of each row of X with the coefficients of its task."""
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
