"""Bad input to the solver gives one clear error each; and a custom loss."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from dmtrl import Execution, LocalOptions, Problem, Settings, TaskCovariance, TaskData, solve
from dmtrl.engines import LocalEngine
from dmtrl.losses import get_loss
from dmtrl.relationship import shared
from dmtrl.solver.outcome import StartPoint
from support.losses_by_hand import EXPECTILE
from support.problems import random_problem
from support.solving import solve_data

X = np.arange(12.0).reshape(6, 2)
Y = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
TASKS = ["a", "a", "a", "b", "b", "b"]


def _with(row: int, column: int, value: float) -> np.ndarray:
    changed = X.copy()
    changed[row, column] = value
    return changed


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix])
def test_nan_and_infinity_are_located(value: float, layout: object) -> None:
    data = TaskData.from_long(layout(_with(4, 1, value)), Y, TASKS)
    with pytest.raises(ValueError, match="task 'b', row 1, column 1: X holds NaN or infinity"):
        solve(Problem.of(data, loss="squared", reg_lambda=1.0))


def test_bad_labels_and_weights_are_located() -> None:
    bad = Y.copy()
    bad[3] = np.nan
    with pytest.raises(ValueError, match="task 'b', row 0: y holds NaN"):
        solve(Problem.of(TaskData.from_long(X, bad, TASKS), loss="squared", reg_lambda=1.0))
    with pytest.raises(ValueError, match="task 'a', row 0: the hinge loss needs labels -1 and \\+1, found 0"):
        solve(Problem.of(TaskData.from_long(X, np.array([0, 1, 0, 1, 0, 1]), TASKS), loss="hinge", reg_lambda=1.0))
    with pytest.raises(ValueError, match="task 'b', row 2: a sample weight must be finite and not negative"):
        solve(Problem.of(TaskData.from_long(X, Y, TASKS, [1, 1, 1, 1, 1, -1]), loss="squared", reg_lambda=1.0))
    with pytest.raises(ValueError, match="task number 1 has a total sample weight of zero"):
        solve(Problem.of(TaskData.from_long(X, Y, TASKS, [1, 1, 1, 0, 0, 0]), loss="squared", reg_lambda=1.0))


def test_shapes() -> None:
    with pytest.raises(ValueError, match="X has 6 rows, y has shape \\(5,\\)"):
        TaskData.from_long(X, Y[:5], TASKS)
    with pytest.raises(ValueError, match="tasks has shape \\(2,\\)"):
        TaskData.from_long(X, Y, ["a", "b"])
    with pytest.raises(ValueError, match="X must have two dimensions"):
        TaskData.from_long(X[0], Y[:2])
    with pytest.raises(ValueError, match="task 1 has no rows"):
        TaskData.from_list([(X, Y), (X[:0], Y[:0])])
    with pytest.raises(ValueError, match="task 1 has 1 features, but task 0 has 2"):
        TaskData.from_list([(X, Y), (X[:, :1], Y)])
    with pytest.raises(ValueError, match="there are no rows"):
        TaskData.from_long(X[:0], Y[:0])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        *(({"reg_lambda": bad}, "reg_lambda must be positive and finite") for bad in (0.0, -1.0, np.nan, np.inf, "1")),
        *(({"intercept_ridge": bad}, "intercept_ridge must be None, or positive and finite") for bad in (0.0, "1")),
        *(({"n_jobs": bad}, "n_jobs must be None or an integer") for bad in (1.5, "2")),
    ],
)
def test_invalid_numbers_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        solve_data(random_problem(), **{"loss": "squared", "reg_lambda": 0.1} | options)


def test_arrays_are_no_data() -> None:
    with pytest.raises(TypeError, match="data must be a TaskData or a SourcePlan, got ndarray"):
        solve(Problem.of(X, loss="squared", reg_lambda=0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix])
def test_rows_whose_squares_overflow_are_refused(layout: Any) -> None:
    data = TaskData.from_long(layout(_with(5, 0, 1e160)), Y, TASKS)
    with pytest.raises(ValueError, match="task 'b', row 2: the numbers of X are so large that their squares overflow"):
        solve(Problem.of(data, loss="squared", reg_lambda=1.0))


@pytest.mark.parametrize(
    ("sigma", "sentence"),
    [
        (np.array([[1.0, 2.0], [2.0, 1.0]]), "must be positive semidefinite; its smallest eigenvalue is -1"),
        (np.zeros((2, 2)), "must have a positive trace, got 0"),
        (np.array([[1.0, 0.5], [0.0, 1.0]]), "must be symmetric"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "not finite at row 0, column 1"),
        (np.ones((2, 3)), "must be square, got shape \\(2, 3\\)"),
        (np.eye(3), "has 3 tasks, the data has 2"),
    ],
)
def test_invalid_covariances_are_refused(sigma: np.ndarray, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        solve(Problem.of(TaskData.from_long(X, Y, TASKS), loss="squared", reg_lambda=1.0, relationship=sigma))


def test_invalid_graphs_are_refused() -> None:
    with pytest.raises(ValueError, match="must be symmetric"):
        TaskCovariance.from_graph(np.array([[0, 1], [0, 0]]))
    with pytest.raises(ValueError, match="finite and non-negative"):
        TaskCovariance.from_graph(np.array([[0, -1], [-1, 0]]))
    with pytest.raises(ValueError, match="between 0 and 1"):
        shared(3, correlation=2.0)


def test_a_graph_may_have_loops_and_is_not_changed() -> None:
    edges = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 2.0], [0.0, 2.0, 0.0]])
    loops = sparse.csr_matrix(edges + np.eye(3))
    before = loops.toarray()
    found, plain = TaskCovariance.from_graph(loops), TaskCovariance.from_graph(edges)
    np.testing.assert_array_equal(loops.toarray(), before)
    for some in ((0, 2), [0, -1], np.array([True, False, True])):
        np.testing.assert_allclose(found.block(some), plain.dense()[np.ix_([0, 2], [0, 2])], rtol=1e-12)
    assert found.block([]).shape == (0, 0)


def test_an_engine_with_more_tasks_than_the_data_is_refused() -> None:
    data = random_problem("squared", m=4)
    with (
        LocalEngine(data.sources(2), get_loss("squared")) as engine,
        pytest.raises(ValueError, match="the workers hold task number 3, but the problem has 3 tasks"),
    ):
        solve(Problem.of(data.only(np.arange(3)), loss="squared", reg_lambda=0.1), Execution(engine))


def test_invalid_names_and_settings_are_refused() -> None:
    data = TaskData.from_long(X, Y, TASKS)
    with pytest.raises(ValueError, match="unknown loss 'hing'; choose one of"):
        solve(Problem.of(data, loss="hing", reg_lambda=1.0))
    with pytest.raises(ValueError, match="unknown relationship 'friends'"):
        solve(Problem.of(data, loss="squared", reg_lambda=1.0, relationship="friends"))
    with pytest.raises(ValueError, match=r"common .* must be at least 0"):
        solve(Problem.of(data, loss="squared", reg_lambda=1.0, common=-1.0))
    with pytest.raises(ValueError, match="got 3 losses for 2 tasks"):
        solve(Problem.of(data, loss=["squared"] * 3, reg_lambda=1.0))
    with pytest.raises(ValueError, match="method must be one of auto, splitting, dual"):
        Settings(method="magic")
    with pytest.raises(ValueError, match="max_rounds must be an integer of at least 1"):
        Settings(max_rounds=0)
    with pytest.raises(ValueError, match="relaxation must be between 0 and 2"):
        Settings(relaxation=2.5)


def test_reaching_max_rounds_emits_a_warning() -> None:
    with pytest.warns(UserWarning, match="stopped after max_rounds=1 rounds at a relative gap of"):
        solve(
            Problem.of(random_problem("hinge"), loss="hinge", reg_lambda=1e-3),
            Execution(settings=Settings(max_rounds=1)),
        )


def test_a_custom_loss() -> None:
    """Asymmetric least squares (an expectile), alone and beside built-in losses."""
    data = random_problem("squared", m=3, d=4)
    settings = Settings(tol=1e-6, max_rounds=2000)
    outcome = solve(Problem.of(data, loss=EXPECTILE, reg_lambda=0.1), Execution(settings=settings))
    assert outcome.certificate.relative_gap <= 1e-6
    nuclear = np.linalg.svd(outcome.W, compute_uv=False).sum()
    total = 0.05 * nuclear**2
    for i in range(3):
        rows = slice(data.starts[i], data.starts[i + 1])
        r = data.y[rows] - data.X[rows] @ outcome.W[i]
        total += np.mean(0.5 * np.where(r >= 0, 0.8, 0.2) * r**2)
    assert outcome.certificate.primal == pytest.approx(total, rel=1e-9)
    mixed = solve(Problem.of(data, loss=[EXPECTILE, "squared", "huber"], reg_lambda=0.1), Execution(settings=settings))
    assert mixed.certificate.relative_gap <= 1e-6


@pytest.mark.parametrize(
    ("W", "common", "error", "message"),
    [
        (np.zeros((3, 3)), np.zeros(3), ValueError, r"weights of shape \(4, d\)"),
        (np.zeros((4, 9)), np.zeros(9), ValueError, r"start has weights of shape \(4, 9\), the data need \(4, 5\)"),
        (np.full((4, 3), np.nan), np.zeros(3), ValueError, "finite weights"),
        (np.zeros((4, 3)), np.zeros(2), ValueError, "a common part of shape"),
    ],
)
def test_a_wrong_start_is_refused(W: np.ndarray, common: np.ndarray, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        solve(Problem.of(random_problem(), loss="squared", reg_lambda=0.1, start=StartPoint(W, common)))


def test_a_start_may_have_integer_weights_and_must_have_names() -> None:
    data = random_problem()
    start = StartPoint(np.zeros((4, 5), dtype=int), np.zeros(5))
    assert solve(Problem.of(data, loss="squared", reg_lambda=0.1, start=start)).converged
    with pytest.raises(TypeError, match="start must be an Outcome or a StartPoint, got tuple"):
        solve(Problem.of(data, loss="squared", reg_lambda=0.1, start=(np.zeros((4, 3)), np.zeros(3))))  # type: ignore[arg-type]


def test_shards_of_another_number_of_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="shards must be one number or one per task: got 2 for 4 tasks"):
        solve(Problem.of(random_problem(), loss="squared", reg_lambda=0.1), Execution(LocalOptions(shards=[1, 2])))
