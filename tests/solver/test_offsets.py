"""Offsets: numbers that are added to the scores of rows and not learned."""

from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numba import njit
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import logsumexp, xlogy

from dmtrl import CustomLoss, Execution, Problem, Settings, SourcePlan, Strengths, TaskData, get_loss, losses, solve
from dmtrl.losses import BUILTIN, CLASSIFICATION
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.rounds import HoldOut, Prepare, Score
from dmtrl.solver.new_task import extend
from dmtrl.solver.problem import Intercept
from dmtrl.worker.worker import Worker
from support.oracles import optimum
from support.problems import random_problem, rows_of
from support.solving import solve_data

LAM = 0.05
EXACT = Settings(tol=1e-6, max_rounds=5000)
K = 3
SOLVERS = ("auto", "sdca", "newton", "gram")  # auto: in the span of the rows


def with_offsets(data: TaskData, seed: int = 0, scale: float = 1.0, outputs: int = 1) -> TaskData:
    shape = (len(data.y), outputs) if outputs > 1 else len(data.y)
    return replace(data, offset=scale * np.random.default_rng(seed).normal(size=shape))


def classes(seed: int = 0, m: int = 4, n: int = 12, d: int = 3, weighted: bool = False) -> TaskData:
    """Tasks of three classes, with an offset for each class."""
    rng = np.random.default_rng(seed)
    X, offset = rng.normal(size=(m * n, d)), rng.normal(size=(m * n, K))
    y = (X @ rng.normal(size=(d, K)) + offset + rng.gumbel(size=(m * n, K))).argmax(axis=1)
    weight = rng.uniform(0.5, 2.0, size=m * n) if weighted else None
    return TaskData.from_long(X, y.astype(float), np.repeat(np.arange(m), n), weight, offset)


def value(loss: str, z: Any, y: np.ndarray) -> Any:
    """The losses of rows, from the formulas of a textbook."""
    r = y - z
    return {
        "hinge": lambda: cp.pos(1 - cp.multiply(y, z)),
        "smoothed_hinge": lambda: (cp.huber(cp.pos(1 - cp.multiply(y, z)), 1)) / 2,
        "squared_hinge": lambda: cp.square(cp.pos(1 - cp.multiply(y, z))) / 2,
        "logistic": lambda: cp.logistic(-cp.multiply(y, z)),
        "squared": lambda: cp.square(r) / 2,
        "absolute": lambda: cp.abs(r),
        "epsilon_insensitive": lambda: cp.pos(cp.abs(r) - 0.1),
        "huber": lambda: cp.huber(r, 1.35) / 2,
        "quantile": lambda: cp.abs(r) / 2,
        "poisson": lambda: cp.exp(z) - cp.multiply(y, z) + xlogy(y, y) - y,
    }[loss]()


def weights_of(data: TaskData, i: int) -> np.ndarray:
    rows = rows_of(data, i)
    p = np.ones(len(data.y[rows])) if data.sample_weight is None else data.sample_weight[rows]
    return np.asarray(p / p.sum())


def best_of(data: TaskData, loss: str, ridge: float | None = None) -> float:
    """The joint optimum by cvxpy."""
    d, offset = data.X.shape[1], data.offset
    assert offset is not None
    W, beta, total = cp.Variable((data.m, d)), cp.Variable(data.m), 0.0
    for i in range(data.m):
        rows = rows_of(data, i)
        z = np.asarray(data.X[rows]) @ W[i] + offset[rows] + (0.0 if ridge is None else beta[i])
        total = total + weights_of(data, i) @ value(loss, z, data.y[rows])
    penalty = LAM / 2 * cp.square(cp.normNuc(W)) + (0.0 if ridge is None else ridge / 2 * cp.sum_squares(beta))
    return optimum(cp.Minimize(total + penalty))


def objective(data: TaskData, W: np.ndarray, loss: str, ridge: float | None = None) -> float:
    """The objective at W, written without the kernels."""
    total, d = 0.0, data.X.shape[1]
    assert data.offset is not None
    for i in range(data.m):
        rows = rows_of(data, i)
        z = data.X[rows] @ W[i, :d] + data.offset[rows] + (0.0 if ridge is None else W[i, d])
        total += float(weights_of(data, i) @ get_loss(loss).value(z, data.y[rows]))
    total += LAM / 2 * float(np.linalg.svd(W[:, :d], compute_uv=False).sum()) ** 2
    return total if ridge is None else total + ridge / 2 * float((W[:, d] ** 2).sum())


def check(outcome: Any, best: float, slack: float = 3e-6) -> None:
    assert outcome.certificate.dual <= best + slack * abs(best)
    assert best - slack * abs(best) <= outcome.certificate.primal <= best + slack * abs(best)


@pytest.mark.parametrize("ridge", [None, 1e-2])
@pytest.mark.parametrize("loss", BUILTIN)
def test_joint_optimum(loss: str, ridge: float | None) -> None:
    data = with_offsets(random_problem(loss, weighted=ridge is not None), scale=0.7)
    outcome = solve(Problem.of(data, loss=loss, reg_lambda=LAM, intercept_ridge=ridge), Execution(settings=EXACT))
    check(outcome, best_of(data, loss, ridge))
    assert objective(data, outcome.W, loss, ridge) == pytest.approx(outcome.certificate.primal, rel=1e-7)


@pytest.mark.parametrize("kind", ["softmax", "logistic", "hinge"])
@pytest.mark.parametrize("ridge", [None, 1e-2])
def test_joint_optimum_of_several_classes(kind: str, ridge: float | None) -> None:
    data, d = classes(weighted=True), 3
    assert data.offset is not None
    given_loss = losses.Softmax(K) if kind == "softmax" else losses.OneVsRest(K, binary=get_loss(kind))
    W, total = cp.Variable((data.m, K * d + (K if ridge else 0))), 0.0
    for i in range(data.m):
        rows, p = rows_of(data, i), weights_of(data, i)
        y = data.y[rows].astype(int)
        scores = [data.X[rows] @ W[i, c * d : (c + 1) * d] + data.offset[rows, c] for c in range(K)]
        if ridge:
            scores = [z + W[i, K * d + c] for c, z in enumerate(scores)]
        if kind == "softmax":
            own = sum(cp.multiply((y == c).astype(float), scores[c]) for c in range(K))
            total = total + p @ (cp.log_sum_exp(cp.vstack(scores).T, axis=1) - own)
        else:
            total = total + sum(p @ value(kind, scores[c], np.where(y == c, 1.0, -1.0)) for c in range(K))
    penalty = LAM / 2 * cp.square(cp.normNuc(W[:, : K * d]))
    penalty += ridge / 2 * cp.sum_squares(W[:, K * d :]) if ridge else 0.0
    outcome = solve(Problem.of(data, loss=given_loss, reg_lambda=LAM, intercept_ridge=ridge), Execution(settings=EXACT))
    check(outcome, optimum(cp.Minimize(total + penalty)), 6e-6)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("loss", ["logistic", "hinge", "squared_hinge", "poisson", "squared", "huber"])
def test_every_local_solver(loss: str, solver: str) -> None:
    data = with_offsets(random_problem(loss, seed=3), seed=1, scale=0.5)
    settings = Settings(tol=1e-6, max_rounds=5000, local_solver=solver, max_passes=1000)
    outcome = solve(Problem.of(data, loss=loss, reg_lambda=LAM, intercept_ridge=1e-2), Execution(settings=settings))
    check(outcome, best_of(data, loss, 1e-2))


@pytest.mark.parametrize("solver", ["sdca", "newton"])
def test_every_local_solver_of_softmax(solver: str) -> None:
    data, loss = classes(2), losses.Softmax(K)
    other = solve(Problem.of(data, loss=loss, reg_lambda=LAM, intercept_ridge=1e-3), Execution(settings=EXACT))
    settings = Settings(tol=1e-6, max_rounds=5000, local_solver=solver, max_passes=1000)
    found = solve(Problem.of(data, loss=loss, reg_lambda=LAM, intercept_ridge=1e-3), Execution(settings=settings))
    check(found, other.certificate.primal)
    np.testing.assert_allclose(found.W, other.W, atol=5e-3)


@pytest.mark.parametrize(
    ("settings", "staleness"),
    [(Settings(tol=1e-6, max_rounds=5000, method="dual"), 0), (Settings(tol=1e-4, max_rounds=5000), 1)],
)
def test_other_methods(settings: Settings, staleness: int) -> None:
    data = with_offsets(random_problem("logistic"))
    how: dict[str, Any] = {"loss": "logistic", "reg_lambda": LAM, "relationship": "independent"}
    exact = solve_data(data, settings=EXACT, **how).certificate
    found = solve_data(data, workers=2, n_jobs=2, max_staleness=staleness, settings=settings, **how).certificate
    assert found.relative_gap <= settings.tol
    assert found.primal == pytest.approx(exact.primal, rel=2 * settings.tol)


@njit
def _value(z: float, y: float) -> float:
    return 0.5 * (z - y) * (z - y)


@njit
def _conjugate(a: float, y: float) -> float:
    return 0.5 * a * a - a * y


@njit
def _step(a: float, z: float, y: float, sq: float) -> float:
    return a + (y - z - a) / (1.0 + sq)


def test_custom_losses_take_offsets_and_agree_with_shifted_labels() -> None:
    """A custom loss has its offset in the scores, a squared loss in the labels."""
    own = CustomLoss("mine", _value, _conjugate, _step, lambda y: (-np.inf, np.inf), smoothness=1.0)
    data = with_offsets(random_problem("squared"))
    settings = Settings(tol=1e-6, max_rounds=5000, local_solver="sdca", max_passes=1000)
    a = solve(Problem.of(data, loss=own, reg_lambda=LAM, intercept_ridge=1e-2), Execution(settings=settings))
    b = solve(Problem.of(data, loss="squared", reg_lambda=LAM, intercept_ridge=1e-2), Execution(settings=EXACT))
    check(a, b.certificate.primal)
    np.testing.assert_allclose(a.W, b.W, atol=5e-3)


@pytest.mark.parametrize("loss", ["squared", "absolute", "epsilon_insensitive", "huber", "quantile"])
def test_an_offset_of_a_loss_of_residuals_is_a_shift_of_the_labels(loss: str) -> None:
    data = with_offsets(random_problem(loss))
    shifted = replace(data, y=data.y - data.offset, offset=None)
    a, b = (solve(Problem.of(one, loss=loss, reg_lambda=LAM, intercept_ridge=1e-3)) for one in (data, shifted))
    np.testing.assert_array_equal(a.W, b.W)
    assert a.certificate == b.certificate


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge", "poisson"])
def test_a_constant_offset_is_taken_from_a_free_intercept(loss: str) -> None:
    data = random_problem(loss, rows=30)
    moved = replace(data, offset=np.full(len(data.y), 0.8))
    a, b = (
        solve(
            Problem.of(one, loss=loss, reg_lambda=LAM, intercept_ridge=1e-9),
            Execution(settings=Settings(tol=1e-8, max_rounds=5000)),
        )
        for one in (data, moved)
    )
    np.testing.assert_allclose(a.W[:, -1], b.W[:, -1] + 0.8, atol=2e-3)
    np.testing.assert_allclose(a.W[:, :-1], b.W[:, :-1], atol=2e-3)


@pytest.mark.parametrize("loss", ["logistic", "poisson", "hinge"])
def test_a_known_coefficient_of_one_task(loss: str) -> None:
    """Given one coefficient of the optimum, the others are optimal for the rows without its column."""
    data = random_problem(loss, m=1, d=3, rows=40)
    how: dict[str, Any] = {"loss": loss, "reg_lambda": LAM, "settings": Settings(tol=1e-9, max_rounds=9000)}
    whole = solve_data(data, **how)
    known = data.X[:, 2] * whole.W[0, 2]
    rest = solve_data(replace(data, X=np.ascontiguousarray(data.X[:, :2]), offset=known), **how)
    np.testing.assert_allclose(rest.W[0], whole.W[0, :2], atol=1e-3)
    own = LAM / 2 * whole.W[0, 2] ** 2
    assert rest.certificate.primal + own == pytest.approx(whole.certificate.primal, rel=1e-6)


def test_poisson_with_an_exposure_is_a_model_of_rates() -> None:
    rng = np.random.default_rng(0)
    exposure, X = rng.uniform(0.5, 20.0, size=300), rng.normal(size=(300, 3))
    y = rng.poisson(exposure * np.exp(X @ [0.5, -0.3, 0.2] - 1.0)).astype(float)
    data = TaskData.from_long(X, y, offset=np.log(exposure))
    found = solve(
        Problem.of(data, loss="poisson", reg_lambda=1e-4, intercept_ridge=1e-8),
        Execution(settings=Settings(tol=1e-10, max_rounds=9000)),
    )

    def negative(w: np.ndarray) -> tuple[float, np.ndarray]:
        rate = exposure * np.exp(X @ w[:3] + w[3])
        gradient = np.append(X.T @ (rate - y), (rate - y).sum()) / 300 + [*(1e-4 * w[:3]), 1e-8 * w[3]]
        likelihood = (rate - y * np.log(rate)).mean()
        return float(likelihood + 5e-5 * w[:3] @ w[:3] + 5e-9 * w[3] ** 2), gradient

    best = minimize(negative, np.zeros(4), jac=True, method="BFGS", options={"gtol": 1e-10})
    np.testing.assert_allclose(found.W[0], best.x, atol=1e-4)
    # without features, the rate is the sum of the counts over the sum of the exposures
    alone = TaskData.from_long(np.zeros((300, 1)), y, offset=np.log(exposure))
    level = solve(
        Problem.of(alone, loss="poisson", reg_lambda=1.0, intercept_ridge=1e-9), Execution(settings=Settings(tol=1e-10))
    ).W[0, 1]
    assert np.exp(level) == pytest.approx(y.sum() / exposure.sum(), rel=1e-4)


@given(
    loss=st.sampled_from(sorted(BUILTIN)),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-3, 1.0, 5.0]),
    intercept=st.sampled_from([None, 1e-6, 1.0]),
    rough=st.booleans(),
)
@hypothesis_settings(max_examples=40, deadline=None)
def test_gaps_are_never_negative(loss: str, seed: int, scale: float, intercept: float | None, rough: bool) -> None:
    data = with_offsets(random_problem(loss, m=3, d=4, rows=5, seed=seed), seed, scale)
    settings = Settings(tol=0.0, max_rounds=5, max_passes=1 if rough else 100)
    outcome = solve(
        Problem.of(data, loss=loss, reg_lambda=0.02, intercept_ridge=intercept), Execution(settings=settings)
    )
    for record in outcome.history:
        size = max(abs(record.primal), abs(record.dual))
        assert record.primal >= record.dual - 1e-9 * size
        assert record.w_gap >= -1e-9
    assert objective(data, outcome.W, loss, intercept) - LAM / 2 * _nuclear(outcome.W, intercept) ** 2 + (
        0.01 * _nuclear(outcome.W, intercept) ** 2
    ) == pytest.approx(outcome.certificate.primal, rel=1e-7, abs=1e-10)


def _nuclear(W: np.ndarray, intercept: float | None) -> float:
    return float(np.linalg.svd(W if intercept is None else W[:, :-1], compute_uv=False).sum())


@pytest.mark.parametrize("kind", ["logistic", "poisson", "absolute", "softmax"])
def test_workers_threads_formats_and_shards_agree(kind: str) -> None:
    data = classes(1) if kind == "softmax" else with_offsets(random_problem(kind, rows=20))
    loss = losses.Softmax(K) if kind == "softmax" else kind
    how: dict[str, Any] = {"loss": loss, "reg_lambda": LAM, "intercept_ridge": 1e-3, "settings": EXACT}
    first = solve_data(data, **how)
    for workers, threads in ((2, 1), (4, 2)):
        np.testing.assert_array_equal(solve_data(data, workers=workers, n_jobs=threads, **how).W, first.W)
    others = [
        (replace(data, X=sparse.csr_matrix(data.X)), 1),
        (replace(data, X=data.X.astype(np.float32)), 1),
        (data, 2),
    ]
    for rows, shards in others:
        other = solve_data(rows, shards=shards, workers=shards, **how)
        assert other.certificate.primal == pytest.approx(first.certificate.primal, rel=3e-6)


def test_tasks_may_have_different_losses() -> None:
    data = with_offsets(random_problem("hinge", m=3))
    names = ["logistic", "squared", "hinge"]
    assert data.offset is not None
    W, total = cp.Variable((3, data.X.shape[1])), 0.0
    for i, name in enumerate(names):
        rows = rows_of(data, i)
        z = data.X[rows] @ W[i] + data.offset[rows]
        total = total + weights_of(data, i) @ value(name, z, data.y[rows])
    best = optimum(cp.Minimize(total + LAM / 2 * cp.square(cp.normNuc(W))))
    check(solve(Problem.of(data, loss=names, reg_lambda=LAM), Execution(settings=EXACT)), best)


@pytest.mark.parametrize("kind", ["logistic", "squared", "softmax", "one-vs-rest"])
def test_a_resumed_run_has_the_same_bits(kind: str, tmp_path: Any) -> None:
    several = {"softmax": losses.Softmax(K), "one-vs-rest": losses.OneVsRest(K, binary=get_loss("hinge"))}
    data = classes(3) if kind in several else with_offsets(random_problem(kind))
    loss = several.get(kind, kind)

    def run(rounds: int, rows: TaskData = data, **where: Any) -> Any:
        settings = Settings(tol=0.0, max_rounds=rounds)
        return solve_data(rows, loss=loss, reg_lambda=LAM, intercept_ridge=1e-3, settings=settings, **where)

    whole = run(10)
    run(4, checkpoint=tmp_path / "saved")
    other = replace(data, offset=np.asarray(data.offset) + 0.1)
    with pytest.raises(ValueError, match="offsets"):
        run(10, other, resume=tmp_path / "saved")
    resumed = run(10, checkpoint=tmp_path / "saved", resume=True)
    np.testing.assert_array_equal(resumed.W, whole.W)


@pytest.mark.parametrize("kind", ["logistic", "squared", "poisson", "softmax", "one-vs-rest"])
def test_held_out_errors(kind: str) -> None:
    several = {"softmax": losses.Softmax(K), "one-vs-rest": losses.OneVsRest(K, binary=get_loss("logistic"))}
    data = classes(4, weighted=True) if kind in several else with_offsets(random_problem(kind, weighted=True))
    loss = several[kind] if kind in several else get_loss(kind)
    splits = np.zeros((1, len(data.y)), dtype=np.int8)
    splits[0, ::3] = 1
    worker = Worker(replace(data, splits=splits).sources(1)[0], loss)
    held = decode(worker.answer(encode(HoldOut(fold=0, folds=1, seed=0))))
    prepare = Prepare(total_weight=held.weight, steps=np.zeros(data.m, dtype=np.int64), intercept=True)
    worker.answer(encode(prepare))
    d, k = data.X.shape[1], loss.outputs
    W = np.random.default_rng(0).normal(size=(data.m, k * (d + 1)))
    scores = decode(worker.answer(encode(Score(w=W))))
    assert data.offset is not None
    assert data.sample_weight is not None
    for i in range(data.m):
        rows = np.arange(data.starts[i], data.starts[i + 1])
        rows = rows[splits[0, rows] == 1]
        y, p = data.y[rows], data.sample_weight[rows]
        z = data.X[rows] @ W[i, : k * d].reshape(k, d).T + W[i, k * d :]
        z = z + data.offset[rows].reshape(len(rows), k)
        if k > 1:
            own = y.astype(int)
            assert scores.wrong[i] == pytest.approx(p @ (z.argmax(axis=1) != own))
            signs = np.where(np.arange(k) == own[:, None], 1.0, -1.0)
            softmax = logsumexp(z, axis=1) - z[np.arange(len(own)), own]
            each = softmax if kind == "softmax" else np.logaddexp(0, -signs * z).sum(axis=1)
        else:
            each = loss.value(z[:, 0], y)
            assert scores.squared_error[i] == pytest.approx(p @ (y - z[:, 0]) ** 2)
            assert scores.wrong[i] == pytest.approx(p @ (y * z[:, 0] <= 0))
        assert scores.loss[i] == pytest.approx(p @ each)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_task_that_is_added_later_may_have_an_offset(loss: str) -> None:
    everything = with_offsets(random_problem(loss, m=6, d=4, rows=30))
    assert everything.offset is not None
    old, new = everything.only(np.arange(5)), everything.only(np.array([5]))
    lam, ridge, settings = LAM, 1e-3, Settings(tol=1e-6, max_rounds=5000)
    model = solve(Problem.of(old, loss=loss, reg_lambda=lam, intercept_ridge=ridge), Execution(settings=settings))
    problem = Problem(6, get_loss(loss), Strengths(lam), intercept=Intercept(ridge))
    assert old.offset is not None
    fits = 0.0
    for i in range(5):
        rows = rows_of(old, i)
        z = old.X[rows] @ model.W[i, :-1] + model.W[i, -1] + old.offset[rows]
        fits += float(get_loss(loss).value(z, old.y[rows]).mean())
    added = extend(model.W, model.dual, fits, new, problem, Settings(tol=1e-5, max_rounds=5000))
    w = cp.Variable((1, 5))
    assert new.offset is not None
    z = np.asarray(new.X) @ w[0, :4] + w[0, 4] + new.offset
    size = cp.normNuc(cp.vstack([model.W[:, :4].round(7), w[:, :4]]))
    kept = ridge / 2 * float((model.W[:, -1] ** 2).sum())
    target = cp.sum(value(loss, z, new.y)) / len(new.y) + lam / 2 * cp.square(size) + ridge / 2 * cp.square(w[0, 4])
    assert added.outcome.certificate.primal == pytest.approx(
        optimum(cp.Minimize(target + kept), accuracy=1e-6), rel=2e-4
    )
    refit = solve(
        Problem.of(everything, loss=loss, reg_lambda=lam, intercept_ridge=ridge), Execution(settings=settings)
    )
    assert added.certificate.dual <= refit.certificate.primal
    assert added.certificate.primal >= refit.certificate.dual


def test_sources_give_offsets(tmp_path: Any) -> None:
    data = with_offsets(random_problem("logistic"))
    assert data.offset is not None

    def load(task: int) -> tuple[Any, ...]:
        rows = rows_of(data, task)
        return data.X[rows], data.y[rows], None, data.offset[rows]  # type: ignore[index]

    columns = {f"x{k}": data.X[:, k] for k in range(data.X.shape[1])}
    task = np.repeat(np.arange(data.m), np.diff(data.starts))
    table = pa.table({"task": task, "y": data.y, "shift": data.offset, **columns})
    (tmp_path / "rows").mkdir()
    pq.write_table(table, tmp_path / "rows" / "all.parquet")
    plans = [
        SourcePlan.from_callable(load, range(data.m)),
        SourcePlan.from_files(tmp_path / "rows", "y", "task", offset="shift"),
        SourcePlan.from_dataset(str(tmp_path / "rows"), "y", "task", offset="shift"),
    ]
    how: dict[str, Any] = {"loss": "logistic", "reg_lambda": LAM, "shards": 2, "workers": 2}
    first = solve_data(data, **how)
    for plan in plans:
        np.testing.assert_array_equal(solve_data(plan, **how).W, first.W)
    two = SourcePlan.from_files(tmp_path / "rows", "y", "task", ["x0"], offset=["shift", "x1"])
    blocks = two.sources(1)[0].load()
    np.testing.assert_array_equal(blocks.offset, np.column_stack([data.offset, data.X[:, 1]]))


def test_rows_that_are_sorted_by_task_keep_their_offsets() -> None:
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(30, 2)), rng.integers(0, 3, size=30)
    data = TaskData.from_long(X, X[:, 0], tasks, offset=2.0 * X[:, 0])
    np.testing.assert_array_equal(data.offset, 2.0 * data.X[:, 0])
    some = data.only(np.array([2, 0]))
    np.testing.assert_array_equal(some.offset, 2.0 * some.X[:, 0])
    for blocks in data.sources(3, shards=2):
        np.testing.assert_array_equal(blocks.offset, 2.0 * blocks.X[:, 0])


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (np.zeros(3), "offset must hold one number per row of X, or one per row and class"),
        (np.zeros((24, 2)), r"offset has shape .* this loss needs one of shape \(n,\)"),
        (np.where(np.arange(24) == 15, np.nan, 0.0), "task '1', row 3: the offset is NaN or infinite"),
    ],
)
def test_bad_offsets_are_refused(offset: np.ndarray, message: str) -> None:
    X = np.random.default_rng(0).normal(size=(24, 2))
    with pytest.raises(ValueError, match=message):
        solve(
            Problem.of(
                TaskData.from_long(X, np.sign(X[:, 0]), np.repeat([0, 1], 12), offset=offset),
                loss="logistic",
                reg_lambda=0.1,
            )
        )


def test_classes_need_an_offset_for_each_class() -> None:
    data = replace(classes(), offset=np.zeros(48))
    with pytest.raises(ValueError, match=r"this loss needs one of shape \(n, 3\)"):
        solve(Problem.of(data, loss=losses.Softmax(K), reg_lambda=0.1))


def test_every_builtin_loss_is_in_this_file() -> None:
    y = np.ones(2)
    for name, make in BUILTIN.items():
        z = np.array([0.3, 1.7])
        expected = value(name, z, y)
        expected = expected.value if hasattr(expected, "value") else expected
        np.testing.assert_allclose(make().value(z, y), expected, atol=1e-9)
        assert make().kind in (CLASSIFICATION, "regression")
