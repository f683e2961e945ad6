"""`dmtrl fit` as a library function: data files in, a fitted model that knows its columns out.

Room: above the estimators, below the shell. `prepare` reads and decides (which rows, which features, which kind of
target) and says so in `notes`; `fit` chooses lambda, solves and certifies, and keeps a checkpoint when it is
interrupted. What came out, as plain values, is `findings.document`.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dmtrl.engines import RayOptions
from dmtrl.estimators.cv import MTRLClassifierCV, MTRLRegressorCV
from dmtrl.estimators.mtrl import MTRLClassifier, MTRLRegressor
from dmtrl.exceptions import NotConvergedWarning
from dmtrl.losses.builtin import CLASSIFICATION, Loss, get_loss
from dmtrl.solver.checkpoint import Checkpoint, Keeper, Place, home_of, newest
from dmtrl.tables import TableFiles, nearest, open_files, require_column
from dmtrl.tables import columns as read
from dmtrl.tables.learning import learn
from dmtrl.tables.preparation import Block, Dropped, Preparation, without_missing
from dmtrl.workflows.targets import check_target, read_target

MOST_TASKS = 10_000  # above, the task column is rather a mistake; --many-tasks says it is not
FOLDS = 5
SMALL = 1_000_000  # with fewer numbers in X a second thread costs more than it brings


class Interrupted(KeyboardInterrupt):
    """A fit was stopped; `checkpoint` is where it goes on from, None if it had not got anywhere."""

    def __init__(self, checkpoint: Place | None):
        super().__init__("interrupted")
        self.checkpoint = checkpoint


class Watcher(Protocol):
    """Hears how far the work is: when something new begins, and which share of it is done."""

    def stage(self, text: str) -> None: ...

    def share(self, done: float, detail: str = "") -> None: ...


class Silence:
    """A watcher that says nothing."""

    def stage(self, text: str) -> None:
        pass

    def share(self, done: float, detail: str = "") -> None:
        pass


@dataclass(frozen=True)
class FitRequest:
    """What people ask for. None: to be found out, or the default."""

    data: Sequence[str | Path]
    task: str | None = None
    target: str | None = None
    kind: str | None = None
    loss: str | None = None
    reg_lambda: float | None = None
    common: bool | None = None
    weights: str | None = None
    drop: Sequence[str] = ()
    category: Sequence[str] = ()
    number: Sequence[str] = ()
    missing: Sequence[str] = ()
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
    """Rows ready for an estimator, and what was decided on the way."""

    X: Any
    y: np.ndarray
    tasks: np.ndarray
    weight: np.ndarray | None
    preparation: Preparation
    loss: Loss
    rows_read: int
    notes: list[str] = field(default_factory=list)
    said: int = 0  # how many of the notes were there before the fit
    seconds: dict[str, float] = field(default_factory=dict)  # spent choosing lambda and fitting; fit fills it in


def prepare(request: FitRequest, watcher: Watcher | None = None) -> Prepared:
    """Read the files and decide what becomes of every column and row."""
    watcher = watcher or Silence()
    watcher.stage("reading")
    source = open_files(request.data)
    notes = [f"column {n!r} is not in {file}: missing there" for n, file in list(source.partly_missing().items())[:3]]
    source, task, by_file = task_of(source, request.task, notes)
    target = _target_of(source, request.target)
    named = [request.weights] if request.weights else []
    for name in (*request.drop, *request.category, *request.number, *named):
        require_column(name, source.names)
    if task == target:
        raise ValueError(f"the column {task!r} is given as task and as target; they must be two")
    batch = source.read(watcher.share)
    frame, total = batch.columns, batch.columns.num_rows
    if total == 0:
        raise ValueError(f"{source.files[0].path} has columns but no rows")
    frame = without_missing(frame, request.missing)
    tasks, no_task = read.labels(frame.column(task), source.is_untyped(task))
    commas = source.has_semicolons
    with source.located():
        y, no_target, loss, summary = read_target(
            frame.column(target), target, source.is_untyped(target), request.kind, request.loss, commas, notes
        )
        weight = None if request.weights is None else read.numbers(frame.column(request.weights), request.weights)
    keep = ~(no_task | no_target) if weight is None else ~(no_task | no_target | np.isnan(weight))
    for what, missing in (("task", no_task), ("target", no_target), ("weight", ~keep & ~no_task & ~no_target)):
        if missing.any():
            notes.append(f"left out: {int(missing.sum()):,} of {total:,} rows, which have no {what}")
    if not keep.any():
        raise ValueError(f"no row has both a task ({task!r}) and a target ({target!r})")
    if not keep.all():
        frame, block = frame.filter(keep), None if batch.block is None else batch.block[keep]
        y, tasks, weight = y[keep], tasks[keep], None if weight is None else weight[keep]
    else:
        block = batch.block
    _check_tasks(tasks, task, request.many_tasks, notes)
    with source.located():
        check_target(y, target, loss, summary)
    watcher.stage("preparing the columns")
    rows = np.flatnonzero(keep)
    with source.located(lambda row: int(rows[row])):
        preparation = learn(
            frame, task, target,
            untyped=[name for name in source.names if source.is_untyped(name)],
            drop=request.drop, category=request.category, number=request.number,
            reserved={request.weights: "the weights of the rows"} if request.weights else None,
            task_is_file_name=by_file, missing=request.missing, semicolons=commas, notes=notes,
        )  # fmt: skip
    if block is not None:
        rest = tuple(column for column in preparation.columns if isinstance(column, Dropped))
        preparation = Preparation(
            (Block("features", block.shape[1]), *rest), task, target, by_file, tuple(request.missing)
        )
    if not preparation.feature_names:
        why = "; ".join(f"{column.name}: {column.summary[1]}" for column in preparation.columns[:3])
        raise ValueError(f"no column is left to learn from beside task and target{f' ({why})' if why else ''}")
    X = preparation.transform(frame, block)
    return Prepared(X, y, tasks, weight, preparation, loss, total, notes, len(notes))


def task_of(source: TableFiles, asked: str | None, notes: list[str]) -> tuple[TableFiles, str, bool]:
    """The task column. Where several files have none by that name, each file is a task of its own."""
    names = source.names
    if asked is None:
        keys = sorted({key for part in source.files for key in part.constants})
        guess = {"npz": "task", "libsvm": "qid"}.get(source.format)
        asked = keys[0] if len(keys) == 1 else guess if guess in names else None
        if asked is None:
            raise ValueError(
                "say with --task which column names the task of each row; there are " + ", ".join(names[:8])
            )
    if asked in names:
        return source, asked, False
    if len(source.files) < 2 or nearest(asked, names):
        require_column(asked, names)
    notes.append(f"no file has a column {asked!r}: the file names are the tasks, as {source.files[0].stem!r}")
    return source.with_file_names(asked), asked, True


def open_as_fitted(data: Sequence[str | Path], preparation: Preparation, notes: list[str]) -> TableFiles:
    """New data of the kind that a model was fitted on, with a task column."""
    source = open_files(data)
    if (source.format == "libsvm") != (preparation.width is not None):
        fitted = "a libsvm file" if preparation.width is not None else "named columns"
        raise ValueError(f"the model was fitted on {fitted}, and {source.files[0].path} is {source.format}")
    if preparation.task not in source.names and preparation.task_is_file_name:
        return source.with_file_names(preparation.task)
    return task_of(source, preparation.task, notes)[0]


def _target_of(source: TableFiles, asked: str | None) -> str:
    if asked is None:
        asked = {"npz": "y", "libsvm": "label"}.get(source.format)
    if asked is None:
        raise ValueError("say with --target which column to predict; there are " + ", ".join(source.names[:8]))
    require_column(asked, source.names)
    return asked


def _check_tasks(tasks: np.ndarray, name: str, many: bool, notes: list[str]) -> None:
    m = len(np.unique(tasks))
    per_task = len(tasks) / m
    if not many and (m > MOST_TASKS or (m > 50 and per_task < 3)):
        raise ValueError(
            f"the task column {name!r} has {m:,} different values, {per_task:.1f} rows each: too many to be tasks; "
            "choose another column, or say --many-tasks if they are"
        )
    if m == 1:
        notes.append(f"the task column {name!r} has one value only: there is nobody to share with")


def _threads(prepared: Prepared, request: FitRequest) -> int:
    if request.jobs is not None:
        return request.jobs
    return 1 if prepared.X.shape[0] * prepared.X.shape[1] < SMALL else -1


def _engine(request: FitRequest) -> str | RayOptions:
    if request.engine == "ray":
        return RayOptions(request.address, request.workers)
    for name in ("address", "workers"):
        if getattr(request, name) is not None:
            raise ValueError(f"--{name} is for --engine ray; leave it out, or add --engine ray")
    return request.engine


def estimator(prepared: Prepared, request: FitRequest) -> Any:
    """The unfitted model: with a lambda that was given, or one that chooses by cross-validation."""
    shared: dict[str, Any] = {
        "loss": prepared.loss,
        "tol": request.tol,
        "max_staleness": request.max_staleness,
        "random_state": request.seed,
        "n_jobs": _threads(prepared, request),
        "engine": _engine(request),
    }
    classes = prepared.loss.kind == CLASSIFICATION
    if classes:
        shared["on_single_class"] = "constant"
    if prepared.loss == get_loss(prepared.loss.name):  # a plain name is easier to read in the saved model
        shared["loss"] = prepared.loss.name
    if request.reg_lambda is not None:
        common: Any = {None: "auto", True: 1.0, False: 0.0}[request.common]
        return (MTRLClassifier if classes else MTRLRegressor)(reg_lambda=request.reg_lambda, common=common, **shared)
    commons = {None: (0.0, 0.1, 1.0), True: (0.1, 1.0), False: (0.0,)}[request.common]
    return (MTRLClassifierCV if classes else MTRLRegressorCV)(commons=commons, cv=FOLDS, **shared)


def fit(
    prepared: Prepared,
    request: FitRequest,
    watcher: Watcher | None = None,
    out: Path | None = None,
    resume: Place | None = None,
    checkpoint: Place | None = None,
) -> Any:
    """The fitted model, with `preparation_`. With `out` it is saved there. What was found when a fit is interrupted is
    kept where `place_of` says, and `resume` goes on from such a folder or URL."""
    watcher, model = watcher or Silence(), estimator(prepared, request)
    if prepared.loss.kind == CLASSIFICATION:
        _note_single_classes(prepared)
    place = place_of(out, resume, checkpoint)
    keeper = Keeper(None if place is None else Checkpoint(place), resume)
    began = time.perf_counter()
    _listen(keeper, watcher, request.tol, lambda: prepared.seconds.update(choosing=time.perf_counter() - began))
    watcher.stage("fitting" if request.reg_lambda is not None else "choosing lambda by cross-validation")
    try:
        with warnings.catch_warnings(record=True) as said, _interrupts_wait(keeper):
            warnings.simplefilter("always", NotConvergedWarning)
            model.fit(prepared.X, prepared.y, tasks=prepared.tasks, sample_weight=prepared.weight, checkpoint=keeper)
    except KeyboardInterrupt:
        if keeper.saved:
            raise Interrupted(place) from None
        _clean_up(keeper, out, prepared.notes, before=False)  # of a fit that had not got anywhere
        raise Interrupted(resume) from None
    prepared.seconds["fitting"] = time.perf_counter() - began - prepared.seconds.get("choosing", 0.0)
    prepared.notes += [str(warning.message) for warning in said]
    model.preparation_ = prepared.preparation
    if out is not None:
        model.save(out)
        _clean_up(keeper, out, prepared.notes)  # nothing to go on from any more
    return model


def place_of(out: Path | None, resume: Place | None, checkpoint: Place | None) -> Place | None:
    """Where checkpoints of a fit are kept: where that is said, or where it goes on from, or beside the model."""
    if checkpoint is not None and out is not None and Checkpoint(checkpoint).folder == os.path.abspath(out):
        raise ValueError(f"the model and its checkpoint cannot both be {out}; give one of them another name")
    if checkpoint is not None or out is None:
        return checkpoint
    return _beside(out) if resume is None else home_of(resume)


def _beside(out: Path) -> Path:
    return out.with_name(f"{out.name}.checkpoint")


def _clean_up(keeper: Keeper, out: Path | None, notes: list[str], before: bool = True) -> None:
    """Versions go, and the folder beside the model if that leaves it empty; one that was named stays."""
    try:
        keeper.clear(before)
    except OSError as error:
        notes.append(f"the checkpoint could not be removed: {error}")
    if out is not None:
        with suppress(OSError):
            _beside(out).rmdir()


def check_nothing_kept(out: Path, resume: Place | None, checkpoint: Place | None) -> None:
    """Refuse a fit that would take the place of what an interrupted one found, and does not go on from there."""
    place = place_of(out, resume, checkpoint)
    assert place is not None
    folder = Checkpoint(place).folder
    if (resume is None or folder.rstrip("/") != home_of(resume)) and newest(folder) is not None:
        raise FileExistsError(
            f"{place} holds what an interrupted fit found; go on from it with --resume {place}, or say --force to lose "
            "it"
        )


@contextmanager
def _interrupts_wait(keeper: Keeper) -> Iterator[None]:
    """A first Ctrl-C waits for the end of the round, so that the checkpoint loses nothing; a second one does not."""
    if not keeper.writes or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(*_: object) -> None:
        keeper.stop_asked = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _listen(keeper: Keeper, watcher: Watcher, tol: float, chosen: Callable[[], object]) -> None:
    """Tell the watcher of every score and round; the way to go is the logarithm of the gap, which falls evenly."""
    first: list[float] = []

    def on_score(done: int, total: int) -> None:
        watcher.share(done / total, f"{done} of {total} fits")
        if done == total:
            chosen()
            watcher.stage("fitting all rows")

    def on_round(record: Any) -> None:
        first[:] = first or [min(record.gap, 1.0)]
        way = np.log(first[0] / tol)
        done = np.log(first[0] / max(record.gap, tol)) / way if way > 0 else 1.0
        watcher.share(float(np.clip(done, 0, 1)), f"round {record.round + 1}, within {record.gap:.2%} of the best")

    keeper.on_score, keeper.on_round = on_score, on_round


def _note_single_classes(prepared: Prepared) -> None:
    names, codes = np.unique(prepared.tasks, return_inverse=True)
    classes, labels = np.unique(prepared.y, return_inverse=True)
    pairs = np.unique(codes * len(classes) + labels)
    single = int((np.bincount(pairs // len(classes), minlength=len(names)) == 1).sum())
    if 0 < single < len(names):
        prepared.notes.append(f"{single} of {len(names)} tasks have rows of one class only and always answer with it")
