"""How large a problem, on how many workers, over which network: sizes and times from a measured cost model.

Room: bench. `measure` takes real runs on this machine and notes bytes, seconds and rounds; a cost model is fitted to
them; the sizing table is *computed* from it with the simulator, and the simulator is checked against real runs behind a
network that is acted out with pauses.

    dmtrl bench network --latency 20 --bandwidth 100 --per-message 1
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from dmtrl.data.task_data import TaskData
from dmtrl.lab.bench.simulator import Delayed, Exchange, Leg, Network, duration, record, replay, run, workers_of
from dmtrl.lab.experiments.records import Record, Store
from dmtrl.lab.experiments.runner import Experiment, Run
from dmtrl.protocol.message import Message
from dmtrl.report.content import LineChart, Section, Series, Table, Text
from dmtrl.solver.settings import Settings

GAP, LAMBDA = 1e-3, 1e-3
MEGABIT = 1e6 / 8
NETWORKS = (
    Network("one rack", 0.1e-3, 10_000 * MEGABIT),
    Network("one cloud region", 1e-3, 5_000 * MEGABIT),
    Network("between cities", 20e-3, 100 * MEGABIT),
)
ACTED = Network("acted out", 5e-3, 10 * MEGABIT)


@dataclass(frozen=True)
class Shape:
    """A problem laid out: m tasks of `rows` rows each and d features, on so many workers."""

    m: int
    d: int
    rows: int
    workers: int


MEASURED = (
    Shape(16, 100, 800, 4), Shape(100, 30, 200, 20), Shape(100, 100, 200, 10), Shape(400, 50, 100, 40),
    Shape(400, 200, 50, 10), Shape(1000, 50, 50, 100), Shape(600, 500, 20, 10),
)  # fmt: skip
MEASURED_QUICK = (Shape(8, 50, 1000, 2), Shape(24, 20, 60, 8), Shape(60, 40, 40, 4), Shape(20, 100, 100, 2))
SIZES = (
    Shape(139, 28, 110, 3),
    Shape(1_000, 100, 1_000, 10),
    Shape(1_000, 100, 1_000, 100),
    Shape(1_000, 1_000, 1_000, 100),
    Shape(1_000, 1_000, 1_000, 1_000),
    Shape(10_000, 100, 1_000, 100),
    Shape(10_000, 100, 1_000, 1_000),
    Shape(10_000, 100, 1_000, 10_000),
    Shape(10_000, 100, 100_000, 10_000),
)


@dataclass(frozen=True)
class Cost:
    """What a round costs, as fitted: bytes and seconds by worker, task, weight (m d) and number of the data."""

    sent: tuple[float, float, float]  # bytes: by worker, by task, by weight
    received: tuple[float, float, float]
    compute: tuple[float, float, float]  # seconds of a worker in a round: always, by task, by number of its rows
    server: tuple[float, float, float, float]  # seconds: always, by worker, by weight, by weight x min(m, d)
    rounds: float
    per_message: float  # seconds to write a message out, or to read it in

    def exchange(self, at: Shape) -> Exchange:
        """One round of a shape, as if it had been recorded."""
        tasks = np.diff(np.linspace(0, at.m, at.workers + 1).round()).astype(int)
        weights = at.m * at.d
        server = (1, at.workers, weights, weights * min(at.m, at.d))
        legs = {
            k: Leg(
                round(np.dot(self.sent, (1, count, count * at.d))),
                float(np.dot(self.compute, (1, count, count * at.rows * at.d))),
                round(np.dot(self.received, (1, count, count * at.d))),
            )
            for k, count in enumerate(tasks.tolist())
        }
        return Exchange("round", float(np.dot(self.server, server)), legs)

    def seconds(self, at: Shape, network: Network) -> float:
        """Of a whole fit, computed."""
        exchange = self.exchange(at)
        over = Network(network.name, network.latency, network.bandwidth, network.per_message + self.per_message)
        return self.rounds * (exchange.server + duration(exchange.legs, over))


def runs(quick: bool) -> list[Run]:
    shapes = MEASURED_QUICK if quick else MEASURED
    fits = [Run({"what": "costs", **asdict(shape), "quick": quick}, 1 if quick else 5) for shape in shapes]
    return [*fits, Run({"what": "check", "quick": quick}, 2 if quick else 20)]


def measure(what: str, quick: bool, **shape: int) -> Mapping[str, Any]:
    return _check(quick) if what == "check" else _costs(Shape(**shape), quick)


def make_tasks(shape: Shape) -> TaskData:
    """Tasks whose true weights have rank three, labels with noise."""
    rng = np.random.default_rng(0)
    W = rng.standard_normal((shape.m, 3)) @ rng.standard_normal((3, shape.d))
    X = rng.standard_normal((shape.m * shape.rows, shape.d), dtype=np.float32) / np.float32(np.sqrt(shape.d))
    task = np.repeat(np.arange(shape.m), shape.rows)
    score = np.einsum("ij,ij->i", X, W[task])
    return TaskData.from_long(X, np.where(score + rng.standard_normal(len(score)) > 0, 1.0, -1.0), task)


def _settings(quick: bool) -> Settings:
    return Settings(tol=10 * GAP if quick else GAP, max_rounds=200)


def _costs(shape: Shape, quick: bool) -> Mapping[str, Any]:
    exchanges, outcome = record(make_tasks(shape), "hinge", shape.workers, LAMBDA, _settings(quick))
    rounds = [exchange for exchange in exchanges if exchange.name == "round"]
    legs = [list(exchange.legs.values()) for exchange in rounds]
    sizes = [[leg.down, leg.up] for leg in legs[0]]
    return {
        "rounds": len(rounds),
        "gap": outcome.certificate.relative_gap,
        "sent": sum(down for down, _ in sizes),
        "received": sum(up for _, up in sizes),
        "server": float(np.median([exchange.server for exchange in rounds])),
        "compute": [float(np.mean([leg[k].compute for leg in legs])) for k in range(shape.workers)],
        "tasks": np.diff(np.linspace(0, shape.m, shape.workers + 1).round()).astype(int),
        "per_message": _wire_seconds(shape.d),
    }


def _wire_seconds(d: int) -> float:
    """To write out or read in a message with the weights of one task: half the median of both."""
    message = Message("round", {"round": 1, "target": 0.1, "relax": 0.6}, {"w": np.zeros((1, d)), "step": np.zeros(1)})
    seconds = []
    for _ in range(200):
        began = time.perf_counter()
        Message.decode(message.encode())
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)) / 2


def fitted(records: Sequence[Record]) -> Cost:
    """The cost model, by least squares without negative costs."""
    measured = [(Shape(**_shape(record)), record.figures) for record in records if record.params["what"] == "costs"]
    by_worker = np.array([[s.workers, s.m, s.m * s.d] for s, _ in measured], dtype=float)
    work = np.array([[1.0, t, t * s.rows * s.d] for s, figures in measured for t in figures["tasks"]], dtype=float)
    seconds = np.array([value for _, figures in measured for value in figures["compute"]])
    server = np.array([[1.0, s.workers, s.m * s.d, s.m * s.d * min(s.m, s.d)] for s, _ in measured])
    each = np.array([figures["server"] for _, figures in measured])
    return Cost(
        _least(by_worker, np.array([figures["sent"] for _, figures in measured], dtype=float)),  # type: ignore[arg-type]
        _least(by_worker, np.array([figures["received"] for _, figures in measured], dtype=float)),  # type: ignore[arg-type]
        _least(work, seconds),  # type: ignore[arg-type]
        _least(server, each),  # type: ignore[arg-type]
        float(np.median([figures["rounds"] for _, figures in measured])),
        float(np.median([figures["per_message"] for _, figures in measured])),
    )


def _shape(record: Record) -> dict[str, int]:
    return {name: int(record.params[name]) for name in ("m", "d", "rows", "workers")}


def _least(A: np.ndarray, b: np.ndarray) -> tuple[float, ...]:
    """Errors count by the square root of what was measured: what is large matters, what is small is not forgotten."""
    weight = 1.0 / np.sqrt(np.maximum(b, 1e-12))
    A = A * weight[:, None]
    scale = np.linalg.norm(A, axis=0)
    found, _ = nnls(A / scale, b * weight)
    return tuple(float(value) for value in found / scale)


def _check(quick: bool) -> Mapping[str, Any]:
    """The same fit predicted from a run without a network, and measured with one acted out."""
    shape = Shape(8, 40, 100, 2) if quick else Shape(24, 200, 400, 4)
    data, settings = make_tasks(shape), _settings(quick)
    figures: dict[str, Any] = {"shape": asdict(shape), "networks": {}}
    networks = (ACTED,) if quick else (ACTED, Network("acted out", 50e-3, 100 * MEGABIT, 1e-3))
    for network in networks:
        exchanges, outcome = record(data, "hinge", shape.workers, LAMBDA, settings)
        workers = workers_of(data, "hinge", shape.workers)
        with Delayed(workers, network) as engine:
            began = time.perf_counter()
            again = run(engine, data, "hinge", LAMBDA, settings)
            measured = time.perf_counter() - began
        figures["networks"][_words(network)] = {
            "predicted": replay(exchanges, network),
            "measured": measured,
            "rounds": len(outcome.history),
            "same": bool(np.array_equal(outcome.W, again.W)),
        }
    return figures


def _words(network: Network) -> str:
    extra = f", {1e3 * network.per_message:g} ms a message" if network.per_message else ""
    return f"{1e3 * network.latency:g} ms, {network.bandwidth / MEGABIT:,.0f} Mbit/s{extra}"


def sizing(cost: Cost, networks: Sequence[Network], sizes: Sequence[Shape] = SIZES) -> Table:
    """The sizing table: everything in it is computed from the cost model."""
    rows = []
    for at in sizes:
        round_bytes = cost.exchange(at).bytes
        mine = at.m * at.rows * at.d * 4 / at.workers
        start = [f"{at.m:,}", f"{at.d:,}", f"{at.m * at.rows:,}", f"{at.workers:,}", _size(mine), _size(round_bytes)]
        rows.append([*start, f"{cost.rounds:.0f}", *(_time(cost.seconds(at, network)) for network in networks)])
    names = [f"{network.name} ({_words(network)})" for network in networks]
    return Table(
        "Sizes and times, computed",
        ["tasks", "features", "rows", "workers", "data a worker", "bytes a round", "rounds", *names],
        rows,
        "Computed, not measured: the cost model fitted to the runs above, extrapolated by the simulator for dense "
        "float32 rows, hinge loss, a joint gap of 0.001, tasks whole and spread evenly, every worker on a core of its "
        "own, all on the server's one link. Rounds depend on data and lambda, hardly on workers: the median of the "
        "runs above. What an engine does for each message beside sending it is not in it, unless given as "
        "--per-message.",
    )


def sizing_over(
    folder: Path, quick: bool, latency: float | None, bandwidth: float | None, per_message: float | None
) -> Table:
    """The sizing table for a network of so many milliseconds and Mbit/s, from the costs measured in `folder`."""
    known = Store(folder).read()
    records = [known[NETWORK.key(run)] for run in runs(quick) if NETWORK.key(run) in known]
    rack = NETWORKS[0]
    network = Network(
        "yours",
        rack.latency if latency is None else 1e-3 * latency,
        rack.bandwidth if bandwidth is None else MEGABIT * bandwidth,
        1e-3 * (per_message or 0.0),
    )
    return sizing(fitted(records), [network])


def _size(count: float) -> str:
    for unit, width in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= width:
            return f"{count / width:.3g} {unit}"
    return f"{count:.0f} B"


def _time(seconds: float) -> str:
    return (
        f"{seconds:.2g} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


def measured_table(records: Sequence[Record], cost: Cost) -> Table:
    rows = []
    for one in records:
        if one.params["what"] == "costs":
            at, f = Shape(**_shape(one)), one.figures
            model = cost.exchange(at)
            computed = np.mean([leg.compute for leg in model.legs.values()])
            rows.append(
                [
                    f"{at.m:,} x {at.d}", f"{at.m * at.rows:,}", f"{at.workers}", f"{f['rounds']}",
                    _size(f["sent"] + f["received"]), _size(model.bytes),
                    f"{1e3 * np.mean(f['compute']):.2g}", f"{1e3 * computed:.2g}",
                    f"{1e3 * f['server']:.2g}", f"{1e3 * model.server:.2g}",
                ]
            )  # fmt: skip
    return Table(
        "Costs of a round, measured, and as the model says",
        [
            "tasks x features",
            "rows",
            "workers",
            "rounds",
            "bytes",
            "model",
            "worker ms",
            "model ",
            "server ms",
            "model  ",
        ],
        rows,
        "Processor time in a round: of a worker the mean, of the server the median. Bytes are of the messages as a "
        "wire would carry them, both ways.",
    )


def cost_table(cost: Cost) -> Table:
    def nano(value: float) -> str:
        return f"{1e9 * value:.3g}"

    rows = [
        ["bytes sent", "", f"{cost.sent[0]:.0f}", f"{cost.sent[1]:.0f}", f"{cost.sent[2]:.1f}", "", ""],
        ["bytes received", "", f"{cost.received[0]:.0f}", f"{cost.received[1]:.0f}", f"{cost.received[2]:.1f}", "", ""],
        ["ns of a worker", nano(cost.compute[0]), "", nano(cost.compute[1]), "", "", nano(cost.compute[2])],
        ["ns of the server", *map(nano, cost.server[:2]), "", nano(cost.server[2]), nano(cost.server[3]), ""],
        ["ns to write or read a message", nano(cost.per_message), "", "", "", "", ""],
    ]
    return Table(
        "The cost model of a round",
        ["", "always", "a worker", "a task", "a weight", "a weight x min(m, d)", "a number of the rows"],
        rows,
        "Fitted to the runs above by least squares, nothing below zero. A worker's always, tasks and numbers are those "
        "of its own rows; a weight is one of m x d.",
    )


def check_table(records: Sequence[Record]) -> Table:
    rows = [
        [
            words,
            f"{f['rounds']}",
            f"{f['predicted']:.2f}",
            f"{f['measured']:.2f}",
            f"{f['measured'] / f['predicted']:.2f}",
        ]
        for one in records
        if one.params["what"] == "check"
        for words, f in one.figures["networks"].items()
    ]
    return Table(
        "The simulator against real runs behind a network of pauses",
        ["network", "rounds", "predicted s", "measured s", "measured / predicted"],
        rows,
        "Predicted from a run without a network; measured with every message held up as the network would hold it up, "
        "workers as threads of this machine. What a thread waits for a core, or longer than a pause asks, is not in "
        "the prediction.",
    )


def section(records: Sequence[Record]) -> Section:
    cost = fitted(records)
    workers = [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000]
    chart = LineChart(
        "10,000 tasks of 1,000 rows and 100 features, computed",
        "workers",
        "seconds",
        [
            Series(net.name, workers, [cost.seconds(Shape(10_000, 100, 1_000, w), net) for w in workers])
            for net in NETWORKS
        ],
        "Seconds of a fit over the number of workers: they fall until the server's link is the bottleneck.",
        log_x=True,
        log_y=True,
    )
    return Section(
        "Over a network",
        [
            Text(
                "Real runs give the bytes and seconds of a round; a simulator says what they come to on more workers "
                "and over a slower network."
            ),
            measured_table(records, cost),
            cost_table(cost),
            check_table(records),
            sizing(cost, NETWORKS),
            chart,
        ],
    )


NETWORK = Experiment("bench network", runs, measure, section, {"gap": GAP, "reg_lambda": LAMBDA, "loss": "hinge"})
