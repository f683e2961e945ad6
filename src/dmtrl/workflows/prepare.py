"""From data files to rows ready for an estimator: chooses rows, features and the kind of target for `dmtrl fit`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from dmtrl.workflows.requests import FitRequest
from dmtrl.workflows.target_column import check_target, read_target, read_weights

MAX_TASKS = 10_000  # more values than this are probably not tasks; FitRequest.many_tasks allows them


@dataclass(frozen=True)
class TrainingTable:
    """The rows of the files, ready for an estimator, and how they were prepared.

    rows_read: rows in the files, with those left out. notes: what was chosen. target_comma: whether the numbers of the
    target have decimal commas. in_files: the rows of the fit, if X, y, tasks and weight are only a sample of them.
    """

    X: Any
    y: np.ndarray
    tasks: np.ndarray
    weight: np.ndarray | None
    preparation: Preparation
    loss: Loss
    rows_read: int
    notes: tuple[str, ...] = ()
    target_comma: bool | None = None
    in_files: "RowsInFiles | None" = None

    @property
    def rows_per_task(self) -> np.ndarray:
        """How many rows with a positive weight each task of the fit has."""
        return count_rows(self.tasks, self.weight) if self.in_files is None else self.in_files.rows_per_task


@dataclass(frozen=True)
class RowsInFiles:
    """The rows of a fit that the workers read."""

    plan: SourcePlan
    coordinates: Coordinates
    tasks: Tasks
    rows_per_task: np.ndarray
    lambdas: np.ndarray

    def fit(self, model: Any, session: CheckpointSession) -> None:
        if "lambdas" in model.get_params() and model.lambdas is None:
            model.set_params(lambdas=self.lambdas.tolist())
        model.fit_problem(model.describe(self.plan, self.coordinates, self.tasks), checkpoint=session)


def count_rows(tasks: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """How many rows with a positive weight each task has, in the order of the sorted names."""
    return np.unique(tasks if weight is None else tasks[weight > 0], return_counts=True)[1]


def prepare(request: FitRequest, progress: Progress | None = None) -> TrainingTable:
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
    notes += task_notes(len(np.unique(tasks)), len(tasks), task, request.many_tasks)
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
    return TrainingTable(X, y, tasks, weight, preparation, loss, total, tuple(notes), target_comma=comma)


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


def task_notes(m: int, n: int, name: str, many_tasks: bool) -> list[str]:
    """What to say about a column of m tasks with n rows. Raises InputError if m is too many, unless `many_tasks`."""
    if not many_tasks and (m > MAX_TASKS or (m > 50 and n / m < 3)):
        problem = f"the task column {name!r} has {m:,} different values with {n / m:.1f} rows each"
        advice = "choose another column, or pass ", Setting("many_tasks", True), " to use it"
        raise InputError(f"{problem}, which is too many for tasks; ", *advice)
    return [f"the task column {name!r} has only one value: there is no other task to share with"] if m == 1 else []
