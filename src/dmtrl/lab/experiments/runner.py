"""Runs what is missing, stores each result when it is there, then draws: compute, store, draw.

Room: experiments. An experiment is a small file that lists its runs, measures one, and turns records into a section
of the page; this file knows no experiment.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dmtrl.lab.experiments.records import Params, Record, Store, machine, run_key, versions
from dmtrl.report.content import Section


@dataclass(frozen=True)
class Run:
    """One measurement. `seconds` is about how long it takes on 2 cores, from earlier runs."""

    params: Params
    seconds: float


@dataclass(frozen=True)
class Experiment:
    name: str
    runs: Callable[[bool], Sequence[Run]]  # of the quick or the full version
    measure: Callable[..., Mapping[str, Any]]  # called with a run's params
    section: Callable[[Sequence[Record]], Section]  # from the experiment's own records
    settings: Params = field(default_factory=dict)  # what all runs have in common; part of every record and its key

    def key(self, run: Run) -> str:
        return run_key(self.name, run.params, self.settings)


@dataclass(frozen=True)
class Missing:
    """A run that could not be done, with the sentence that says why."""

    experiment: str
    reason: str


def planned(experiments: Iterable[Experiment], quick: bool) -> list[tuple[Experiment, Run]]:
    return [(experiment, run) for experiment in experiments for run in experiment.runs(quick)]


def still_to_do(plan: Sequence[tuple[Experiment, Run]], store: Store) -> list[tuple[Experiment, Run]]:
    done = store.read()
    return [(experiment, run) for experiment, run in plan if experiment.key(run) not in done]


def carry_out(
    todo: Sequence[tuple[Experiment, Run]], store: Store, tell: Callable[[Experiment, Run], object] = lambda *_: None
) -> list[Missing]:
    """Measure and store one after the other. A data set that cannot be had, or a package that is not installed, stops
    its own experiment, not the others."""
    missing: dict[str, Missing] = {}
    with_what = versions()
    where = machine()
    for experiment, run in todo:
        tell(experiment, run)
        if experiment.name in missing:
            continue
        began = time.perf_counter()
        try:
            figures = experiment.measure(**run.params)
        except (FileNotFoundError, ImportError) as error:
            missing[experiment.name] = Missing(experiment.name, str(error))
            continue
        seconds = time.perf_counter() - began
        store.append(Record(experiment.name, run.params, experiment.settings, figures, seconds, with_what, where))
    return list(missing.values())


def sections(experiments: Iterable[Experiment], quick: bool, store: Store) -> list[Section]:
    """The sections of those experiments all of whose runs are there."""
    records = store.read()
    drawn = []
    for experiment in experiments:
        keys = [experiment.key(run) for run in experiment.runs(quick)]
        if all(key in records for key in keys):
            drawn.append(experiment.section([records[key] for key in keys]))
    return drawn


def store_of(folder: Path) -> Store:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; --out must name a folder")
    return Store(folder)
