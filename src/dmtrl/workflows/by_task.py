"""`dmtrl fit --by-task`: the rows stay in the files, and each worker reads those of its own tasks.

The preparation is learned from a random sample. One pass over the task and the target counts the rows of each task; the
table itself is never in this process. With the local engine the workers hold the prepared features, with Ray each
machine holds those of its tasks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dmtrl.data.coordinates import Coordinates
from dmtrl.data.sources import SourcePlan
from dmtrl.estimators.base import SHIFT_INVARIANT
from dmtrl.estimators.grids import default_lambdas
from dmtrl.exceptions import CellError, InputError, Setting
from dmtrl.losses import CLASSIFICATION, Loss
from dmtrl.progress import NoProgress, Progress
from dmtrl.solver.problem import Tasks
from dmtrl.tables import TableFiles, open_files
from dmtrl.tables import columns as read
from dmtrl.tables.arrow import pa
from dmtrl.tables.by_task import FileReader, group_by_task
from dmtrl.tables.cells import without
from dmtrl.tables.preparation import Preparation, without_missing
from dmtrl.workflows.data_files import name_indices
from dmtrl.workflows.prepare import RowsInFiles, TrainingTable, prepare, task_notes
from dmtrl.workflows.requests import FitRequest
from dmtrl.workflows.target_column import check_numbers, read_weights

SAMPLE = 100_000  # rows from which the preparation is learned


class Labels(NamedTuple):
    """The labels of some rows. known: which rows have a task, a target and a weight."""

    tasks: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None
    known: np.ndarray


@dataclass(frozen=True)
class PreparedRows:
    """A `tables.by_task.RowParser` that prepares the columns as `preparation` says.

    classes: the texts of the two classes, the positive one last; None for numbers. comma: whether the numbers of the
    target have decimal commas. loss: that these numbers must suit.
    """

    preparation: Preparation
    weights: str | None = None
    classes: tuple[str, ...] | None = None
    comma: bool | None = None
    loss: Loss | None = None
    x_centre: np.ndarray | None = None
    y_centre: float = 0.0

    @property
    def columns(self) -> list[str]:
        return [*self.preparation.used, *self.label_columns]

    @property
    def label_columns(self) -> list[str]:
        more = [] if self.weights is None else [self.weights]
        return [self.preparation.task, self.preparation.target, *more]

    @property
    def width(self) -> int | None:
        return self.preparation.width

    def task_names(self, table: Any) -> np.ndarray:
        return read.texts(without(table.column(self.preparation.task), self.preparation.missing))

    def labels(self, table: Any) -> Labels:
        frame = without_missing(table.select(self.label_columns), self.preparation.missing)
        tasks, target = read.texts(frame.column(self.preparation.task)), frame.column(self.preparation.target)
        known = np.array([name is not None for name in tasks], dtype=bool)
        if self.classes is None:
            y = read.numbers(target, self.preparation.target, self.comma)
            if self.loss is not None:
                check_numbers(y, target, self.preparation.target, self.loss)
            known &= ~np.isnan(y)
        else:
            codes = name_indices(read.texts(target), np.array(self.classes))
            y, known = np.where(codes == len(self.classes) - 1, 1.0, -1.0), known & (codes >= 0)
        weight = None if self.weights is None else read_weights(frame.column(self.weights), self.weights)
        return Labels(tasks, y, weight, known if weight is None else known & ~np.isnan(weight))

    def split(self, table: Any, block: Any = None) -> dict[str, tuple[Any, ...]]:
        tasks, y, weight, known = self.labels(table)
        rows = np.flatnonzero(known)
        frame = without_missing(table.take(rows), self.preparation.missing)
        try:
            X = self.preparation.transform(frame, None if block is None else block[rows])
        except CellError as error:
            error.row = int(rows[error.row])
            raise
        X = X if self.x_centre is None else X - self.x_centre
        return group_by_task(tasks[rows], [X, y[rows] - self.y_centre, *([] if weight is None else [weight[rows]])])


class _Scan(NamedTuple):
    """Rows and positive rows of each task, how many rows are left out, and a reader of the others."""

    rows: Counter[str]
    positive: Counter[str]
    left_out: int
    reader: FileReader


def prepare_by_task(request: FitRequest, progress: Progress | None = None) -> TrainingTable:
    """As `workflows.prepare.prepare`, from a sample of the rows; the others stay in the files."""
    progress = progress or NoProgress()
    sample = prepare(replace(request, sample=request.sample or SAMPLE, many_tasks=True), progress)
    preparation, classification = sample.preparation, sample.loss.kind == CLASSIFICATION
    files = open_files(request.data, request.encoding)
    if preparation.task_is_file_name:
        files = files.with_file_names(preparation.task)
    coordinates = _coordinates(sample)
    parser = PreparedRows(
        preparation,
        request.weights,
        _classes(files, preparation, sample.y) if classification else None,
        sample.target_comma,
        None if classification else sample.loss,
        coordinates.x_centre if coordinates.x_centre.any() else None,
        coordinates.y_centre,
    )
    progress.stage("counting the rows of each task")
    scan = _scan(files, parser)
    texts = sorted(scan.rows)
    tasks = _names(texts, sample.tasks)
    order = np.argsort(tasks)
    texts, tasks = [texts[i] for i in order], tasks[order]
    rows = np.array([scan.rows[name] for name in texts])
    notes = [*sample.notes, *task_notes(len(tasks), int(rows.sum()), preparation.task, request.many_tasks)]
    if scan.left_out:
        notes.append(f"left out: {scan.left_out:,} rows without a task, a target or a weight")
    notes.append(f"the columns were prepared from {len(sample.y):,} rows; each worker reads those of its tasks")
    constant, classes = np.zeros(len(tasks)), None
    if classification:
        ups = np.array([scan.positive[name] for name in texts])
        certain = np.log(2.0 * rows + 1)
        constant = np.where(ups == rows, certain, np.where(ups == 0, -certain, 0.0))
        classes = _names(parser.classes or (), sample.y)
    used = np.flatnonzero(constant == 0)
    if len(used) == 0:
        raise ValueError("every task has rows of only one class; there is nothing to learn")
    plan = SourcePlan(np.array(texts, dtype=object)[used], rows[used].astype(float), scan.reader)
    found, lambdas = Tasks(tasks, used, constant, classes, row_counts=rows), default_lambdas(coordinates.rows(sample.X))
    in_files = RowsInFiles(plan, coordinates, found, rows, lambdas)
    return replace(sample, notes=tuple(notes), in_files=in_files)


def _classes(files: TableFiles, preparation: Preparation, sample: np.ndarray) -> tuple[str, ...]:
    found: Counter[str | None] = Counter()
    for batch in files.batches([preparation.target], preparation.width):
        frame = without_missing(batch.columns, preparation.missing)
        found.update(read.texts(frame.column(preparation.target)).tolist())
    del found[None]
    if len(found) != 2:
        raise InputError(Setting("by_task", True), f" is for numbers and two classes; the target has {len(found):,}")
    return tuple(str(label) for label in np.sort(_names(sorted(map(str, found)), sample)).tolist())


def _names(texts: Sequence[str], sample: np.ndarray) -> np.ndarray:
    """Texts as the names of tasks or classes, of the same kind as those in the sample: integers or text."""
    return read.labels(pa.array(texts, pa.string()), untyped=sample.dtype.kind == "i")[0]


def _scan(files: TableFiles, parser: PreparedRows) -> _Scan:
    positive, left_out = Counter[str](), 0

    def known_tasks(table: Any) -> np.ndarray:
        nonlocal left_out
        tasks, y, _, known = parser.labels(table)
        left_out += int((~known).sum())
        positive.update(tasks[known & (y > 0)].tolist())
        return tasks[known]

    rows, reader = FileReader(files, parser).scan(parser.label_columns, known_tasks)
    if not rows:
        raise ValueError(f"no row has both a task ({parser.preparation.task!r}) and a target")
    return _Scan(rows, positive, left_out, reader)


def _coordinates(sample: TrainingTable) -> Coordinates:
    """Centres of the sample: any centre is right beside a free intercept, and one near the mean is well conditioned."""
    X, y = sample.X, sample.y
    x_centre = np.zeros(X.shape[1]) if sparse.issparse(X) else X.mean(axis=0)
    if sample.loss.kind == CLASSIFICATION:
        return Coordinates(x_centre, 0.0, intercept=True)
    y_centre = float(y.mean()) if sample.loss.name in SHIFT_INVARIANT else 0.0
    return Coordinates(x_centre, y_centre, intercept=True, y_scale=float(np.sqrt(((y - y_centre) ** 2).mean())) or 1.0)
