"""The paper, reproduced: which experiments there are, and one call that runs them, stores records and draws the page.

Room: experiments, its top. What is computed is in the experiments' own files, how it is stored in `records`, how it
looks in `dmtrl.report`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dmtrl.experiments.agreement import AGREEMENT
from dmtrl.experiments.bounds import BOUNDS
from dmtrl.experiments.convergence import CONVERGENCE
from dmtrl.experiments.coupling import COUPLING
from dmtrl.experiments.errors import MDS, MNIST
from dmtrl.experiments.records import machine
from dmtrl.experiments.relations import RELATIONS
from dmtrl.experiments.runner import Experiment, Missing, Run, carry_out, planned, sections, still_to_do, store_of
from dmtrl.experiments.school import SCHOOL
from dmtrl.experiments.stall import STALL
from dmtrl.experiments.unbalanced import UNBALANCED
from dmtrl.report.content import Page
from dmtrl.report.page import write_files, write_page

GROUPS: dict[str, list[Experiment]] = {
    "synthetic": [RELATIONS, COUPLING, BOUNDS, UNBALANCED],
    "school": [SCHOOL],
    "mnist": [MNIST],
    "mds": [MDS],
    "convergence": [CONVERGENCE, AGREEMENT, STALL],
}
LEAD = (
    "Every table and figure of Liu, Pan and Ho, “Distributed Multi-Task Relationship Learning” (KDD 2017), measured "
    "anew with dmtrl, "
    "with the paper's own numbers beside ours; then what lies beyond the paper: a certificate over weights and task "
    "covariance "
    "together, and a solver that does not stall."
)


@dataclass(frozen=True)
class Reproduced:
    page: Path | None  # None where no experiment is complete
    files: list[Path]
    missing: list[Missing]


@dataclass(frozen=True)
class Work:
    """What a call would do: how many runs, how many of them are still to do, and about how long that takes."""

    runs: int
    todo: list[tuple[Experiment, Run]]

    @property
    def seconds(self) -> float:
        return sum(run.seconds for _, run in self.todo)


def experiments(which: str) -> list[Experiment]:
    if which == "all":
        return [experiment for group in GROUPS.values() for experiment in group]
    if which not in GROUPS:
        raise ValueError(f"there is no experiment {which!r}; choose all, {', '.join(GROUPS)}")
    return GROUPS[which]


def work(which: str, quick: bool, out: Path) -> Work:
    plan = planned(experiments(which), quick)
    return Work(len(plan), still_to_do(plan, store_of(out)))


def reproduce(
    which: str, quick: bool, out: Path, tell: Callable[[Experiment, Run], object] = lambda *_: None
) -> Reproduced:
    """Run what is missing, then draw the page, the plots and the tables from the records of `out`."""
    store = store_of(out)
    missing = carry_out(work(which, quick, out).todo, store, tell)
    drawn = sections(experiments(which), quick, store)
    if not drawn:
        return Reproduced(None, [], missing)
    name = "the quick version, on less data: only a check that everything runs" if quick else "the full version"
    records = store.read().values()
    used = {experiment.name for experiment in experiments(which)}
    mine = [r for r in records if r.experiment in used and r.params.get("quick") == quick]
    versions = ", ".join(f"{package} {number}" for package, number in mine[-1].versions.items())
    machines = "; ".join(sorted({record.machine for record in mine}))
    total = sum(record.seconds for record in mine)
    left_out = " ".join(f"Left out: {one.experiment} ({one.reason})." for one in missing)
    page = Page(
        "The paper, reproduced",
        f"{LEAD}\n\nThis is {name}. {left_out}".strip(),
        drawn,
        f"Drawn from {len(mine)} records in {store.path.name}, which took {total / 60:.1f} minutes on "
        f"{machines or machine()}. {versions}.",
    )
    return Reproduced(write_page(page, out / "index.html"), write_files(page, out / "files"), missing)
