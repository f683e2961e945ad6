"""A soak test (`make soak-federation`): random faults in a federation on this machine, and the bits of every run.

Not collected by pytest. Every run prints its seed, so that it can be repeated:
`python -m support.soak_federation --minutes 1 --first 17`.
"""

import argparse
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from dmtrl.federation.coordinator.results import RESULT
from dmtrl.federation.flare import processes
from dmtrl.federation.flare.loopback import Loopback, set_up
from dmtrl.federation.simulate import simulate
from dmtrl.federation.study.study_file import read_study
from support.federation import SITES, STUDY, StudyRun, all_processes, heart_files, kill, leftovers, suspend

DATA = Path(os.environ.get("DMTRL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
FAULTS = ("site job killed", "site killed", "server job killed", "server killed", "site suspended")


def strike(fault: str, site: str, seconds: float, federation: Loopback) -> None:
    """Let one fault happen."""
    member, server = federation.members[site], federation.coordinator.kit
    if fault == "site job killed":
        kill(*processes.job_processes(member.kit))
    elif fault == "site killed":
        kill(*all_processes(member.kit))
        time.sleep(seconds)
        member.start()
    elif fault == "server job killed":
        kill(*processes.job_processes(server))
    elif fault == "server killed":
        kill(*all_processes(server))
    else:
        suspend(seconds, all_processes(member.kit))


def one_run(seed: int, federation: Loopback, expected: Path, counts: Counter[str]) -> bool:
    """A run with one to three faults; returns whether it has the bits of the simulation."""
    rng = np.random.default_rng(seed)
    began, happened = time.monotonic(), []
    run = StudyRun(federation)
    share = 0.0
    for _ in range(int(rng.integers(1, 4))):
        share = min(share + float(rng.uniform(0.05, 0.35)), 0.8)
        fault, site = str(rng.choice(FAULTS)), str(rng.choice(SITES))
        if not run.reaches(share):
            break
        strike(fault, site, float(rng.uniform(0.5, 15.0)), federation)
        happened.append(fault if fault.startswith("server") else f"{fault} ({site})")
        counts[fault] += 1
        if not run.reaches():
            break
    code, output = run.finish()
    same = code == 0 and (run.run.folder / RESULT).read_bytes() == (expected / RESULT).read_bytes()
    verdict = "same bits" if same else f"FAILED (exit code {code})\n{output}"
    print(f"seed {seed}: {', '.join(happened)}; {time.monotonic() - began:.0f} s; {verdict}", flush=True)
    return same


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "heart.toml").write_text(STUDY)
        files = heart_files(folder, DATA / "heart")
        simulate(read_study(folder / "heart.toml"), files, folder / "simulated")
        with set_up(folder, folder / "heart.toml", files) as federation:
            federation.start()
            end = time.monotonic() + 60 * arguments.minutes
            seed = arguments.first
            while time.monotonic() < end:
                results.append(one_run(seed, federation, folder / "simulated", counts))
                seed += 1
        left = leftovers(folder)
    print(
        f"{len(results)} runs, {sum(results)} with the same bits; faults: {dict(counts)}; processes left: {len(left)}"
    )
    if not all(results) or left:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
