"""Growth: time and memory over the number of tasks and rows, up to 100,000 tasks.

Every size runs in its own process (`scale_run`). The growth exponent is the slope of log(time) over log(size), by least
squares over all sizes, and between the two largest.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dmtrl.report.content import Item, LineChart, Series, Table, Text
from dmtrl_lab.bench.scale_run import ENTRIES, GAP, LAMBDAS, RANK
from dmtrl_lab.experiments.experiment import Experiment, Figures, Record, Records, Run, machines, select, table

TASKS = (100, 1_000, 10_000, 100_000)
GIBIBYTES = (0.125, 1.0, 4.0, 8.0)
TASK: dict[str, Any] = {"rows": 50, "d": 100, "dtype": "float32"}
MOST = 2.5  # times the size of the data: the maximum memory a run needs


def runs(quick: bool) -> list[Run]:
    sizes, losses = ((50, 200), ("squared",)) if quick else (TASKS, ("squared", "hinge"))
    shapes: list[dict[str, Any]] = [
        {"part": "tasks", "kind": "solve", "m": m, "loss": loss, **TASK} for loss in losses for m in sizes
    ]
    for gibibytes in (0.002, 0.008) if quick else GIBIBYTES:
        m = 10 if quick else 1000
        rows = int(gibibytes * 2**30 / (4 * (TASK["d"] + 1) * m))
        shapes.append({"part": "rows", "kind": "solve", "m": m, "loss": "hinge", **TASK, "rows": rows})
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


def measure(**params: Any) -> Figures:
    """Measure one size in a fresh process."""
    command = [sys.executable, "-m", "dmtrl_lab.bench.scale_run", json.dumps(params)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["the process was killed, possibly because memory ran out"])[-1]
        raise RuntimeError(f"bench scale failed at {json.dumps(params)}: {last}")
    figures: Figures = json.loads(done.stdout)
    return figures


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return b of the least-squares fit log(value) = a + b log(size)."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def growth(sizes: Sequence[float], values: Sequence[float]) -> str:
    """Return the exponent over all sizes, and between the two largest."""
    if len(sizes) < 2:
        return ""
    return f"{exponent(sizes, values):.2f}, {exponent(sizes[-2:], values[-2:]):.2f}"


def items(records: Records) -> list[Item]:
    tasks, rows = (select(records, part=part) for part in SIZE)
    lines = [
        Series(loss, [r.params["m"] for r in mine], [r.figures["round"] for r in mine], group=group)
        for group, (loss, mine) in enumerate(_by_loss(tasks).items())
    ]
    growths = [
        {
            "over": part,
            "loss": loss,
            "seconds per round": growth([SIZE[part](r) for r in mine], [r.figures["round"] for r in mine]),
        }
        for part in SIZE
        for loss, mine in _by_loss(select(records, part=part)).items()
    ]
    return [
        Text(
            f"One model per task and the relations between them, to a joint relative gap of {GAP:g}, on all cores. The "
            f"true weights have rank {RANK}; features are standard normal, and the noise has half the size of the "
            "signal. Every size runs in its own process. Peak memory is the maximum resident size minus that before "
            f"the data is created; it includes the data. Machine: {machines(records)}."
        ),
        LineChart(
            "Time per round over the number of tasks",
            "tasks",
            "seconds",
            lines,
            "Seconds per round are proportional to the number of tasks.",
            log_x=True,
            log_y=True,
            caption="Mean over the rounds of a fit.",
        ),
        _sizes("tasks", tasks),
        _sizes("rows", rows),
        table(
            "Growth exponents",
            growths,
            "1 means proportional. By least squares over all sizes, and between the two largest.",
        ),
    ]


SIZE: dict[str, Callable[[Record], int]] = {
    "tasks": lambda r: int(r.params["m"]),
    "rows": lambda r: int(r.params["m"] * r.params["rows"]),
}


def _by_loss(records: Records) -> dict[str, list[Record]]:
    return {loss: select(records, loss=loss) for loss in dict.fromkeys(r.params["loss"] for r in records)}


def _sizes(part: str, records: Records) -> Table:
    rows = [
        {
            "loss": r.params["loss"],
            part: f"{SIZE[part](r):,}",
            "features": f"{r.params['d']:,}",
            "data, MiB": f"{r.figures['data'] / 2**20:,.0f}",
            "peak / data": f"{r.figures['peak'] / r.figures['data']:.2f}",
            "W, MiB": f"{r.figures['weights'] / 2**20:,.1f}",
            "rounds": f"{r.figures['rounds']}",
            "gap": f"{r.figures['gap']:.1e}",
            "s per round": f"{r.figures['round']:.3g}",
            "total s": f"{r.figures['seconds']:.3g}",
        }
        for r in records
    ]
    losses = ", ".join(f"{loss} {LAMBDAS[loss]:g}" for loss in _by_loss(records))
    return table(
        f"Scaling with the number of {part}",
        rows,
        f"lambda: {losses}. W is one (tasks, features) array in float64. For a few MiB of data, the peak is mostly "
        "overhead of the process. The total includes creating the data.",
    )


SETTINGS = {"gap": GAP, "lambdas": LAMBDAS, "solver_seed": 0}
SCALE = Experiment("bench scale", "Scaling", runs, measure, items, SETTINGS)
