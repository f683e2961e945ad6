"""Runs experiments: measure what has no record yet, store each record at once, then turn records into sections."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dmtrl.lab.experiments.records import Params, Record, Store, machine, run_key, versions
from dmtrl.report.content import Section


@dataclass(frozen=True)
class Run:
    """One measurement. `seconds` is its estimated duration on 2 cores."""

    params: Params
    seconds: float


@dataclass(frozen=True)
class Experiment:
    """A named set of runs, how to measure one, and how to show their records.

    Attributes
    ----------
    name : str
    runs : callable
        runs(quick) returns the runs of the quick or the full version.
    measure : callable
        measure(**run.params) returns the figures of one run.
    section : callable
        section(records) returns a section of the page from the records of all runs.
    settings : dict
        What all runs have in common. Part of every record and its key.
    """

    name: str
    runs: Callable[[bool], Sequence[Run]]
    measure: Callable[..., Mapping[str, Any]]
    section: Callable[[Sequence[Record]], Section]
    settings: Params = field(default_factory=dict)

    def key(self, run: Run) -> str:
        return run_key(self.name, run.params, self.settings)


@dataclass(frozen=True)
class Missing:
    """An experiment that could not run, and why."""

    experiment: str
    reason: str


OnRun = Callable[[Experiment, Run], object]


def plan_runs(experiments: Iterable[Experiment], quick: bool) -> list[tuple[Experiment, Run]]:
    return [(experiment, run) for experiment in experiments for run in experiment.runs(quick)]


def pending_runs(plan: Sequence[tuple[Experiment, Run]], store: Store) -> list[tuple[Experiment, Run]]:
    done = store.read()
    return [(experiment, run) for experiment, run in plan if experiment.key(run) not in done]


def execute(pending: Sequence[tuple[Experiment, Run]], store: Store, on_run: OnRun = lambda *_: None) -> list[Missing]:
    """Measure and store the runs in order. A missing data set or package stops only its own experiment."""
    missing: dict[str, Missing] = {}
    environment = versions(), machine()
    for experiment, run in pending:
        on_run(experiment, run)
        if experiment.name in missing:
            continue
        began = time.perf_counter()
        try:
            figures = experiment.measure(**run.params)
        except (FileNotFoundError, ImportError) as error:
            missing[experiment.name] = Missing(experiment.name, str(error))
            continue
        seconds = time.perf_counter() - began
        store.append(Record(experiment.name, run.params, experiment.settings, figures, seconds, *environment))
    return list(missing.values())


def sections(experiments: Iterable[Experiment], quick: bool, store: Store) -> list[Section]:
    """Return the sections of the experiments that have a record of every run."""
    records = store.read()
    complete = []
    for experiment in experiments:
        keys = [experiment.key(run) for run in experiment.runs(quick)]
        if all(key in records for key in keys):
            complete.append(experiment.section([records[key] for key in keys]))
    return complete


def open_store(folder: Path) -> Store:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; --out must name a folder")
    return Store(folder)
