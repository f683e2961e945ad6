"""Dense rows that are mostly zeros are kept in chunks: nothing is lost, and the answer is that of the rows as they
came."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from scipy import sparse

from dmtrl import kernels, solve
from dmtrl.data import TaskData
from dmtrl.settings import Settings
from dmtrl.worker import _in_chunks, _kernel_rows
from test_passes import _prepared


def _pictures(n: int = 60, d: int = 45, share: float = 0.1, seed: int = 0, dtype: type = np.float64) -> np.ndarray:
    """Rows with a few strokes: runs of numbers among zeros."""
    rng = np.random.default_rng(seed)
    X = np.zeros((n, d), dtype=dtype)
    for row in X:
        for first in rng.integers(0, d, max(int(share * d / 3), 1)):
            row[first : first + 3] = rng.standard_normal(len(row[first : first + 3]))
    return X


@settings(max_examples=60, deadline=None)
@given(st.integers(8, 60), st.floats(0, 1), st.sampled_from([np.float32, np.float64]), st.integers(0, 99))
def test_chunks_hold_all_numbers_and_no_chunk_is_empty(d, share, dtype, seed):
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((5, d)) * (rng.random((5, d)) < share)).astype(dtype)
    chunks, columns, indptr = _in_chunks(X)
    again = np.zeros_like(X)
    for j in range(5):
        for k in range(indptr[j], indptr[j + 1]):
            again[j, columns[k] : columns[k] + kernels.CHUNK] += chunks[k]
    np.testing.assert_array_equal(again, X)
    assert (chunks != 0).any(axis=1).all()
    assert indptr[-1] == len(chunks) == len(columns) <= 5 * -(-d // kernels.CHUNK)


@njit
def _row(X, j, u, moved, H, out):
    out[0], out[1] = kernels.row_dot(X, j, u), kernels.row_square(X, j, out)
    kernels.row_axpy(X, j, 1.5, moved)
    kernels.row_outer(X, j, 0.7, H)


@pytest.mark.parametrize("d", [32, 33, 39, 45])
@pytest.mark.parametrize(("dtype", "work"), [(np.float32, np.float32), (np.float32, np.float64), (float, float)])
def test_a_row_in_chunks_is_that_row(d, dtype, work):
    X = _pictures(8, d, dtype=dtype)
    X[0, -1], X[1] = 2.0, 0.0
    rows, rng = _in_chunks(X), np.random.default_rng(0)
    near = {"rtol": 1e-5, "atol": 1e-5} if work is np.float32 else {"rtol": 1e-12, "atol": 1e-12}
    for j, x in enumerate(X.astype(float)):
        u, H, out = rng.standard_normal(d).astype(work), np.zeros((d, d)), np.zeros(2)
        moved = u.copy()
        _row(rows, j, u, moved, H, out)
        np.testing.assert_allclose(out, [x @ u, x @ x], **near)
        np.testing.assert_allclose(moved, u + 1.5 * x, **near)
        np.testing.assert_allclose(H, np.tril(0.7 * np.outer(x, x)), rtol=1e-6, atol=1e-6)


def test_only_rows_that_are_mostly_zero_are_kept_so():
    X = _pictures()
    assert len(_kernel_rows(X)) == 3
    assert _kernel_rows(X)[0].shape[1] == kernels.CHUNK
    full = X + 1.0
    assert _kernel_rows(full) is full
    few = np.ascontiguousarray(X[:, :20])
    assert _kernel_rows(few) is few
    assert _kernel_rows(sparse.csr_matrix(X))[0].ndim == 1
    none = X[:0]
    assert _kernel_rows(none) is none


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("loss", "local_solver"),
    [("hinge", "sdca"), ("logistic", "sdca"), ("logistic", "newton"), ("squared", "gram"), ("squared", "newton")],
)
def test_the_answer_is_that_of_the_same_rows_in_csr(loss, local_solver, dtype):
    X, rng = _pictures(120, dtype=dtype), np.random.default_rng(1)
    score = X @ rng.standard_normal(X.shape[1]) + 0.1 * rng.standard_normal(len(X))
    y = score if loss == "squared" else np.where(score > 0, 1.0, -1.0)
    names = np.array(["a", "b", "c"])
    how = Settings(tol=1e-6, local_solver=local_solver)
    both = [
        solve(TaskData(rows, y, None, np.array([0, 30, 80, 120]), names), loss=loss, reg_lambda=1e-2, settings=how)
        for rows in (X, sparse.csr_matrix(X))
    ]
    for one, other in (both, both[::-1]):
        assert one.certificate.relative_gap <= 1e-6
        assert one.certificate.dual <= other.certificate.primal + 1e-12
    np.testing.assert_allclose(both[0].W, both[1].W, atol=5e-3 * np.abs(both[1].W).max())


def test_a_worker_with_pictures_uses_chunks():
    X = _pictures(90)
    data = TaskData(X, np.where(X.sum(axis=1) > 0, 1.0, -1.0), None, np.array([0, 40, 90]), np.array(["a", "b"]))
    worker = _prepared(data, "hinge")
    assert worker._units.X[0].shape[1] == kernels.CHUNK
