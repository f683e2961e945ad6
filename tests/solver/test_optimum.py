"""The solver against cvxpy: the W-step optimum for a given Sigma, and the joint optimum over W and Sigma."""

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import xlogy

from dmtrl import Execution, Problem, Settings, TaskCovariance, TaskData, solve
from support.oracles import optimum
from support.problems import mean_losses, random_problem, rows_of

SHAPES = {"m<d": {"m": 3, "d": 6}, "m>d": {"m": 6, "d": 3}, "repeated": {"m": 4, "d": 4, "repeated": True}}
LOSSES = ["hinge", "squared", "logistic", "huber", "quantile"]


def _losses(data: TaskData, W: cp.Variable, loss: str) -> cp.Expression:
    total = 0
    for i in range(data.m):
        X, y = np.asarray(data.X[rows_of(data, i)]), data.y[rows_of(data, i)]
        p = np.ones(len(y)) if data.sample_weight is None else data.sample_weight[rows_of(data, i)]
        p = p / p.sum()
        z = X @ W[i]
        terms = {
            "hinge": lambda z=z, y=y: cp.pos(1 - cp.multiply(y, z)),
            "squared": lambda z=z, y=y: cp.square(z - y) / 2,
            "logistic": lambda z=z, y=y: cp.logistic(-cp.multiply(y, z)),
            "huber": lambda z=z, y=y: cp.huber(z - y, 1.35) / 2,
            "quantile": lambda z=z, y=y: cp.abs(y - z) / 2,
            "poisson": lambda z=z, y=y: cp.exp(z) - cp.multiply(y, z) + xlogy(y, y) - y,
        }[loss]()
        total = total + p @ terms
    return total


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", [*LOSSES, "poisson"])
def test_joint_optimum(loss: str, shape: str) -> None:
    data = random_problem(loss, **SHAPES[shape])
    lam = 0.05
    W = cp.Variable((data.m, data.X.shape[1]))
    best = optimum(cp.Minimize(_losses(data, W, loss) + lam / 2 * cp.square(cp.normNuc(W))))
    outcome = solve(
        Problem.of(data, loss=loss, reg_lambda=lam), Execution(settings=Settings(tol=1e-6, max_rounds=3000))
    )
    slack = 2e-6 * abs(best)
    assert outcome.certificate.dual <= best + slack
    assert best - slack <= outcome.certificate.primal <= best + 1e-6 * abs(best) + slack
    nuclear = np.linalg.svd(outcome.W, compute_uv=False).sum()
    assert mean_losses(data, outcome.W, loss) + lam / 2 * nuclear**2 == pytest.approx(
        outcome.certificate.primal, rel=1e-9
    )
    assert outcome.covariance.trace() == pytest.approx(1.0)


@pytest.mark.parametrize("method", ["splitting", "dual"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", LOSSES)
def test_w_step_optimum_for_a_given_covariance(loss: str, shape: str, method: str) -> None:
    data = random_problem(loss, weighted=True, **SHAPES[shape])
    lam = 0.05
    rng = np.random.default_rng(5)
    root = rng.normal(size=(data.m, 2 if shape == "m<d" else data.m))  # singular in one shape
    sigma = root @ root.T / np.trace(root @ root.T)
    A = cp.Variable((root.shape[1], data.X.shape[1]))  # W = root A has tr(W' Sigma^-1 W) = trace * |A|^2 at best
    trace = np.trace(root @ root.T)
    best = optimum(cp.Minimize(_losses(data, root @ A, loss) + lam / 2 * trace * cp.sum_squares(A)))
    outcome = solve(
        Problem.of(data, loss=loss, reg_lambda=lam, relationship=sigma),
        Execution(settings=Settings(tol=1e-6, max_rounds=5000, method=method)),
    )
    slack = 2e-6 * abs(best)
    assert outcome.certificate.dual <= best + slack
    assert best - slack <= outcome.certificate.primal <= best + 1e-6 * abs(best) + slack
    assert np.allclose(outcome.covariance.dense(), sigma, atol=1e-12)


@pytest.mark.parametrize("loss", ["hinge", "squared"])
def test_joint_optimum_with_a_common_component(loss: str) -> None:
    data = random_problem(loss, m=5, d=4)
    lam, tau = 0.1, 0.7
    R, w0 = cp.Variable((5, 4)), cp.Variable(4)
    W = R + np.ones((5, 1)) @ cp.reshape(w0, (1, 4), order="C")
    penalty = cp.square(cp.normNuc(R)) / 2 + cp.sum_squares(w0) / (2 * tau)
    best = optimum(cp.Minimize(_losses(data, W, loss) + lam * penalty))
    outcome = solve(
        Problem.of(data, loss=loss, reg_lambda=lam, common=5 * tau),
        Execution(settings=Settings(tol=1e-6, max_rounds=3000)),
    )
    assert outcome.certificate.primal == pytest.approx(best, rel=3e-6)
    assert outcome.certificate.dual <= best * (1 + 2e-6)


@pytest.mark.parametrize("loss", ["hinge", "squared", "logistic"])
def test_joint_optimum_with_a_free_intercept(loss: str) -> None:
    data = random_problem(loss, m=5, d=4)
    with_ones = TaskData(np.column_stack([data.X, np.ones(len(data.y))]), data.y, None, data.starts, data.names)
    lam, ridge = 0.1, 1e-3
    W = cp.Variable((5, 5))
    penalty = lam / 2 * cp.square(cp.normNuc(W[:, :-1])) + ridge / 2 * cp.sum_squares(W[:, -1])
    best = optimum(cp.Minimize(_losses(with_ones, W, loss) + penalty))
    settings = Settings(tol=1e-6, max_rounds=3000)
    outcome = solve(Problem.of(data, loss=loss, reg_lambda=lam, intercept_ridge=ridge), Execution(settings=settings))
    assert outcome.certificate.primal == pytest.approx(best, rel=3e-6)
    assert outcome.certificate.dual <= best * (1 + 2e-6)


def test_alternation_with_shrinking_epsilon_reaches_the_joint_optimum() -> None:
    data = random_problem("squared", m=6, d=3)
    settings = Settings(method="dual", tol=1e-3, max_rounds=4000, w_rounds=20)
    by_alternation = solve(Problem.of(data, loss="squared", reg_lambda=0.05), Execution(settings=settings))
    by_splitting = solve(Problem.of(data, loss="squared", reg_lambda=0.05), Execution(settings=Settings(tol=1e-7)))
    assert by_alternation.certificate.primal == pytest.approx(by_splitting.certificate.primal, rel=1e-3)


def test_tasks_may_have_different_losses() -> None:
    data = random_problem("hinge", m=3, d=4)
    names = ["hinge", "logistic", "squared"]
    W = cp.Variable((3, 4))
    total = 0
    for i, name in enumerate(names):
        rows = rows_of(data, i)
        one = TaskData(data.X[rows], data.y[rows], None, np.array([0, rows.stop - rows.start]), data.names[:1])
        total = total + _losses(one, cp.reshape(W[i], (1, 4), order="C"), name)
    best = optimum(cp.Minimize(total + 0.05 * cp.square(cp.normNuc(W))))
    outcome = solve(
        Problem.of(data, loss=names, reg_lambda=0.1), Execution(settings=Settings(tol=1e-6, max_rounds=3000))
    )
    assert outcome.certificate.primal == pytest.approx(best, rel=3e-6)


def test_covariance_minimises_the_regulariser() -> None:
    """For the learned W, the reported Sigma is the best among random trace-one covariances."""
    data = random_problem("squared", m=4, d=6)
    outcome = solve(Problem.of(data, loss="squared", reg_lambda=0.05), Execution(settings=Settings(tol=1e-6)))
    at_ours = outcome.covariance.inverse_quadratic(outcome.W)
    rng = np.random.default_rng(0)
    for _ in range(50):
        root = np.linalg.cholesky(outcome.covariance.dense() + 1e-6 * np.eye(4)) + 0.05 * rng.normal(size=(4, 4))
        other = TaskCovariance.from_dense(root @ root.T)
        assert at_ours <= other.inverse_quadratic(outcome.W) * (1 + 1e-9)
