"""From data files to rows ready for an estimator: chooses rows, features and the kind of target for `dmtrl fit`.

What was chosen is recorded in `notes`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.data.coordinates import Coordinates
from dmtrl.data.sources import SourcePlan
from dmtrl.exceptions import InputError, Setting
from dmtrl.losses import Loss
from dmtrl.progress import NoProgress, Progress
from dmtrl.solver.checkpoint import CheckpointSession
from dmtrl.solver.problem import Tasks
from dmtrl.tables import Batch, TableFiles, open_files, require_column, require_columns
from dmtrl.tables import columns as read
from dmtrl.tables.learning import Choices, learn
from dmtrl.tables.names import listed, require_one_role
from dmtrl.tables.preparation import Block, Dropped, Preparation, without_missing
from dmtrl.workflows.data_files import open_with_tasks
from dmtrl.workflows.target_column import check_target, read_target, read_weights

MAX_TASKS = 10_000  # more values than this are probably not tasks; FitRequest.many_tasks allows them


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
    elsewhere: "RowsInFiles | None" = None  # the rows of the fit, if these are only a sample


@dataclass(frozen=True)
class RowsInFiles:
    """The rows of a fit that the workers read. rows: of each task."""

    plan: SourcePlan
    coordinates: Coordinates
    tasks: Tasks
    rows: np.ndarray
    lambdas: np.ndarray

    def fit(self, model: Any, session: CheckpointSession) -> None:
        if "lambdas" in model.get_params() and model.lambdas is None:
            model.set_params(lambdas=self.lambdas.tolist())
        model.fit_problem(model.describe(self.plan, self.coordinates, self.tasks), checkpoint=session)


def prepare(request: FitRequest, progress: Progress | None = None) -> Prepared:
    """Read the files and choose which rows and columns to use, and how."""
    progress = progress or NoProgress()
    progress.stage("reading")
    choices = Choices(request.drop, request.category, request.number, request.date, request.text)
    source = open_files(request.data, request.encoding)
    notes = _partly_missing_notes(source)
    source, task, by_file = open_with_tasks(source, request.task, notes)
    names = [name for name in source.names if name != task] if by_file else source.names  # a file has no such column
    target = _target_column(source.format, names, request.target)
    require_columns([name for _, name in choices.pairs], names)
    if request.weights is not None:
        require_column(request.weights, names)
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
    block = batch.block
    if not keep.all():
        frame, block = frame.filter(keep), None if block is None else block[keep]
        y, tasks, weight = y[keep], tasks[keep], None if weight is None else weight[keep]
    check_tasks(tasks, task, request.many_tasks, notes)
    with source.located(lambda row: int(numbers[row])):
        check_target(y, target, loss, summary)
    progress.stage("preparing the columns")
    rows = numbers[keep]
    with source.located(lambda row: int(rows[row])):
        preparation = learn(
            frame,
            task,
            target,
            untyped=[name for name in source.names if source.is_untyped(name)],
            choices=choices,
            reserved={request.weights: "the weights of the rows"} if request.weights else None,
            task_is_file_name=by_file,
            missing=request.missing,
            semicolons=commas,
            notes=notes,
        )
    if block is not None:
        rest = tuple(column for column in preparation.columns if isinstance(column, Dropped))
        preparation = replace(preparation, columns=(Block("features", block.shape[1]), *rest))
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


def _target_column(format: str, names: Sequence[str], target: str | None) -> str:
    if target is None:
        target = {"npz": "y", "libsvm": "label"}.get(format)
    if target is None:
        raise InputError("the target column is not known; pass ", Setting("target"), f" with one of {listed(names)}")
    require_column(target, names)
    return target


def check_tasks(tasks: np.ndarray, name: str, many: bool, notes: list[str]) -> None:
    """Raise InputError if a column has too many values for tasks."""
    m = len(np.unique(tasks))
    per_task = len(tasks) / m
    if not many and (m > MAX_TASKS or (m > 50 and per_task < 3)):
        problem = f"the task column {name!r} has {m:,} different values with {per_task:.1f} rows each"
        advice = "choose another column, or pass ", Setting("many_tasks", True), " to use it"
        raise InputError(f"{problem}, which is too many for tasks; ", *advice)
    if m == 1:
        notes.append(f"the task column {name!r} has only one value: there is no other task to share with")
