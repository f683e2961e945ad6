"""Dense rows that are mostly zeros are kept in chunks: nothing is lost, and the answer is that of the rows as they
came."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from scipy import sparse
from test_passes import _prepared

from dmtrl import Execution, LocalOptions, Problem, solve
from dmtrl.data.task_data import TaskData
from dmtrl.losses import get_loss
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.rounds import Describe, Description
from dmtrl.solver.settings import Settings
from dmtrl.worker import rows as row_access
from dmtrl.worker.local_rows import in_chunks
from dmtrl.worker.worker import Worker


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
    chunks, columns, indptr = in_chunks(X)
    again = np.zeros_like(X)
    for j in range(5):
        for k in range(indptr[j], indptr[j + 1]):
            again[j, columns[k] : columns[k] + row_access.CHUNK] += chunks[k]
    np.testing.assert_array_equal(again, X)
    assert (chunks != 0).any(axis=1).all()
    assert indptr[-1] == len(chunks) == len(columns) <= 5 * -(-d // row_access.CHUNK)


@njit
def _row(X, j, u, moved, H, out):
    out[0] = row_access.row_dot(X, j, u)
    row_access.row_axpy(X, j, 1.5, moved)
    row_access.row_outer(X, j, 0.7, H)


@pytest.mark.parametrize("d", [32, 33, 39, 45])
@pytest.mark.parametrize(("dtype", "work"), [(np.float32, np.float32), (np.float32, np.float64), (float, float)])
def test_a_row_in_chunks_is_that_row(d, dtype, work):
    X = _pictures(8, d, dtype=dtype)
    X[0, -1], X[1] = 2.0, 0.0
    rows, rng = in_chunks(X), np.random.default_rng(0)
    near = {"rtol": 1e-5, "atol": 1e-5} if work is np.float32 else {"rtol": 1e-12, "atol": 1e-12}
    for j, x in enumerate(X.astype(float)):
        u, H, out = rng.standard_normal(d).astype(work), np.zeros((d, d)), np.zeros(1)
        moved = u.copy()
        _row(rows, j, u, moved, H, out)
        np.testing.assert_allclose(out, [x @ u], **near)
        np.testing.assert_allclose(moved, u + 1.5 * x, **near)
        np.testing.assert_allclose(H, np.tril(0.7 * np.outer(x, x)), rtol=1e-6, atol=1e-6)


def _described(X) -> Description:
    data = TaskData(X, np.ones(X.shape[0]), None, np.array([0, X.shape[0]]), np.array(["a"]))
    return decode(Worker(data.sources(1)[0], get_loss("squared")).answer(encode(Describe())))


def test_what_is_counted_is_the_share_of_chunks_that_are_not_zero():
    X = _pictures(40, d=48)
    used = (X.reshape(40, 6, 8) != 0).any(axis=2)
    counted = _described(X)
    assert counted.chunks == 40 * 6
    assert counted.chunks_used == pytest.approx(used.sum(), rel=0.1)
    for rows in (sparse.csr_matrix(X), np.ascontiguousarray(X[:, :24])):
        assert _described(rows).chunks == 0


def test_rows_that_are_blank_at_regular_places_are_not_taken_for_empty():
    X = np.ones((6400, 32), dtype=np.float32)
    X[::100] = 0.0
    counted = _described(X)
    assert counted.chunks_used > 0.9 * counted.chunks


@pytest.mark.parametrize("local_solver", ["auto", "sdca"])
def test_who_holds_which_task_does_not_matter(local_solver):
    """Tasks of which one alone would be kept in chunks and another not."""
    parts = [_pictures(750, 40, share, seed).astype(np.float32) for seed, share in enumerate((0.05, 0.3, 2.0))]
    X, rng = np.concatenate(parts), np.random.default_rng(5)
    y = np.where(X @ rng.standard_normal(40) + 0.1 * rng.standard_normal(len(X)) > 0, 1.0, -1.0)
    data = TaskData(X, y, None, np.arange(4) * 750, np.array(["a", "b", "c"]))
    how = Settings(tol=1e-4, max_rounds=30, local_solver=local_solver)
    one, two, three = (
        solve(Problem.of(data, loss="logistic", reg_lambda=1e-3), Execution(LocalOptions(workers=k), settings=how))
        for k in (1, 2, 3)
    )
    np.testing.assert_array_equal(one.W, two.W)
    np.testing.assert_array_equal(one.W, three.W)


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
        solve(
            Problem.of(TaskData(rows, y, None, np.array([0, 30, 80, 120]), names), loss=loss, reg_lambda=1e-2),
            Execution(settings=how),
        )
        for rows in (X, sparse.csr_matrix(X))
    ]
    for one, other in (both, both[::-1]):
        assert one.certificate.relative_gap <= 1e-6
        assert one.certificate.dual <= other.certificate.primal + 1e-12
    np.testing.assert_allclose(both[0].W, both[1].W, atol=5e-3 * np.abs(both[1].W).max())


def test_rows_are_packed_once_and_only_where_all_are_mostly_zero():
    X = _pictures(90)
    data = TaskData(X, np.where(X.sum(axis=1) > 0, 1.0, -1.0), None, np.array([0, 40, 90]), np.array(["a", "b"]))
    worker = _prepared(data, "hinge", density=0.3)
    packed = worker._problem.units.X
    assert packed[0].shape[1] == row_access.CHUNK
    worker.answer(encode(worker._order))
    assert worker._problem.units.X is packed
    assert isinstance(_prepared(data, "hinge", density=0.6)._problem.units.X, np.ndarray)
