"""`dmtrl fit`: fits a model to prepared rows, and keeps a checkpoint if it is interrupted."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.engines import LocalOptions, RayOptions
from dmtrl.estimators.cv import MTRLClassifierCV, MTRLRegressorCV
from dmtrl.estimators.mtrl import MTRLClassifier, MTRLRegressor
from dmtrl.exceptions import CheckpointExistsError, InputError, NoCheckpointError, NotConvergedWarning, Note, Setting
from dmtrl.losses import CLASSIFICATION, get_loss
from dmtrl.progress import GapProgress, NoProgress, Progress
from dmtrl.solver.checkpoint import Checkpoint, CheckpointSession, home_of, newest, open_session
from dmtrl.solver.checkpoint.options import PathLike, absolute, check_path
from dmtrl.solver.outcome import RoundRecord
from dmtrl.workflows.prepare import FitRequest, Prepared

FOLDS = 5  # of a cross-validation
SMALL = 1_000_000  # below this many numbers in X a second thread does not pay


class Interrupted(KeyboardInterrupt):
    """A fit was interrupted; `checkpoint` is where to resume it, or None if no checkpoint was written."""

    def __init__(self, checkpoint: PathLike | None):
        super().__init__("interrupted")
        self.checkpoint = checkpoint


def _threads(prepared: Prepared, request: FitRequest) -> int:
    if request.jobs == 0:
        raise InputError(Setting("jobs"), " must not be 0; pass ", Setting("jobs", -1), " for all cores")
    if request.jobs is not None:
        return request.jobs
    return 1 if prepared.X.shape[0] * prepared.X.shape[1] < SMALL else -1


def _engine(request: FitRequest) -> LocalOptions | RayOptions:
    if request.engine == "ray":
        return RayOptions(request.address, request.workers, max_staleness=request.max_staleness)
    for name in ("address", "workers"):
        if getattr(request, name) is not None:
            raise InputError(Setting(name), " requires ", Setting("engine", "ray"))
    return LocalOptions(max_staleness=request.max_staleness)


def estimator(prepared: Prepared, request: FitRequest) -> Any:
    """The unfitted model, with the given lambda or with cross-validation."""
    shared: dict[str, Any] = {
        "loss": prepared.loss,
        "task_weight": request.task_weight,
        "tol": request.tol,
        "random_state": request.seed,
        "n_jobs": _threads(prepared, request),
        "engine": _engine(request),
    }
    classes = prepared.loss.kind == CLASSIFICATION
    if classes:
        shared["on_single_class"] = "constant"
    if prepared.loss == get_loss(prepared.loss.name):  # a name is easier to read in the saved model
        shared["loss"] = prepared.loss.name
    if request.reg_lambda is not None:
        common: Any = {None: "auto", True: 1.0, False: 0.0}[request.common]
        shared |= {"reg_lambda": request.reg_lambda, "common": common, "own": request.own or 0.0}
        return (MTRLClassifier if classes else MTRLRegressor)(**shared)
    if request.common is not None:
        shared["commons"] = (1.0, 10.0) if request.common else (0.0,)
    if request.own is not None:
        shared["owns"] = (request.own,)
    return (MTRLClassifierCV if classes else MTRLRegressorCV)(cv=_folds(prepared), **shared)


def rows_per_task(tasks: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """How many rows with a positive weight each task has."""
    return np.unique(tasks if weight is None else tasks[weight > 0], return_counts=True)[1]


def folds_for(rows: np.ndarray, *otherwise: str | Setting) -> int:
    """FOLDS, or the rows of the largest task if it has fewer.

    Raises InputError, which ends with `otherwise`, if no task has two rows.
    """
    largest = int(rows.max(initial=0))
    if largest < 2:
        raise InputError("every task has only one row, so nothing can be held out ", *otherwise)
    return min(largest, FOLDS)


def _folds(prepared: Prepared) -> int:
    rows = rows_per_task(prepared.tasks, prepared.weight) if prepared.elsewhere is None else prepared.elsewhere.rows
    folds = folds_for(rows, "to choose lambda; pass ", Setting("reg_lambda"), " with a number")
    if folds < FOLDS:
        prepared.notes.append(f"no task has more than {folds} rows: lambda is chosen with {folds} folds")
    return folds


def fit(
    prepared: Prepared,
    request: FitRequest,
    progress: Progress | None = None,
    out: Path | None = None,
    resume: PathLike | None = None,
    checkpoint: PathLike | None = None,
) -> Any:
    """Fit a model that has `preparation_`, and save it to `out` if that is given.

    An interrupted fit leaves a checkpoint in `checkpoint_location(out, resume, checkpoint)`. `resume` continues from
    such a folder or URL.
    """
    progress, model = progress or NoProgress(), estimator(prepared, request)
    place = checkpoint_location(out, resume, checkpoint)
    session = open_session(place, resume, replace_others=True)
    began = time.perf_counter()
    callback = FitCallback(progress, request.tol, lambda: prepared.seconds.update(choosing=time.perf_counter() - began))
    model.set_params(callbacks=[callback])
    progress.stage("fitting" if request.reg_lambda is not None else "choosing lambda by cross-validation")
    try:
        with warnings.catch_warnings(record=True) as caught, _finish_round_on_interrupt(callback, session):
            warnings.simplefilter("always", UserWarning)
            if prepared.elsewhere is not None:
                prepared.elsewhere.fit(model, session)
            else:
                data = {"tasks": prepared.tasks, "sample_weight": prepared.weight}
                model.fit(prepared.X, prepared.y, **data, checkpoint=session)
    except KeyboardInterrupt:
        if session.writer is not None and session.writer.written:
            raise Interrupted(place) from None
        _clean_up(session, out, prepared.notes, replaced=False)  # nothing to resume from
        raise Interrupted(resume) from None
    prepared.seconds["fitting"] = time.perf_counter() - began - prepared.seconds.get("choosing", 0.0)
    seen = getattr(model, "seen_classes_", None)  # not for regression, nor for rows in files
    single = 0 if seen is None else int((seen.sum(axis=1) == 1).sum())
    if single:
        prepared.notes.append(
            f"{single} of {len(model.tasks_)} tasks have rows of only one class and always predict it"
        )
    prepared.notes += [_warning_note(warning.message, model) for warning in caught]
    model.set_params(callbacks=None)
    model.preparation_ = prepared.preparation
    if out is not None:
        model.save(out)
        _clean_up(session, out, prepared.notes)
    return model


def checkpoint_location(out: Path | None, resume: PathLike | None, checkpoint: PathLike | None) -> PathLike | None:
    """Where a fit writes checkpoints: `checkpoint`, else where it resumes from, else beside the model."""
    if checkpoint is not None and out is not None and Checkpoint(checkpoint).folder == os.path.abspath(out):
        raise ValueError(f"the model and its checkpoint must have different paths, got {out} for both")
    if checkpoint is not None or out is None:
        return checkpoint
    return _beside(out) if resume is None else home_of(resume)


def _beside(out: Path) -> Path:
    return out.with_name(f"{out.name}.checkpoint")


def _clean_up(session: CheckpointSession, out: Path | None, notes: list[str], replaced: bool = True) -> None:
    """Remove the checkpoint versions, and the default folder beside the model if it is empty."""
    try:
        if session.writer is not None:
            session.writer.clear(replaced)
    except OSError as error:
        notes.append(f"the checkpoint could not be removed: {error}")
    if out is not None:
        with suppress(OSError):
            _beside(out).rmdir()


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

    `chosen` is called when the cross-validation is finished.
    """

    def __init__(self, progress: Progress, tol: float, chosen: Callable[[], object]):
        self._progress, self._of_gap, self._chosen = progress, GapProgress(tol), chosen
        self.stop_requested = False

    def __call__(self, record: RoundRecord) -> None:
        self._progress.update(self._of_gap.share(record), f"round {record.round + 1}, relative gap {record.gap:.2%}")
        self._interrupt_if_requested()

    def on_cv_round(self, record: RoundRecord) -> None:
        self._interrupt_if_requested()

    def on_cv_fit(self, done: int, total: int) -> None:
        self._progress.update(done / total, f"{done} of {total} fits")
        if done == total:
            self._chosen()
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
