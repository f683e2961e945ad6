"""Peak memory of large fits, in multiples of the data.

Every fit runs in its own process (`scale_run`). The data, which the caller holds, is part of the peak.
"""

from typing import Any

from dmtrl.report.content import Item, Text
from dmtrl_lab.bench.scale import TASK, held_in_memory, measure
from dmtrl_lab.bench.scale_run import ENTRIES, GAP, LAMBDAS
from dmtrl_lab.experiments.experiment import Experiment, Record, Records, Run, machines, table

DENSE, SPARSE, SOLVE = "MTRLRegressor.fit, dense rows", "MTRLClassifier.fit, sparse rows", "solve, sparse rows"
TARGETS = {DENSE: 2.2, SPARSE: 2.5, SOLVE: 2.5}


def runs(quick: bool) -> list[Run]:
    wide: dict[str, Any] = {"m": 20, "rows": 20, "d": 600} if quick else {"m": 1000, "rows": 500, "d": 10_000}
    sparse = {"loss": "logistic", "dtype": "float32", "thin": True, **wide}
    return held_in_memory(
        [
            {"what": DENSE, "kind": "fit", "m": 200 if quick else 100_000, **TASK},
            {"what": SPARSE, "kind": "fit", **sparse},
            {"what": SOLVE, "kind": "solve", **sparse},
        ]
    )


def table_row(record: Record) -> dict[str, object]:
    params, figures = record.params, record.figures
    seconds = figures["seconds"]["fit"] if params["kind"] == "fit" else figures["seconds"]
    return {
        "call": params["what"],
        "tasks x rows x features": f"{params['m']:,} x {params['rows']} x {params['d']:,}",
        "data, MiB": f"{figures['data'] / 2**20:,.0f}",
        "W, MiB": f"{figures['weights'] / 2**20:,.0f}",
        "peak / data": f"{figures['peak'] / figures['data']:.2f}",
        "target": f"at most {TARGETS[params['what']]:g}",
        "rounds": f"{figures['rounds']}",
        "s": f"{seconds:.3g}",
    }


def items(records: Records) -> list[Item]:
    lambdas = ", ".join(f"{loss} {LAMBDAS[loss]:g}" for loss in ("squared", "logistic"))
    return [
        Text(
            "Peak memory is the maximum resident size minus that before the data is created; it includes the data. "
            f"Machine: {machines(records)}."
        ),
        table(
            "Peak memory of large fits",
            [table_row(record) for record in records],
            "float32. The fits get rows in random order and defaults (an intercept, a common component) except for "
            f"lambda ({lambdas}) and the gap ({GAP:g}); solve gets rows in the order of tasks. A sparse row has "
            f"{ENTRIES} entries. The data are X, y and the task labels; W is one (tasks, features) array in float64. "
            "All cores; seconds of fits are without making the data.",
        ),
    ]


MEMORY = Experiment("bench memory", "Memory", runs, measure, items, {"gap": GAP, "lambdas": LAMBDAS})
