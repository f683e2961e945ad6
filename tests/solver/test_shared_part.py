"""Deviations from what all tasks share: against cvxpy, on engines, in searches and in checkpoints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy import sparse

from dmtrl import Checkpoint, Execution, LocalOptions, Problem, Settings, Strengths, TaskData, solve
from dmtrl.data.folds import TRAIN, draw_splits
from dmtrl.engines.local import LocalEngine
from dmtrl.losses import OneVsRest, Softmax, get_loss, logistic
from dmtrl.protocol.rounds import Describe, HoldOut, Prepare, Restore, Save, Score, UseShared
from dmtrl.solver.cv_results import CvResults
from dmtrl.solver.grid import Criterion, Grid
from dmtrl.solver.search import search
from dmtrl.solver.shared_fit import MOST_WEIGHTS, fit_shared
from dmtrl.solver.task_weights import task_weights
from dmtrl.worker.worker import Worker
from support.checkpoints import Stopped, stop_after
from support.oracles import optimum
from support.problems import rows_of

LAM = 0.2
EXACT = Settings(tol=1e-6, max_rounds=5000)


def grouped(loss: str = "squared", m: int = 8, d: int = 3, seed: int = 0, thin: bool = False) -> TaskData:
    """Tasks of 1 to 20 rows with levels, deviations along one direction, and an offset for each row."""
    rng = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(m), [(1, 2, 9, 20)[i % 4] for i in range(m)])
    X, offset = rng.normal(size=(len(tasks), d)), 0.5 * rng.normal(size=len(tasks))
    V = np.outer(rng.normal(size=m), rng.normal(size=d)) / 2
    z = X @ rng.normal(size=d) + offset + rng.normal(size=m)[tasks] + (X * V[tasks]).sum(axis=1)
    noisy = z + rng.logistic(size=len(z))
    y = {
        "squared": lambda: z + 0.5 * rng.normal(size=len(z)),
        "poisson": lambda: rng.poisson(np.exp(np.clip(z, -3, 2))).astype(float),
        "classes": lambda: np.digitize(noisy, [-1.0, 1.0]).astype(float),
    }.get(loss, lambda: np.where(noisy > 0, 1.0, -1.0))()
    rows: Any = sparse.csr_matrix(np.where(np.abs(X) > 0.5, X, 0.0)) if thin else X
    return TaskData.from_long(rows, y, tasks, offset=None if loss == "classes" else offset)


def given_split(data: TaskData, folds: int = 3) -> TaskData:
    """Folds over all rows, so that tasks are missing from some of them."""
    splits = draw_splits(np.zeros(len(data.y), dtype=int), None, folds, 0)
    tasks = np.repeat(np.arange(data.m), np.diff(data.starts))
    assert any(len(np.unique(tasks[roles == TRAIN])) < data.m for roles in splits), "no task is missing from a fold"
    return replace(data, splits=splits)


def of(data: TaskData, loss: Any = "squared", reg_lambda: float = LAM, **more: Any) -> Problem:
    return Problem.of(data, loss=loss, reg_lambda=reg_lambda, **({"shared": "linear"} | more))


def value(loss: str, z: Any, y: np.ndarray) -> Any:
    return {
        "squared": lambda: cp.sum(cp.square(y - z) / 2),
        "logistic": lambda: cp.sum(cp.logistic(-cp.multiply(y, z))),
        "poisson": lambda: (
            cp.sum(cp.exp(z) - cp.multiply(y, z))
            + float(np.sum(np.where(y > 0, y * np.log(np.maximum(y, 1)), 0.0) - y))
        ),
        "classes": lambda: cp.sum(cp.log_sum_exp(z, axis=1)) - cp.sum(cp.multiply(np.eye(3)[y.astype(int)], z)),
    }[loss]()


def best_of(data: TaskData, loss: str, shared: Any, gamma: float) -> float:
    """The optimum over deviations and levels by cvxpy, given the shared part."""
    n, d, k = np.diff(data.starts), data.X.shape[1], len(shared.intercept)
    weight = task_weights(gamma, n.astype(float)) / n
    V, levels, total = cp.Variable((data.m, k * d)), cp.Variable((data.m, k)), 0.0
    for i in range(data.m):
        rows = rows_of(data, i)
        X = data.X[rows]
        given = X @ shared.coef.T + shared.intercept
        if data.offset is not None:
            given = given + data.offset[rows][:, None]
        z = given + cp.hstack([cp.reshape(X @ V[i, c * d : (c + 1) * d], (len(X), 1), order="C") for c in range(k)])
        z = z + np.ones((len(X), 1)) @ cp.reshape(levels[i], (1, k), order="C")
        total = total + weight[i] * value(loss, z if k > 1 else z[:, 0], data.y[rows])
    penalty = LAM / 2 * cp.square(cp.normNuc(V))
    penalty += shared.level / 2 * cp.sum(weight @ cp.square(levels))
    return optimum(cp.Minimize(total + penalty))


@pytest.mark.parametrize("gamma", [0.0, 1.0])
@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson", "classes"])
def test_deviations_are_optimal_given_the_shared_part(loss: str, gamma: float) -> None:
    data = grouped(loss)
    outcome = solve(
        of(data, Softmax(3) if loss == "classes" else loss, task_weight=gamma, level=2.0), Execution(settings=EXACT)
    )
    assert outcome.shared is not None
    best = best_of(data, loss, outcome.shared, gamma)
    slack = 4e-6 * abs(best)
    assert outcome.certificate.dual <= best + slack
    assert best - slack <= outcome.certificate.primal <= best + slack


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson", "huber", "squared_hinge"])
@pytest.mark.parametrize("level", [None, 3.0, np.inf])
def test_without_deviations_it_is_the_shared_fit(loss: str, level: float | None) -> None:
    data = grouped("squared" if loss == "huber" else "logistic" if loss == "squared_hinge" else loss)
    outcome = solve(of(data, loss, np.inf, level=level, task_weight="rows"))
    with LocalEngine(data.sources(1), get_loss(loss)) as engine:
        found = fit_shared(engine, data.m, get_loss(loss), level=level)
    assert outcome.shared is not None
    assert not outcome.W[:, :-1].any()
    assert (outcome.W[:, -1:] == found.levels).all()
    assert (outcome.shared.coef == found.coef).all()
    assert 0 <= outcome.certificate.gap <= 1e-6 * outcome.certificate.primal
    # with weights by rows the objective is that of the fit, times m over the rows
    penalty = 0.5 * found.ridge * float((found.scale * found.coef**2).sum())
    assert outcome.certificate.primal == pytest.approx((found.objective - penalty) * data.m / len(data.y), rel=1e-9)


@pytest.mark.parametrize("level", [1.0, np.inf])
@pytest.mark.parametrize("lam", [1e-3, 0.1, 10.0])
def test_a_stronger_lambda_leaves_less_and_the_gap_is_never_negative(lam: float, level: float) -> None:
    data = grouped("logistic")
    found = [solve(of(data, "logistic", strength, level=level)) for strength in (lam, 1e9)]
    for outcome in found:
        assert outcome.certificate.gap >= 0
        assert all(record.primal >= record.dual for record in outcome.history)
        assert outcome.W.shape == (data.m, data.X.shape[1] + 1)
    assert np.abs(found[1].W[:, :-1]).max() < 1e-6
    assert (np.isinf(level)) == (not found[0].W[:, -1].any())


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_partition_sparse_rows_and_given_part_do_not_change_the_solution(loss: str) -> None:
    data = grouped(loss)
    one = solve(of(data, loss), Execution(LocalOptions(workers=1)))
    three = solve(of(data, loss), Execution(LocalOptions(workers=3, n_jobs=2)))
    assert (one.W == three.W).all()
    assert one.certificate == three.certificate
    again = solve(of(data, loss, shared=one.shared))
    assert (one.W == again.W).all()
    shards = solve(of(data, loss), Execution(LocalOptions(workers=3, shards=2), settings=EXACT))
    assert shards.certificate.dual <= one.certificate.primal + 1e-9
    thin, dense = grouped(loss, thin=True), grouped(loss, thin=True)
    dense = replace(dense, X=dense.X.toarray())
    csr, full = (solve(of(rows, loss), Execution(settings=EXACT)) for rows in (thin, dense))
    assert csr.certificate.primal == pytest.approx(full.certificate.primal, rel=1e-5)


@pytest.mark.parametrize("loss", ["hinge", "absolute"])
def test_kinks_have_no_shared_part(loss: str) -> None:
    data = grouped("logistic" if loss == "hinge" else "squared")
    outcome = solve(of(data, loss, intercept_ridge=1e-6))
    usual = solve(of(data, loss, intercept_ridge=1e-6, shared=None))
    assert outcome.shared is None
    assert (outcome.W == usual.W).all()


def test_too_many_features_have_no_shared_part() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, MOST_WEIGHTS))
    data = TaskData.from_long(X, X[:, 0], np.repeat(np.arange(3), 4))
    assert solve(of(data)).shared is None


def test_an_infinite_lambda_needs_a_shared_part() -> None:
    with pytest.raises(ValueError, match="reg_lambda must be positive and finite without a shared part"):
        of(grouped(), reg_lambda=np.inf, shared=None)
    with pytest.raises(ValueError, match="level must be None, or positive, got 0"):
        Strengths(1.0, level=0)
    with pytest.raises(ValueError, match="shared must be None, 'linear' or a SharedFit, got 'tree'"):
        of(grouped(), shared="tree")


# --- the worker


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax", "ovr"])
def test_a_worker_uses_a_shared_part_as_an_offset_and_forgets_it(loss: str, tmp_path: Path) -> None:
    several = loss in ("softmax", "ovr")
    data = grouped("classes" if several else loss)
    kind: Any = {"softmax": Softmax(3), "ovr": OneVsRest(3, binary=logistic())}.get(loss, get_loss("squared"))
    kind = get_loss(loss) if loss == "logistic" else kind
    k, d = kind.outputs, data.X.shape[1]
    rng = np.random.default_rng(1)
    shared, w = rng.normal(size=(k, d + 1)), rng.normal(size=(data.m, k * (d + 1)))
    scores = data.X @ shared[:, :-1].T + shared[:, -1]
    scores = scores if several else scores[:, 0]
    by_hand = replace(data, offset=scores if data.offset is None else data.offset + scores)
    total = np.diff(data.starts).astype(float)
    prepare = Prepare(total_weight=total, steps=np.zeros(data.m, np.int64), intercept=True)

    def held_out(worker: Worker) -> Any:
        worker.handle(HoldOut(fold=0, folds=2, seed=0))
        worker.handle(prepare)
        return worker.handle(Score(w=w))

    worker, other = (Worker(one.sources(1)[0], kind) for one in (data, by_hand))
    plain = held_out(worker)
    sibling = worker.sibling(0)
    worker.handle(UseShared(shared=shared))
    for name in ("loss", "wrong"):
        assert getattr(held_out(worker), name) == pytest.approx(getattr(held_out(other), name))
        assert (getattr(held_out(sibling), name) == getattr(plain, name)).all(), "a sibling has a part of its own"
    used = held_out(worker)
    worker.handle(Save(to=str(tmp_path)))
    restored = Worker(data.sources(1)[0], kind)
    restored.handle(Restore(source=str(tmp_path)))
    assert (restored.handle(Score(w=w)).loss == used.loss).all()
    worker.handle(UseShared())
    assert (held_out(worker).loss == plain.loss).all()
    assert worker.handle(Describe(digest=True)).digest == sibling.handle(Describe(digest=True)).digest


# --- searches


def found_by(data: TaskData, loss: Any = "squared", lambdas: Any = (np.inf, 1.0, 0.1), **how: Any) -> Any:
    more = how.pop("more", 0)
    grid = Grid(lambdas, folds=3, criterion=Criterion("loss"), stronger=more, weaker=more)
    return search(of(data, loss, 1.0, task_weight="rows"), grid, Execution(**how))


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_a_search_scores_the_folds_as_single_fits_do(loss: str) -> None:
    data = given_split(grouped("classes" if loss == "softmax" else loss))
    kind: Any = Softmax(3) if loss == "softmax" else get_loss(loss)
    found = found_by(data, kind)
    assert found.shared is not None
    tasks = np.repeat(np.arange(data.m), np.diff(data.starts))
    assert data.splits is not None
    for fold, roles in enumerate(data.splits):
        part = found.fold_shared[fold]
        train, test = roles == TRAIN, roles != TRAIN
        present = np.unique(tasks[train])
        missing = np.setdiff1d(np.arange(data.m), present)
        assert not found.points[fold].W[missing, -kind.outputs :].any(), "a task without rows has a level of zero"
        assert np.abs(found.points[fold].W[missing]).max(initial=0.0) < 1e-12, "and no deviation"
        # the shared part is that of the training rows alone
        rows = TaskData.from_long(
            data.X[train], data.y[train], tasks[train], offset=None if data.offset is None else data.offset[train]
        )
        strengths = {} if loss == "squared" else {"level": found.shared.level, "ridge": found.shared.ridge}
        with LocalEngine(rows.sources(1), kind) as engine:
            alone = fit_shared(engine, rows.m, kind, **strengths)
        assert part.coef == pytest.approx(alone.coef, rel=1e-6, abs=1e-9)
        i, j = found.results.index_of(Strengths(np.inf))
        levels = np.zeros((data.m, kind.outputs))
        levels[present] = alone.levels
        z = data.X[test] @ alone.coef.T + alone.intercept + levels[tasks[test]]
        if data.offset is not None:
            z += data.offset[test][:, None]
        y = data.y[test]
        if loss == "squared":
            expected = ((y - z[:, 0]) ** 2).sum() / 2
        elif loss == "logistic":
            expected = np.logaddexp(0, -y * z[:, 0]).sum()
        else:
            expected = (np.logaddexp.reduce(z, axis=1) - z[np.arange(len(y)), y.astype(int)]).sum()
        assert found.results.loss[i, j, fold].sum() == pytest.approx(expected, rel=1e-6)


def test_a_search_does_not_depend_on_threads_and_workers() -> None:
    data = given_split(grouped("logistic"))
    one = found_by(data, "logistic", more=2)
    other = found_by(data, "logistic", more=2, engine=LocalOptions(workers=2, n_jobs=2))
    assert one.choice == other.choice
    assert (one.results.lambdas == other.results.lambdas).all()
    assert (one.results.loss == other.results.loss).all()
    for a, b in zip(one.points, other.points, strict=True):
        assert (a.W == b.W).all()


def results_of(grid: Grid, errors: Any) -> CvResults:
    """Held-out sums of one task in which each lambda of the grid has the error given."""
    shape = (1, len(grid.lambdas), grid.folds)
    loss = np.broadcast_to(np.asarray(errors, dtype=float)[None, :, None, None], (*shape, 1))
    one, zero = np.array([0.0]), np.zeros((*shape, 1))
    sums = {"weight": np.ones((*shape, 1)), "loss": loss, "squared_error": zero, "wrong": zero}
    return CvResults(grid.lambdas, one, one, **sums, rounds=np.ones(shape, dtype=int), score=np.full(shape, np.nan))


@pytest.mark.parametrize(
    ("errors", "added"),
    [([0, 3, 1, 2], None), ([0, 1, 2, 3], 10**0.5), ([0, 3, 2, 1], 0.01 / 10**0.5), ([3, 1, 1, 1], 10**0.5)],
)
def test_a_grid_grows_while_its_best_finite_value_is_at_an_end(errors: list[int], added: float | None) -> None:
    grid = Grid([np.inf, 1.0, 0.1, 0.01], stronger=1, weaker=1)
    more = grid.extended(results_of(grid, errors))
    if added is None:
        assert more is None
        return
    assert more is not None
    grown, candidates = more
    assert len(grown.lambdas) == 5
    assert [grown.strengths(candidate).reg_lambda for candidate in candidates] == pytest.approx([added])
    assert grown.stronger + grown.weaker == 1
    assert grown.most_candidates == grid.most_candidates
    best = np.argsort(np.abs(np.log(grown.lambdas / added)))  # the added value is best again, at an end that is full
    assert grown.extended(results_of(grown, np.argsort(best))) is None


def test_the_workers_forget_the_shared_part_after_a_run() -> None:
    data = given_split(grouped())
    usual = of(data, shared=None, intercept_ridge=1e-3)
    with LocalEngine(data.sources(2), get_loss("squared")) as engine:
        before = solve(usual, Execution(engine))
        solve(of(data), Execution(engine))
        found_by(data, engine=engine)

        def interrupt(record: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            solve(of(data), Execution(engine, callbacks=[interrupt]))
        assert (solve(usual, Execution(engine)).W == before.W).all()


# --- checkpoints


def test_a_run_resumes_with_its_shared_part(tmp_path: Path) -> None:
    data, fine = grouped("logistic"), Settings(tol=1e-9, max_rounds=60)
    whole = solve(of(data, "logistic"), Execution(settings=fine, warn=False))
    stopped = Execution(
        settings=fine, checkpoint=Checkpoint(tmp_path, every_rounds=2), callbacks=[stop_after(5)], warn=False
    )
    with pytest.raises(Stopped):
        solve(of(data, "logistic"), stopped)
    resumed = solve(of(data, "logistic"), Execution(settings=fine, resume=tmp_path, warn=False))
    assert (resumed.W == whole.W).all()
    assert resumed.certificate == whole.certificate


@pytest.mark.parametrize(("rounds", "after"), [(0, 2), (0, 7), (0, 10), (0, 11), (0, 13), (1, 0), (4, 0)])
def test_a_search_that_grows_its_grid_resumes(tmp_path: Path, rounds: int, after: int) -> None:
    """Nine fits of the grid, then three for each value that is added. It stops after some rounds or fits."""
    data, how = given_split(grouped()), {"lambdas": [np.inf, 1e5, 1e4], "more": 2}
    whole = found_by(data, **how)
    assert len(whole.results.lambdas) == 5

    class Stop:
        def __call__(self, record: Any) -> None: ...

        seen = 0

        def on_cv_round(self, record: Any) -> None:
            self.seen += 1
            if self.seen == rounds:
                raise KeyboardInterrupt

        def on_cv_fit(self, done: int, total: int) -> None:
            if done == after:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found_by(data, **how, checkpoint=Checkpoint(tmp_path, every_rounds=1), callbacks=[Stop()])
    resumed = found_by(data, **how, resume=tmp_path)
    assert resumed.choice == whole.choice
    assert (resumed.results.loss == whole.results.loss).all()
    for a, b in zip(resumed.points, whole.points, strict=True):
        assert (a.W == b.W).all()
    for a, b in zip(resumed.fold_shared, whole.fold_shared, strict=True):
        assert (a.coef == b.coef).all()
