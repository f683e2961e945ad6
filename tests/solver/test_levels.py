"""Intercepts that are shrunk, more where a task has few rows: towards zero, or towards a level that all tasks share."""

from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dmtrl import Execution, LocalOptions, Problem, Settings, Strengths, TaskData, get_loss, losses, solve
from dmtrl.losses import BUILTIN
from dmtrl.relationship import FreeIntercept, Learned
from dmtrl.solver.new_task import extend
from dmtrl.solver.problem import Intercept
from dmtrl.solver.task_weights import task_weights
from support.oracles import optimum
from support.problems import random_problem, rows_of
from support.solving import solve_data

LAM, TINY = 0.05, 1e-6
EXACT = Settings(tol=1e-6, max_rounds=5000)


def grouped(loss: str = "squared", m: int = 5, d: int = 3, seed: int = 0, rows: int = 12) -> TaskData:
    """Tasks of very different sizes with levels around one, and an offset for each row."""
    rng = np.random.default_rng(seed)
    sizes = np.maximum((rows * rng.uniform(0.1, 2.0, size=m)).astype(int), 1)
    tasks = np.repeat(np.arange(m), sizes)
    X, offset = rng.normal(size=(len(tasks), d)), 0.5 * rng.normal(size=len(tasks))
    z = X @ rng.normal(size=d) + offset + (1.0 + 0.5 * rng.normal(size=m))[tasks] + 0.3 * rng.normal(size=len(tasks))
    if loss == "poisson":
        z = rng.poisson(np.exp(np.clip(z, -3, 2))).astype(float)
    elif get_loss(loss).kind == "classification":
        z = np.where(z > 1.0, 1.0, -1.0)
    return TaskData.from_long(X, z, tasks, offset=offset)


def relation(level: float, m: int, shared: bool, columns: int = 1) -> FreeIntercept:
    return FreeIntercept(
        Learned(), level / LAM, columns=columns, centre=m * TINY / LAM if shared else None, per_row=True
    )


def value(loss: str, z: Any, y: np.ndarray) -> Any:
    return {
        "squared": lambda: cp.square(y - z) / 2,
        "logistic": lambda: cp.logistic(-cp.multiply(y, z)),
        "hinge": lambda: cp.pos(1 - cp.multiply(y, z)),
        "absolute": lambda: cp.abs(y - z),
        "poisson": lambda: cp.exp(z) - cp.multiply(y, z) + np.where(y > 0, y * np.log(np.maximum(y, 1)), 0.0) - y,
    }[loss]()


def best_of(data: TaskData, loss: str, level: float, shared: bool, gamma: float = 0.0) -> tuple[float, np.ndarray]:
    """The optimum by cvxpy, and its intercepts."""
    assert data.offset is not None
    n = np.diff(data.starts)
    weight = task_weights(gamma, n.astype(float))
    W, beta, beta_0, total = cp.Variable((data.m, data.X.shape[1])), cp.Variable(data.m), cp.Variable(), 0.0
    for i in range(data.m):
        rows = rows_of(data, i)
        z = data.X[rows] @ W[i] + data.offset[rows] + beta[i]
        total = total + weight[i] / n[i] * cp.sum(value(loss, z, data.y[rows]))
    away = beta - beta_0 if shared else beta
    penalty = level / 2 * ((weight / n) @ cp.square(away)) + LAM / 2 * cp.square(cp.normNuc(W))
    if shared:
        penalty += data.m * TINY / 2 * cp.square(beta_0)
    return optimum(cp.Minimize(total + penalty)), beta.value


def check(outcome: Any, best: float, slack: float = 4e-6) -> None:
    assert outcome.certificate.dual <= best + slack * abs(best)
    assert best - slack * abs(best) <= outcome.certificate.primal <= best + slack * abs(best)


@pytest.mark.parametrize("shared", [False, True], ids=["around zero", "around a shared level"])
@pytest.mark.parametrize("level", [0.5, 30.0])
@pytest.mark.parametrize(
    ("loss", "gamma"), [("squared", 1.0), ("logistic", 0.0), ("hinge", 0.5), ("absolute", 0.0), ("poisson", 1.0)]
)
def test_joint_optimum(loss: str, gamma: float, level: float, shared: bool) -> None:
    data = grouped(loss)
    best, beta = best_of(data, loss, level, shared, gamma)
    how: dict[str, Any] = {"loss": loss, "reg_lambda": LAM, "task_weight": gamma, "settings": EXACT}
    outcome = solve_data(data, relationship=relation(level, data.m, shared), **how)
    check(outcome, best)
    if loss in ("squared", "logistic", "poisson"):
        np.testing.assert_allclose(outcome.W[:, -1], beta, atol=0.02)
    split = solve_data(data, relationship=relation(level, data.m, shared), shards=2, workers=2 * data.m, **how)
    check(split, best)


@pytest.mark.parametrize("kind", ["softmax", "logistic"])
@pytest.mark.parametrize("shared", [False, True])
def test_joint_optimum_of_several_classes(kind: str, shared: bool) -> None:
    rng, m, n, d, k, level = np.random.default_rng(0), 4, 10, 2, 3, 5.0
    X, offset = rng.normal(size=(m * n, d)), rng.normal(size=(m * n, k))
    y = (offset + X @ rng.normal(size=(d, k)) + rng.gumbel(size=(m * n, k))).argmax(axis=1)
    data = TaskData.from_long(X, y.astype(float), np.repeat(np.arange(m), n), offset=offset)
    W, beta, beta_0, total = cp.Variable((m, k * d)), cp.Variable((m, k)), cp.Variable((1, k)), 0.0
    for i in range(m):
        rows = rows_of(data, i)
        scores = [X[rows] @ W[i, c * d : (c + 1) * d] + offset[rows, c] + beta[i, c] for c in range(k)]
        if kind == "softmax":
            own = sum(cp.multiply((y[rows] == c).astype(float), scores[c]) for c in range(k))
            total = total + cp.sum(cp.log_sum_exp(cp.vstack(scores).T, axis=1) - own) / n
        else:
            total = total + sum(cp.sum(value(kind, scores[c], np.where(y[rows] == c, 1.0, -1.0))) for c in range(k)) / n
    away = beta - np.ones((m, 1)) @ beta_0 if shared else beta
    penalty = level / (2 * n) * cp.sum_squares(away) + LAM / 2 * cp.square(cp.normNuc(W))
    penalty += m * TINY / 2 * cp.sum_squares(beta_0) if shared else 0.0
    loss = losses.Softmax(k) if kind == "softmax" else losses.OneVsRest(k, binary=get_loss(kind))
    found = solve(
        Problem.of(data, loss=loss, reg_lambda=LAM, relationship=relation(level, m, shared, k)),
        Execution(settings=EXACT),
    )
    check(found, optimum(cp.Minimize(total + penalty)), 1e-5)


@pytest.mark.parametrize("level", [0.1, 3.0, 1000.0])
def test_levels_without_features_are_those_of_a_random_intercept_model(level: float) -> None:
    """With squared loss and every row counting the same, the levels are the best linear unbiased predictions for a
    variance of noise over a variance of levels of `level`."""
    data = grouped(rows=20, m=8)
    data = replace(data, X=np.zeros((len(data.y), 1)), offset=None)
    settings = Settings(tol=1e-9, max_rounds=5000)
    found = solve(
        Problem.of(
            data, loss="squared", reg_lambda=LAM, relationship=relation(level, data.m, shared=True), task_weight="rows"
        ),
        Execution(settings=settings),
    )
    n = np.diff(data.starts)
    mean = np.add.reduceat(data.y, data.starts[:-1]) / n
    share = n / (n + level)
    centre = share @ mean / share.sum()
    np.testing.assert_allclose(found.W[:, -1], centre + share * (mean - centre), atol=2e-3)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("level", [0.1, 10.0, 300.0])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_shrunken_levels_take_about_as_many_rounds_as_free_ones(loss: str, level: float, shared: bool) -> None:
    data = grouped(loss, m=30, d=5, rows=8)
    free = solve(Problem.of(data, loss=loss, reg_lambda=LAM, intercept_ridge=TINY))
    found = solve(Problem.of(data, loss=loss, reg_lambda=LAM, relationship=relation(level, data.m, shared)))
    assert found.converged
    assert len(found.history) <= (2 * len(free.history) + 10 if shared else len(free.history) + 3)


def test_a_weak_penalty_is_a_free_intercept_and_a_strong_one_the_shared_level() -> None:
    data = grouped(rows=40)
    free = solve(Problem.of(data, loss="squared", reg_lambda=LAM, intercept_ridge=1e-9), Execution(settings=EXACT))
    weak = solve(
        Problem.of(data, loss="squared", reg_lambda=LAM, relationship=relation(1e-7, data.m, True)),
        Execution(settings=EXACT),
    )
    assert weak.certificate.primal == pytest.approx(free.certificate.primal, rel=1e-4)
    strong = solve(
        Problem.of(data, loss="squared", reg_lambda=LAM, relationship=relation(1e7, data.m, True)),
        Execution(settings=EXACT),
    )
    assert np.ptp(strong.W[:, -1]) < 1e-4
    zero = solve(
        Problem.of(data, loss="squared", reg_lambda=LAM, relationship=relation(1e7, data.m, False)),
        Execution(settings=EXACT),
    )
    assert np.abs(zero.W[:, -1]).max() < 1e-4


@given(
    loss=st.sampled_from(sorted(BUILTIN)),
    seed=st.integers(0, 10_000),
    level=st.sampled_from([1e-3, 1.0, 1e4]),
    shared=st.booleans(),
    shards=st.sampled_from([1, 2]),
)
@hypothesis_settings(max_examples=30, deadline=None)
def test_gaps_are_never_negative(loss: str, seed: int, level: float, shared: bool, shards: int) -> None:
    data = grouped(loss, m=3, seed=seed, rows=6)
    settings = Settings(tol=0.0, max_rounds=5, max_passes=1 + seed % 3)
    given_relation = relation(level, data.m, shared)
    outcome = solve(
        Problem.of(data, loss=loss, reg_lambda=LAM, relationship=given_relation, task_weight="rows"),
        Execution(LocalOptions(shards=shards, workers=3 * shards), settings=settings),
    )
    for record in outcome.history:
        scale = max(abs(record.primal), abs(record.dual))
        assert record.primal >= record.dual - 1e-9 * scale
        assert record.w_gap >= -1e-9
    # the objective is that of the weights that are returned
    resolved, total = given_relation.of_tasks(outcome.task_weight, outcome.task_size), 0.0
    assert data.offset is not None
    for i in range(data.m):
        rows = rows_of(data, i)
        z = data.X[rows] @ outcome.W[i, :-1] + outcome.W[i, -1] + data.offset[rows]
        total += outcome.task_weight[i] * float(get_loss(loss).value(z, data.y[rows]).mean())
    total += LAM * resolved.penalty(outcome.W, outcome.common)
    assert total == pytest.approx(outcome.certificate.primal, rel=1e-7, abs=1e-10)


@pytest.mark.parametrize("shared", [False, True])
def test_workers_agree_and_a_resumed_run_has_the_same_bits(shared: bool, tmp_path: Any) -> None:
    data = grouped("logistic", m=6)

    def run(rounds: int, level: float = 20.0, **where: Any) -> Any:
        settings, how = Settings(tol=0.0, max_rounds=rounds), {"loss": "logistic", "reg_lambda": LAM}
        return solve_data(data, **how, relationship=relation(level, data.m, shared), settings=settings, **where)

    whole = run(12)
    np.testing.assert_array_equal(run(12, workers=3, n_jobs=2).W, whole.W)
    run(5, checkpoint=tmp_path / "saved")
    with pytest.raises(ValueError, match="the relationship is"):
        run(12, 21.0, resume=tmp_path / "saved")
    resumed = run(12, checkpoint=tmp_path / "saved", resume=True)
    np.testing.assert_array_equal(resumed.W, whole.W)


@pytest.mark.parametrize("shared", [False, True])
def test_asynchronous_rounds(shared: bool) -> None:
    data = grouped("logistic", m=6, rows=20)
    how: dict[str, Any] = {"loss": "logistic", "reg_lambda": LAM, "relationship": relation(20.0, data.m, shared)}
    exact = solve_data(data, settings=EXACT, **how).certificate.primal
    settings = Settings(tol=1e-3, max_rounds=3000)
    found = solve_data(data, workers=2, n_jobs=2, max_staleness=1, settings=settings, **how).certificate
    assert found.relative_gap <= 1e-3
    assert found.dual <= exact * (1 + 1e-6)
    assert exact * (1 - 1e-6) <= found.primal <= exact * (1 + 2e-3)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_new_task_gets_a_shrunken_level(loss: str) -> None:
    everything = grouped(loss, m=6, rows=20)
    old, new = everything.only(np.arange(5)), everything.only(np.array([5]))
    ridge = 4.0 / np.diff(everything.starts)
    model = solve(Problem.of(old, loss=loss, reg_lambda=LAM, intercept_ridge=ridge[:5]), Execution(settings=EXACT))
    problem = Problem(6, get_loss(loss), Strengths(LAM), intercept=Intercept(ridge))
    added = extend(model.W, model.dual, 0.0, new, problem, Settings(tol=1e-6, max_rounds=5000))
    w = cp.Variable((1, 4))
    assert new.offset is not None
    z = new.X @ w[0, :3] + w[0, 3] + new.offset
    size = cp.normNuc(cp.vstack([model.W[:, :3].round(7), w[:, :3]]))
    target = cp.sum(value(loss, z, new.y)) / len(new.y) + LAM / 2 * cp.square(size)
    optimum(cp.Minimize(target + ridge[5] / 2 * cp.square(w[0, 3])), accuracy=1e-6)
    np.testing.assert_allclose(added.w, w.value[0], atol=0.02)


def test_one_penalty_per_task() -> None:
    data = random_problem("squared", m=4)
    with pytest.raises(ValueError, match="intercept_ridge must be None, or positive and finite"):
        solve(Problem.of(data, loss="squared", reg_lambda=LAM, intercept_ridge=np.array([1.0, -1.0, 1.0, 1.0])))
    with pytest.raises(ValueError, match="intercept_ridge must be one number, or one for each of 4 tasks"):
        solve(Problem.of(data, loss="squared", reg_lambda=LAM, intercept_ridge=np.ones(3)))
    with pytest.raises(ValueError, match="got 3 penalties of intercepts for 4 tasks"):
        solve(Problem.of(data, loss="squared", reg_lambda=LAM, relationship=FreeIntercept(Learned(), np.ones(3))))
    with pytest.raises(ValueError, match="cannot deviate from a shared level"):
        FreeIntercept(Learned(), 1.0, shared=True, centre=1.0)
