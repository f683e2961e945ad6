"""From labelled rows to the rows of a problem, and what a problem leaves out."""

from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.coordinates import Coordinates
from dmtrl.data.task_data import TaskData
from dmtrl.estimators.inputs import LabelledRows
from dmtrl.numerics.rowwise import row_blocks
from dmtrl.relationship import TaskCovariance
from dmtrl.relationship.covariance import DENSE_LIMIT
from dmtrl.solver.problem import Tasks


def task_data(X: Any, rows: LabelledRows, coordinates: Coordinates) -> TaskData:
    """Labels that are arranged task after task, with their rows in the coordinates of the problem. X has already passed
    through the feature map."""
    in_order = len(rows.rows) == X.shape[0] and bool((np.diff(rows.rows) == 1).all())
    starts = task_starts(rows.codes, len(rows.names))
    y = rows.y - coordinates.y_centre
    laid = coordinates.rows(X, None if in_order else rows.rows)
    return TaskData(laid, y, rows.label_weight, starts, rows.names, rows.splits)


def task_starts(codes: np.ndarray, m: int) -> np.ndarray:
    """The first label of each of m tasks, if labels are sorted by task, and the number of labels."""
    return np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=m))])


def restrict(relationship: Any, tasks: Tasks) -> Any:
    """Remove tasks that are left out from a given covariance or graph; put a labelled one in the order of the tasks."""
    total = len(tasks.names)
    if hasattr(relationship, "loc"):
        names = tasks.names.tolist()
        if sorted(map(str, relationship.index)) != sorted(map(str, names)):
            raise ValueError(
                "the labels of the given task covariance do not match the tasks of the model; "
                "fit with relationship='learned' and see tasks_ for the expected labels"
            )
        relationship = relationship.loc[names, names].to_numpy()
    if len(tasks.used) == total or getattr(relationship, "shape", None) != (total, total):
        return relationship
    return relationship[tasks.used][:, tasks.used]


def pad(covariance: TaskCovariance, tasks: Tasks) -> TaskCovariance:
    """Extend Sigma to all tasks. A task that was left out is uncorrelated with the others.

    Above DENSE_LIMIT tasks Sigma is never dense, and a task that was left out has the floor as its variance.
    """
    total, used = len(tasks.names), tasks.used
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
