"""Coordinates: centred rows and labels for the solver, and the way back from its weights to coefficients."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import as_rows
from dmtrl.numerics.rowwise import row_blocks


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
        cls,
        X: Any,
        y: np.ndarray,
        rows: np.ndarray,
        weight: np.ndarray | None,
        fit_intercept: bool | str,
        centre_y: bool,
    ) -> "Coordinates":
        """Centre X and y for a free intercept, so that its small ridge has no visible effect.

        Label y[j] belongs to row rows[j] of X; `weight` is that of the rows.
        """
        x_centre, y_centre = np.zeros(X.shape[1], dtype=X.dtype), 0.0
        per_label = None if weight is None else weight[rows]
        if fit_intercept is True:
            if not sparse.issparse(X):
                x_centre = _column_means(X, weight).astype(X.dtype)
            if centre_y:
                y_centre = float(np.average(y, weights=per_label))
        spread = float(np.sqrt(np.average((y - y_centre) ** 2, weights=per_label))) or 1.0
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
