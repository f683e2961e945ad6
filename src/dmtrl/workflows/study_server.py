"""`dmtrl study` over a network as library functions: set up the server, admit sites, run, and see how it stands."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dmtrl.exceptions import FederationError, OutputExistsError
from dmtrl.federation.coordinator.results import MODEL, StudyResult
from dmtrl.federation.flare import kits, processes, services
from dmtrl.federation.flare.processes import Echo, quiet
from dmtrl.federation.flare.server import folder as flare
from dmtrl.federation.flare.server.folder import StudyServer
from dmtrl.federation.flare.server.runs import FINISHED, runs
from dmtrl.federation.flare.server.supervisor import connected_sites, run_study_job, session, stop_run
from dmtrl.progress import NoProgress, Progress


@dataclass(frozen=True)
class Provisioned:
    """A new coordinator's folder. authority: what to keep secret. fingerprint: of the authority, for the sites."""

    folder: Path
    authority: Path
    fingerprint: str
    firewall_rule: str


@dataclass(frozen=True)
class ServerStart:
    """Where the server listens, and whether it was started now or was running already."""

    address: str
    started: bool


@dataclass(frozen=True)
class RunStatus:
    number: int
    state: str
    reason: str


@dataclass(frozen=True)
class StudyStatus:
    """address, pid: of the server, None if it is stopped. connected: for each admitted site. last_run: None before the
    first one."""

    address: str | None
    pid: int | None
    connected: Mapping[str, bool]
    last_run: RunStatus | None


@dataclass(frozen=True)
class Stopped:
    """What was running and is stopped now."""

    run: bool
    server: bool


def provision(study: Path, folder: Path, host: str, port: int, echo: Echo = quiet) -> Provisioned:
    """Make the coordinator's folder, with the certificates of the server and of the coordinator."""
    made = flare.provision(study, folder, host, port, echo)
    return Provisioned(folder, folder / "authority", kits.fingerprint(folder), made.firewall_rule())


def invite(folder: Path, site: str) -> Path:
    """Write the invitation of a site, and return its path."""
    return flare.invite(StudyServer.open(folder), site)


def admit(folder: Path, request: Path, echo: Echo = quiet) -> Path:
    """Sign the request of an invited site, and return the file to send back."""
    return flare.admit(StudyServer.open(folder), request, echo)


def service_files(folder: Path) -> tuple[str, str]:
    """A systemd unit and a docker compose file of the server."""
    server = StudyServer.open(folder)
    return (
        services.systemd_unit("study", server.project, folder),
        services.compose_file("study", server.project, folder, server.port),
    )


def serve(folder: Path, echo: Echo = quiet) -> NoReturn:
    """Become the server of a study, in this process."""
    StudyServer.open(folder).run(echo)


def start(folder: Path, echo: Echo = quiet) -> ServerStart:
    """Start the server of a study in the background."""
    server = StudyServer.open(folder)
    return ServerStart(f"{server.host}:{server.port}", server.start(echo))


def run(
    folder: Path,
    progress: Progress | None = None,
    resume: bool = False,
    wait: float = 60.0,
    patience: float = 120.0,
    echo: Echo = quiet,
) -> StudyResult:
    """Run a study to its end.

    resume: continue the last run. wait: seconds to wait for sites before the run begins. patience: seconds within which
    a lost site must come back.
    """
    server = StudyServer.open(folder)
    return run_study_job(server, progress or NoProgress(), resume, wait, patience, echo).result()


def status(folder: Path) -> StudyStatus:
    """How the server, the sites and the last run stand."""
    server = StudyServer.open(folder)
    process = processes.running(server.kit)
    present: list[str] = []
    if process is not None:
        with session(server) as opened:
            present = connected_sites(opened)
    last = [RunStatus(one.number, one.state().state, one.state().reason) for one in runs(folder)[-1:]]
    return StudyStatus(
        None if process is None else f"{server.host}:{server.port}",
        None if process is None else process.pid,
        {site: site in present for site in server.admitted},
        last[0] if last else None,
    )


def record_of_last_run(folder: Path) -> list[Mapping[str, Any]]:
    """The record of the last run, one entry for each event."""
    StudyServer.open(folder)
    return [entry for last in runs(folder)[-1:] for entry in last.progress()]


def stop(folder: Path) -> Stopped:
    """Stop the run, if there is one, and the server."""
    server = StudyServer.open(folder)
    return Stopped(run=stop_run(server), server=server.stop())


def fetch(folder: Path, out: Path, force: bool = False) -> None:
    """Copy the model of the last finished run. force: overwrite an existing file."""
    StudyServer.open(folder)
    finished = [one for one in runs(folder) if one.state().state == FINISHED]
    if not finished:
        raise FederationError("no run has finished yet; see 'dmtrl study status'")
    model = finished[-1].folder / MODEL
    if not model.exists():
        raise FederationError("the study gives the coordinator a summary only, no model; see 'dmtrl study log'")
    if out.exists() and not force:
        raise OutputExistsError(out)
    shutil.copyfile(model, out)
