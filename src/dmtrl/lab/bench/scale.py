"""Growth: time and memory over the number of tasks and rows, up to 100,000 tasks.

Every size runs in its own process (`scale_run`). The growth exponent is the slope of log(time) over log(size), by least
squares over all sizes, and between the two largest.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dmtrl.lab.bench.scale_run import ENTRIES, GAP, LAMBDAS, RANK
from dmtrl.lab.experiments.records import Record, machines
from dmtrl.lab.experiments.runner import Experiment, Run
from dmtrl.report.content import LineChart, Section, Series, Table, Text

TASKS = (100, 1_000, 10_000, 100_000)
GIBIBYTES = (0.125, 1.0, 4.0, 8.0)
TASK = {"rows": 50, "d": 100, "dtype": "float32"}
MOST = 2.5  # times the size of the data: the maximum memory a run needs


def runs(quick: bool) -> list[Run]:
    sizes, losses = ((50, 200), ("squared",)) if quick else (TASKS, ("squared", "hinge"))
    shapes: list[dict[str, Any]] = [
        {"part": "tasks", "kind": "solve", "m": m, "loss": loss, **TASK} for loss in losses for m in sizes
    ]
    for gibibytes in (0.002, 0.008) if quick else GIBIBYTES:
        m, d = (10, 100) if quick else (1000, 100)
        rows = int(gibibytes * 2**30 / (4 * (d + 1) * m))
        shapes.append(
            {"part": "rows", "kind": "solve", "m": m, "loss": "hinge", "rows": rows, "d": d, "dtype": "float32"}
        )
    return held_in_memory(shapes)


def held_in_memory(shapes: Sequence[Mapping[str, Any]]) -> list[Run]:
    """Return a run for each shape that this machine can hold."""
    held = [shape for shape in shapes if MOST * _bytes(**shape) <= _machine_memory()]
    return [Run(shape, 4 + 4e-5 * shape["m"] * shape["rows"]) for shape in held]


def _bytes(m: int, rows: int, d: int, thin: bool = False, **_: Any) -> int:
    return 4 * m * rows * (2 * ENTRIES if thin else d)


def _machine_memory() -> float:
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):  # unknown: leave nothing out
        return float("inf")


def measure(**params: Any) -> Mapping[str, Any]:
    """Measure one size in a fresh process."""
    command = [sys.executable, "-m", "dmtrl.lab.bench.scale_run", json.dumps(params)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["the process was killed, possibly because memory ran out"])[-1]
        raise RuntimeError(f"bench scale failed at {json.dumps(params)}: {last}")
    figures: Mapping[str, Any] = json.loads(done.stdout)
    return figures


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return b of the least-squares fit log(value) = a + b log(size)."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def growth(sizes: Sequence[float], values: Sequence[float]) -> str:
    """Return the exponent over all sizes, and between the two largest."""
    if len(sizes) < 2:
        return ""
    return f"{exponent(sizes, values):.2f}, {exponent(sizes[-2:], values[-2:]):.2f}"


def section(records: Sequence[Record]) -> Section:
    of = {part: [r for r in records if r.params["part"] == part] for part in ("tasks", "rows")}
    tasks, rows = of["tasks"], of["rows"]
    return Section(
        "Scaling",
        [
            Text(
                f"One model per task and the relations between them, to a joint relative gap of {GAP:g}, on all cores. "
                f"The true weights have rank {RANK}; features are standard normal, and the noise has half the size of "
                "the signal. Every size runs in its own process. Peak memory is the maximum resident size minus that "
                f"before the data is created; it includes the data. Machine: {machines(records)}."
            ),
            _chart("Time per round over the number of tasks", "tasks", tasks, lambda r: r.params["m"]),
            _sizes("Scaling with the number of tasks", "tasks", tasks, lambda r: r.params["m"]),
            _sizes("Scaling with the number of rows", "rows", rows, _rows),
            _growths(tasks, rows),
        ],
    )


def _rows(record: Record) -> int:
    return int(record.params["m"] * record.params["rows"])


def _by_loss(records: Sequence[Record]) -> dict[str, list[Record]]:
    return {
        loss: [r for r in records if r.params["loss"] == loss]
        for loss in dict.fromkeys(r.params["loss"] for r in records)
    }


def _chart(title: str, label: str, records: Sequence[Record], size: Any) -> LineChart:
    lines = []
    for group, (loss, mine) in enumerate(_by_loss(records).items()):
        lines.append(Series(loss, [size(r) for r in mine], [r.figures["round"] for r in mine], group=group))
    alt, caption = "Seconds per round are proportional to the number of tasks.", "Mean over the rounds of a fit."
    return LineChart(title, label, "seconds", lines, alt, log_x=True, log_y=True, caption=caption)


def _sizes(title: str, label: str, records: Sequence[Record], size: Any) -> Table:
    table = []
    for r in records:
        f, p = r.figures, r.params
        table.append(
            [
                p["loss"],
                f"{size(r):,}",
                f"{p['d']:,}",
                f"{f['data'] / 2**20:,.0f}",
                f"{f['peak'] / f['data']:.2f}",
                f"{f['weights'] / 2**20:,.1f}",
                f"{f['rounds']}",
                f"{f['gap']:.1e}",
                f"{f['round']:.3g}",
                f"{f['seconds']:.3g}",
            ]
        )
    head = ["loss", label, "features", "data, MiB", "peak / data", "W, MiB", "rounds", "gap"]
    head += ["s per round", "total s"]
    losses = ", ".join(f"{loss} {LAMBDAS[loss]:g}" for loss in dict.fromkeys(r.params["loss"] for r in records))
    return Table(
        title,
        head,
        table,
        f"lambda: {losses}. W is one (tasks, features) array in float64. For a few MiB of data, the peak is mostly "
        "overhead of the process. The total includes creating the data.",
    )


def _growths(tasks: Sequence[Record], rows: Sequence[Record]) -> Table:
    table = []
    for what, records, size in (("tasks", tasks, lambda r: r.params["m"]), ("rows", rows, _rows)):
        for loss, mine in _by_loss(records).items():
            table.append([what, loss, growth([size(r) for r in mine], [r.figures["round"] for r in mine])])
    return Table(
        "Growth exponents",
        ["over", "loss", "seconds per round"],
        table,
        "1 means proportional. By least squares over all sizes, and between the two largest.",
    )


SCALE = Experiment("bench scale", runs, measure, section, {"gap": GAP, "lambdas": LAMBDAS, "solver_seed": 0})
