"""A collection of experiments: which there are, and one call that runs them, stores records and draws a page.

Room: experiments. The paper's reproduction and the benchmarks are two collections. What is computed is in the
experiments' own files, how it is stored in `records`, how it looks in `dmtrl.report`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dmtrl.lab.experiments.records import Record
from dmtrl.lab.experiments.runner import Experiment, Missing, Run, carry_out, planned, sections, still_to_do, store_of
from dmtrl.report.content import Page, Section
from dmtrl.report.page import write_files, write_page


@dataclass(frozen=True)
class Work:
    """What a call would do: how many runs, how many of them are still to do, and about how long that takes."""

    runs: int
    todo: list[tuple[Experiment, Run]]

    @property
    def seconds(self) -> float:
        return sum(run.seconds for _, run in self.todo)


@dataclass(frozen=True)
class Drawn:
    page: Path | None  # None where no experiment is complete
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
            raise ValueError(f"there is no experiment {which!r}; choose all, {', '.join(self.groups)}")
        return list(self.groups[which])

    def work(self, which: str, quick: bool, out: Path) -> Work:
        plan = planned(self.experiments(which), quick)
        return Work(len(plan), still_to_do(plan, store_of(out)))

    def carry_out(
        self, which: str, quick: bool, out: Path, tell: Callable[[Experiment, Run], object] = lambda *_: None
    ) -> Drawn:
        """Run what is missing, then draw the page, the plots and the tables of all that is complete in `out`."""
        store = store_of(out)
        missing = carry_out(self.work(which, quick, out).todo, store, tell)
        everything = self.experiments("all")
        drawn = sections(everything, quick, store)
        if not drawn:
            return Drawn(None, [], [], missing)
        keys = {experiment.key(run) for experiment, run in planned(everything, quick)}
        mine = [record for key, record in store.read().items() if key in keys]
        version = "the quick version, on less data: only a check that everything runs" if quick else "the full version"
        left_out = " ".join(f"Left out: {one.experiment} ({one.reason})." for one in missing)
        lead = f"{self.lead}\n\nThis is {version}. {left_out}".strip()
        page = Page(self.title, lead, drawn, _made_from(mine))
        for old in (out / "files").glob("*.*"):  # of an earlier drawing, whose names may have been others
            old.unlink()
        return Drawn(write_page(page, out / "index.html"), write_files(page, out / "files"), drawn, missing)


def _made_from(records: Sequence[Record]) -> str:
    found = sorted({f"{package} {number}" for record in records for package, number in record.versions.items()})
    versions = ", ".join(found)
    machines = "; ".join(sorted({record.machine for record in records}))
    minutes = sum(record.seconds for record in records) / 60
    return f"Drawn from {len(records)} records, which took {minutes:.1f} minutes on {machines}. {versions}."
