"""Asynchronous rounds: certificates hold whatever the order of answers, the optimum is the same, staleness is bounded.

Most runs have a clock of their own (tests/support/virtual_time.py): a straggler is ten times slower there, on any
machine.
"""

from itertools import pairwise

import numpy as np
import pytest

from dmtrl import Execution, Problem, Settings, TaskData, solve
from dmtrl.datasets import make_synthetic
from dmtrl.engines.local import LocalEngine
from dmtrl.losses import get_loss
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import Describe, Improved, Prepare, Round
from dmtrl.relationship import FreeIntercept, get_relationship
from dmtrl.solver.layout import Layout
from dmtrl.solver.outcome import RoundRecord
from dmtrl.worker.kernels import GRAM, SDCA
from support.problems import mean_losses, random_problem
from support.solving import solve_data
from support.virtual_time import LAM, SpyingEngine, answers_by_worker, run, sources_of, virtual
from support.waiting import be_slow

PROBLEMS = {
    "hinge": ("hinge", {}),
    "squared": ("squared", {}),
    "logistic, sparse": ("logistic", {"csr": True}),
    "absolute, weighted": ("absolute", {"weighted": True}),
    "hinge, tasks in pieces": ("hinge", {}),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_certificates_never_lie(name: str) -> None:
    """Against an optimum that rounds in step know ten thousand times better."""
    loss, how = PROBLEMS[name]
    data = random_problem(loss, m=7, d=6, rows=40, **how)
    best = solve(
        Problem.of(data, loss=loss, reg_lambda=LAM), Execution(settings=Settings(tol=1e-7, max_rounds=5000))
    ).certificate
    records: list[RoundRecord] = []
    engine = virtual(data, loss, shards=3 if "pieces" in name else 1)
    units = sum(len(decode(worker.answer(encode(Describe()))).tasks) for worker in engine.workers)
    assert (units > data.m) == ("pieces" in name)  # pieces of a task that lie on one worker are one
    outcome = run(engine, data, watch=records.append)
    assert outcome.converged
    assert len(records) > 5
    room = 1e-9 * abs(best.primal)
    for record in records:
        assert record.dual <= best.primal + room
        assert record.primal >= best.dual - room
    assert all(after.dual >= before.dual for before, after in pairwise(records))
    assert outcome.certificate.primal - best.primal <= 1.1e-3 * abs(best.primal)


def test_the_objective_is_that_of_the_returned_weights() -> None:
    """Rows of W that were evaluated at different times, summed anew from the data."""
    data = random_problem("hinge", m=8, d=6, rows=40)
    W = run(virtual(data, "hinge"), data).W
    by_hand = mean_losses(data, W, "hinge") + 0.5 * LAM * np.linalg.svd(W, compute_uv=False).sum() ** 2
    outcome = run(virtual(data, "hinge"), data)
    assert outcome.certificate.primal == pytest.approx(by_hand, rel=1e-9)


def test_b_matches_the_dual_variables_of_the_workers() -> None:
    data = random_problem("hinge", m=8, d=6, rows=40)
    engine = virtual(data, "hinge")
    outcome = run(engine, data, tol=1e-2)
    while engine.pending:  # workers that were busy when the run ended
        engine.receive()
    layout = Layout.from_descriptions(engine.broadcast(Describe()), data.m)
    # the last answer of each worker, and what it would answer now, told to keep its alpha
    last = dict(engine.answers)
    total = layout.per_task(layout.weight)[layout.task]
    for k, worker in enumerate(engine.workers):
        steps = np.zeros(len(layout.positions[k]), np.int64)
        request = Prepare(keep=True, total_weight=layout.scatter(k, total), steps=steps)
        again = decode(worker.answer(encode(request)))
        np.testing.assert_array_equal(again.b, last[k].b)
        np.testing.assert_allclose(again.conjugate, last[k].conjugate, rtol=1e-12)
    assert outcome.converged


@pytest.mark.parametrize(
    ("relationship", "common", "shards"),
    [("learned", 0.0, 1), ("learned", 1.0, 1), ("independent", 0.0, 1), ("shared", 0.5, 1), ("learned", 0.0, 3)],
)
def test_same_optimum_as_synchronous_rounds(relationship: str, common: float, shards: int) -> None:
    """Every relationship; also tasks that are cut, whose loss is asked for at one point of all."""
    data = random_problem("squared", m=7, d=6, rows=40)
    best = solve(
        Problem.of(data, loss="squared", reg_lambda=LAM, relationship=relationship, common=common),
        Execution(settings=Settings(tol=1e-7)),
    )
    found = run(virtual(data, "squared", shards=shards), data, relationship, common=common, tol=1e-5)
    assert found.converged
    np.testing.assert_allclose(found.W, best.W, atol=1e-2 * np.abs(best.W).max())


def test_a_given_sigma_that_is_singular() -> None:
    """Weights of several versions would lie outside its range, where the penalty is infinite."""
    data = random_problem("squared", m=4, d=6, rows=40)
    factor = np.random.default_rng(0).standard_normal((4, 2))
    given = factor @ factor.T / np.trace(factor @ factor.T)
    assert run(virtual(data, "squared"), data, given, tol=1e-4).converged


def test_a_free_intercept() -> None:
    data = random_problem("squared", m=8, d=6, rows=40)
    relation = FreeIntercept(get_relationship("learned", data.m), 1e-3)
    assert run(virtual(data, "squared"), data, relation, tol=1e-5).converged


def test_continues_from_an_earlier_outcome() -> None:
    data = random_problem("hinge", m=8, d=6, rows=40)
    engine = virtual(data, "hinge")
    start = run(engine, data, tol=1e-2)
    outcome = run(engine, data, tol=1e-3, start=start)
    assert outcome.converged
    assert outcome.history[0].dual >= 0.99 * start.certificate.dual


@pytest.mark.parametrize("staleness", [1, 3, 8])
def test_no_worker_exceeds_max_staleness(staleness: int) -> None:
    """Counted on the messages: while one is at work on weights of version v, how often others get newer ones."""
    data = random_problem("hinge", m=8, d=6, rows=40)
    engine = SpyingEngine(virtual(data, "hinge", (1.0, 1.0, 40.0, 1.0)))
    run(engine, data, max_staleness=staleness, tol=1e-4, max_rounds=60)
    assert engine.ahead == staleness  # kept, and made use of


def test_without_progress_rounds_become_synchronous() -> None:
    """At the limit of what floats can tell no answer brings anything: then staleness is given up."""
    data = random_problem("squared", m=8, d=6, rows=40)
    engine = SpyingEngine(virtual(data, "squared", (1.0, 1.0, 3.0, 1.0)))
    run(engine, data, tol=0.0, max_rounds=900)
    assert max(engine.each[:40]) > 1
    assert max(engine.each[-12:]) == 0


def test_a_straggler_does_not_delay_the_others() -> None:
    """The others answer about ten times while it answers once; rounds in step are all alike."""
    data = random_problem("hinge", m=8, d=6, rows=40)
    free, synchronous = (virtual(data, "hinge") for _ in range(2))
    run(free, data, max_staleness=100, tol=1e-3)
    run(synchronous, data, max_staleness=0, tol=1e-3)
    counts = answers_by_worker(free)
    assert counts[2] >= 2
    assert (np.delete(counts, 2) >= 4 * counts[2]).all()
    assert len(set(answers_by_worker(synchronous))) == 1


def test_first_answers_take_little_work() -> None:
    """The loss at the start is known, so it is not evaluated. Factors that pay over many answers are computed later,
    and never by a worker that rarely answers."""
    data = random_problem("squared", m=8, d=10, rows=60)
    solvers: dict[int, list[int]] = {k: [] for k in range(4)}
    engine = virtual(data, "squared", (1.0, 1.0, 40.0, 1.0))
    run(engine, data, max_staleness=100, tol=1e-2, lam=1.0)
    first: dict[int, Round] = {}
    for k, request in engine.sent:
        first.setdefault(k, request)
    for k, answer in engine.answers:
        solvers[k].append(int(answer.solver.max()))
    assert not any(request.evaluate_w for request in first.values())
    assert all(request.evaluate_w for k, request in engine.sent if request is not first[k])
    assert all(codes[0] == SDCA for codes in solvers.values())
    assert solvers[0][-1] == GRAM
    assert set(solvers[2]) == {SDCA}


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_first_answer_is_one_pass_however_long_the_step(loss: str) -> None:
    data = random_problem(loss, m=8, d=10, rows=60)
    engine = virtual(data, loss)
    run(engine, data, tol=1e-2, lam=1e-4)
    first: dict[int, Improved] = {}
    later: list[int] = []
    for k, answer in engine.answers:
        later += answer.solver.tolist() if k in first else []
        first.setdefault(k, answer)
    for answer in first.values():
        assert (answer.solver == SDCA).all()
        assert answer.steps.max() <= np.diff(data.starts).max()
    assert set(later) - {SDCA}


@pytest.mark.parametrize("common", [0.0, 0.5])
def test_the_objective_after_a_round_is_that_of_the_weights_wherever_the_run_began(common: float) -> None:
    data = random_problem("hinge", m=8, d=6, rows=40)
    relationship = get_relationship("learned", 8, common)
    engine = virtual(data, "hinge", (1.0, 1.0, 1000.0, 1.0))
    start = run(engine, data, relationship, max_staleness=0, tol=0.1)
    outcome = run(engine, data, relationship, max_rounds=1, tol=1e-9, start=start)
    by_hand = mean_losses(data, outcome.W, "hinge") + LAM * relationship.penalty(outcome.W, outcome.common)
    assert outcome.certificate.primal == pytest.approx(by_hand, rel=1e-12)


def test_a_bound_and_an_objective_from_the_first_round_on() -> None:
    """Long before the straggler has answered; of its tasks the loss at zero is used."""
    data = random_problem("hinge", m=8, d=6, rows=40)
    engine = virtual(data, "hinge", (1.0, 1.0, 1000.0, 1.0))
    outcome = run(engine, data, max_rounds=2)
    slow = decode(engine.workers[2].answer(encode(Describe()))).tasks
    assert np.isfinite(outcome.history[0].gap)
    assert outcome.W.any()
    assert not outcome.W[slow].any()
    W = outcome.W
    by_hand = mean_losses(data, W, "hinge") + 0.5 * LAM * np.linalg.svd(W, compute_uv=False).sum() ** 2
    assert outcome.certificate.primal == pytest.approx(by_hand, rel=1e-9)


def test_without_stragglers_rounds_are_synchronous() -> None:
    """Where all answers arrive together, nothing is stale: B and the weights follow splitting's own path."""
    data = random_problem("squared", m=8, d=6, rows=40)
    options = {"local_solver": "gram", "initial_step": 0.5, "max_rounds": 3, "tol": 0.0}
    ours = run(virtual(data, "squared", (0.0,) * 4), data, **options)
    theirs = run(virtual(data, "squared", (0.0,) * 4), data, max_staleness=0, **options)
    np.testing.assert_allclose(ours.dual.B, theirs.dual.B, rtol=1e-9)


class Napping(LocalEngine):
    """One worker of a real thread pool sleeps before it answers."""

    def __init__(self, data: TaskData, workers: int, slow: int, seconds: float):
        super().__init__(sources_of(data, workers), get_loss("hinge"), threads=workers)
        self._slow, self._nap = slow, seconds
        awake = self._workers[slow].answer

        def answer(message: Message) -> Message:
            be_slow(seconds)
            return awake(message)

        self._workers[slow].answer = answer  # type: ignore[method-assign]


def test_a_finished_run_does_not_wait_for_answers() -> None:
    data = random_problem("hinge", m=8, d=6, rows=40)
    engine, clock = virtual(data, "hinge"), list[float]()
    run(engine, data, watch=lambda record: clock.append(engine.clock))
    assert engine.clock == clock[-1]
    assert engine.pending


def test_the_next_run_drops_pending_answers() -> None:
    data = random_problem("hinge", m=8, d=6, rows=40)
    engine, fresh = virtual(data, "hinge"), virtual(data, "hinge")
    run(engine, data)
    assert engine.pending
    again, first = (run(one, data, lam=2 * LAM, max_staleness=0) for one in (engine, fresh))
    np.testing.assert_array_equal(again.W, first.W)
    assert again.certificate == first.certificate


def test_the_order_of_arrival_does_matter() -> None:
    """Otherwise the test above would say nothing."""
    data = random_problem("hinge", m=8, d=6, rows=40)
    one = run(virtual(data, "hinge", (1.0, 1.0, 10.0, 1.0)), data)
    other = run(virtual(data, "hinge", (10.0, 1.0, 1.0, 1.0)), data)
    assert (one.W != other.W).any()


def test_workers_are_free_after_the_run() -> None:
    data = random_problem("hinge", m=8, d=6, rows=40)
    with Napping(data, 4, slow=1, seconds=0.01) as engine:
        run(engine, data, tol=1e-2)
        assert len(engine.broadcast(Describe())) == 4


def test_nan_is_reported_with_its_task() -> None:
    data = random_problem("hinge", m=8, d=6, rows=40)
    engine = virtual(data, "hinge")
    honest = engine.workers[2].answer

    def broken(message: Message) -> Message:
        answer = honest(message)
        if message.name == "round":
            answer.arrays["b"][0, 0] = np.nan
        return answer

    engine.workers[2].answer = broken  # type: ignore[method-assign]
    with pytest.raises(FloatingPointError, match="worker 2"):
        run(engine, data)


def test_unsupported_combinations_are_refused() -> None:
    with pytest.raises(ValueError, match="splitting"):
        solve_data(
            random_problem("hinge"), loss="hinge", reg_lambda=0.1, max_staleness=4, settings=Settings(method="dual")
        )


def test_workers_that_lag_do_not_use_up_the_rounds() -> None:
    """Far from the end a round is as many answers as there are workers, however many of them are slow."""
    data = random_problem("hinge", m=16, d=6, rows=40)
    engine = virtual(data, "hinge", [10.0] * 7 + [1.0] * 9)
    run(engine, data, tol=1e-9, max_rounds=20)
    assert answers_by_worker(engine).sum() >= 20 * 16


@pytest.mark.parametrize(("relationship", "shards"), [("shared", 1), ("learned", 2)])
def test_an_objective_is_known_from_the_first_round_on(relationship: str, shards: int) -> None:
    """That of no weights, where others can be had only of all workers together."""
    data, gaps = random_problem("hinge", m=8, d=6, rows=40), list[float]()
    run(virtual(data, "hinge", shards=shards), data, relationship, watch=lambda r: gaps.append(r.gap))
    assert np.isfinite(gaps).all()


def test_where_losses_are_straight_the_step_becomes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does with rounds in step, and to the same end: fewer rounds."""
    data = make_synthetic(1, 0, m=64, rows_per_task=80, d=40).train
    rounds = []
    for allowed in (True, False):
        steps: list[float] = []
        if not allowed:
            monkeypatch.setattr("dmtrl.solver.methods.asynchronous.is_straight", lambda *_: False)
        engine = virtual(data, "hinge", [1.0] * 8)
        assert run(engine, data, watch=lambda r, steps=steps: steps.append(r.step), tol=1e-2, lam=3e-2).converged
        rounds.append(len(steps))
        assert (max(steps[1:]) >= 8 * steps[0] * 0.999) is allowed
    assert rounds[0] < rounds[1]


def test_a_run_from_where_another_ended_is_over_at_once() -> None:
    data = random_problem("logistic", m=8, d=6, rows=40)
    engine = virtual(data, "logistic")
    found = run(engine, data, tol=1e-3)
    again = run(engine, data, tol=2e-3, start=found)
    assert len(found.history) > 2
    assert len(again.history) == 1
    assert again.converged
