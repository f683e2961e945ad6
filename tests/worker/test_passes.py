"""The passes of a worker's round: losses summed during a pass are those of an evaluation, and skipped rows are visited
again."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import sparse

from dmtrl import Execution, Problem, solve
from dmtrl.data.task_data import TaskData
from dmtrl.losses import get_loss, scalar
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.rounds import Improved, Prepare, Round
from dmtrl.solver.settings import Settings
from dmtrl.worker.worker import Worker
from support.problems import random_problem
from support.virtual_time import prepared


def _data(n: int = 400, d: int = 12, seed: int = 0, tasks: int = 3) -> TaskData:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n * tasks, d)) * (rng.random((n * tasks, d)) < 0.6)
    y = np.where(X @ rng.standard_normal(d) + 0.5 * rng.standard_normal(n * tasks) > 0, 1.0, -1.0)
    names = np.array([f"task {i}" for i in range(tasks)])
    return TaskData(X, y, None, np.arange(tasks + 1) * n, names)


def _prepared(data: TaskData, loss: str, steps: int = 0, **options: object) -> Worker:
    worker = Worker(data.sources(1)[0], get_loss(loss))
    scalars = {"max_passes": 20, "local_solver": "sdca", "seed": 3} | options
    total = np.diff(data.starts).astype(float)
    worker.answer(encode(Prepare(total_weight=total, steps=np.full(data.m, steps), **scalars)))
    return worker


def _round(worker: Worker, W: np.ndarray, number: int, target: float, **scalars: object) -> Improved:
    request = Round(round=number, target=target, w=W, step=np.full(len(W), 50.0), **scalars)
    return decode(worker.answer(encode(request)))


@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared"])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, lambda X: X.astype(np.float32)])
def test_the_loss_on_the_way_is_the_loss_at_the_weights_that_came(loss, kind):
    data = _data()
    data = TaskData(kind(data.X), data.y, None, data.starts, data.names)
    worker, rng = _prepared(data, loss), np.random.default_rng(1)
    the_loss = get_loss(loss)
    for number in range(4):
        W = rng.standard_normal((data.m, 12))
        alpha = worker._state.alpha.copy()
        answer = _round(worker, W, number, 1e-3)
        z = np.concatenate([data.X[a:b] @ w for a, b, w in zip(data.starts[:-1], data.starts[1:], W, strict=True)])
        value = np.array(
            [scalar.loss_value(the_loss.id, the_loss.param, *pair) for pair in zip(z, data.y, strict=True)]
        )
        conjugate = np.array(
            [scalar.loss_conjugate(the_loss.id, the_loss.param, *pair) for pair in zip(alpha, data.y, strict=True)]
        )
        per_task = lambda v: np.add.reduceat(v, data.starts[:-1]) / np.diff(data.starts)  # noqa: E731
        np.testing.assert_allclose(answer.loss_w, per_task(value), rtol=1e-12)
        np.testing.assert_allclose(answer.bracket_w, per_task(value + conjugate + alpha * z), rtol=1e-9)


def test_what_is_not_evaluated_is_infinite_and_changes_nothing_else():
    data = _data()
    W = np.random.default_rng(1).standard_normal((data.m, 12))
    seen, blind = (_prepared(data, "hinge") for _ in range(2))
    a, b = _round(seen, W, 0, 1e-3, evaluate_u=True), _round(blind, W, 0, 1e-3, evaluate_w=False)
    assert np.isinf(b.loss_w).all()
    assert np.isinf(b.loss_u).all()
    assert np.isfinite(a.loss_u).all()
    np.testing.assert_array_equal(a.b, b.b)


def test_calm_rows_are_skipped_and_visited_again():
    data = _data(n=2000, tasks=1)
    eager = _prepared(data, "hinge", steps=60 * 2000)  # a given H visits every row in every pass
    worker = _prepared(data, "hinge", max_passes=60)
    W = np.zeros((1, 12))
    every = _round(eager, W, 0, -1.0)
    some = _round(worker, W, 0, 1e-7)
    assert some.steps[0] < 0.5 * every.steps[0]
    # the same local optimum: dual value -conjugate - |c + s b|^2 / (2 s) with c = 0
    dual = [-m.conjugate[0] - 25.0 * (m.b**2).sum() for m in (every, some)]
    assert dual[1] == pytest.approx(dual[0], rel=1e-5)
    calm = worker._state.calm.copy()
    assert (calm > 0).mean() > 0.3
    turned = np.random.default_rng(5).standard_normal((1, 12)) * 10  # elsewhere: most of what was calm moves again
    _round(worker, turned, 1, 1e-7)
    assert (worker._state.calm[calm > 0] < calm[calm > 0]).any()


def test_an_infinite_target_still_moves():
    """The first round of a run knows no gap yet."""
    worker = _prepared(_data(), "hinge")
    answer = _round(worker, np.zeros((3, 12)), 0, np.inf)
    assert (answer.steps == 400).all()
    assert (np.linalg.norm(answer.b, axis=1) > 0).all()


def test_uniform_sampling_takes_exactly_the_steps_asked_for():
    worker = _prepared(_data(), "hinge", sampling="uniform", steps=137)
    assert (_round(worker, np.zeros((3, 12)), 0, 1.0).steps == 137).all()


def test_tasks_without_relations_are_solved_in_one_stride():
    data = _data(n=1500)
    outcome = solve(
        Problem.of(data, loss="hinge", reg_lambda=1e-3, relationship="independent"),
        Execution(settings=Settings(tol=1e-5)),
    )
    assert outcome.converged
    assert len(outcome.history) <= 4


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_sparse_rows_with_long_and_short_indices_are_dense_rows(dtype):
    data = _data()
    X = sparse.csr_matrix(data.X)
    X.indices, X.indptr = X.indices.astype(dtype), X.indptr.astype(dtype)
    rows = TaskData(X, data.y, None, data.starts, data.names)
    answers = [_round(_prepared(each, "logistic"), np.ones((3, 12)), 0, 1e-6) for each in (data, rows)]
    np.testing.assert_allclose(answers[0].b, answers[1].b, rtol=1e-5, atol=1e-9)


@given(st.floats(0, 1), st.floats(-300, 300))
@example(0.0, 1e6)
@example(1.0, -1e6)
@example(0.3, 1e6)
@example(1.0, 1e6)
def test_the_bracket_that_ends_passes_is_no_smaller_than_the_true_one(t, z):
    logistic = get_loss("logistic")
    for y in (-1.0, 1.0):
        a = t * y
        true = scalar.loss_value(logistic.id, 0.0, z, y) + scalar.loss_conjugate(logistic.id, 0.0, a, y) + a * z
        assert scalar.loss_bracket(logistic.id, 0.0, a, z, y) >= true - 1e-12 * (1.0 + abs(z))


def test_near_the_solution_the_logistic_bracket_is_at_most_twice_the_true_one():
    logistic = get_loss("logistic")
    for z in np.linspace(-8, 8, 33):
        a = 1.001 / (1.0 + np.exp(z))
        true = scalar.loss_value(logistic.id, 0.0, z, 1.0) + scalar.loss_conjugate(logistic.id, 0.0, a, 1.0) + a * z
        assert scalar.loss_bracket(logistic.id, 0.0, a, z, 1.0) <= 2.01 * true + 1e-14


LAYOUTS = {
    "dense": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "sparse": sparse.csr_array,
    "mostly zero": lambda X: np.where(np.arange(X.shape[1]) < 8, X, 0.0),
}


@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared", "absolute"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_loss_at_zero_weights_is_known_from_the_labels(layout: str, loss: str) -> None:
    data = random_problem(loss, m=5, d=40, rows=20)
    data = TaskData(LAYOUTS[layout](data.X), data.y, None, data.starts, data.names)
    from_labels, from_rows = (prepared(data, loss, w=w)[1].loss_w for w in (None, np.zeros((5, 40))))
    np.testing.assert_allclose(from_labels, from_rows, rtol=1e-12)
    value = get_loss(loss).value
    by_hand = [
        np.mean([value(0.0, y) for y in data.y[a:b]]) for a, b in zip(data.starts[:-1], data.starts[1:], strict=True)
    ]
    np.testing.assert_allclose(from_labels, by_hand, rtol=1e-12)
