"""The runs of a study: folders `runs/001`, `runs/002`, ... in the coordinator's folder.

The job process writes progress, checkpoints, state and results there; the coordinator's commands read them. A run with
a checkpoint is resumed from it, whoever starts it again: the launcher, the supervisor or `dmtrl study run --resume`.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dmtrl import storage
from dmtrl.federation.coordinator.results import RESULT, StudyEvent, StudyResult, TaskResult
from dmtrl.federation.flare.server.sites import Sites

_EVERY = 0.25  # seconds between two updates
NOT_BEGUN, RUNNING, FINISHED, FAILED, STOPPED = "not begun", "running", "finished", "failed", "stopped"


@dataclass(frozen=True)
class State:
    """How a run stands. `reason`: why it failed, as a sentence."""

    state: str
    reason: str = ""


@dataclass(frozen=True)
class Run:
    """One run, in its own folder."""

    folder: Path

    @property
    def number(self) -> int:
        return int(self.folder.name)

    def state(self) -> State:
        try:
            return State(**json.loads((self.folder / "state.json").read_text()))
        except FileNotFoundError:
            return State(NOT_BEGUN)

    def set_state(self, state: str, reason: str = "") -> None:
        storage.write(str(self.folder / "state.json"), json.dumps(asdict(State(state, reason))).encode())

    def result(self) -> StudyResult:
        """The result of a finished run, without the model."""
        content = json.loads((self.folder / RESULT).read_text())
        lists = {name: tuple(content[name]) for name in ("sites", "lost")}
        unknown = {"primal": math.inf, "dual": -math.inf, "relative_gap": math.inf}  # JSON has no infinity
        bounds = {name: bound for name, bound in unknown.items() if content[name] is None}
        return StudyResult(
            **{**content, **lists, **bounds, "tasks": tuple(TaskResult(**task) for task in content["tasks"])}
        )

    def note(self, **entry: Any) -> None:
        """Append an entry to the progress record."""
        line = json.dumps({"time": round(time.time(), 3), **entry})
        with open(self.folder / "progress.jsonl", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    @property
    def last_job(self) -> dict[str, Any] | None:
        """The entry about the job that was submitted last; None if there is none."""
        return next((entry for entry in reversed(list(self.progress())) if "job" in entry), None)

    def progress(self, since: int = 0) -> Iterator[dict[str, Any]]:
        """The entries of the progress record from number `since` on."""
        try:
            lines = (self.folder / "progress.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        for line in lines[since:]:
            try:
                yield json.loads(line)
            except ValueError:  # a line that is being written, or that a killed process left
                yield {}


def describe(entry: Mapping[str, Any]) -> str:
    """The words of an update: what is done, the round, and which sites are away."""
    around = entry.get("round") is not None and "round" not in entry["detail"]
    gap = f"round {entry['round']}, relative gap {entry['gap']:.2%}" if around else ""
    away = [site for site in entry["sites"] if site not in entry["present"]]
    present = f"away: {', '.join(away)}" if away else f"{len(entry['sites'])} sites"
    return ", ".join(part for part in (entry["detail"], gap, present) if part)


def runs(folder: Path) -> list[Run]:
    """The runs in the coordinator's folder, oldest first."""
    found = [Run(path) for path in (folder / "runs").glob("[0-9]*") if path.name.isdecimal()]
    return sorted(found, key=lambda run: run.number)


def new_run(folder: Path) -> Run:
    """Begin a run."""
    before = runs(folder)
    run = Run(folder / "runs" / f"{before[-1].number + 1 if before else 1:03d}")
    run.folder.mkdir(parents=True)
    return run


def set_current(folder: Path, run: Run, patience: float) -> None:
    """Say which run the next job belongs to. `patience`: seconds within which a lost site must come back."""
    (folder / "current.json").write_text(json.dumps({"run": run.folder.name, "patience": patience}))


def current(folder: Path) -> tuple[Run, float]:
    """The run that the job belongs to, and the patience with lost sites."""
    content = json.loads((folder / "current.json").read_text())
    return Run(folder / "runs" / content["run"]), float(content["patience"])


class ProgressRecord:
    """Writes the events of a study into the record of a run: every stage, and a few updates in a second."""

    def __init__(self, run: Run, sites: Sites):
        self._run, self._sites, self._stage, self._last = run, sites, "", 0.0

    def __call__(self, event: StudyEvent) -> None:
        now = time.monotonic()
        if event.stage != self._stage or now - self._last >= _EVERY:
            self._stage, self._last = event.stage, now
            self._run.note(**{**asdict(event), "present": self._sites.present})
