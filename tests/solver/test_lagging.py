"""What a worker that lags behind is asked for: little at first, and its loss alone where that may be the end."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import dmtrl.solver.coordinator
import dmtrl.solver.methods.asynchronous
from dmtrl import Settings, TaskData, solve
from dmtrl.datasets import make_synthetic
from dmtrl.engines.contract import fault_in
from dmtrl.engines.local import LocalEngine
from dmtrl.engines.log import Log
from dmtrl.losses.builtin import get_loss
from dmtrl.protocol.message import Message
from dmtrl.solver.coordinator import RoundRecord
from dmtrl.solver.methods.asynchronous import AsynchronousSplitting
from support.problems import random_problem
from support.virtual_time import SpyingEngine, VirtualEngine, answers_by_worker, prepared, run, virtual

SLOW = 32


@pytest.fixture(scope="module")
def fleet() -> TaskData:
    """Of too few features for anyone to catch up: that is another file."""
    return make_synthetic(1, 0, m=128, rows_per_task=80, d=20).train


@pytest.fixture(scope="module")
def wide_fleet() -> TaskData:
    return make_synthetic(1, 0, m=192, rows_per_task=120, d=60).train


def one_of_64_slow(data: TaskData, loss: str) -> VirtualEngine:
    return virtual(data, loss, [10.0 if k == SLOW else 1.0 for k in range(64)])


@pytest.mark.parametrize(("loss", "lam"), [(loss, lam) for loss in ("hinge", "logistic") for lam in (1e-3, 3e-3, 1e-2)])
def test_one_slow_worker_of_64_costs_a_third_of_what_it_does_in_step(
    wide_fleet: TaskData, loss: str, lam: float
) -> None:
    """To a joint gap of 0.01, on the clock of the engine, with certificates that hold against an optimum known much
    better; `dmtrl bench stragglers` has the same with real seconds."""
    best = solve(wide_fleet, loss=loss, reg_lambda=lam, settings=Settings(tol=1e-5)).certificate
    reached = {}
    for staleness in (0, 8):
        engine = one_of_64_slow(wide_fleet, loss)

        def watch(record: RoundRecord, engine: VirtualEngine = engine, staleness: int = staleness) -> None:
            reached[staleness] = engine.clock
            assert record.primal >= best.dual
            assert record.dual <= best.primal

        assert run(engine, wide_fleet, watch=watch, max_staleness=staleness, tol=1e-2, lam=lam).converged
    assert reached[8] <= reached[0] / 3


def test_one_slow_worker_of_16_costs_half_of_what_it_does_in_step() -> None:
    data = make_synthetic(1, 0, rows_per_task=400, d=40).train
    reached = {}
    for staleness in (0, 8):
        engine = virtual(data, "hinge", [10.0 if k == 8 else 1.0 for k in range(16)])

        def watch(record: RoundRecord, engine: VirtualEngine = engine, staleness: int = staleness) -> None:
            reached[staleness] = engine.clock

        run(engine, data, watch=watch, max_staleness=staleness, tol=1e-2, lam=1e-4)
    assert reached[8] < reached[0] / 2


def test_the_first_three_answers_of_one_that_lags_are_one_pass_each(fleet: TaskData) -> None:
    engine = one_of_64_slow(fleet, "hinge")
    run(engine, fleet, tol=1e-4, lam=1e-3, max_rounds=60)
    asked: dict[int, list[int]] = {k: [] for k in range(64)}
    for k, message in engine.sent:
        if message.name == "round":
            rows = engine.workers[k].answer(Message("describe")).arrays["rows"]
            asked[k].append(int((message.arrays["most"] // rows).max()))
    slow = asked.pop(SLOW)
    assert slow[:3] == [1, 1, 1]
    assert set(slow[3:]) == {2}
    assert all(passes[:2] == [1, 2] for passes in asked.values())


def looks_of(engine: VirtualEngine) -> list[int]:
    return [k for k, message in engine.sent if message.name == "look"]


def test_the_end_is_a_look_away(fleet: TaskData) -> None:
    engine = one_of_64_slow(fleet, "hinge")
    seen: list[int] = []
    run(engine, fleet, watch=lambda record: seen.append(len(engine.answers)), tol=1e-2, lam=3e-4)
    told = [answer.name for k, answer in engine.answers[: seen[-1]] if k == SLOW]
    assert set(looks_of(engine)) == {SLOW}
    assert told[-3:] == ["improved", "improved", "looked"]


def test_looks_that_do_not_end_the_run_are_few_and_not_in_a_row() -> None:
    """Else a worker whose loss is asked for again and again never gives an answer, and the run never ends."""
    data = random_problem("hinge", m=8, d=6, rows=40)
    engine = virtual(data, "hinge", (1.0, 1.0, 3.0, 1.0))
    assert run(engine, data, tol=1e-2, lam=1e-3).converged
    asked = [message.name for k, message in engine.sent if k == 2]
    assert asked.count("look") == 3
    assert ("look", "look") not in pairwise(asked)


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> list[AsynchronousSplitting]:
    """That were made, in order."""
    made: list[AsynchronousSplitting] = []

    class Kept(AsynchronousSplitting):
        def __init__(self, *args: Any, **knobs: Any) -> None:
            super().__init__(*args, **knobs)
            made.append(self)

    monkeypatch.setattr(dmtrl.solver.coordinator, "AsynchronousSplitting", Kept)
    return made


@pytest.mark.parametrize(("loss", "common"), [("hinge", 0.0), ("squared", 0.5), ("poisson", 0.0)])
def test_the_least_gap_is_the_gap_but_for_what_a_look_would_tell(
    loss: str, common: float, methods: list[AsynchronousSplitting]
) -> None:
    """Against the objective and the bound summed anew, at the weights the others last looked at and the present ones of
    the worker in question: the difference is its Fenchel-Young bracket."""
    data = random_problem(loss, m=8, d=6, rows=40)
    engine = virtual(data, loss)
    checked: list[float] = []

    def watch(record: RoundRecord) -> None:
        method, k = methods[0], 2
        units = method._layout.positions[k]
        W, b, lam = method._W.copy(), method._b, method._lam
        W[units] = method._Z[units]
        penalty = lam * method._relationship.penalty(W, method._common)
        bound = -method._conjugate.sum() - method._relationship.conjugate(b) / lam
        at_z = engine.workers[k].answer(Message("look", {}, {"w": W[units]})).arrays["loss_w"]
        others = np.delete(method._loss, units).sum()
        bracket = at_z.sum() + method._conjugate[units].sum() + (W[units] * b[units]).sum()
        objective = others + at_z.sum() + penalty
        assert bracket >= -1e-12
        expected = (objective - bound - bracket) / abs(objective - bracket)
        assert method._least_gap(k) == pytest.approx(expected, rel=1e-8)
        checked.append(bracket)

    run(engine, data, watch=watch, common=common, tol=1e-3)
    assert max(checked) > 1e-6


def test_only_steps_count_as_answers(methods: list[AsynchronousSplitting], fleet: TaskData) -> None:
    engine = one_of_64_slow(fleet, "hinge")
    run(engine, fleet, tol=1e-2, lam=3e-4)
    assert looks_of(engine)
    np.testing.assert_array_equal(methods[0]._answered, answers_by_worker(engine))


def test_nobody_looks_in_step(methods: list[AsynchronousSplitting], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once staleness is given up all would wait for it."""
    monkeypatch.setattr(dmtrl.solver.methods.asynchronous, "_IN_SIGHT", 1e9)
    monkeypatch.setattr(dmtrl.solver.methods.asynchronous, "_MOST_LOOKS", 1000)
    data = random_problem("hinge", m=8, d=6, rows=40)
    engine = virtual(data, "hinge")
    until: list[int] = []

    def watch(record: RoundRecord) -> None:
        if record.round == 30:
            methods[0]._staleness = 0
            until.append(len(engine.sent))

    run(engine, data, watch=watch, tol=1e-9, max_rounds=60)
    names = [message.name for _, message in engine.sent]
    assert "look" in names[: until[0]]
    assert "look" not in names[until[0] :]


@pytest.mark.parametrize("case", ["in pieces", "given"])
def test_nobody_looks_where_losses_are_probed(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dmtrl.solver.methods.asynchronous, "_IN_SIGHT", 1e9)
    data = random_problem("squared", m=7, d=6, rows=40)
    engine = virtual(data, "squared", shards=3 if case == "in pieces" else 1)
    run(engine, data, np.eye(7) / 7 if case == "given" else "learned", tol=1e-2)  # type: ignore[arg-type]
    assert engine.sent
    assert not looks_of(engine)


@pytest.mark.parametrize("staleness", [3, 8])
def test_a_look_is_as_stale_as_any_other_message(staleness: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dmtrl.solver.methods.asynchronous, "_IN_SIGHT", 1e9)
    monkeypatch.setattr(dmtrl.solver.methods.asynchronous, "_MOST_LOOKS", 1000)
    data = random_problem("hinge", m=8, d=6, rows=40)
    inside = virtual(data, "hinge", (1.0, 1.0, 40.0, 1.0))
    engine = SpyingEngine(inside)
    run(engine, data, max_staleness=staleness, tol=1e-4, max_rounds=60)
    assert looks_of(inside)
    assert engine.ahead == staleness


def test_a_look_far_from_the_end_is_not_asked_for(fleet: TaskData) -> None:
    engine = one_of_64_slow(fleet, "hinge")
    run(engine, fleet, tol=1e-9, lam=1e-3, max_rounds=12)
    assert all(message.name == "round" for _, message in engine.sent)


def test_a_run_with_a_look_is_repeated_to_the_bit(fleet: TaskData) -> None:
    engine = one_of_64_slow(fleet, "hinge")
    first = run(engine, fleet, tol=1e-2, lam=3e-3)
    assert any(message.name == "look" for _, message in engine.sent)
    again = run(virtual(fleet, "hinge", [3.0] * 64), fleet, tol=1e-2, lam=3e-3, replay=first.trace)
    np.testing.assert_array_equal(first.W, again.W)
    assert again.certificate == first.certificate


LAYOUTS = {
    "dense": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "sparse": sparse.csr_array,
    "in chunks": lambda X: np.where(np.arange(X.shape[1]) < 8, X, 0.0),
}


@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared", "absolute"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_loss_at_no_weights_is_known_without_the_rows(layout: str, loss: str) -> None:
    data = random_problem(loss, m=5, d=40, rows=20)
    data = TaskData(LAYOUTS[layout](data.X), data.y, None, data.starts, data.names)
    worker, answer = prepared(data, loss)
    zero = np.zeros((5, 40))
    looked = worker.answer(Message("look", {}, {"w": zero})).arrays["loss_w"]
    np.testing.assert_allclose(answer.arrays["loss_w"], looked, rtol=1e-12)
    value = get_loss(loss).value
    by_hand = [
        np.mean([value(0.0, y) for y in data.y[a:b]]) for a, b in zip(data.starts[:-1], data.starts[1:], strict=True)
    ]
    np.testing.assert_allclose(looked, by_hand, rtol=1e-12)


def test_a_look_leaves_the_worker_as_it_was() -> None:
    data = random_problem("hinge", m=4, d=6, rows=30)
    W = np.random.default_rng(0).standard_normal((4, 6))
    scalars = {"round": 0, "target": 0.0, "relax": 0.6}
    order = Message("round", scalars, {"w": W, "step": np.full(4, 2.0)})
    answers = []
    for look in (False, True):
        worker, _ = prepared(data, "hinge")
        if look:
            worker.answer(Message("look", {}, {"w": 3 * W}))
        answers.append(worker.answer(order))
    for name, values in answers[0].arrays.items():
        np.testing.assert_array_equal(values, answers[1].arrays[name])


def test_a_new_worker_in_place_of_a_lost_one_need_not_hear_of_looks() -> None:
    log = Log()
    log.add(Message("round"), Message("improved"))
    log.add(Message("look", {}, {"w": np.ones((2, 3))}), Message("looked"))
    assert [message.name for batch in log.batches() for message in batch] == ["round"]
    log.close()


def test_a_wrong_answer_to_a_look_is_named() -> None:
    question = Message("look", {}, {"w": np.ones((2, 3))})
    assert "instead of 'looked'" in fault_in(question, Message("improved"), 2, 3)
    assert "left 'loss_w' out" in fault_in(question, Message("looked"), 2, 3)
    assert "shape (3,)" in fault_in(question, Message("looked", {}, {"loss_w": np.ones(3)}), 2, 3)
    assert fault_in(question, Message("looked", {}, {"loss_w": np.ones(2)}), 2, 3) == ""


def test_local_threads_answer_looks() -> None:
    data = random_problem("squared", m=4, d=6, rows=30)
    sources = data.partition(2, 1)
    with LocalEngine(sources, get_loss("squared"), threads=2) as engine:
        run(engine, data, tol=1e-2)
        answers = engine.broadcast(Message("look", {}, {"w": np.zeros((2, 6))}))
    assert all(np.isfinite(answers[k].arrays["loss_w"]).all() for k in range(2))
