"""`dmtrl study` as library functions: draft a study, and simulate it in one process."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dmtrl.exceptions import InputError, OutputExistsError, Setting
from dmtrl.federation.coordinator.results import StudyEvent, StudyResult
from dmtrl.federation.simulate import simulate
from dmtrl.federation.study.draft import DraftRequest as DraftRequest
from dmtrl.federation.study.draft import draft_study
from dmtrl.federation.study.study_file import SITE_NAME, Study, read_study
from dmtrl.progress import NoProgress, Progress


def new_study(path: str | Path, request: DraftRequest, force: bool = False) -> tuple[Study, list[str]]:
    """Draft a study file. Returns the study and remarks."""
    path = Path(path)
    if path.exists() and not force:
        raise OutputExistsError(path)
    if not SITE_NAME.fullmatch(path.stem):
        raise ValueError(f"{path}: the name of a study may hold letters, digits, - and _ only")
    study, notes = draft_study(request, path.stem)
    study.save(path)
    return study, notes


@dataclass(frozen=True)
class Simulation:
    """The result of a simulated study, and its page if one was written."""

    result: StudyResult
    page: Path | None
    notes: list[str]


def simulate_study(
    study: str | Path, files: Mapping[str, str], out: str | Path, progress: Progress | None = None, force: bool = False
) -> Simulation:
    """Run a study on the files of all sites, and write models, ledgers and a page into the folder `out`."""
    out, display = Path(out), progress or NoProgress()
    if out.exists() and any(out.iterdir()) and not force:
        raise InputError(f"the folder {out} is not empty; choose another one, or pass ", Setting("force", True))
    stage = ""

    def show(event: StudyEvent) -> None:
        nonlocal stage
        if event.stage != stage:
            stage = event.stage
            display.stage(stage)
        display.update(event.done, event.detail)

    result = simulate(read_study(study), files, out, show)
    page, notes = None, list[str]()
    if result.model is None:
        notes.append("the study gives the coordinator no weights, so there is no model and no page about it")
    else:
        from dmtrl.report.model_page import write_model_page

        display.stage("writing the page")
        try:
            page = write_model_page(result.model, out / "report.html", title=f"Study {result.study}")
        except ImportError as error:
            notes.append(f"no page was written: {error}")
    return Simulation(result, page, notes)
