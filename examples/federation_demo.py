"""A study between four hospitals on this machine: `make federation-demo`, or `python examples/federation_demo.py`.

Runs the commands of docs/federation.md one after the other: a server and four sites as processes on loopback, with
certificates and mutual TLS. The files are those of UCI heart disease if the folder DMTRL_DATA/heart (or
../shared/data/heart) holds them, and invented ones otherwise. Everything is stopped at the end.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from dmtrl.federation.flare.loopback import free_port

HOSPITALS = {"cleveland": 300, "hungarian": 290, "switzerland": 120, "va": 200}  # and rows of invented files
ROOT = Path(__file__).resolve().parents[1]


def dmtrl(*words: object) -> None:
    """Run a command and show it."""
    print("\n$ dmtrl " + " ".join(map(str, words)), flush=True)
    subprocess.run([sys.executable, "-m", "dmtrl.cli.main", *map(str, words)], check=True)


def data_files(folder: Path) -> dict[str, Path]:
    real = Path(os.environ.get("DMTRL_DATA") or ROOT.parent / "shared" / "data") / "heart"
    if all((real / f"{name}.csv").exists() for name in HOSPITALS):
        return {name: real / f"{name}.csv" for name in HOSPITALS}
    print(f"{real} does not hold the files of the four hospitals: inventing some.")
    rng = np.random.default_rng(0)
    files = {}
    for name, rows in HOSPITALS.items():
        ill = rng.integers(0, 2, rows)
        columns = {
            "age": rng.integers(30, 78, rows) + 3 * ill,
            "sex": rng.integers(0, 2, rows),
            "chol": rng.integers(120, 420, rows),
            "thalach": rng.integers(90, 200, rows) - 20 * ill,
            "oldpeak": np.round(rng.exponential(1.0, rows) + 0.7 * ill, 1),
            "num": ill,
        }
        files[name] = folder / f"{name}.csv"
        table = np.column_stack(list(columns.values()))
        np.savetxt(files[name], table, "%g", ",", header=",".join(columns), comments="")
    return files


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "federation-demo")
    if folder.exists():
        sys.exit(f"{folder} already exists; remove it, or name another folder")
    folder.mkdir(parents=True)
    files = data_files(folder)
    study, coordinator = folder / "heart.toml", folder / "coordinator"
    sites = {name: folder / name for name in files}
    scarce = [] if files["va"].parent == folder else ["--drop", "slope", "--drop", "ca", "--drop", "thal"]
    try:
        dmtrl("study", "new", study, "--like", files["cleveland"], "--target", "num", *scarce)
        dmtrl("study", "provision", study, "--port", free_port(), "-C", coordinator)
        for name, site in sites.items():
            dmtrl("study", "invite", name, "-C", coordinator)
            invitation = coordinator / "sites" / f"{name}.invitation.json"
            dmtrl("site", "join", invitation, "--data", files[name], "--site", site)
            dmtrl("study", "admit", site / "flare" / "request" / f"{name}.request.zip", "-C", coordinator)
            dmtrl("site", "join", coordinator / "sites" / f"{name}.signed.zip", "--site", site)
            dmtrl("site", "approve", site / "flare" / "study.toml", "--site", site, "--yes")
        dmtrl("study", "start", "-C", coordinator)
        for site in sites.values():
            dmtrl("site", "start", "--site", site)
        dmtrl("study", "status", "-C", coordinator)
        dmtrl("study", "run", "-C", coordinator)
        dmtrl("study", "fetch", "-o", folder / "model.dmtrl", "-C", coordinator)
        dmtrl("report", folder / "model.dmtrl")
        dmtrl("site", "log", "--site", sites["va"], "--last", 3)
        dmtrl("site", "log", "--site", sites["va"], "--verify")
    finally:
        for site in sites.values():
            if (site / "flare").exists():
                dmtrl("site", "stop", "--site", site)
        if (coordinator / "federation.json").exists():
            dmtrl("study", "stop", "-C", coordinator)


if __name__ == "__main__":
    main()
