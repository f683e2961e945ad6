"""The options of the commands, and checks of their paths.

Nothing slow is imported here (scipy, scikit-learn, numba, pyarrow), so that a wrong path is reported at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from dmtrl.exceptions import InputError, Setting
from dmtrl.tables.discovery import check_model, find_files
from dmtrl.tables.output import check_output, check_table_name


@dataclass(frozen=True)
class FitRequest:
    """The options of `dmtrl fit`. None means: chosen from the data, or the default.

    task, target, weights: columns. kind: "regression" or "classification". loss: a name, with its parameter as in
    "huber=2". reg_lambda: None chooses it by cross-validation. common: True requires a component that all tasks share,
    False excludes it. own: strength of the tasks' own parts. task_weight: how much a task counts, as in the estimators.
    drop, category, number: columns to leave out, or whose kind is given. date: columns of dates, each with its format
    or None. text: columns whose words become features, each with "tfidf" or "hash". missing: texts that mean a missing
    value. encoding: of CSV files. sample: use this many random rows. by_task: leave the rows in the files, where each
    worker reads those of its tasks. many_tasks: accept a task column with very many values. jobs: threads. address,
    workers: of Ray. compare: also fit each task alone and all tasks pooled.

    out: the model file; None writes nothing. page: the page about the model; None writes none. force: overwrite
    existing files. checkpoint: where an interrupted fit leaves its checkpoint, by default beside the model. resume: the
    checkpoint to continue from.
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
    by_task: bool = False
    many_tasks: bool = False
    tol: float = 1e-3
    seed: int = 0
    jobs: int | None = None
    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    max_staleness: int = 0
    compare: bool = False
    out: Path | None = None
    page: Path | None = None
    force: bool = False
    checkpoint: str | PathLike[str] | None = None
    resume: str | PathLike[str] | None = None

    def check(self) -> None:
        """Raise an error, before any row is read, if options contradict each other, a data file does not exist or an
        output file must not be written."""
        if self.by_task and self.compare:
            raise InputError(Setting("compare"), " needs all rows in memory; leave out ", Setting("by_task"))
        find_files(self.data, self.encoding)
        for path in (self.out, self.page):
            if path is not None:
                check_output(path, self.force, self.data)


@dataclass(frozen=True)
class PredictRequest:
    """The options of `dmtrl predict`.

    unknown: for a task that was not in the fit, "raise", "shared" (predict with what all tasks share) or
    "skip" (leave the prediction empty). keep: columns to copy to the output, "*" for all. fill: treat a column that
    the data does not have as missing in every row. encoding: of CSV files. out: the file to write, None for CSV on
    standard output. force: overwrite an existing file.
    """

    model: str | Path
    data: Sequence[str | Path]
    out: Path | None = None
    unknown: str = "raise"
    keep: Sequence[str] = ()
    fill: bool = False
    encoding: str | None = None
    force: bool = False

    def check(self) -> None:
        """Raise an error, before any row is read, if a file is missing or the output must not be written."""
        check_model(Path(self.model))
        find_files(self.data, self.encoding)
        if self.out is not None:
            check_table_name(self.out)
            check_output(self.out, self.force, [self.model, *self.data])


@dataclass(frozen=True)
class ReportRequest:
    """The options of `dmtrl report`.

    data: the files of the fit; with them, the page also shows where sharing helps. encoding: of CSV files. force:
    overwrite an existing page.
    """

    model: str | Path
    out: Path
    data: Sequence[str | Path] = ()
    encoding: str | None = None
    force: bool = False

    def check(self) -> None:
        """As PredictRequest.check."""
        check_model(Path(self.model))
        if self.data:
            find_files(self.data, self.encoding)
        check_output(self.out, self.force, [self.model, *self.data])


@dataclass(frozen=True)
class ExportRequest:
    """The options of `dmtrl export`. task: None exports all tasks. force: overwrite an existing file."""

    model: str | Path
    out: Path
    task: str | None = None
    force: bool = False

    def check(self) -> None:
        """As PredictRequest.check."""
        check_model(Path(self.model))
        check_output(self.out, self.force, [self.model])
