"""Sizing: bytes and times by problem size, number of workers and network, from a measured cost model.

Real runs on this machine give bytes, seconds and rounds, and a cost model is fitted to them. The sizing table is
*computed* from the model with the simulator, which is checked against runs behind an emulated network.

    dmtrl bench network --latency 20 --bandwidth 100 --per-message 1
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from dmtrl.lab.bench.simulator import DelayedEngine, Exchange, Leg, Network, duration, record, replay, run, workers_of
from dmtrl.lab.bench.tasks import low_rank_tasks
from dmtrl.lab.experiments.records import Record, Store
from dmtrl.lab.experiments.runner import Experiment, Run
from dmtrl.protocol.message import Message
from dmtrl.report.content import LineChart, Section, Series, Table, Text
from dmtrl.solver.settings import Settings

LOSS, GAP, LAMBDA = "hinge", 1e-3, 1e-3
MEGABIT = 1e6 / 8
NETWORKS = (
    Network("one rack", 0.1e-3, 10_000 * MEGABIT),
    Network("one cloud region", 1e-3, 5_000 * MEGABIT),
    Network("between cities", 20e-3, 100 * MEGABIT),
)
EMULATED = Network("emulated", 5e-3, 10 * MEGABIT)


@dataclass(frozen=True)
class Shape:
    """m tasks with `rows` rows each and d features, on `workers` workers."""

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
    """The fitted cost of a round: bytes and seconds by worker, task, weight (of m d) and number in the rows."""

    sent: tuple[float, float, float]  # bytes: by worker, by task, by weight
    received: tuple[float, float, float]
    compute: tuple[float, float, float]  # seconds of a worker per round: constant, by task, by number in its rows
    server: tuple[float, float, float, float]  # seconds: constant, by worker, by weight, by weight x min(m, d)
    rounds: float
    per_message: float  # seconds to encode or decode a message

    def exchange(self, at: Shape) -> Exchange:
        """Return the modelled exchange of one round."""
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
        """Return the modelled seconds of a whole fit."""
        exchange = self.exchange(at)
        over = Network(network.name, network.latency, network.bandwidth, network.per_message + self.per_message)
        return self.rounds * (exchange.server + duration(exchange.legs, over))


def runs(quick: bool) -> list[Run]:
    shapes = MEASURED_QUICK if quick else MEASURED
    fits = [Run({"what": "costs", **asdict(shape), "quick": quick}, 1 if quick else 5) for shape in shapes]
    return [*fits, Run({"what": "check", "quick": quick}, 2 if quick else 20)]


def measure(what: str, quick: bool, **shape: int) -> Mapping[str, Any]:
    return _check(quick) if what == "check" else _costs(Shape(**shape), quick)


def _settings(quick: bool) -> Settings:
    return Settings(tol=10 * GAP if quick else GAP, max_rounds=200)


def _costs(shape: Shape, quick: bool) -> Mapping[str, Any]:
    exchanges, outcome = record(
        low_rank_tasks(shape.m, shape.d, shape.rows), LOSS, shape.workers, LAMBDA, _settings(quick)
    )
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
        "per_message": _encoding_seconds(shape.d),
    }


def _encoding_seconds(d: int) -> float:
    """Return the seconds to encode or decode a message with the weights of one task: half the median of both."""
    message = Message("round", {"round": 1, "target": 0.1, "relax": 0.6}, {"w": np.zeros((1, d)), "step": np.zeros(1)})
    seconds = []
    for _ in range(200):
        began = time.perf_counter()
        Message.decode(message.encode())
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)) / 2


def fitted(records: Sequence[Record]) -> Cost:
    """Return the cost model, by non-negative least squares."""
    measured = [(Shape(**_shape(record)), record.figures) for record in records if record.params["what"] == "costs"]
    by_worker = np.array([[s.workers, s.m, s.m * s.d] for s, _ in measured], dtype=float)
    work = np.array([[1.0, t, t * s.rows * s.d] for s, figures in measured for t in figures["tasks"]], dtype=float)
    seconds = np.array([value for _, figures in measured for value in figures["compute"]])
    server = np.array([[1.0, s.workers, s.m * s.d, s.m * s.d * min(s.m, s.d)] for s, _ in measured])
    each = np.array([figures["server"] for _, figures in measured])
    return Cost(
        _fit_costs(by_worker, np.array([figures["sent"] for _, figures in measured], dtype=float)),  # type: ignore[arg-type]
        _fit_costs(by_worker, np.array([figures["received"] for _, figures in measured], dtype=float)),  # type: ignore[arg-type]
        _fit_costs(work, seconds),  # type: ignore[arg-type]
        _fit_costs(server, each),  # type: ignore[arg-type]
        float(np.median([figures["rounds"] for _, figures in measured])),
        float(np.median([figures["per_message"] for _, figures in measured])),
    )


def _shape(record: Record) -> dict[str, int]:
    return {name: int(record.params[name]) for name in ("m", "d", "rows", "workers")}


def _fit_costs(A: np.ndarray, b: np.ndarray) -> tuple[float, ...]:
    """Non-negative least squares, with errors weighted by one over the square root of the measurement."""
    weight = 1.0 / np.sqrt(np.maximum(b, 1e-12))
    A = A * weight[:, None]
    scale = np.linalg.norm(A, axis=0)
    found, _ = nnls(A / scale, b * weight)
    return tuple(float(value) for value in found / scale)


def _check(quick: bool) -> Mapping[str, Any]:
    """Compare the predicted time of a fit with a run behind an emulated network."""
    shape = Shape(8, 40, 100, 2) if quick else Shape(24, 200, 400, 4)
    data, settings = low_rank_tasks(shape.m, shape.d, shape.rows), _settings(quick)
    figures: dict[str, Any] = {"shape": asdict(shape), "networks": {}}
    networks = (EMULATED,) if quick else (EMULATED, Network("emulated", 50e-3, 100 * MEGABIT, 1e-3))
    for network in networks:
        exchanges, outcome = record(data, LOSS, shape.workers, LAMBDA, settings)
        workers = workers_of(data, LOSS, shape.workers)
        with DelayedEngine(workers, network) as engine:
            began = time.perf_counter()
            again = run(engine, data, LOSS, LAMBDA, settings)
            measured = time.perf_counter() - began
        figures["networks"][_describe(network)] = {
            "predicted": replay(exchanges, network),
            "measured": measured,
            "rounds": len(outcome.history),
            "same": bool(np.array_equal(outcome.W, again.W)),
        }
    return figures


def _describe(network: Network) -> str:
    extra = f", {1e3 * network.per_message:g} ms per message" if network.per_message else ""
    return f"{1e3 * network.latency:g} ms, {network.bandwidth / MEGABIT:,.0f} Mbit/s{extra}"


def sizing(cost: Cost, networks: Sequence[Network], sizes: Sequence[Shape] = SIZES) -> Table:
    """Return the sizing table, computed from the cost model."""
    rows = []
    for at in sizes:
        round_bytes = cost.exchange(at).bytes
        mine = at.m * at.rows * at.d * 4 / at.workers
        start = [f"{at.m:,}", f"{at.d:,}", f"{at.m * at.rows:,}", f"{at.workers:,}", _size(mine), _size(round_bytes)]
        rows.append([*start, f"{cost.rounds:.0f}", *(_time(cost.seconds(at, network)) for network in networks)])
    names = [f"{network.name} ({_describe(network)})" for network in networks]
    return Table(
        "Sizes and times, computed",
        ["tasks", "features", "rows", "workers", "data per worker", "bytes per round", "rounds", *names],
        rows,
        "Computed, not measured: the cost model of the runs above, extrapolated by the simulator for dense float32 "
        "rows, hinge loss, a joint gap of 0.001, whole tasks spread evenly, one core per worker, and one link of the "
        "coordinator. The number of rounds is the median of the runs above; it depends on data and lambda, hardly on "
        "workers. The overhead of an engine per message is not included, unless given as --per-message.",
    )


def sizing_over(
    folder: Path, quick: bool, latency: float | None, bandwidth: float | None, per_message: float | None
) -> Table:
    """Return the sizing table for latency and per_message in milliseconds and bandwidth in Mbit/s, from `folder`."""
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
        "Costs of a round: measured and modelled",
        [
            "tasks x features",
            "rows",
            "workers",
            "rounds",
            "bytes",
            "model",
            "worker ms",
            "model ",
            "coordinator ms",
            "model  ",
        ],
        rows,
        "Processor time per round: the mean of the workers, the median of the coordinator. Bytes are those of the "
        "encoded messages, in both directions.",
    )


def cost_table(cost: Cost) -> Table:
    def nano(value: float) -> str:
        return f"{1e9 * value:.3g}"

    rows = [
        ["bytes sent", "", f"{cost.sent[0]:.0f}", f"{cost.sent[1]:.0f}", f"{cost.sent[2]:.1f}", "", ""],
        ["bytes received", "", f"{cost.received[0]:.0f}", f"{cost.received[1]:.0f}", f"{cost.received[2]:.1f}", "", ""],
        ["ns, worker", nano(cost.compute[0]), "", nano(cost.compute[1]), "", "", nano(cost.compute[2])],
        ["ns, coordinator", *map(nano, cost.server[:2]), "", nano(cost.server[2]), nano(cost.server[3]), ""],
        ["ns to encode or decode a message", nano(cost.per_message), "", "", "", "", ""],
    ]
    return Table(
        "The cost model of a round",
        ["", "constant", "per worker", "per task", "per weight", "per weight x min(m, d)", "per number in the rows"],
        rows,
        "Fitted to the runs above by non-negative least squares. The costs of a worker are per task and number of its "
        "own rows; there are m x d weights.",
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
        "Simulator and runs behind an emulated network",
        ["network", "rounds", "predicted s", "measured s", "measured / predicted"],
        rows,
        "Predicted from a run without a network; measured with a pause for every message, and workers as threads of "
        "this machine. The prediction does not include waiting for a core, or pauses that take longer than requested.",
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
        "Seconds of a fit over the number of workers: they fall until the coordinator's link is the bottleneck.",
        log_x=True,
        log_y=True,
    )
    return Section(
        "Estimates over a network",
        [
            Text(
                "Real runs give the bytes and seconds of a round; a simulator extrapolates them to more workers and "
                "slower networks."
            ),
            measured_table(records, cost),
            cost_table(cost),
            check_table(records),
            sizing(cost, NETWORKS),
            chart,
        ],
    )


NETWORK = Experiment("bench network", runs, measure, section, {"gap": GAP, "reg_lambda": LAMBDA, "loss": LOSS})
