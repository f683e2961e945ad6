"""The coordinator's side of a study, over any carrier of messages to the sites.

`run_study` adds up the statistics of the sites, sends them the prepared problem, chooses lambda and fits through the
estimators, and sends each site its result. It never sees a row.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.data.coordinates import Coordinates
from dmtrl.engines.recovery import Carrier, RecoveringEngine
from dmtrl.exceptions import RefusedBySiteError, WorkerLostError
from dmtrl.federation.coordinator.asking import Asker, Subset, refused_by
from dmtrl.federation.coordinator.results import OnEvent, StudyEvent, StudyResult, TaskResult
from dmtrl.federation.protection.base import CoordinatorSide, Protection
from dmtrl.federation.protection.choice import protection_of
from dmtrl.federation.study import models, preparation
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol import PROTOCOL
from dmtrl.protocol import study as messages
from dmtrl.solver.checkpoint import Checkpoint, CheckpointSession, open_session
from dmtrl.solver.outcome import Outcome
from dmtrl.tables.preparation import Preparation


@dataclass(frozen=True)
class _Task:
    """A task of the study. at: its place among the tasks of its site; number: among all that are fitted, or -1;
    constant: the score of a task that always predicts one class, else 0."""

    name: str
    site: int
    at: int
    rows: int
    number: int
    constant: float


def run_study(
    study: Study,
    carrier: Carrier,
    sites: Sequence[str],
    folder: str | Path,
    progress: OnEvent = lambda event: None,
    *,
    resume: bool = False,
    checkpoint: Checkpoint | None = None,
    patience: float = 120.0,
) -> StudyResult:
    """Run a study with the sites of a carrier.

    Parameters
    ----------
    study : Study
    carrier : Carrier
        Carries messages to the sites; each site answers with `Site.answer`. A site that refuses must raise
        `Refused(worker, RefusedBySiteError(reason))`. `renew` makes a site start again from its folder.
    sites : sequence of str
        The names of the sites, in the order of the carrier.
    folder : path
        Where the model, the result and the checkpoints of the coordinator are written.
    progress : callable, optional
        Called with a StudyEvent.
    resume : bool, default=False
        Continue from the checkpoint in `folder`, if there is one. The result has the same bits.
    checkpoint : Checkpoint, optional
        Where and how often checkpoints are written. Default: `folder`/checkpoint, every 20 seconds.
    patience : float, default=120.0
        Seconds within which a site must respond, at the start and after it was lost; infinite if the carrier itself
        raises WorkerLostError for a site that is gone. How long a site may be silent before it counts as lost is up to
        the carrier.

    Returns
    -------
    StudyResult

    Raises
    ------
    RefusedBySiteError
        If a site refuses to take part or to answer.
    WorkerLostError
        If a site does not respond, and the study or the number of remaining sites requires it.
    """
    if len(set(sites)) != len(sites) or len(sites) != carrier.n_workers:
        raise ValueError(f"a study needs one name per site, got {', '.join(sites)} for {carrier.n_workers} sites")
    present, lost = sorted(range(len(sites)), key=lambda k: sites[k]), list[str]()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    place = checkpoint or Checkpoint(folder / "checkpoint", every_seconds=20.0)
    while True:
        if len(present) < study.limits.sites:
            raise ValueError(f"the study needs at least {study.limits.sites} sites, got {len(present)}")
        names = [sites[k] for k in present]
        session = open_session(place, resume or None, replace_others=True)
        try:
            result = _Run(study, Subset(carrier, present), names, lost, progress, patience).run(session)
        except RefusedBySiteError as refusal:
            raise refusal if refusal.site else refused_by("a site", refusal) from refusal
        except WorkerLostError as error:
            if study.limits.on_lost == "stop" or len(present) - 1 < study.limits.sites:
                raise
            gone = present.pop(error.worker)
            lost.append(sites[gone])
            progress(StudyEvent("starting again", detail=f"{sites[gone]} did not respond", sites=tuple(names)))
            resume = False  # the statistics change with the sites
            continue
        result.write(folder)
        if session.writer is not None:
            session.writer.clear()
        return result


@dataclass(frozen=True)
class _Run:
    """One attempt with the sites that are present, sorted by name. lost: those that were left out before."""

    study: Study
    carrier: Subset
    names: Sequence[str]
    lost: Sequence[str]
    progress: OnEvent
    patience: float

    def run(self, session: CheckpointSession) -> StudyResult:
        study, protection = self.study, protection_of(self.study)
        self._report("contacting the sites")
        with self._asker() as sites:
            hello = messages.Hello(study=study.hash, protocol=PROTOCOL, dmtrl=version("dmtrl"))
            tasks = self._number_tasks(sites.ask_all(hello))
            half = protection.coordinator(CoordinatorSide(sites, self._report, self._engine, session))
            found = half.prepare(sum(task.rows for task in tasks))
            prepared, coordinates = found.preparation, found.coordinates
            self._begin(sites, tasks, prepared, coordinates)
            model = models.unfitted(study, found.mean_square)
            constant = np.array([task.constant for task in tasks])
            problem = models.problem_of(model, study, coordinates, [task.name for task in tasks], constant)
            outcome = half.fit(model, problem, np.array([task.site for task in tasks]))
        model.preparation_ = prepared
        self._report("sending results")
        W = coordinates.weights(np.zeros((len(tasks), len(coordinates.x_centre))), constant)
        W[constant == 0] = outcome.W
        with self._asker() as sites:
            errors = self._finish(sites, model, outcome, tasks, W)
            return self._result(model, tasks, errors, protection)

    def _asker(self) -> Asker:
        return Asker(self.carrier, self.names, self.patience)

    @contextmanager
    def _engine(self, chosen: Sequence[int], tasks: Sequence[str]) -> Iterator[RecoveringEngine]:
        """An engine over the workers of some sites. tasks: names of all that are fitted."""
        try:
            with RecoveringEngine(Subset(self.carrier, chosen), self.patience, tasks) as engine:
                yield engine
        except WorkerLostError as error:
            raise self._lost(chosen[error.worker], error) from error

    def _lost(self, site: int, error: WorkerLostError) -> WorkerLostError:
        """The loss of a site in the words of a study: an engine gives advice for workers of a cluster."""
        reason, name = str(error.args[0]).split("; ")[0], self.names[site]
        words = reason if repr(name) in reason else f"the site {name!r} was lost ({reason})"
        advice = "see that it runs and reaches the server, then continue with 'dmtrl study run --resume'"
        return WorkerLostError(f"{words}; {advice}", site, error.tasks, error.alive)

    def _report(
        self, stage: str, done: float = 0.0, detail: str = "", *, round: int | None = None, gap: float | None = None
    ) -> None:
        self.progress(StudyEvent(stage, done, detail, round, gap, tuple(self.names)))

    def _number_tasks(self, answers: Sequence[messages.Welcome]) -> list[_Task]:
        tasks, fitted = list[_Task](), 0
        for k, (site, answer) in enumerate(zip(self.names, answers, strict=True)):
            possible = self.study.task_names(site)
            if answer.protocol != PROTOCOL:
                raise ValueError(
                    f"{site} has the protocol number {answer.protocol} (dmtrl {answer.dmtrl}), but the coordinator has "
                    f"{PROTOCOL} (dmtrl {version('dmtrl')}); install versions of dmtrl with the same number"
                )
            if answer.rows.shape != (len(possible),) or answer.single.shape != (len(possible),):
                raise RefusedBySiteError("answered with other tasks than those of the study", site=site)
            for at in np.flatnonzero(answer.rows > 0):
                rows, sign = int(answer.rows[at]), int(answer.single[at])
                number = -1 if sign else fitted
                fitted += not sign
                # log-odds of n successes in n trials, with half a failure added; as in MTRLClassifier
                tasks.append(_Task(possible[at], k, int(at), rows, number, sign * math.log(2.0 * rows + 1)))
        if not fitted:
            raise ValueError("every task has only rows of one class; there is nothing to fit")
        return tasks

    def _begin(self, sites: Asker, tasks: Sequence[_Task], prepared: Preparation, coordinates: Coordinates) -> None:
        text, coordinates_text = preparation.to_json(prepared), preparation.coordinates_to_json(coordinates)
        requests = {}
        for k, name in enumerate(self.names):
            numbers = np.full(len(self.study.task_names(name)), -1, dtype=np.int64)
            for task in tasks:
                if task.site == k:
                    numbers[task.at] = task.number
            requests[k] = messages.Begin(
                study=self.study.hash,
                preparation=text,
                coordinates=coordinates_text,
                x_centre=coordinates.x_centre,
                numbers=numbers,
            )
        sites.ask(requests)

    def _finish(
        self, sites: Asker, model: Any, outcome: Outcome, tasks: Sequence[_Task], W: np.ndarray
    ) -> dict[int, messages.Finished]:
        """Send every site its weights, and return the errors on its held-out rows."""
        requests = {}
        for k in range(len(self.names)):
            share_all = self.study.results.sites == "all"
            given = [i for i, task in enumerate(tasks) if share_all or task.site == k]
            requests[k] = messages.Finish(
                study=self.study.hash,
                names=json.dumps([tasks[i].name for i in given]),
                weights=W[given],
                common=outcome.common,
                reg_lambda=model.reg_lambda_,
                common_strength=model.common_strength_,
                primal=outcome.certificate.primal,
                dual=outcome.certificate.dual,
                converged=outcome.converged,
                rounds=model.n_rounds_,
            )
        return sites.ask(requests)

    def _result(
        self, model: Any, tasks: Sequence[_Task], errors: Mapping[int, messages.Finished], protection: Protection
    ) -> StudyResult:
        study, certificate, unit = self.study, model.certificate_, self.study.limits.rows_per_task
        measure = "wrong" if study.classification else "squared_error"
        cv_errors, results = _cv_errors(model, measure), list[TaskResult]()
        for task in tasks:
            held = errors[task.site]
            n = int(held.rows[task.at])
            error = float(getattr(held, measure)[task.at]) / n if n else None
            cv_error = float(cv_errors[task.number]) if cv_errors is not None and task.number >= 0 else None
            rows, held_rows = task.rows // unit * unit, n // unit * unit
            site, single = self.names[task.site], task.number < 0
            results.append(TaskResult(task.name, site, rows, held_rows, error, cv_error, single))
        result = StudyResult(
            study=study.name,
            hash=study.hash,
            sites=tuple(self.names),
            lost=tuple(self.lost),
            tasks=tuple(results),
            reg_lambda=model.reg_lambda_,
            common=model.common_strength_,
            primal=certificate.primal,
            dual=certificate.dual,
            relative_gap=certificate.relative_gap,
            rounds=model.n_rounds_,
            noisy=protection.noisy,
            privacy=protection.guarantee(),
            model=model if study.results.coordinator == "weights" else None,
        )
        model.study_ = result.as_dict()  # for the page about the model
        return result


def _cv_errors(model: Any, measure: str) -> np.ndarray | None:
    """The held-out error of each task at the chosen strengths; None without cross-validation."""
    results = getattr(model, "cv_results_", None)
    if results is None:
        return None
    chosen = results.index_of(model.strengths_)
    return np.asarray(getattr(results, measure)[chosen].sum(axis=0) / results.weight[chosen].sum(axis=0))
