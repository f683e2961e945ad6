"""`dmtrl study` as library functions: draft a study, and simulate it in one process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dmtrl.exceptions import InputError, OutputExistsError, Setting
from dmtrl.federation.coordinator.results import StudyEvent, StudyResult
from dmtrl.federation.simulate import simulate
from dmtrl.federation.study.draft import DraftRequest as DraftRequest
from dmtrl.federation.study.draft import draft_study
from dmtrl.federation.study.study_file import SITE_NAME, Study, read_study
from dmtrl.progress import NoProgress, Progress
from dmtrl.report.model_page import write_model_page


@dataclass(frozen=True)
class DraftResult:
    """A drafted study, and what was decided about its columns."""

    study: Study
    notes: tuple[str, ...]

    @property
    def columns(self) -> Mapping[str, int]:
        """The number of columns of each kind."""
        return {kind: sum(c.kind == kind for c in self.study.columns) for kind in ("number", "category", "date")}


def new_study(path: str | Path, request: DraftRequest, force: bool = False) -> DraftResult:
    """Draft a study file. force: overwrite an existing file."""
    path = Path(path)
    if path.exists() and not force:
        raise OutputExistsError(path)
    if not SITE_NAME.fullmatch(path.stem):
        raise ValueError(f"{path}: the name of a study may hold letters, digits, - and _ only")
    study, notes = draft_study(request, path.stem)
    study.save(path)
    return DraftResult(study, tuple(notes))


@dataclass(frozen=True)
class Simulation:
    """The result of a simulated study, and its page if one was written."""

    result: StudyResult
    page: Path | None
    notes: tuple[str, ...]


def simulate_study(
    study: str | Path,
    files: Sequence[tuple[str, str]],
    out: str | Path,
    progress: Progress | None = None,
    force: bool = False,
) -> Simulation:
    """Run a study in one process, and write models, ledgers and a page into the folder `out`.

    files: the name and the data file of each site. force: write into a folder that is not empty.
    """
    out, display = Path(out), progress or NoProgress()
    if len(dict(files)) < len(files):
        raise ValueError("a site is named twice; give each file its own site")
    if out.exists() and any(out.iterdir()) and not force:
        raise InputError(f"the folder {out} is not empty; choose another one, or pass ", Setting("force", True))
    stage = ""

    def show(event: StudyEvent) -> None:
        nonlocal stage
        if event.stage != stage:
            stage = event.stage
            display.stage(stage)
        display.update(event.done, event.detail)

    result = simulate(read_study(study), dict(files), out, show)
    page, notes = None, list[str]()
    if result.model is None:
        notes.append("the study gives the coordinator no weights, so there is no model and no page about it")
    else:
        display.stage("writing the page")
        try:
            page = write_model_page(result.model, out / "report.html", title=f"Study {result.study}")
        except ImportError as error:
            notes.append(f"no page was written: {error}")
    return Simulation(result, page, tuple(notes))
