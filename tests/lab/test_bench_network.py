"""`dmtrl bench network`: the simulator against arithmetic, the cost model against real messages."""

import threading
from dataclasses import asdict

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dmtrl import Settings, TaskData, solve
from dmtrl.cli.main import main
from dmtrl.lab.bench import network
from dmtrl.lab.bench.network import Cost, Shape, fitted
from dmtrl.lab.bench.simulator import (
    DelayedEngine,
    Exchange,
    Leg,
    Network,
    RecordingEngine,
    duration,
    record,
    replay,
    run,
    workers_of,
)
from dmtrl.lab.bench.tasks import low_rank_tasks
from dmtrl.lab.experiments.records import Record, Store
from dmtrl.lab.experiments.runner import Experiment, Run, execute, plan_runs
from dmtrl.report.content import Table

SHAPE = Shape(m=6, d=12, rows=30, workers=3)
SETTINGS = Settings(tol=1e-2)


def tasks() -> TaskData:
    return low_rank_tasks(SHAPE.m, SHAPE.d, SHAPE.rows)


def test_one_worker_by_hand() -> None:
    net = Network("x", latency=0.01, bandwidth=1000.0, per_message=0.002)
    # 0.002 + 0.1 to send, 0.01 on the way, 0.5 of work, 0.01 back, 0.002 + 0.2 to take
    assert duration({0: Leg(100, 0.5, 200)}, net) == pytest.approx(0.102 + 0.01 + 0.5 + 0.01 + 0.202)


def test_messages_share_the_servers_link() -> None:
    net = Network("x", latency=0.0, bandwidth=100.0)
    # sent at 1 and at 2; the second is done at 2.1 and its answer taken until 3.1; the first is done at 5, then taken
    assert duration({0: Leg(100, 4.0, 100), 1: Leg(100, 0.1, 100)}, net) == pytest.approx(6.0)
    # nobody works: answers come at 1 and 2, and are taken as they come
    assert duration({0: Leg(100, 0.0, 100), 1: Leg(100, 0.0, 100)}, net) == pytest.approx(3.0)


def test_a_run_is_the_sum_of_its_exchanges() -> None:
    net = Network("x", latency=1.0, bandwidth=1e9)
    exchanges = [Exchange("round", 0.25, {0: Leg(0, 0.5, 0)}), Exchange("round", 0.25, {0: Leg(0, 1.5, 0)})]
    assert replay(exchanges, net) == pytest.approx(0.5 + 2.0 + 4.0)


legs = st.lists(
    st.builds(Leg, st.integers(1, 10**6), st.floats(0, 2), st.integers(1, 10**6)), min_size=1, max_size=8
).map(lambda found: dict(enumerate(found)))


@given(legs, st.floats(0, 1), st.floats(1e3, 1e9))
def test_no_exchange_is_faster_than_its_bounds(found: dict[int, Leg], latency: float, bandwidth: float) -> None:
    seconds = duration(found, Network("x", latency, bandwidth))
    slowest = max(leg.compute + (leg.down + leg.up) / bandwidth for leg in found.values())
    assert seconds >= 2 * latency + slowest - 1e-9
    assert seconds >= sum(leg.down for leg in found.values()) / bandwidth - 1e-9
    assert (
        seconds
        <= sum((leg.down + leg.up) / bandwidth for leg in found.values())
        + 2 * latency
        + max(leg.compute for leg in found.values())
        + 1e-9
    )
    assert seconds <= duration(found, Network("x", latency + 0.1, bandwidth / 2))


@pytest.mark.parametrize("numbers", [(-1.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)])
def test_an_impossible_network_is_refused(numbers: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="latency must be non-negative"):
        Network("x", *numbers)


def test_the_recorder_and_the_emulated_network_change_no_bit() -> None:
    data = tasks()
    alone = solve(data, loss="hinge", reg_lambda=network.LAMBDA, settings=SETTINGS, workers=SHAPE.workers)
    exchanges, outcome = record(data, "hinge", SHAPE.workers, network.LAMBDA, SETTINGS)
    with DelayedEngine(workers_of(data, "hinge", SHAPE.workers), Network("x", 1e-3, 1e8)) as engine:
        delayed = run(engine, data, network.LOSS, network.LAMBDA, SETTINGS)
    np.testing.assert_array_equal(outcome.W, alone.W)
    np.testing.assert_array_equal(delayed.W, alone.W)
    rounds = [exchange for exchange in exchanges if exchange.name == "round"]
    assert len(rounds) == len(alone.history)
    for exchange, record_ in zip(rounds, alone.history, strict=True):
        assert exchange.bytes == record_.bytes_sent + record_.bytes_received
        assert set(exchange.legs) == {0, 1, 2}
        assert all(leg.compute > 0 for leg in exchange.legs.values())


def test_a_worker_that_does_not_answer_in_time_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    (worker,) = workers_of(tasks(), "hinge", 1)
    free, answer = threading.Event(), worker.answer
    monkeypatch.setattr(worker, "answer", lambda message: free.wait() and answer(message))
    with DelayedEngine([worker], Network("x", 0.0, 1e9)) as engine:
        engine.send(0, network.Message("describe"))
        try:
            with pytest.raises(TimeoutError):
                engine.receive(timeout=0.01)
        finally:
            free.set()
        assert engine.receive()[0] == 0


def test_the_recorder_answers_as_its_workers_do() -> None:
    engine = RecordingEngine(workers_of(tasks(), "hinge", SHAPE.workers))
    answers = dict(engine.exchange({k: network.Message("describe") for k in range(engine.n_workers)}))
    assert [answers[k].arrays["rows"].tolist() for k in range(3)] == [[30, 30]] * 3


@pytest.fixture(scope="module")
def measured() -> list[Record]:
    shapes = (Shape(4, 10, 40, 2), Shape(12, 10, 20, 4), Shape(12, 25, 20, 12), Shape(30, 10, 10, 5))
    return [
        Record("bench network", params, {}, network.measure(**params), 1.0)
        for params in ({"what": "costs", **asdict(shape), "quick": True} for shape in shapes)
    ]


def test_the_model_knows_the_bytes_of_a_run_it_has_not_seen(measured: list[Record]) -> None:
    seen = solve(
        tasks(),
        loss="hinge",
        reg_lambda=1e-3,
        settings=SETTINGS,
        workers=SHAPE.workers,
    ).history[0]
    model = fitted(measured).exchange(SHAPE)
    assert sum(leg.down for leg in model.legs.values()) == pytest.approx(seen.bytes_sent, rel=0.02)
    assert sum(leg.up for leg in model.legs.values()) == pytest.approx(seen.bytes_received, rel=0.02)


def test_costs_are_never_negative(measured: list[Record]) -> None:
    cost = fitted(measured)
    assert min(*cost.sent, *cost.received, *cost.compute, *cost.server, cost.per_message) >= 0
    assert cost.sent[2] == pytest.approx(8, rel=1e-3), "a weight travels as eight bytes"
    assert cost.received[2] == pytest.approx(8, rel=1e-3)


def test_the_sizing_table_by_hand() -> None:
    cost = Cost((100.0, 10.0, 8.0), (200.0, 40.0, 8.0), (0.0, 0.0, 1e-9), (0.5, 0.0, 0.0, 0.0), 10.0, 0.0)
    shape = Shape(m=4, d=1000, rows=500_000, workers=2)
    # 2 x 300 + 4 x 50 + 4 x 1000 x 16 bytes; a worker computes 2 x 500,000 x 1000 x 1e-9 = 1 s a round
    assert cost.exchange(shape).bytes == 600 + 200 + 64_000
    seconds = cost.seconds(shape, Network("x", 0.25, 1e12))
    assert seconds == pytest.approx(10 * (0.5 + 0.25 + 1.0 + 0.25), rel=1e-6)
    row = network.sizing(cost, [Network("x", 0.25, 1e12)], [shape]).rows[0]
    assert list(row) == ["4", "1,000", "2,000,000", "2", "4 GB", "64.8 kB", "10", "20 s"]


def test_ten_thousand_workers(measured: list[Record]) -> None:
    cost = fitted(measured)
    exchange = cost.exchange(Shape(10_000, 100, 1_000, 10_000))
    assert len(exchange.legs) == 10_000
    assert exchange.bytes > 10_000 * 100 * 16


def test_a_network_of_ones_own_from_stored_costs(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "MEASURED_QUICK", (Shape(4, 10, 40, 2), Shape(9, 20, 20, 3), Shape(12, 10, 20, 4)))
    plan = plan_runs([network.NETWORK], quick=True)
    assert not execute(plan, Store(tmp_path))
    table = network.sizing_over(tmp_path, True, latency=20.0, bandwidth=100.0, per_message=1.5)
    assert table.columns[-1] == "yours (20 ms, 100 Mbit/s, 1.5 ms per message)"
    assert "Computed, not measured" in table.caption
    drawn = network.section(list(Store(tmp_path).read().values()))
    assert [item.title for item in drawn.items if isinstance(item, Table)][-1] == table.title


def test_a_network_belongs_to_its_own_benchmark() -> None:
    wrong = CliRunner().invoke(main, ["bench", "rounds", "--latency", "20"])
    assert wrong.exit_code == 2
    assert "belong to `dmtrl bench network`" in wrong.output


def test_a_package_that_is_missing_stops_its_own_benchmark_only(tmp_path) -> None:
    def measure(what: str) -> dict[str, int]:
        if what == "far":
            raise ImportError('engine="ray" needs Ray: pip install "dmtrl[ray]"')
        return {"answer": 1}

    plan = [(Experiment(what, lambda quick: [], measure, lambda records: None), Run({"what": what}, 1.0))
            for what in ("far", "near")]  # fmt: skip
    missing = execute(plan, Store(tmp_path))
    assert [(one.experiment, one.reason) for one in missing] == [
        ("far", 'engine="ray" needs Ray: pip install "dmtrl[ray]"')
    ]
    assert [record.experiment for record in Store(tmp_path).read().values()] == ["near"]
