"""Runs a study: submits the job, follows it, and submits it again after a crash of the server."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from typing import Any

from nvflare.fuel.flare_api.flare_api import new_secure_session

from dmtrl.exceptions import FederationError, StudyStoppedError
from dmtrl.federation.flare import processes
from dmtrl.federation.flare.jobs import write_job
from dmtrl.federation.flare.kits import ADMIN
from dmtrl.federation.flare.processes import Echo, quiet
from dmtrl.federation.flare.server.folder import StudyServer
from dmtrl.federation.flare.server.runs import (
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    Run,
    describe,
    new_run,
    runs,
    set_current,
)
from dmtrl.federation.study.study_file import Study, read_study
from dmtrl.progress import Progress

_POLL = 0.3  # seconds between two looks at the progress
_STATUS_EVERY = 3.0  # seconds between two questions about the job
_MAX_RESTARTS = 20  # of the server in one run
_CONNECT = 30.0  # seconds
_GRACE = 10.0  # seconds that FLARE has to end a job


@contextmanager
def session(coordinator: StudyServer) -> Iterator[Any]:
    """A session with the server. An open one would keep the program alive after the server died."""
    with redirect_stdout(StringIO()):  # it prints that it connects
        try:
            opened = new_secure_session(ADMIN, str(coordinator.admin.resolve()), timeout=_CONNECT)
        except Exception as error:
            raise FederationError(
                f"the server at {coordinator.host}:{coordinator.port} does not answer ({error}); "
                "'dmtrl study start' starts it"
            ) from error
    try:
        yield opened
    finally:
        opened.close()


def connected_sites(opened: Any) -> list[str]:
    """The sites that are connected to the server."""
    return sorted(client.name for client in opened.get_connected_client_list())


def run_study_job(
    coordinator: StudyServer,
    progress: Progress,
    resume: bool = False,
    wait: float = 60.0,
    patience: float = 120.0,
    echo: Echo = quiet,
) -> Run:
    """Run the study to its end.

    Parameters
    ----------
    coordinator : StudyServer
    progress : Progress
    resume : bool
        Continue the last run from its checkpoint.
    wait : float
        Seconds to wait for all admitted sites. After that the run begins with those that are connected, if the study
        allows it.
    patience : float
        Seconds within which a site that is lost during the run must come back.
    echo : callable
        Receives the commands that are run.

    Returns
    -------
    Run
        The finished run. A run that failed raises FederationError with the reason; one that was stopped raises
        StudyStoppedError.
    """
    study = read_study(coordinator.study_file)
    run = _choose(coordinator, resume)
    run.set_state(RUNNING)
    set_current(coordinator.folder, run, patience)
    try:
        for attempt in range(_MAX_RESTARTS):
            if coordinator.start(echo):
                progress.stage("starting the server")
            try:
                with session(coordinator) as opened:
                    job = _running_job(opened, coordinator, run)
                    if job is None:
                        sites = _gather(opened, coordinator, study, progress, max(wait, patience) if attempt else wait)
                        job = _submit(opened, coordinator, sites, run)
                    try:
                        if _follow(opened, coordinator, job, run, progress):
                            return run
                    except BaseException:
                        _abort(opened, job)
                        raise
            except Exception:  # of FLARE, while the server goes down
                if processes.running(coordinator.kit) is not None:
                    raise
            progress.stage("the server was lost; starting it again")
            if processes.managed(coordinator.kit):
                processes.wait_until(lambda: processes.running(coordinator.kit) is not None, _CONNECT)
        raise FederationError(f"the server was lost {_MAX_RESTARTS} times")
    except BaseException as error:
        if run.state().state == RUNNING:
            interrupted = isinstance(error, KeyboardInterrupt)
            run.set_state(STOPPED if interrupted else FAILED, "interrupted" if interrupted else str(error))
        raise


def _choose(coordinator: StudyServer, resume: bool) -> Run:
    before = runs(coordinator.folder)
    state = before[-1].state().state if before else ""
    if not resume:
        if state == RUNNING and processes.job_processes(coordinator.kit):
            raise FederationError(
                f"run {before[-1].number} is in progress; 'dmtrl study run --resume' follows it, and 'dmtrl study "
                "stop' ends it"
            )
        return new_run(coordinator.folder)
    if not before:
        raise FederationError("there is no run to resume; run without --resume")
    if state == FINISHED:
        raise FederationError(f"run {before[-1].number} is finished; run without --resume to begin another one")
    return before[-1]


def _running_job(opened: Any, coordinator: StudyServer, run: Run) -> str | None:
    """The job of a run that a command left behind. Jobs from before the server was started are lost, whatever FLARE
    says."""
    server, last = processes.running(coordinator.kit), run.last_job
    if server is None or last is None or last["time"] <= server.create_time() or _is_over(opened, last["job"]):
        return None
    return str(last["job"])


def _is_over(opened: Any, job: str) -> bool:
    return str(opened.get_job_status(job)).startswith("FINISHED")


def _gather(opened: Any, coordinator: StudyServer, study: Study, progress: Progress, wait: float) -> list[str]:
    """The sites that take part: all admitted ones, or after `wait` seconds those that are connected."""
    admitted = coordinator.admitted
    if not admitted:
        raise FederationError("no site was admitted yet; 'dmtrl study invite' and 'dmtrl study admit' do that")
    progress.stage(f"waiting for {len(admitted)} sites")
    end = time.monotonic() + wait
    while True:
        present = [site for site in connected_sites(opened) if site in admitted]
        if len(present) == len(admitted):
            return present
        if time.monotonic() > end:
            missing = ", ".join(site for site in admitted if site not in present)
            if study.limits.on_lost == "go_on" and len(present) >= study.limits.sites:
                progress.stage(f"continuing without {missing}")
                return present
            raise FederationError(
                f"these sites did not connect within {wait:g} s: {missing}. They must run 'dmtrl site start'; to run "
                f'without them, the study needs {study.limits.sites} sites and on_lost = "go_on"'
            )
        progress.update(len(present) / len(admitted), f"{len(present)} of {len(admitted)} sites connected")
        time.sleep(_POLL)


def _submit(opened: Any, coordinator: StudyServer, sites: Sequence[str], run: Run) -> str:
    job = coordinator.folder / "job"
    write_job(job, sites)
    job_id = str(opened.submit_job(str(job.resolve())))
    run.note(job=job_id, sites=list(sites))
    return job_id


def _follow(opened: Any, coordinator: StudyServer, job: str, run: Run, progress: Progress) -> bool:
    """Show the progress of a job until it ends. False: the server was lost. Raises if the run failed or was stopped."""
    seen, shown = len(list(run.progress())), ""
    asked, over = time.monotonic(), math.inf
    while True:
        for entry in run.progress(seen):
            seen += 1
            shown = _show(entry, shown, progress)
        if processes.running(coordinator.kit) is None:
            return False
        if run.state().state != RUNNING:
            over = min(over, time.monotonic())
        if time.monotonic() - over > _GRACE:  # FLARE waits for sites that did not come back
            _abort(opened, job)
            return _judge(run, "ABORTED")
        if time.monotonic() - asked >= _STATUS_EVERY:
            asked = time.monotonic()
            try:
                status = str(opened.get_job_status(job))
            except Exception:  # the server is going down, or busy
                continue
            if status.startswith("FINISHED"):
                return _judge(run, status)
        time.sleep(_POLL)


def _show(entry: Mapping[str, Any], shown: str, progress: Progress) -> str:
    """Show an entry of the record; returns the stage."""
    stage = str(entry.get("stage", shown))
    if stage != shown:
        progress.stage(stage)
    if "done" in entry:
        progress.update(entry["done"], describe(entry))
    return stage


def _judge(run: Run, status: str) -> bool:
    state = run.state()
    if state.state == FINISHED:
        return True
    if state.state == STOPPED:
        raise StudyStoppedError(f"run {run.number} was stopped; continue it with 'dmtrl study run --resume'")
    raise FederationError(state.reason or f"the job ended with {status}; see the logs in the server's folder")


def _abort(opened: Any, job: str) -> None:
    """End a job if it still runs, and wait for that."""
    with suppress(Exception):  # the server may be gone
        if not _is_over(opened, job):
            opened.abort_job(job)
            processes.wait_until(lambda: _is_over(opened, job), _GRACE)


def stop_run(coordinator: StudyServer) -> bool:
    """Stop the present run; False if there is none."""
    running = [run for run in runs(coordinator.folder)[-1:] if run.state().state == RUNNING]
    if not running or processes.running(coordinator.kit) is None:
        return False
    with session(coordinator) as opened:
        if (last := running[0].last_job) is not None:
            _abort(opened, last["job"])
    running[0].set_state(STOPPED, "stopped by the coordinator")
    return True
