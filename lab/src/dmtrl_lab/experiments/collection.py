"""A collection of experiments, such as the paper's or the benchmarks: runs them and writes one page."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dmtrl.report.content import Page, Section
from dmtrl.report.page import write_page
from dmtrl_lab.experiments.experiment import Experiment, Record, Records, Run, machines
from dmtrl_lab.experiments.pictures import write_files
from dmtrl_lab.experiments.records import Store, machine, versions


@dataclass(frozen=True)
class Plan:
    """The number of runs, and those that have no record yet."""

    runs: int
    pending: list[tuple[Experiment, Run]]

    @property
    def seconds(self) -> float:
        """Estimated duration of the pending runs."""
        return sum(run.seconds for _, run in self.pending)


@dataclass(frozen=True)
class Output:
    """What `Collection.run` wrote. `page` is None if no experiment is complete.

    missing: the experiments that could not run, with the reason.
    """

    page: Path | None
    files: list[Path]
    sections: list[Section]
    missing: dict[str, str]


@dataclass(frozen=True)
class Collection:
    title: str
    lead: str
    groups: Mapping[str, Sequence[Experiment]]

    def experiments(self, which: str) -> list[Experiment]:
        """Return those of one group, or `all`."""
        if which != "all" and which not in self.groups:
            raise ValueError(f"unknown experiment {which!r}; choose one of all, {', '.join(self.groups)}")
        groups = self.groups.values() if which == "all" else [self.groups[which]]
        return [experiment for group in groups for experiment in group]

    def only(self, which: str, text: str) -> "Collection":
        """Return the collection of those runs of `which` whose parameters, in words, contain a text."""

        def matching(experiment: Experiment) -> Experiment:
            return replace(
                experiment, runs=lambda quick: [run for run in experiment.runs(quick) if text in run.in_words()]
            )

        return replace(self, groups={which: [matching(experiment) for experiment in self.experiments(which)]})

    def plan(self, which: str, quick: bool, out: Path) -> Plan:
        done = Store(out).read()
        runs = [(experiment, run) for experiment in self.experiments(which) for run in experiment.runs(quick)]
        return Plan(len(runs), [(experiment, run) for experiment, run in runs if experiment.key(run) not in done])

    def run(
        self, which: str, quick: bool, out: Path, on_run: Callable[[Experiment, Run], object] = lambda *_: None
    ) -> Output:
        """Run what has no record yet, then write the page, plots and tables of all complete experiments in `out`.

        `on_run(experiment, run)` is called before each run. A missing data set or package stops only its experiment.
        """
        store = Store(out)
        missing = _measure(self.plan(which, quick, out), store, on_run)
        stored, used, sections = store.read(), [], []
        for experiment in self.experiments("all"):
            keys = [experiment.key(run) for run in experiment.runs(quick)]
            if keys and all(key in stored for key in keys):  # `only` may leave an experiment without runs
                sections.append(experiment.section([stored[key] for key in keys]))
            used += [stored[key] for key in keys if key in stored]
        if not sections:
            return Output(None, [], [], missing)
        version = "the quick version on less data, which only checks that everything runs" if quick else "the full run"
        left_out = " ".join(f"Left out: {name} ({reason})." for name, reason in missing.items())
        lead = f"{self.lead}\n\nThis is {version}. {left_out}".strip()
        page = Page(self.title, lead, sections, _provenance(used))
        return Output(write_page(page, out / "index.html"), write_files(page, out / "files"), sections, missing)


def _measure(plan: Plan, store: Store, on_run: Callable[[Experiment, Run], object]) -> dict[str, str]:
    """Measure the pending runs in order, and store each record at once. Return what is missing."""
    missing: dict[str, str] = {}
    environment = versions(), machine()
    for experiment, run in plan.pending:
        on_run(experiment, run)
        if experiment.name in missing:
            continue
        began = time.perf_counter()
        try:
            figures = experiment.measure(**run.params)
        except (FileNotFoundError, ImportError) as error:
            missing[experiment.name] = str(error)
            continue
        seconds = time.perf_counter() - began
        store.append(Record(experiment.name, run.params, experiment.settings, figures, seconds, *environment))
    return missing


def _provenance(records: Records) -> str:
    found = sorted({f"{package} {number}" for record in records for package, number in record.versions.items()})
    minutes = sum(record.seconds for record in records) / 60
    where, what = machines(records), ", ".join(found)
    return f"Made from {len(records)} records, which took {minutes:.1f} minutes on {where}. {what}."
