"""Problems with several classes: cvxpy's optimum, certificates, engines, shards, formats, checkpoints, folds."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from scipy import sparse
from scipy.special import logsumexp

from dmtrl import Execution, LocalOptions, Problem, Settings, Strengths, TaskData, losses, solve
from dmtrl.data.folds import TEST, TRAIN
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.rounds import HoldOut, Prepare, Score
from dmtrl.solver.grid import Criterion, Grid
from dmtrl.solver.search import search
from dmtrl.worker.worker import Worker
from support.oracles import optimum
from support.solving import solve_data

M, N, D, K = 4, 14, 3, 3
LAM = 0.05


def problem(seed=0, dtype=float, weighted=False, absent=False):
    """Rows of tasks with related classes; with `absent` the last task has no row of class 0."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(M * N, D)).astype(dtype)
    truth = rng.normal(size=(K, D))
    y = (X @ truth.T + rng.gumbel(size=(M * N, K))).argmax(axis=1)
    tasks = np.repeat(np.arange(M), N)
    y[(tasks == M - 1) & (y == 0)] = 1 if absent else 0
    weight = rng.uniform(0.5, 2.0, size=M * N) if weighted else None
    return TaskData.from_long(X, y.astype(float), tasks, weight)


def losses_of(kind, absent=False):
    def one(possible):
        if kind == "softmax":
            return losses.Softmax(K, possible)
        return losses.OneVsRest(K, possible, binary=losses.get_loss(kind))

    return [one(None)] * (M - 1) + [one((1, 2))] if absent else one(None)


def mean_loss(data, W, kind, absent, ridge=None):
    """The loss as an expression of cvxpy or a number, from the formulas of a textbook."""
    numbers, total = isinstance(W, np.ndarray), 0.0
    for i in range(data.m):
        rows = slice(data.starts[i], data.starts[i + 1])
        X, y = np.asarray(data.X[rows], dtype=float), data.y[rows].astype(int)
        p = np.ones(len(y)) if data.sample_weight is None else data.sample_weight[rows]
        p = p / p.sum()
        some = [1, 2] if absent and i == M - 1 else list(range(K))
        scores = []
        for c in range(K):
            z = X @ W[i, c * D : (c + 1) * D]
            scores.append(z if ridge is None else z + W[i, K * D + c])
        if kind == "softmax":
            if numbers:
                Z = np.column_stack(scores)
                total += p @ (logsumexp(Z[:, some], axis=1) - Z[np.arange(len(y)), y])
                continue
            Z = cp.vstack([scores[c] for c in some]).T
            own = sum(cp.multiply((y == c).astype(float), scores[c]) for c in some)
            total = total + p @ (cp.log_sum_exp(Z, axis=1) - own)
            continue
        for c in some:
            margin = np.where(y == c, 1.0, -1.0)
            if numbers:
                z = margin * scores[c]
                total += p @ (np.logaddexp(0, -z) if kind == "logistic" else np.maximum(0, 1 - z))
            else:
                z = cp.multiply(margin, scores[c])
                total = total + p @ (cp.logistic(-z) if kind == "logistic" else cp.pos(1 - z))
    return total


@pytest.mark.parametrize("common", [0.0, 2.0])
@pytest.mark.parametrize(
    ("kind", "absent", "ridge"),
    [("softmax", False, None), ("softmax", True, 1e-2), ("logistic", True, 1e-2), ("hinge", False, None)],
)
def test_joint_optimum(kind, absent, ridge, common):
    """The optimum of the stacked problem: a task is a row of k d weights, intercepts are free, w_0 is shared."""
    data = problem(weighted=True, absent=absent)
    features, columns = K * D, K * D + (K if ridge else 0)
    W, w0 = cp.Variable((M, columns)), cp.Variable((1, features))
    tau = common / M
    own = W[:, :features] - (np.ones((M, 1)) @ w0 if common else 0.0)
    penalty = LAM / 2 * cp.square(cp.normNuc(own))
    if common:
        penalty += LAM / (2 * tau) * cp.sum_squares(w0)
    if ridge:
        penalty += ridge / 2 * cp.sum_squares(W[:, features:])
    best = optimum(cp.Minimize(mean_loss(data, W, kind, absent, ridge) + penalty))
    found = solve(
        Problem.of(data, loss=losses_of(kind, absent), reg_lambda=LAM, common=common, intercept_ridge=ridge),
        Execution(settings=Settings(tol=1e-6, max_rounds=3000)),
    )
    slack = 5e-6 * best
    assert found.certificate.dual <= best + slack
    assert best - slack <= found.certificate.primal <= best + slack
    assert found.W.shape == (M, columns)
    assert found.covariance.m == M
    np.testing.assert_allclose(found.W, W.value, atol=0.02)
    rest = found.W[:, :features] - found.common[:features]
    value = mean_loss(data, found.W, kind, absent, ridge) + LAM / 2 * np.linalg.svd(rest, compute_uv=False).sum() ** 2
    if common:
        value += LAM / (2 * tau) * (found.common[:features] ** 2).sum()
    if ridge:
        value += ridge / 2 * (found.W[:, features:] ** 2).sum()
    assert value == pytest.approx(found.certificate.primal, rel=1e-9)


@pytest.mark.parametrize("kind", ["softmax", "hinge"])
@pytest.mark.parametrize(
    ("settings", "staleness"),
    [
        pytest.param(Settings(max_rounds=15, tol=0.0), 0, id="default"),
        pytest.param(Settings(max_rounds=15, tol=0.0, max_passes=1, local_accuracy=10.0), 0, id="rough"),
        pytest.param(Settings.paper(T=3, P=3), 0, id="paper"),
        pytest.param(Settings(max_rounds=15, tol=0.0), 1, id="asynchronous"),
    ],
)
def test_every_bound_holds_however_rough_the_local_answers(kind, settings, staleness):
    data, given = problem(1), losses_of(kind)
    ridge = None if settings.method == "dual" else 1e-6
    how = {"loss": given, "reg_lambda": LAM, "common": 1.0, "intercept_ridge": ridge}
    best = solve_data(data, settings=Settings(tol=1e-5), **how).certificate
    run = solve_data(data, workers=2, n_jobs=2, max_staleness=staleness, settings=settings, **how)
    for record in run.history:
        assert record.dual <= best.primal * (1 + 1e-9)
        assert record.primal >= best.dual * (1 - 1e-9)
        assert record.gap >= 0


@pytest.mark.parametrize("kind", ["softmax", "logistic"])
def test_workers_threads_and_formats_agree(kind):
    data, exact = problem(2), Settings(tol=1e-6, max_rounds=5000)
    how = {"loss": losses_of(kind), "reg_lambda": LAM, "common": 1.0, "intercept_ridge": 1e-6, "settings": exact}
    first = solve_data(data, **how)
    for workers, threads in ((2, 1), (4, 2)):
        other = solve_data(data, workers=workers, n_jobs=threads, **how)
        np.testing.assert_array_equal(other.W, first.W)
    others = {
        "csr": (TaskData(sparse.csr_matrix(data.X), data.y, None, data.starts, data.names), 1, 1e-4),
        "float32": (TaskData(data.X.astype(np.float32), data.y, None, data.starts, data.names), 1, 1e-3),
        "shards": (data, 2, 5e-3),
    }
    for rows, shards, close in others.values():
        other = solve_data(rows, shards=shards, workers=shards, **how)
        assert other.certificate.relative_gap <= 1e-6
        assert other.certificate.primal == pytest.approx(first.certificate.primal, rel=3e-6)
        np.testing.assert_allclose(other.W, first.W, atol=10 * close)


@pytest.mark.parametrize("kind", ["softmax", "hinge"])
def test_a_resumed_run_has_the_same_bits(kind, tmp_path):
    data, given = problem(3, absent=True), losses_of(kind, absent=True)

    def run(rounds, **where):
        settings = Settings(tol=0.0, max_rounds=rounds)
        return solve_data(
            data, loss=given, reg_lambda=LAM, common=1.0, intercept_ridge=1e-6, settings=settings, **where
        )

    whole = run(12)
    run(5, checkpoint=tmp_path / "saved")
    resumed = run(12, checkpoint=tmp_path / "saved", resume=True)
    np.testing.assert_array_equal(resumed.W, whole.W)
    assert [record.gap for record in resumed.history] == [record.gap for record in whole.history]


@pytest.mark.parametrize("kind", ["softmax", "logistic"])
def test_held_out_rows_are_scored_by_their_answers(kind):
    """The sums that a worker sends for given weights, computed by hand."""
    absent, rng = True, np.random.default_rng(5)
    data = problem(4, weighted=True, absent=absent)
    tested = rng.random(len(data.y)) < 0.4
    data = replace(data, splits=np.where(tested, TEST, TRAIN)[None].astype(np.int8))
    W = rng.normal(size=(M, (D + 1) * K))
    worker = Worker(data.sources(1)[0], losses_of(kind, absent))
    held = decode(worker.answer(encode(HoldOut(fold=0, folds=1, seed=0))))
    prepare = Prepare(max_passes=1, intercept=True, total_weight=held.weight, steps=np.zeros(M, dtype=np.int64))
    worker.answer(encode(prepare))
    found = decode(worker.answer(encode(Score(w=W))))
    for i in range(M):
        rows = data.starts[i] + np.flatnonzero(tested[data.starts[i] : data.starts[i + 1]])
        some = np.array([1, 2] if i == M - 1 else [0, 1, 2])
        Z, weight = data.X[rows] @ W[i, : K * D].reshape(K, D).T + W[i, K * D :], data.sample_weight[rows]
        y = data.y[rows].astype(int)
        if kind == "softmax":
            each = logsumexp(Z[:, some], axis=1) - Z[np.arange(len(y)), y]
        else:
            each = np.logaddexp(0, -np.where(y[:, None] == some, 1, -1) * Z[:, some]).sum(axis=1)
        assert found.weight[i] == pytest.approx(weight.sum())
        assert found.loss[i] == pytest.approx(weight @ each)
        assert found.wrong[i] == pytest.approx(weight @ (some[Z[:, some].argmax(axis=1)] != y))


@pytest.mark.parametrize("kind", ["softmax", "hinge"])
def test_cross_validation_counts_wrong_answers(kind):
    data, given = problem(4, weighted=True), losses_of(kind)
    described = Problem.of(data, loss=given, reg_lambda=LAM, intercept_ridge=1e-6)
    grid = Grid([LAM, 1e3], [1.0], folds=2, criterion=Criterion("wrong", "tasks"))
    found = search(described, grid, Execution(LocalOptions(workers=2), Settings(tol=1e-4)))
    path = found.results
    assert path.weight[0, 0].sum() == pytest.approx(data.sample_weight.sum())  # every row was held out once
    assert (path.wrong <= path.weight).all()
    assert path.mean("wrong")[0, 1] < path.mean("wrong")[0, 0]  # with lambda 1e3 nothing is learned
    assert found.choice == Strengths(LAM, 1.0)


def test_all_losses_must_have_the_same_classes():
    data = problem()
    with pytest.raises(ValueError, match="same number of classes"):
        solve(Problem.of(data, loss=[losses.Softmax(K)] * (M - 1) + [losses.Softmax(K + 1)], reg_lambda=LAM))
    with pytest.raises(ValueError, match="row 0: the softmax loss needs labels from 0 to 2, found 5"):
        solve(Problem.of(TaskData.from_long(np.ones((2, 1)), [5.0, 0.0]), loss=losses.Softmax(3), reg_lambda=LAM))
