"""`dmtrl fit --by-task`: the rows stay in the files, and each worker reads those of its own tasks.

The preparation is learned from a random sample. One pass over the task and the target counts the rows of each task; the
table itself is never in this process. With the local engine the workers hold the prepared features, with Ray each
machine holds those of its tasks.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import stack_rows
from dmtrl.data.coordinates import Coordinates
from dmtrl.data.sources import SourcePlan
from dmtrl.estimators.base import SHIFT_INVARIANT
from dmtrl.estimators.grids import default_lambdas
from dmtrl.exceptions import InputError, Setting
from dmtrl.losses import CLASSIFICATION, Loss
from dmtrl.progress import NoProgress, Progress
from dmtrl.solver.problem import Tasks
from dmtrl.tables import TableFiles, open_files
from dmtrl.tables import columns as read
from dmtrl.tables.arrow import pa
from dmtrl.tables.by_task import files_with
from dmtrl.tables.preparation import Preparation, without_missing
from dmtrl.workflows.data_files import name_indices
from dmtrl.workflows.prepare import FitRequest, Prepared, RowsInFiles, check_tasks, prepare
from dmtrl.workflows.target_column import check_numbers, read_weights

SAMPLE = 100_000  # rows from which the preparation is learned


@dataclass(frozen=True)
class RowReader:
    """Reads and prepares the rows of tasks, given by the text of their names. It is sent to the workers.

    classes: the texts of the two classes, the positive one last; None for numbers. comma: whether the numbers of the
    target have decimal commas. loss: that these numbers must suit. files_of: the numbers of the files that hold rows of
    a task.
    """

    table: TableFiles
    preparation: Preparation
    weights: str | None = None
    classes: tuple[str, ...] | None = None
    comma: bool | None = None
    loss: Loss | None = None
    x_centre: np.ndarray | None = None
    y_centre: float = 0.0
    files_of: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def only(self, names: Sequence[str]) -> "RowReader":
        return replace(self, table=files_with(self.table, self.files_of, names), files_of={})

    def labels(self, frame: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]:
        """The task names, the targets, the weights, and which rows have all of them."""
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
        return tasks, y, weight, known if weight is None else known & ~np.isnan(weight)

    def batches(self, names: Sequence[str]) -> Iterator[tuple[Any, Any, int]]:
        """Columns without missing texts, the features of a libsvm file, and the number of the first row."""
        start = 0
        for batch in self.table.batches(names, self.preparation.width):
            yield without_missing(batch.columns, self.preparation.missing), batch.block, start
            start += batch.columns.num_rows

    @property
    def label_columns(self) -> list[str]:
        more = [] if self.weights is None else [self.weights]
        return [self.preparation.task, self.preparation.target, *more]

    def read(self, names: Sequence[str]) -> dict[str, tuple[Any, ...]]:
        wanted, found = set(names), dict[str, list[tuple[Any, ...]]]()
        for frame, block, start in self.batches([*self.preparation.used, *self.label_columns]):
            with self.table.located(_row_numbers(start + np.arange(frame.num_rows))):
                tasks, y, weight, known = self.labels(frame)
            keep = np.flatnonzero(known & np.array([name in wanted for name in tasks], dtype=bool))
            if len(keep) == 0:
                continue
            with self.table.located(_row_numbers(start + keep)):
                X = self.preparation.transform(frame.take(keep), None if block is None else block[keep])
            X = X if self.x_centre is None else X - self.x_centre
            parts = [X, y[keep] - self.y_centre, *([] if weight is None else [weight[keep]])]
            mine = tasks[keep].astype(str)
            for name in np.unique(mine).tolist():
                rows = mine == name
                found.setdefault(name, []).append(tuple(part[rows] for part in parts))
        return {name: tuple(stack_rows(column) for column in zip(*parts, strict=True)) for name, parts in found.items()}


def prepare_by_task(request: FitRequest, progress: Progress | None = None) -> Prepared:
    """As `workflows.prepare.prepare`, from a sample of the rows; the others stay in the files."""
    progress = progress or NoProgress()
    prepared = prepare(replace(request, sample=request.sample or SAMPLE, many_tasks=True), progress)
    preparation, classification = prepared.preparation, prepared.loss.kind == CLASSIFICATION
    source = open_files(request.data, request.encoding)
    if preparation.task_is_file_name:
        source = source.with_file_names(preparation.task)
    reader = RowReader(source, preparation, request.weights, comma=prepared.target_comma)
    reader = (
        replace(reader, classes=_classes(reader, prepared.y)) if classification else replace(reader, loss=prepared.loss)
    )
    progress.stage("counting the rows of each task")
    counts, positive, files_of, left_out = _scan(reader)
    texts = sorted(counts)
    tasks = _names(texts, prepared.tasks)
    order = np.argsort(tasks)
    texts, tasks = [texts[i] for i in order], tasks[order]
    rows = np.array([counts[name] for name in texts])
    check_tasks(np.repeat(tasks, np.minimum(rows, 3)), preparation.task, request.many_tasks, prepared.notes)
    if left_out:
        prepared.notes.append(f"left out: {left_out:,} rows without a task, a target or a weight")
    coordinates = _coordinates(prepared)
    x_centre = coordinates.x_centre if coordinates.x_centre.any() else None
    constant, classes = np.zeros(len(tasks)), None
    if classification:
        ups = np.array([positive[name] for name in texts])
        certain = np.log(2.0 * rows + 1)
        constant = np.where(ups == rows, certain, np.where(ups == 0, -certain, 0.0))
        classes = _names(reader.classes or (), prepared.y)
    used = np.flatnonzero(constant == 0)
    if len(used) == 0:
        raise ValueError("every task has rows of only one class; there is nothing to learn")
    reader = replace(reader, x_centre=x_centre, y_centre=coordinates.y_centre, files_of=files_of)
    plan = SourcePlan(np.array(texts, dtype=object)[used], rows[used].astype(float), reader)
    prepared.notes.append(
        f"the columns were prepared from {len(prepared.y):,} rows; each worker reads those of its tasks"
    )
    prepared.notes_before_fit = len(prepared.notes)
    prepared.elsewhere = RowsInFiles(
        plan,
        coordinates,
        Tasks(tasks, used, constant, classes, row_counts=rows),
        rows,
        default_lambdas(coordinates.rows(prepared.X)),
    )
    return prepared


def _classes(reader: RowReader, sample: np.ndarray) -> tuple[str, ...]:
    found: Counter[str | None] = Counter()
    for frame, _, _ in reader.batches([reader.preparation.target]):
        found.update(read.texts(frame.column(reader.preparation.target)).tolist())
    del found[None]
    if len(found) != 2:
        raise InputError(Setting("by_task", True), f" is for numbers and two classes; the target has {len(found):,}")
    return tuple(str(label) for label in np.sort(_names(sorted(map(str, found)), sample)).tolist())


def _names(texts: Sequence[str], sample: np.ndarray) -> np.ndarray:
    """Texts as the names of tasks or classes, of the same kind as those in the sample: integers or text."""
    return read.labels(pa.array(texts, pa.string()), untyped=sample.dtype.kind == "i")[0]


def _row_numbers(rows: np.ndarray) -> Callable[[int], int]:
    """From a row of a batch to its number in the table."""
    return lambda row: int(rows[row])


def _scan(reader: RowReader) -> tuple[Counter[str], Counter[str], dict[str, frozenset[int]], int]:
    """Rows and positive rows of each task, the files that hold them, and how many rows are left out."""
    counts, positive = Counter[str](), Counter[str]()
    files_of: dict[str, set[int]] = {}
    left_out = 0
    for number, file in enumerate(reader.table.files):
        one = replace(reader, table=TableFiles((file,)))
        for frame, _, start in one.batches(one.label_columns):
            with one.table.located(_row_numbers(start + np.arange(frame.num_rows))):
                tasks, y, _, known = one.labels(frame)
            left_out += int((~known).sum())
            mine = tasks[known].astype(str)
            counts.update(mine.tolist())
            positive.update(mine[y[known] > 0].tolist())
            for name in np.unique(mine).tolist():
                files_of.setdefault(name, set()).add(number)
    if not counts:
        raise ValueError(f"no row has both a task ({reader.preparation.task!r}) and a target")
    return counts, positive, {name: frozenset(files) for name, files in files_of.items()}, left_out


def _coordinates(prepared: Prepared) -> Coordinates:
    """Centres of the sample: any centre is right beside a free intercept, and one near the mean is well conditioned."""
    X, y = prepared.X, prepared.y
    x_centre = np.zeros(X.shape[1]) if sparse.issparse(X) else X.mean(axis=0)
    if prepared.loss.kind == CLASSIFICATION:
        return Coordinates(x_centre, 0.0, intercept=True)
    y_centre = float(y.mean()) if prepared.loss.name in SHIFT_INVARIANT else 0.0
    return Coordinates(x_centre, y_centre, intercept=True, y_scale=float(np.sqrt(((y - y_centre) ** 2).mean())) or 1.0)
