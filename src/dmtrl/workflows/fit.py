"""`dmtrl fit` as a library function: prepare the rows, fit, compare, write the model and its page, and summarise.

Each step returns a frozen dataclass: `prepare` a TrainingTable, `fit_table` a FittedModel, `fit` a FitResult.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl import __version__
from dmtrl.engines import LocalOptions, RayOptions
from dmtrl.estimators.comparison import Comparison
from dmtrl.estimators.cv import MTRLClassifierCV, MTRLRegressorCV
from dmtrl.estimators.mtrl import MTRLClassifier, MTRLRegressor
from dmtrl.exceptions import CheckpointExistsError, InputError, NoCheckpointError, NotConvergedWarning, Note, Setting
from dmtrl.losses import CLASSIFICATION, get_loss
from dmtrl.progress import GapProgress, NoProgress, Progress
from dmtrl.report.model_page import write_model_page
from dmtrl.solver.checkpoint import Checkpoint, CheckpointSession, home_of, newest, open_session
from dmtrl.solver.checkpoint.options import PathLike, absolute, check_path
from dmtrl.solver.outcome import RoundRecord
from dmtrl.workflows.by_task import prepare_by_task
from dmtrl.workflows.prepare import TrainingTable, prepare
from dmtrl.workflows.requests import FitRequest
from dmtrl.workflows.summary import FitSummary, fit_summary

FOLDS = 5  # of a cross-validation
SMALL = 1_000_000  # below this many numbers in X a second thread does not pay


class Interrupted(KeyboardInterrupt):
    """A fit was interrupted; `checkpoint` is where to resume it, or None if no checkpoint was written."""

    def __init__(self, checkpoint: PathLike | None):
        super().__init__("interrupted")
        self.checkpoint = checkpoint


@dataclass(frozen=True)
class Seconds:
    """How long the steps of a fit took. choosing: lambda by cross-validation; None if it was given."""

    reading: float
    choosing: float | None
    fitting: float
    total: float

    def as_dict(self) -> dict[str, float]:
        """Plain values, without a step that did not happen."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class FittedModel:
    """A fitted estimator, notes about the fit, and its seconds."""

    model: Any
    notes: tuple[str, ...]
    choosing: float | None
    fitting: float


@dataclass(frozen=True)
class FitResult:
    """What `dmtrl fit` did.

    model: the fitted estimator. out, page: the files that were written. table_notes: what was chosen from the data.
    fit_notes: notes and warnings of the later steps.
    """

    request: FitRequest
    model: Any
    out: Path | None
    page: Path | None
    comparison: Comparison | None
    summary: FitSummary
    table_notes: tuple[str, ...]
    fit_notes: tuple[str, ...]
    seconds: Seconds

    def as_dict(self) -> dict[str, Any]:
        """The result as plain values, for JSON."""
        return {
            "dmtrl": __version__,
            "model": None if self.out is None else str(self.out),
            "data": list(map(str, self.request.data)),
            "report": None if self.page is None else str(self.page),
            **self.summary.as_dict(),
            "notes": [*self.table_notes, *self.fit_notes],
            "seconds": self.seconds.as_dict(),
        }


def fit(
    request: FitRequest,
    progress: Progress | None = None,
    on_prepared: Callable[[TrainingTable], object] = lambda table: None,
) -> FitResult:
    """Run the whole command. on_prepared: called with the prepared rows before the fit begins.

    Raises Interrupted on Ctrl-C before the model is saved. After that, Ctrl-C skips the comparison or the page.
    """
    progress, began = progress or NoProgress(), time.perf_counter()
    request.check()
    if request.out is not None:
        check_checkpoints(request.out, request.resume, request.checkpoint, request.force)
    table = prepare_by_task(request, progress) if request.by_task else prepare(request, progress)
    reading = time.perf_counter() - began
    folds = folds_for(table.rows_per_task, "for a comparison; leave out ", Setting("compare")) if request.compare else 0
    on_prepared(table)
    fitted = fit_table(table, request, progress)
    comparison, compare_notes = _compare(fitted.model, table, folds, progress) if folds else (None, ())
    page, page_notes = _write_page(request.page, fitted.model, table, comparison, progress)
    return FitResult(
        request,
        fitted.model,
        request.out,
        page,
        comparison,
        fit_summary(fitted.model, table, comparison),
        table.notes,
        (*fitted.notes, *compare_notes, *page_notes),
        Seconds(reading, fitted.choosing, fitted.fitting, time.perf_counter() - began),
    )


def fit_table(table: TrainingTable, request: FitRequest, progress: Progress | None = None) -> FittedModel:
    """Fit a model that has `preparation_`, and save it to `request.out` if that is given.

    An interrupted fit leaves a checkpoint in `checkpoint_location(out, resume, checkpoint)` of the request.
    """
    progress, model, out = progress or NoProgress(), estimator(table, request), request.out
    place = checkpoint_location(out, request.resume, request.checkpoint)
    session = open_session(place, request.resume, replace_others=True)
    began = time.perf_counter()
    callback = FitCallback(progress, request.tol)
    model.set_params(callbacks=[callback])
    progress.stage("fitting" if request.reg_lambda is not None else "choosing lambda by cross-validation")
    try:
        with warnings.catch_warnings(record=True) as caught, _finish_round_on_interrupt(callback, session):
            warnings.simplefilter("always", UserWarning)
            if table.in_files is not None:
                table.in_files.fit(model, session)
            else:
                data = {"tasks": table.tasks, "sample_weight": table.weight}
                model.fit(table.X, table.y, **data, checkpoint=session)
    except KeyboardInterrupt:
        if session.writer is not None and session.writer.written:
            raise Interrupted(place) from None
        _clean_up(session, out, replaced=False)  # nothing to resume from
        raise Interrupted(request.resume) from None
    choosing = None if callback.chosen_at is None else callback.chosen_at - began
    fitting = time.perf_counter() - began - (choosing or 0.0)
    notes = [*_fold_notes(table, request), *_single_class_notes(model)]
    notes += [_warning_note(warning.message, model) for warning in caught]
    model.set_params(callbacks=None)
    model.preparation_ = table.preparation
    if out is not None:
        model.save(out)
        notes += _clean_up(session, out)
    return FittedModel(model, tuple(notes), choosing, fitting)


def estimator(table: TrainingTable, request: FitRequest) -> Any:
    """The unfitted model, with the given lambda or with cross-validation."""
    shared: dict[str, Any] = {
        "loss": table.loss,
        "task_weight": request.task_weight,
        "tol": request.tol,
        "random_state": request.seed,
        "n_jobs": _threads(table, request),
        "engine": _engine(request),
    }
    classes = table.loss.kind == CLASSIFICATION
    if classes:
        shared["on_single_class"] = "constant"
    if table.loss == get_loss(table.loss.name):  # a name is easier to read in the saved model
        shared["loss"] = table.loss.name
    if request.reg_lambda is not None:
        common: Any = {None: "auto", True: 1.0, False: 0.0}[request.common]
        shared |= {"reg_lambda": request.reg_lambda, "common": common, "own": request.own or 0.0}
        return (MTRLClassifier if classes else MTRLRegressor)(**shared)
    if request.common is not None:
        shared["commons"] = (1.0, 10.0) if request.common else (0.0,)
    if request.own is not None:
        shared["owns"] = (request.own,)
    return (MTRLClassifierCV if classes else MTRLRegressorCV)(cv=_search_folds(table), **shared)


def _threads(table: TrainingTable, request: FitRequest) -> int:
    if request.jobs == 0:
        raise InputError(Setting("jobs"), " must not be 0; pass ", Setting("jobs", -1), " for all cores")
    if request.jobs is not None:
        return request.jobs
    return 1 if table.X.shape[0] * table.X.shape[1] < SMALL else -1


def _engine(request: FitRequest) -> LocalOptions | RayOptions:
    if request.engine == "ray":
        return RayOptions(request.address, request.workers, max_staleness=request.max_staleness)
    for name in ("address", "workers"):
        if getattr(request, name) is not None:
            raise InputError(Setting(name), " requires ", Setting("engine", "ray"))
    return LocalOptions(max_staleness=request.max_staleness)


def folds_for(rows_per_task: np.ndarray, *otherwise: str | Setting) -> int:
    """FOLDS, or the rows of the largest task if it has fewer.

    Raises InputError, which ends with `otherwise`, if no task has two rows.
    """
    largest = int(rows_per_task.max(initial=0))
    if largest < 2:
        raise InputError("every task has only one row, so nothing can be held out ", *otherwise)
    return min(largest, FOLDS)


def _search_folds(table: TrainingTable) -> int:
    return folds_for(table.rows_per_task, "to choose lambda; pass ", Setting("reg_lambda"), " with a number")


def _fold_notes(table: TrainingTable, request: FitRequest) -> list[str]:
    folds = FOLDS if request.reg_lambda is not None else _search_folds(table)
    return [] if folds == FOLDS else [f"no task has more than {folds} rows: lambda is chosen with {folds} folds"]


def _single_class_notes(model: Any) -> list[str]:
    seen = getattr(model, "seen_classes_", None)  # not for regression, nor for rows in files
    single = 0 if seen is None else int((seen.sum(axis=1) == 1).sum())
    return [f"{single} of {len(model.tasks_)} tasks have rows of only one class and always predict it"] * (single > 0)


def _compare(
    model: Any, table: TrainingTable, folds: int, progress: Progress
) -> tuple[Comparison | None, tuple[str, ...]]:
    progress.stage("comparing with each task alone and all tasks pooled (Ctrl-C skips this)")
    try:
        return model.compare(table.X, table.y, table.tasks, table.weight, folds), ()
    except KeyboardInterrupt:
        return None, ("the comparison was interrupted",)


def _write_page(
    page: Path | None, model: Any, table: TrainingTable, comparison: Comparison | None, progress: Progress
) -> tuple[Path | None, tuple[str, ...]]:
    """Write the page and return its path. The model is already saved, so a failure only adds a note."""
    if page is None:
        return None, ()
    progress.stage("writing the page (Ctrl-C skips this)")
    try:
        if table.in_files is not None:
            return write_model_page(model, page), ()
        data = table.X, table.y, table.tasks
        return write_model_page(model, page, *data, comparison or False, sample_weight=table.weight), ()
    except KeyboardInterrupt:
        return None, ("the page was skipped",)
    except (ImportError, OSError) as error:
        return None, (f"no page was written: {error}",)


def checkpoint_location(out: Path | None, resume: PathLike | None, checkpoint: PathLike | None) -> PathLike | None:
    """Where a fit writes checkpoints: `checkpoint`, else where it resumes from, else beside the model."""
    if checkpoint is not None and out is not None and Checkpoint(checkpoint).folder == os.path.abspath(out):
        raise ValueError(f"the model and its checkpoint must have different paths, got {out} for both")
    if checkpoint is not None or out is None:
        return checkpoint
    return _beside(out) if resume is None else home_of(resume)


def _beside(out: Path) -> Path:
    return out.with_name(f"{out.name}.checkpoint")


def _clean_up(session: CheckpointSession, out: Path | None, replaced: bool = True) -> list[str]:
    """Remove the checkpoint versions, and the default folder beside the model if it is empty. Returns notes."""
    notes = []
    try:
        if session.writer is not None:
            session.writer.clear(replaced)
    except OSError as error:
        notes.append(f"the checkpoint could not be removed: {error}")
    if out is not None:
        with suppress(OSError):
            _beside(out).rmdir()
    return notes


def check_checkpoints(out: Path, resume: PathLike | None, checkpoint: PathLike | None, force: bool) -> None:
    """Raise NoCheckpointError if there is nothing to resume from, and CheckpointExistsError if a fit would overwrite
    the checkpoint of another one that it does not resume, unless `force`."""
    if resume is not None:
        check_path("resume", resume)
        if newest(absolute(resume)) is None:
            raise NoCheckpointError(absolute(resume))
    if force:
        return
    place = checkpoint_location(out, resume, checkpoint)
    assert place is not None
    folder = Checkpoint(place).folder
    if (resume is None or folder.rstrip("/") != home_of(resume)) and newest(folder) is not None:
        raise CheckpointExistsError(str(place))


class FitCallback:
    """A callback of the estimator: reports progress, and interrupts the fit after a round when asked to.

    `chosen_at` is the time at which the cross-validation was finished, None before.
    """

    def __init__(self, progress: Progress, tol: float):
        self._progress, self._of_gap = progress, GapProgress(tol)
        self.chosen_at: float | None = None
        self.stop_requested = False

    def __call__(self, record: RoundRecord) -> None:
        self._progress.update(self._of_gap.share(record), f"round {record.round + 1}, relative gap {record.gap:.2%}")
        self._interrupt_if_requested()

    def on_cv_round(self, record: RoundRecord) -> None:
        self._interrupt_if_requested()

    def on_cv_fit(self, done: int, total: int) -> None:
        self._progress.update(done / total, f"{done} of {total} fits")
        if done == total:
            self.chosen_at = time.perf_counter()
            self._progress.stage("fitting all rows")
        self._interrupt_if_requested()

    def _interrupt_if_requested(self) -> None:
        if self.stop_requested:
            raise KeyboardInterrupt


@contextmanager
def _finish_round_on_interrupt(callback: FitCallback, session: CheckpointSession) -> Iterator[None]:
    """A first Ctrl-C stops the fit after the current round, so that its work is kept; a second one stops it at once."""
    if session.writer is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def request_stop(*_: object) -> None:
        callback.stop_requested = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, request_stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _warning_note(warning: Warning | str, model: Any) -> str:
    if not isinstance(warning, NotConvergedWarning):
        return str(warning)
    gap = model.certificate_.relative_gap
    return Note(
        f"the fit stopped after {model.n_rounds_} rounds at a relative gap of {gap:.2g} (tolerance {model.tol:g}); "
        "scale the features, or pass a larger ",
        Setting("reg_lambda"),
        " or a larger ",
        Setting("tol"),
    )
