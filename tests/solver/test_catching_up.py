"""The second answer of a worker that lags, within the directions the others have found."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from dmtrl import Settings, TaskData, relationship, solve
from dmtrl.datasets import make_synthetic
from dmtrl.engines.contract import fault_in
from dmtrl.engines.log import Log
from dmtrl.losses import AnyLoss, get_loss
from dmtrl.protocol.message import Message
from dmtrl.relationship import FreeIntercept, Learned, Metric, feature_metric
from dmtrl.solver.coordinator import Coordinator, RoundRecord
from dmtrl.solver.methods.asynchronous import AsynchronousSplitting
from dmtrl.worker.worker import Worker
from support.losses_by_hand import halved_absolute
from support.problems import random_problem
from support.virtual_time import VirtualEngine, prepared, run, virtual

SLOW = 8


@pytest.fixture(scope="module")
def fleet() -> TaskData:
    return make_synthetic(1, 0, m=64, rows_per_task=80, d=40).train


def one_of_16_slow(data: TaskData, loss: str) -> VirtualEngine:
    return virtual(data, loss, [10.0 if k == SLOW else 1.0 for k in range(16)])


def told(engine: VirtualEngine, k: int) -> list[str]:
    return [message.name for worker, message in engine.sent if worker == k]


def low_rank(m: int, d: int, rank: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.standard_normal((m, rank)) @ rng.standard_normal((rank, d))


@pytest.mark.parametrize("shape", [(30, 24), (24, 32)])
def test_the_metric_is_the_penalty(shape: tuple[int, int]) -> None:
    """|v|^2 / 2 summed over the tasks, where w = F v; and a change of one task's weights changes both alike at first,
    because the directions are the best for W."""
    W = low_rank(*shape, 3)
    metric = feature_metric(Learned(), W, 1.0, 1.0)
    assert metric is not None
    F = metric.directions
    assert F.shape == (shape[1], 3)
    assert metric.floor == 0
    assert not metric.centre.any()
    V = np.linalg.lstsq(F, W.T, rcond=None)[0].T
    penalty = Learned().penalty
    np.testing.assert_allclose(V @ F.T, W, rtol=1e-9, atol=1e-9)
    assert 0.5 * (V**2).sum() == pytest.approx(penalty(W, np.zeros(shape[1])), rel=1e-9)
    moved, size = V.copy(), 1e-5
    moved[0] += size
    change = penalty(moved @ F.T, np.zeros(shape[1])) - penalty(W, np.zeros(shape[1]))
    assert 0.5 * (moved**2 - V**2).sum() == pytest.approx(change, rel=1e-3)


def test_at_the_optimum_the_metric_gives_the_weights_of_every_task() -> None:
    """w_i = F F^T b_i / lambda: the stationarity of the whole problem, one task at a time."""
    data, lam = make_synthetic(1, 0, m=32, rows_per_task=60, d=40).train, 0.1
    found = solve(data, loss="logistic", reg_lambda=lam, settings=Settings(tol=1e-9))
    metric = feature_metric(Learned(), found.W, lam, 1.0)
    assert metric is not None
    np.testing.assert_allclose(metric.weights(found.dual.B), found.W, atol=1e-3 * np.abs(found.W).max())


def test_an_intercept_is_held_as_a_proximal_step_would() -> None:
    W = low_rank(30, 24, 2)
    inner = feature_metric(Learned(), W, 0.1, 4.0)
    whole = feature_metric(FreeIntercept(Learned(), 1e-6), with_intercepts(W), 0.1, 4.0)
    assert inner is not None
    assert whole is not None
    F, C = whole.directions, whole.centre
    np.testing.assert_allclose(F[:-1, :-1] @ F[:-1, :-1].T, inner.directions @ inner.directions.T, atol=1e-10)
    np.testing.assert_array_equal(F[-1], [0.0, 0.0, 2.0])
    assert not F[:-1, -1].any()
    np.testing.assert_allclose((C @ F.T)[:, -1], np.arange(30.0))
    assert not (C @ F.T)[:, :-1].any()


def with_intercepts(W: np.ndarray) -> np.ndarray:
    return np.column_stack([W, np.arange(float(len(W)))])


class Own(Learned):
    """A relationship of one's own: what its penalty is nobody knows."""


@pytest.mark.parametrize(
    ("relation", "shape", "rank"),
    [
        (relationship.independent(32), (32, 24), 2),
        (Learned(0.5), (32, 24), 2),
        (FreeIntercept(Learned(0.5), 1e-6), (32, 24), 2),
        (Own(), (32, 24), 2),
        (Learned(), (32, 24), 0),
        (Learned(), (32, 24), 4),
        (Learned(), (16, 80), 3),
        (Learned(), (160, 160), 17),
    ],
    ids=["given", "shared part", "and intercept", "own", "no weights", "many for d", "many for m", "many"],
)
def test_where_there_is_no_such_metric(relation: Any, shape: tuple[int, int], rank: int) -> None:
    assert feature_metric(relation, low_rank(*shape, rank), 1.0, 1.0) is None


def test_directions_that_hardly_show_do_not_count() -> None:
    W = low_rank(160, 160, 16) + 1e-6 * low_rank(160, 160, 20)
    metric = feature_metric(Learned(), W, 1.0, 1.0)
    assert metric is not None
    assert metric.directions.shape == (160, 16)
    assert metric.floor == 0


@pytest.mark.parametrize("shape", [(96, 64), (64, 96)])
def test_many_directions_beside_a_few_that_stand_out_are_the_floor(shape: tuple[int, int]) -> None:
    """All of them as one of middling size; in those that stand out the metric is the covariance of the features."""
    rng, values, lam = np.random.default_rng(0), np.r_[5.0, 4.0, 3.0, np.linspace(0.3, 0.1, 20)], 0.1
    left, right = (np.linalg.qr(rng.standard_normal((n, len(values))))[0] for n in shape)
    metric = feature_metric(Learned(), (left * values) @ right.T, lam, 1.0)
    assert metric is not None
    assert metric.floor == pytest.approx(values[3:].mean() / (lam * values.sum()))
    M = metric.directions @ metric.directions.T + metric.floor * np.eye(shape[1])
    np.testing.assert_allclose(M @ right[:, :3], right[:, :3] * values[:3] / (lam * values.sum()), atol=1e-10)
    b = rng.standard_normal((shape[0], shape[1]))
    np.testing.assert_allclose(metric.weights(b), b @ M, atol=1e-9)
    assert metric.longest == pytest.approx(5.0 / (lam * values.sum()))


LAYOUTS = {
    "dense": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "sparse": sparse.csr_array,
    "in chunks": lambda X: np.where(np.arange(X.shape[1]) < 8, X, 0.0),
}


def first_answer(
    layout: str, loss: str | Sequence[AnyLoss], weighted: bool = False, fold: int = -1
) -> tuple[TaskData, Worker, Message]:
    data = random_problem(loss if isinstance(loss, str) else "hinge", m=5, d=40, rows=20)
    weight = np.random.default_rng(2).integers(0, 3, len(data.y)).astype(float) if weighted else None
    data = TaskData(LAYOUTS[layout](data.X), data.y, weight, data.starts, data.names)
    worker, _ = prepared(data, loss, fold)
    order = {"w": np.zeros((5, 40)), "step": np.ones(5), "most": np.diff(data.starts)}
    return data, worker, worker.answer(Message("round", {"round": 0, "target": 0.0}, order))


def catch_up(number: int = 1, floor: float = 0.0) -> Message:
    rng = np.random.default_rng(1)
    arrays = {"directions": 0.3 * rng.standard_normal((40, 3)), "centre": rng.standard_normal((5, 3))}
    return Message("catch_up", {"round": number, "floor": floor}, arrays)


@pytest.mark.parametrize("floor", [0.0, 0.05])
@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared", "absolute", "poisson"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_answer_says_what_alpha_says(layout: str, loss: str, floor: float) -> None:
    check_answer(*first_answer(layout, loss), floor)


@pytest.mark.parametrize("floor", [0.0, 0.05])
def test_an_answer_of_weighted_rows(floor: float) -> None:
    check_answer(*first_answer("dense", "hinge", weighted=True), floor)


@pytest.mark.parametrize("floor", [0.0, 0.05])
def test_an_answer_with_rows_set_aside(floor: float) -> None:
    data, worker, first = first_answer("dense", "hinge", fold=1)
    check_answer(data, worker, first, floor)
    assert 0 < worker._held.sum() < len(data.y)
    assert not worker._alpha[worker._held].any()


def test_an_answer_of_tasks_with_a_loss_each_one_of_them_of_ones_own() -> None:
    losses = [get_loss(name) for name in ("hinge", "squared", "logistic", "absolute")]
    check_answer(*first_answer("dense", [*losses, halved_absolute()]))


def check_answer(data: TaskData, worker: Any, first: Message, floor: float = 0.0) -> None:
    order = catch_up(floor=floor)
    metric = Metric.from_message(order)
    answer = worker.answer(order)
    assert fault_in(order, answer, 5, 40) == ""
    b, U = answer.arrays["b"], metric.weights(answer.arrays["b"])
    X = data.X.toarray() if sparse.issparse(data.X) else data.X
    weight = (np.ones(len(data.y)) if data.sample_weight is None else data.sample_weight) * ~worker._held
    rise = bound_of_37(answer, metric) - bound_of_37(first, metric)
    assert (rise > -1e-12).all()
    assert rise.max() > 1e-3
    for i, (a, e) in enumerate(zip(data.starts[:-1], data.starts[1:], strict=True)):
        p = weight[a:e] / weight[a:e].sum()
        np.testing.assert_allclose(b[i], X[a:e].astype(float).T @ (p * worker._alpha[a:e]), rtol=1e-9, atol=1e-12)
    at_u = worker.answer(Message("look", {}, {"w": U})).arrays["loss_w"]
    np.testing.assert_allclose(answer.arrays["loss_u"], at_u if floor == 0 else np.inf, rtol=1e-10)
    np.testing.assert_allclose(answer.arrays["conjugate"], worker._conjugates(worker._alpha), rtol=1e-12)
    assert (at_u + answer.arrays["conjugate"] + (U * b).sum(axis=1) >= -1e-10).all()
    np.testing.assert_array_equal(worker._U, U)  # where the next round goes on from


def bound_of_37(answer: Message, metric: Metric) -> np.ndarray:
    """The dual value of each unit's problem at the alpha of an answer."""
    b = answer.arrays["b"]
    seen = b @ metric.directions
    size = 0.5 * (seen**2).sum(axis=1) + 0.5 * metric.floor * (b**2).sum(axis=1)
    return -answer.arrays["conjugate"] - (metric.centre * seen).sum(axis=1) - size


@pytest.mark.parametrize("floor", [0.0, 0.05])
@pytest.mark.parametrize("loss", ["hinge", "logistic", "absolute", "smoothed_hinge", "squared"])
def test_repeated_it_solves_the_problem_in_the_metric(loss: str, floor: float) -> None:
    """The bracket at u (7) is the duality gap of (37)."""
    _, worker, _ = first_answer("dense", loss)
    for number in range(1, 60):
        answer = worker.answer(catch_up(number, floor))
    b = answer.arrays["b"]
    U = Metric.from_message(catch_up(floor=floor)).weights(b)
    loss_u = worker.answer(Message("look", {}, {"w": U})).arrays["loss_w"]
    np.testing.assert_allclose(loss_u + answer.arrays["conjugate"] + (U * b).sum(axis=1), 0.0, atol=1e-4)


@pytest.mark.parametrize("floor", [0.0, 0.05])
def test_what_it_solves_for_squared_loss_is_a_ridge_regression(floor: float) -> None:
    data, worker, _ = first_answer("dense", "squared")
    for number in range(1, 200):
        b = worker.answer(catch_up(number, floor)).arrays["b"]
    metric = Metric.from_message(catch_up(floor=floor))
    M = metric.directions @ metric.directions.T + floor * np.eye(40)
    for i, (a, e) in enumerate(zip(data.starts[:-1], data.starts[1:], strict=True)):
        X, centre = data.X[a:e], metric.directions @ metric.centre[i]
        # u = centre + M b with b = X^T (y - X u) / n, which is (I + M X^T X / n) u = centre + M X^T y / n
        u = np.linalg.solve(np.eye(40) + M @ X.T @ X / (e - a), centre + M @ X.T @ data.y[a:e] / (e - a))
        np.testing.assert_allclose(metric.weights(b)[i], u, atol=1e-6)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_one_that_lags_catches_up_once(fleet: TaskData, loss: str) -> None:
    engine = one_of_16_slow(fleet, loss)
    certificates: list[tuple[float, float]] = []
    run(engine, fleet, watch=lambda r: certificates.append((r.primal, r.dual)), tol=1e-4, lam=1e-2, max_rounds=60)
    assert told(engine, SLOW)[:2] == ["round", "catch_up"]
    assert told(engine, SLOW).count("catch_up") == 1
    assert all("catch_up" not in told(engine, k) for k in range(16) if k != SLOW)
    best = solve(fleet, loss=loss, reg_lambda=1e-2, settings=Settings(tol=1e-6)).certificate
    assert all(primal >= best.dual and dual <= best.primal for primal, dual in certificates)


def test_catching_up_makes_most_runs_shorter_and_none_much_longer(
    fleet: TaskData, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = []
    for loss, lam in product(("hinge", "logistic", "smoothed_hinge"), (3e-3, 1e-2, 3e-2)):
        seconds = {}
        for allowed in (True, False):
            monkeypatch.setattr(
                "dmtrl.solver.methods.asynchronous.feature_metric", feature_metric if allowed else lambda *_: None
            )
            engine, reached = one_of_16_slow(fleet, loss), list[float]()

            def watch(record: RoundRecord, engine: VirtualEngine = engine, reached: list[float] = reached) -> None:
                reached.append(engine.clock)

            assert run(engine, fleet, watch=watch, tol=1e-2, lam=lam).converged
            seconds[allowed] = reached[-1]
        share.append(seconds[True] / seconds[False])
    assert np.mean(share) < 0.95
    assert min(share) < 0.75
    assert max(share) < 1.3


@pytest.mark.parametrize(
    "knobs",
    [
        {"steps": 50},
        {"sampling": "uniform"},
        {"local_solver": "sdca"},
        {"relationship": "independent"},
        {"common": 0.5},
    ],
    ids=["given steps", "rows drawn one by one", "a given solver", "a given relationship", "a shared part"],
)
def test_nobody_catches_up_where(knobs: dict[str, Any], fleet: TaskData) -> None:
    engine = one_of_16_slow(fleet, "hinge")
    run(engine, fleet, tol=1e-3, lam=1e-2, max_rounds=30, **knobs)
    often = np.bincount([k for k, _ in engine.sent])
    assert 1 < often[SLOW] < np.median(often) / 2
    assert "catch_up" not in told(engine, SLOW)


def test_who_holds_much_of_the_tasks_does_not_catch_up(fleet: TaskData) -> None:
    """The directions would be its own."""
    engine = virtual(fleet, "hinge", [1.0, 1.0, 10.0])
    run(engine, fleet, tol=1e-3, lam=1e-2, max_rounds=30)
    assert len(told(engine, 2)) > 1
    assert "catch_up" not in told(engine, 2)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_a_slow_worker_whose_tasks_lie_in_a_direction_of_their_own(loss: str) -> None:
    """The run ends, and its certificates hold."""
    made = make_synthetic(1, 0, m=64, rows_per_task=80, d=40)
    mine = [blocks.tasks for blocks in made.train.partition(16, 1)][SLOW]
    rng, starts, y = np.random.default_rng(0), made.train.starts, made.train.y.copy()
    w = 30 * rng.standard_normal(40)
    for i in mine:
        rows = slice(starts[i], starts[i + 1])
        y[rows] = np.where(made.train.X[rows] @ w + rng.standard_normal(starts[i + 1] - starts[i]) > 0, 1.0, -1.0)
    data = TaskData(made.train.X, y, None, starts, made.train.names)
    engine, certificates = one_of_16_slow(data, loss), list[tuple[float, float]]()
    found = run(engine, data, watch=lambda r: certificates.append((r.primal, r.dual)), tol=1e-3, lam=1e-2)
    assert "catch_up" in told(engine, SLOW)
    assert found.converged
    best = solve(data, loss=loss, reg_lambda=1e-2, settings=Settings(tol=1e-6)).certificate
    assert all(primal >= best.dual and dual <= best.primal for primal, dual in certificates)


def test_nobody_catches_up_where_the_penalty_hardly_holds(fleet: TaskData) -> None:
    """Steps would be longer than coordinate ascent can take (docs/math.md, section 6)."""
    data = TaskData(1e4 * fleet.X, fleet.y, None, fleet.starts, fleet.names)
    for lam, expected in ((1e6, True), (1e2, False)):
        engine = one_of_16_slow(data, "hinge")
        run(engine, data, tol=1e-3, lam=lam, max_rounds=10)
        assert ("catch_up" in told(engine, SLOW)) is expected


def test_nobody_catches_up_where_a_task_is_in_pieces(fleet: TaskData) -> None:
    engine = virtual(fleet, "hinge", [10.0 if k == SLOW else 1.0 for k in range(16)], shards=2)
    run(engine, fleet, tol=1e-3, lam=1e-2, max_rounds=30)
    assert len(told(engine, SLOW)) > 1
    assert "catch_up" not in told(engine, SLOW)


def test_with_an_intercept(fleet: TaskData) -> None:
    """The last column is the intercept's; the run ends, and with a certificate that holds."""
    data = TaskData(np.column_stack([fleet.X, np.ones(len(fleet.y))]), fleet.y, None, fleet.starts, fleet.names)
    relation, engine = FreeIntercept(Learned(), 1e-4), one_of_16_slow(data, "hinge")
    found = run(engine, data, relation, tol=1e-2, lam=1e-2)
    assert "catch_up" in told(engine, SLOW)
    best = run(virtual(data, "hinge", [1.0] * 4), data, relation, tol=1e-6, lam=1e-2, max_staleness=0).certificate
    assert found.converged
    assert found.certificate.primal >= best.dual
    assert found.certificate.dual <= best.primal


def test_a_run_is_repeated_to_the_bit(fleet: TaskData) -> None:
    first_engine = one_of_16_slow(fleet, "hinge")
    first = run(first_engine, fleet, tol=1e-2, lam=1e-2)
    assert "catch_up" in told(first_engine, SLOW)
    again = run(virtual(fleet, "hinge", [3.0] * 16), fleet, tol=1e-2, lam=1e-2, replay=first.trace)
    np.testing.assert_array_equal(first.W, again.W)
    assert again.certificate == first.certificate


def test_a_new_worker_in_place_of_a_lost_one_hears_of_it() -> None:
    log = Log()
    log.add(Message("round"), Message("improved"))
    log.add(Message("catch_up"), Message("caught_up"))
    assert [message.name for batch in log.batches() for message in batch] == ["round", "catch_up"]
    log.close()


def test_a_wrong_answer_is_named() -> None:
    question = Message("catch_up")
    assert "instead of 'caught_up'" in fault_in(question, Message("improved"), 2, 3)
    assert "left 'b' out" in fault_in(question, Message("caught_up"), 2, 3)


def test_server_and_worker_agree_where_it_arrived(fleet: TaskData, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the intercept, whose centre is not zero."""
    data = TaskData(np.column_stack([fleet.X, np.ones(len(fleet.y))]), fleet.y, None, fleet.starts, fleet.names)
    engine, arrived, checked = one_of_16_slow(data, "hinge"), AsynchronousSplitting._arrived, list[float]()

    def compare(self: Any, units: np.ndarray, order: Message, b: np.ndarray) -> np.ndarray:
        U = arrived(self, units, order, b)
        if order.name == "catch_up":
            np.testing.assert_allclose(U, engine.workers[SLOW]._U, rtol=1e-12, atol=1e-12)
            checked.append(float(np.abs(order.arrays["centre"]).max()))
        return U

    monkeypatch.setattr(AsynchronousSplitting, "_arrived", compare)
    run(engine, data, FreeIntercept(Learned(), 1e-4), tol=1e-2, lam=1e-2)
    assert len(checked) == 1
    assert checked[0] > 0


def test_weights_with_which_the_objective_is_higher_are_not_taken(
    fleet: TaskData, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bool] = []
    attempt = AsynchronousSplitting._take_if_better

    def twice(self: Any, units: np.ndarray, W: np.ndarray, loss: np.ndarray) -> None:
        before = self._W.copy(), self._loss.copy()
        attempt(self, units, W, loss + 1e6)
        np.testing.assert_array_equal(self._W, before[0])
        np.testing.assert_array_equal(self._loss, before[1])
        attempt(self, units, W, loss)
        taken.append(bool((self._W[units] == W).all() and (self._loss[units] == loss).all()))

    monkeypatch.setattr(AsynchronousSplitting, "_take_if_better", twice)
    run(one_of_16_slow(fleet, "hinge"), fleet, tol=1e-2, lam=1e-2)
    assert taken == [True]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_b_of_a_first_answer_is_what_alpha_says(layout: str) -> None:
    data = random_problem("hinge", m=5, d=40, rows=20)
    data = TaskData(LAYOUTS[layout](data.X), data.y, None, data.starts, data.names)
    found = []
    for from_zero in (True, False):
        worker, _ = prepared(data, "hinge")
        scalars = {"round": 0, "target": 0.01, "from_zero": from_zero, "look": False}
        order = {"w": np.zeros((5, 40)), "step": np.full(5, 3.0), "most": np.diff(data.starts)}
        found.append(worker.answer(Message("round", scalars, order)).arrays)
    assert found[0]["b"].any()
    for name in ("b", "conjugate", "steps"):
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("begin", ["weights", "alpha"])
def test_only_what_begins_at_zero_is_taken_for_it(begin: str) -> None:
    """Whatever a worker is told, b stays what alpha says."""
    data = random_problem("hinge", m=5, d=40, rows=20)
    worker, _ = prepared(data, "hinge")
    W = np.ones((5, 40)) if begin == "weights" else np.zeros((5, 40))
    order = {"w": W, "step": np.full(5, 3.0), "most": np.diff(data.starts)}
    if begin == "alpha":
        worker.answer(Message("round", {"round": 0, "target": 0.01}, order))
    b = worker.answer(Message("round", {"round": 1, "target": 0.01, "from_zero": True}, order)).arrays["b"]
    for i, (a, e) in enumerate(zip(data.starts[:-1], data.starts[1:], strict=True)):
        np.testing.assert_allclose(b[i], data.X[a:e].T @ worker._alpha[a:e] / (e - a), rtol=1e-12, atol=1e-14)


def test_a_run_from_weights_found_before(fleet: TaskData) -> None:
    found = run(one_of_16_slow(fleet, "hinge"), fleet, tol=1e-1, lam=1e-2)
    engine = one_of_16_slow(fleet, "hinge")
    again = Coordinator(engine, fleet.m, Learned(), 1e-2, Settings(max_staleness=8, tol=1e-2)).run(start=found)
    assert again.converged
