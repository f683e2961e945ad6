"""`dmtrl fit` as library functions.

`prepare` reads data files, chooses rows, features and the kind of target, and records its choices in `notes`. `fit`
returns a fitted model that knows its columns, and keeps a checkpoint if it is interrupted.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dmtrl.engines import RayOptions
from dmtrl.estimators.cv import MTRLClassifierCV, MTRLRegressorCV
from dmtrl.estimators.mtrl import MTRLClassifier, MTRLRegressor
from dmtrl.exceptions import CheckpointExistsError, InputError, NotConvergedWarning, Note, Setting
from dmtrl.losses import CLASSIFICATION, Loss, get_loss
from dmtrl.solver.checkpoint import Checkpoint, CheckpointSession, home_of, newest, open_session
from dmtrl.solver.checkpoint.options import PathLike
from dmtrl.solver.outcome import RoundRecord
from dmtrl.tables import Batch, TableFiles, open_files, require_column, require_columns
from dmtrl.tables import columns as read
from dmtrl.tables.learning import Choices, learn
from dmtrl.tables.names import listed, require_one_role
from dmtrl.tables.preparation import Block, Dropped, Preparation, without_missing
from dmtrl.workflows.data_files import open_with_tasks
from dmtrl.workflows.folds import FOLDS, folds_for, rows_per_task
from dmtrl.workflows.progress import NoProgress, Progress
from dmtrl.workflows.target_column import check_target, read_target, read_weights

MAX_TASKS = 10_000  # more values than this are probably not tasks; FitRequest.many_tasks allows them
SMALL = 1_000_000  # below this many numbers in X a second thread does not pay


class Interrupted(KeyboardInterrupt):
    """A fit was interrupted; `checkpoint` is where to resume it, or None if no checkpoint was written."""

    def __init__(self, checkpoint: PathLike | None):
        super().__init__("interrupted")
        self.checkpoint = checkpoint


@dataclass(frozen=True)
class FitRequest:
    """The options of `dmtrl fit`. None means: chosen from the data, or the default.

    task, target, weights: columns. kind: "regression" or "classification". loss: a name, with its parameter as in
    "huber=2". reg_lambda: None chooses it by cross-validation. common: True requires a component that all tasks share,
    False excludes it. own: strength of the tasks' own parts. task_weight: how much a task counts, as in the estimators.
    drop, category, number: columns to leave out, or whose kind is given. date: columns of dates, each with its format
    or None. text: columns whose words become features, each with "tfidf" or "hash". missing: texts that mean a missing
    value. encoding: of CSV files. sample: use this many random rows. many_tasks: accept a task column with very many
    values. jobs: threads. address, workers: of Ray.
    """

    data: Sequence[str | Path]
    task: str | None = None
    target: str | None = None
    kind: str | None = None
    loss: str | None = None
    reg_lambda: float | None = None
    common: bool | None = None
    own: float | None = None
    task_weight: str | float = 0.5
    weights: str | None = None
    drop: Sequence[str] = ()
    category: Sequence[str] = ()
    number: Sequence[str] = ()
    date: Mapping[str, str | None] = field(default_factory=dict)
    text: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()
    encoding: str | None = None
    sample: int | None = None
    many_tasks: bool = False
    tol: float = 1e-3
    seed: int = 0
    jobs: int | None = None
    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    max_staleness: int = 0


@dataclass
class Prepared:
    """Rows ready for an estimator, and how they were prepared."""

    X: Any
    y: np.ndarray
    tasks: np.ndarray
    weight: np.ndarray | None
    preparation: Preparation
    loss: Loss
    rows_read: int
    notes: list[str] = field(default_factory=list)
    notes_before_fit: int = 0  # how many of the notes `prepare` wrote
    seconds: dict[str, float] = field(default_factory=dict)  # `fit` adds the time for choosing lambda and for fitting
    target_comma: bool | None = None  # whether the numbers of the target have decimal commas
    elsewhere: "RowsElsewhere | None" = None  # the rows of the fit, if these are only a sample


class RowsElsewhere(Protocol):
    """The rows of a fit that are not in this process. rows: of each task."""

    @property
    def rows(self) -> np.ndarray: ...

    def fit(self, model: Any, session: CheckpointSession) -> None:
        """Fit the model."""


def prepare(request: FitRequest, progress: Progress | None = None) -> Prepared:
    """Read the files and choose which rows and columns to use, and how."""
    progress = progress or NoProgress()
    progress.stage("reading")
    choices = Choices(request.drop, request.category, request.number, request.date, request.text)
    source = open_files(request.data, request.encoding)
    notes = _partly_missing_notes(source)
    source, task, by_file = open_with_tasks(source, request.task, notes)
    target = _target_column(source, request.target)
    require_columns([name for _, name in choices.pairs], source.names)
    if request.weights is not None:
        require_column(request.weights, source.names)
    require_one_role([("task", task), ("target", target), ("weights", request.weights), *choices.pairs])
    batch, numbers, total = _read_rows(source, request, progress, notes)
    frame = batch.columns
    if total == 0:
        raise ValueError(f"{source.files[0].path} has columns but no rows")
    frame = without_missing(frame, request.missing)
    tasks, no_task = read.labels(frame.column(task), source.is_untyped(task))
    commas = source.has_semicolons
    with source.located(lambda row: int(numbers[row])):
        y, no_target, loss, summary = read_target(
            frame.column(target), target, source.is_untyped(target), request.kind, request.loss, commas, notes
        )
        weight = None if request.weights is None else read_weights(frame.column(request.weights), request.weights)
    keep = ~(no_task | no_target) if weight is None else ~(no_task | no_target | np.isnan(weight))
    for what, missing in (("task", no_task), ("target", no_target), ("weight", ~keep & ~no_task & ~no_target)):
        if missing.any():
            notes.append(f"left out: {int(missing.sum()):,} of {len(numbers):,} rows without a {what}")
    if not keep.any():
        raise ValueError(f"no row has both a task ({task!r}) and a target ({target!r})")
    if not keep.all():
        frame, block = frame.filter(keep), None if batch.block is None else batch.block[keep]
        y, tasks, weight = y[keep], tasks[keep], None if weight is None else weight[keep]
    else:
        block = batch.block
    check_tasks(tasks, task, request.many_tasks, notes)
    with source.located(lambda row: int(numbers[row])):
        check_target(y, target, loss, summary)
    progress.stage("preparing the columns")
    rows = numbers[keep]
    with source.located(lambda row: int(rows[row])):
        preparation = learn(
            frame, task, target,
            untyped=[name for name in source.names if source.is_untyped(name)],
            **vars(choices),
            reserved={request.weights: "the weights of the rows"} if request.weights else None,
            task_is_file_name=by_file, missing=request.missing, semicolons=commas, notes=notes,
        )  # fmt: skip
    if block is not None:
        rest = tuple(column for column in preparation.columns if isinstance(column, Dropped))
        preparation = Preparation(
            (Block("features", block.shape[1]), *rest), task, target, by_file, tuple(request.missing)
        )
    if not preparation.feature_names:
        why = listed([f"{column.name}: {column.summary[1]}" for column in preparation.columns], 3)
        raise ValueError(f"no column is left to use as a feature{f' ({why})' if why else ''}")
    X = preparation.transform(frame, block)
    comma = summary.decimal_comma or None
    return Prepared(X, y, tasks, weight, preparation, loss, total, notes, len(notes), target_comma=comma)


def _partly_missing_notes(source: TableFiles) -> list[str]:
    lacking = list(source.partly_missing().items())
    notes = [f"column {name!r} is not in {file}; its values are missing there" for name, file in lacking[:3]]
    if len(lacking) > 3:
        notes.append(f"{len(lacking) - 3:,} more columns are not in every file: {listed([n for n, _ in lacking[3:]])}")
    return notes


def _read_rows(
    source: TableFiles, request: FitRequest, progress: Progress, notes: list[str]
) -> tuple[Batch, np.ndarray, int]:
    """The rows to use, their numbers in the files, and how many rows the files have."""
    if request.sample is None:
        batch = source.read(progress.update)
        return batch, np.arange(batch.columns.num_rows), batch.columns.num_rows
    if request.sample < 1:
        raise InputError(Setting("sample"), f" must be positive, got {request.sample}")
    batch, numbers, total = source.sample(request.sample, request.seed, progress.update)
    if len(numbers) < total:
        notes.append(f"a random sample of {len(numbers):,} of {total:,} rows is used")
    return batch, numbers, total


def _target_column(source: TableFiles, target: str | None) -> str:
    if target is None:
        target = {"npz": "y", "libsvm": "label"}.get(source.format)
    if target is None:
        columns = listed(source.names)
        raise InputError("the target column is not known; pass ", Setting("target"), f" with one of {columns}")
    require_column(target, source.names)
    return target


def check_tasks(tasks: np.ndarray, name: str, many: bool, notes: list[str]) -> None:
    """Raise InputError if a column has too many values for tasks."""
    m = len(np.unique(tasks))
    per_task = len(tasks) / m
    if not many and (m > MAX_TASKS or (m > 50 and per_task < 3)):
        raise InputError(
            f"the task column {name!r} has {m:,} different values with {per_task:.1f} rows each, which is too many for "
            "tasks; choose another column, or pass ", Setting("many_tasks", True), " to use it",
        )  # fmt: skip
    if m == 1:
        notes.append(f"the task column {name!r} has only one value: there is no other task to share with")


def _threads(prepared: Prepared, request: FitRequest) -> int:
    if request.jobs == 0:
        raise InputError(Setting("jobs"), " must not be 0; pass ", Setting("jobs", -1), " for all cores")
    if request.jobs is not None:
        return request.jobs
    return 1 if prepared.X.shape[0] * prepared.X.shape[1] < SMALL else -1


def _engine(request: FitRequest) -> str | RayOptions:
    if request.engine == "ray":
        return RayOptions(request.address, request.workers)
    for name in ("address", "workers"):
        if getattr(request, name) is not None:
            raise InputError(Setting(name), " requires ", Setting("engine", "ray"))
    return request.engine


def estimator(prepared: Prepared, request: FitRequest) -> Any:
    """The unfitted model, with the given lambda or with cross-validation."""
    shared: dict[str, Any] = {
        "loss": prepared.loss,
        "task_weight": request.task_weight,
        "tol": request.tol,
        "max_staleness": request.max_staleness,
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
    commons = {None: (0.0, 1.0, 10.0), True: (1.0, 10.0), False: (0.0,)}[request.common]
    if request.own is not None:
        shared["owns"] = (request.own,)
    return (MTRLClassifierCV if classes else MTRLRegressorCV)(commons=commons, cv=_folds(prepared), **shared)


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
    if prepared.loss.kind == CLASSIFICATION and prepared.elsewhere is None:
        _note_single_classes(prepared)
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


def check_no_checkpoint(out: Path, resume: PathLike | None, checkpoint: PathLike | None) -> None:
    """Raise CheckpointExistsError if a fit would overwrite the checkpoint of another one that it does not resume."""
    place = checkpoint_location(out, resume, checkpoint)
    assert place is not None
    folder = Checkpoint(place).folder
    if (resume is None or folder.rstrip("/") != home_of(resume)) and newest(folder) is not None:
        raise CheckpointExistsError(str(place))


class FitCallback:
    """A callback of the estimator: reports progress, and interrupts the fit after a round when asked to.

    `chosen` is called when the cross-validation is finished. Progress is measured on the logarithm of the gap, which
    falls evenly.
    """

    def __init__(self, progress: Progress, tol: float, chosen: Callable[[], object]):
        self._progress, self._tol, self._chosen = progress, tol, chosen
        self._first_gap = 0.0
        self.stop_requested = False

    def __call__(self, record: RoundRecord) -> None:
        self._first_gap = self._first_gap or min(record.gap, 1.0)
        distance = np.log(self._first_gap / self._tol)
        done = np.log(self._first_gap / max(record.gap, self._tol)) / distance if distance > 0 else 1.0
        self._progress.update(float(np.clip(done, 0, 1)), f"round {record.round + 1}, relative gap {record.gap:.2%}")
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
        "scale the features, or pass a larger ", Setting("reg_lambda"), " or a larger ", Setting("tol"),
    )  # fmt: skip


def _note_single_classes(prepared: Prepared) -> None:
    names, codes = np.unique(prepared.tasks, return_inverse=True)
    classes, labels = np.unique(prepared.y, return_inverse=True)
    pairs = np.unique(codes * len(classes) + labels)
    single = int((np.bincount(pairs // len(classes), minlength=len(names)) == 1).sum())
    if 0 < single < len(names):
        prepared.notes.append(f"{single} of {len(names)} tasks have rows of only one class and always predict it")
