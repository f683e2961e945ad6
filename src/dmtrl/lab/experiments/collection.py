"""A collection of experiments, such as the paper's or the benchmarks: runs them and writes one page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dmtrl.lab.experiments.records import Record
from dmtrl.lab.experiments.runner import (
    Experiment,
    Missing,
    OnRun,
    Run,
    execute,
    open_store,
    pending_runs,
    plan_runs,
    sections,
)
from dmtrl.report.content import Page, Section
from dmtrl.report.page import write_files, write_page


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
    """What `Collection.run` wrote. `page` is None if no experiment is complete."""

    page: Path | None
    files: list[Path]
    sections: list[Section]
    missing: list[Missing]


@dataclass(frozen=True)
class Collection:
    title: str
    lead: str
    groups: Mapping[str, Sequence[Experiment]]

    def experiments(self, which: str) -> list[Experiment]:
        if which == "all":
            return [experiment for group in self.groups.values() for experiment in group]
        if which not in self.groups:
            raise ValueError(f"unknown experiment {which!r}; choose one of all, {', '.join(self.groups)}")
        return list(self.groups[which])

    def plan(self, which: str, quick: bool, out: Path) -> Plan:
        runs = plan_runs(self.experiments(which), quick)
        return Plan(len(runs), pending_runs(runs, open_store(out)))

    def run(self, which: str, quick: bool, out: Path, on_run: OnRun = lambda *_: None) -> Output:
        """Run what has no record yet, then write the page, plots and tables of all complete experiments in `out`.

        `on_run(experiment, run)` is called before each run.
        """
        store = open_store(out)
        missing = execute(self.plan(which, quick, out).pending, store, on_run)
        everything = self.experiments("all")
        complete = sections(everything, quick, store)
        if not complete:
            return Output(None, [], [], missing)
        keys = {experiment.key(run) for experiment, run in plan_runs(everything, quick)}
        records = [record for key, record in store.read().items() if key in keys]
        version = "the quick version on less data, which only checks that everything runs" if quick else "the full run"
        left_out = " ".join(f"Left out: {one.experiment} ({one.reason})." for one in missing)
        lead = f"{self.lead}\n\nThis is {version}. {left_out}".strip()
        page = Page(self.title, lead, complete, _provenance(records))
        for old in (out / "files").glob("*.*"):  # file names depend on titles, which may have changed
            old.unlink()
        return Output(write_page(page, out / "index.html"), write_files(page, out / "files"), complete, missing)


def _provenance(records: Sequence[Record]) -> str:
    found = sorted({f"{package} {number}" for record in records for package, number in record.versions.items()})
    versions = ", ".join(found)
    machines = "; ".join(sorted({record.machine for record in records}))
    minutes = sum(record.seconds for record in records) / 60
    return f"Made from {len(records)} records, which took {minutes:.1f} minutes on {machines}. {versions}."
