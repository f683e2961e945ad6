"""A study over NVIDIA FLARE on loopback, with mutual TLS, compared with the same study in one process.

The rounds and the seconds of a round are read from the ledger of a site: it holds the time of every message that left.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np

from dmtrl.federation.coordinator.results import RESULT
from dmtrl.federation.simulate import simulate
from dmtrl.federation.site import ledger
from dmtrl.federation.site.site import LEDGER
from dmtrl.federation.study.study_file import read_study
from dmtrl.progress import NoProgress
from dmtrl.report.content import Item, Table, Text
from dmtrl_lab.experiments.experiment import Experiment, Figures, Records, Run

ROWS, SEED = 1000, 0
LAMBDAS, FOLDS = (0.001, 0.003, 0.01, 0.03, 0.1), 5


def runs(quick: bool) -> list[Run]:
    if quick:
        return [Run({"sites": 2, "features": 5, "lambdas": 2, "folds": 2}, 60)]
    full = {"sites": 4, "lambdas": len(LAMBDAS), "folds": FOLDS}
    return [Run({**full, "features": features}, 120) for features in (10, 100, 300)]


def measure(sites: int, features: int, lambdas: int, folds: int) -> Figures:
    from dmtrl.federation.flare.loopback import set_up
    from dmtrl.federation.flare.server.supervisor import run_study_job

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {f"site{k}": folder / f"site{k}.csv" for k in range(sites)}
        write_files(files, features)
        study_file = folder / "study.toml"
        study_file.write_text(study_text(features, LAMBDAS[:lambdas], folds))
        simulate(read_study(study_file), files, folder / "first")  # compiles the kernels
        began = time.perf_counter()
        simulate(read_study(study_file), files, folder / "simulated")
        seconds = {"one process": time.perf_counter() - began}
        began = time.perf_counter()
        with set_up(folder / "flare", study_file, files) as federation:
            seconds["keys and certificates"] = time.perf_counter() - began
            began = time.perf_counter()
            federation.start()
            seconds["start of server and sites"] = time.perf_counter() - began
            began = time.perf_counter()
            run = run_study_job(federation.coordinator, NoProgress())
            seconds["FLARE"] = time.perf_counter() - began
            flare = figures_of(federation.members["site0"].folder / LEDGER)
        local = figures_of(folder / "simulated" / "sites" / "site0" / LEDGER)
        same = (run.folder / RESULT).read_bytes() == (folder / "simulated" / RESULT).read_bytes()
    return {"seconds": seconds, "flare": flare, "local": local, "same bits": same}


def write_files(files: Mapping[str, Path], features: int) -> None:
    """Rows of a regression whose weights are similar at all sites."""
    rng = np.random.default_rng(SEED)
    common = rng.standard_normal(features)
    for path in files.values():
        X = rng.standard_normal((ROWS, features))
        y = X @ (common + 0.3 * rng.standard_normal(features)) + rng.standard_normal(ROWS)
        header = ",".join([*(f"x{j}" for j in range(features)), "y"])
        np.savetxt(path, np.column_stack([X, y]), delimiter=",", header=header, comments="", fmt="%.6g")


def study_text(features: int, lambdas: Sequence[float], folds: int) -> str:
    columns = "\n".join(f'x{j} = {{kind = "number"}}' for j in range(features))
    return (
        'format = 1\nname = "bench"\n[target]\ncolumn = "y"\nkind = "regression"\n'
        f"[fit]\nlambda = {list(lambdas)}\ncommon = [1.0]\nfolds = {folds}\n[columns]\n{columns}\n"
    )


def figures_of(path: Path) -> dict[str, float]:
    """Rounds, milliseconds of a round (median) and bytes that one site sent in them."""
    rounds = [entry for entry in ledger.entries(path) if entry.name == "improved"]
    moments = np.array([datetime.fromisoformat(entry.time).timestamp() for entry in rounds])
    return {
        "rounds": len(rounds),
        "ms per round": 1e3 * float(np.median(np.diff(moments))),
        "bytes per round": float(np.median([entry.bytes for entry in rounds])),
    }


def items(records: Records) -> list[Item]:
    rows, before = [], []
    for record in records:
        figures, params = record.figures, record.params
        flare, local, seconds = figures["flare"], figures["local"], figures["seconds"]
        size = f"{params['sites']} sites, {params['features']} features"
        fits = f"{params['lambdas'] * params['folds'] + 1} fits, {flare['rounds']} rounds"
        times = [f"{flare['ms per round']:.0f}", f"{local['ms per round']:.0f}"]
        times += [f"{seconds['FLARE']:.0f}", f"{seconds['one process']:.1f}"]
        same = "the same" if figures["same bits"] else "different!"
        rows.append([size, fits, *times, f"{flare['bytes per round']:,.0f}", same])
        before.append([size, f"{seconds['keys and certificates']:.0f}", f"{seconds['start of server and sites']:.0f}"])
    columns = [
        "study",
        "work",
        "ms a round",
        "in one process",
        "seconds in all",
        "in one process",
        "bytes sent",
        "bits",
    ]
    return [
        Text(
            f"{ROWS} rows per site, squared loss; server and sites are processes on one machine, connected by mutual "
            "TLS. A study chooses lambda by cross-validation and fits all rows. Bytes: what one site sends per round."
        ),
        Table("A cross-validated study", columns, rows),
        Table("Before the study, in seconds", ["study", "keys and certificates", "start and connect"], before),
    ]


SETTINGS = {"rows": ROWS, "seed": SEED}
FEDERATION = Experiment("bench federation", "Federation", runs, measure, items, SETTINGS)
