"""A first study file, drafted from one site's data file."""

import math
from calendar import monthrange
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.exceptions import InputError, Note, Setting
from dmtrl.federation.study.correlation import correlation
from dmtrl.federation.study.study_file import SITE, Study, StudyColumn, Target, Tasks, parse_study
from dmtrl.federation.study.toml_fields import to_toml
from dmtrl.losses import CLASSIFICATION, REGRESSION
from dmtrl.tables import TableFiles, open_files, require_column
from dmtrl.tables import columns as read
from dmtrl.tables.cells import DATE, NESTED, NUMBER, TEXT, CellSummary, summarize_cells
from dmtrl.tables.learning import MAX_CATEGORIES, identifies_rows
from dmtrl.tables.names import require_one_role
from dmtrl.tables.preparation import without_missing

FEW_CODES = 10  # up to this many different whole numbers are taken for codes
FEW_LEVELS = 20  # more different texts than this, in more than half of the rows, are remarks or names
FEW_ROWS = 10  # levels of fewer rows are reported, because a level can tell who is in the file
FEW_VALUES = 20  # up to this many different whole numbers may be the classes of a target


@dataclass(frozen=True)
class DraftRequest:
    """What a study is drafted from: the options of `dmtrl study new`.

    like: a data file with the columns of the study. target: the column to predict. task: a column whose values are the
    tasks of every site; None: each site is a task. kind: "classification" or "regression"; None: inferred. drop:
    columns to ignore. category, number: columns to use as such. missing: texts that mean a missing value. positive:
    values of the target that form the positive class. held_out: a column that is 1 in rows that no fit uses.
    """

    like: str
    target: str
    task: str | None = None
    kind: str | None = None
    drop: Sequence[str] = ()
    category: Sequence[str] = ()
    number: Sequence[str] = ()
    missing: Sequence[str] = ()
    positive: Sequence[str] = ()
    held_out: str | None = None


def draft_study(request: DraftRequest, name: str) -> tuple[Study, list[str]]:
    """Draft a study from the columns of one file. The coordinator reads and corrects it before sites see it.

    Returns the study and remarks for the coordinator.
    """
    source = open_files([request.like])
    _check_roles(request, source.names)
    target, task, held_out = request.target, request.task, request.held_out
    draft = _Draft(source, without_missing(source.read().columns, tuple(request.missing)))
    if held_out is not None:
        draft.require_flags(held_out)
    goal, y = draft.target(target, request.positive, request.kind)
    forced = {"ignored": request.drop, "category": request.category, "number": request.number}
    kinds = {column: kind for kind, columns in forced.items() for column in columns}
    names = [column for column in source.names if column not in (target, task, held_out)]
    columns = [draft.column(column, y, kinds.get(column)) for column in names]
    tasks = Tasks() if task is None else Tasks(task, draft.values(task))
    file = Path(request.like).name
    draft.notes.append(f"the draft holds values of {file} (levels, ranges, correlations): read it before you share it")
    text = study_text(name, f"Drafted from {file}", columns, goal, tasks, tuple(request.missing), held_out)
    return parse_study(text.encode(), f"the draft from {request.like}"), draft.notes


def _check_roles(request: DraftRequest, names: Sequence[str]) -> None:
    """Every column exists and has one role."""
    roles = [(role, getattr(request, role)) for role in ("target", "task", "held_out")]
    roles += [(role, name) for role in ("drop", "category", "number") for name in dict.fromkeys(getattr(request, role))]
    for _, column in roles:
        if column is not None:
            require_column(column, names)
    if request.task == SITE:
        raise InputError(
            f"a column named {SITE!r} cannot be the tasks, because by = {SITE!r} in a study means that each site is a "
            "task; rename the column, or leave out ",
            Setting("task"),
        )
    require_one_role(roles)


def _outward(low: float, high: float) -> tuple[float, float]:
    """A range of round numbers around a range, which does not tell the lowest and the highest value."""
    size = high - low or abs(low)
    if not 0 < size < float("inf"):
        return low, high
    digits = -math.floor(math.log10(size))
    step = 10.0**-digits
    return round(math.floor(low / step) * step, digits), round(math.ceil(high / step) * step, digits)


def _whole_months(first: date, last: date) -> tuple[date, date]:
    return first.replace(day=1), last.replace(day=monthrange(last.year, last.month)[1])


class _Draft:
    """Decides what becomes of each column of a file."""

    def __init__(self, source: TableFiles, frame: Any):
        self._source, self._frame = source, frame
        self.notes: list[str] = []

    def _summary(self, name: str) -> CellSummary:
        cells = self._frame.column(name)
        if not read.is_text(cells.type):
            return CellSummary(read.kind_of(cells))
        if not self._source.is_untyped(name):
            return CellSummary(TEXT)
        return summarize_cells(cells, self._source.has_semicolons)

    def _numbers(self, name: str, summary: CellSummary) -> np.ndarray:
        with self._source.located():
            return read.numbers(self._frame.column(name), name, summary.decimal_comma or None)

    def values(self, name: str) -> tuple[str, ...]:
        """The values of a column as sorted texts; numbers in their own order."""
        words = {word for word in read.texts(self._frame.column(name)) if word is not None}
        try:
            return tuple(sorted(words, key=float))
        except ValueError:
            return tuple(sorted(words))

    def require_flags(self, name: str) -> None:
        """The column of held-out rows holds 0 and 1 only, as every site checks."""
        cells = self._frame.column(name)
        try:
            fits = bool(np.isin(read.numbers(cells, name), (0, 1)).all())
        except ValueError:
            fits = False
        if not fits:
            found = _shown(self.values(name)) + (" and missing cells" if cells.null_count else "")
            problem = f" must hold 1 for held-out rows and 0 for all others; here it holds {found}"
            raise InputError(f"the column {name!r} of ", Setting("held_out"), problem)

    def target(self, name: str, positive: Sequence[str], kind: str | None) -> tuple[Target, np.ndarray]:
        """The target, and its values in the file: numbers, -1 and 1, or NaN."""
        summary, values = self._summary(name), self.values(name)
        if len(values) < 2:
            raise ValueError(f"the target {name!r} has fewer than two values; there is nothing to learn")
        if kind is None:
            kind = self._kind(name, summary, values, bool(positive))
        if kind == REGRESSION:
            y = self._numbers(name, summary)
            return Target(name, kind, range=_outward(float(np.nanmin(y)), float(np.nanmax(y)))), y
        if not positive:
            if len(values) > 2 and "0" not in values:
                shown = f"{len(values)} values, {_shown(values)}"
                raise InputError(f"the target {name!r} has {shown}; pass ", Setting("positive"))
            positive = [value for value in values if value != "0"] if "0" in values else values[1:]
            self.notes.append(f"target {name!r}: {_either(positive)} is the positive class")
        wrong = [value for value in positive if value not in values]
        if wrong:
            raise ValueError(f"the target {name!r} has no value {wrong[0]!r}; its values are {', '.join(values)}")
        negative = tuple(value for value in values if value not in positive)
        sign = {**dict.fromkeys(negative, -1.0), **dict.fromkeys(positive, 1.0)}
        y = np.array([sign.get(word, np.nan) for word in read.texts(self._frame.column(name))])
        return Target(name, kind, negative, tuple(positive)), y

    def _kind(self, name: str, summary: CellSummary, values: tuple[str, ...], classes: bool) -> str:
        if classes or summary.kind != NUMBER or len(values) == 2:
            return CLASSIFICATION
        numbers = self._numbers(name, summary)
        whole = (np.floor(numbers) == numbers)[~np.isnan(numbers)].all()
        if whole and len(values) <= FEW_VALUES and "0" in values:
            what = f"target {name!r} has {len(values)} whole numbers with 0: classification"
            self.notes.append(Note(f"{what}; if it is a quantity, pass ", Setting("kind", "regression")))
            return CLASSIFICATION
        return REGRESSION

    def column(self, name: str, y: np.ndarray, forced: str | None) -> StudyColumn:
        summary = self._summary(name)
        if forced == "ignored" or summary.kind == NESTED:
            return StudyColumn(name, "ignored")
        column = self._used(name, summary, forced)
        if column.kind in ("number", "category"):
            cells = self._frame.column(name)
            values = self._numbers(name, summary) if column.kind == "number" else read.texts(cells)
            known = ~np.isnan(y)
            found, n = correlation(column, values[known], y[known])
            if n:
                return replace(column, correlation=round(found, 2))
        return column

    def _used(self, name: str, summary: CellSummary, forced: str | None) -> StudyColumn:
        if forced == "number" or (summary.kind == NUMBER and forced is None):
            x = self._numbers(name, summary)
            values = np.unique(x[~np.isnan(x)])
            if len(values) == 0:
                return self._ignored(name, "is empty here")
            if forced is None and identifies_rows(name, x):
                return self._ignored(name, "identifies rows")
            if forced == "number" or len(values) > FEW_CODES or (values != np.floor(values)).any():
                return StudyColumn(name, "number", range=_outward(float(values[0]), float(values[-1])))
            self.notes.append(f"column {name!r} has {len(values)} whole numbers: a category")
        if summary.kind == DATE and forced is None:
            days = read.dates(self._frame.column(name), name, summary.date_format)
            days = days[~np.isnat(days)].astype("datetime64[D]")
            if len(days) == 0:
                return self._ignored(name, "is empty here")
            return StudyColumn(name, "date", range=_whole_months(days.min().item(), days.max().item()))
        levels = self.values(name)
        most = min(MAX_CATEGORIES, max(FEW_LEVELS, self._frame.num_rows // 2))
        if not levels or (len(levels) > most and forced is None):
            return self._ignored(name, f"has {len(levels):,} different values")
        counts = Counter(read.texts(self._frame.column(name)))
        rare = [level for level in levels if counts[level] < FEW_ROWS]
        if rare:
            self.notes.append(
                f"column {name!r}: fewer than {FEW_ROWS} rows have the level {_either(rare[:5])}"
                + (f" or {len(rare) - 5} others" if len(rare) > 5 else "")
            )
        return StudyColumn(name, "category", levels=levels)

    def _ignored(self, name: str, why: str) -> StudyColumn:
        self.notes.append(f"column {name!r} {why}: ignored")
        return StudyColumn(name, "ignored")


_SETTINGS = """
[fit]
loss = {loss}
lambda = "auto"  # chosen by cross-validation; or a number, or a list to choose from
common = "auto"  # strength of the component that all tasks share; as lambda
folds = 5
tolerance = 0.001
seed = 0
{held_out}
[limits]
sites = 2  # fewer sites end the study
on_lost = "stop"  # or "go_on" without a site that does not respond
rows_per_task = 10  # smaller tasks are left out
rounds = 20000  # of all fits together

[privacy]
mode = "none"  # no noise is added to what leaves a site; see docs/privacy.md for the others

[results]
coordinator = "weights"  # of all tasks, and their relations; or "summary" without them
sites = "own"  # the weights of their own tasks; or "all"
"""


def study_text(
    name: str,
    description: str,
    columns: Sequence[StudyColumn],
    target: Target,
    tasks: Tasks,
    missing: tuple[str, ...] = (),
    held_out: str | None = None,
) -> str:
    """The text of a study file with the default settings, and a comment on each."""
    lines = [
        "# A dmtrl study. Every site approves exactly these bytes.",
        "format = 1",
        f"name = {to_toml(name)}",
        f"description = {to_toml(description)}",
    ]
    if missing:
        lines.append(f"missing = {to_toml(missing)}  # texts that mean a missing value")
    lines += ["", "[target]", f"column = {to_toml(target.column)}", f"kind = {to_toml(target.kind)}"]
    if target.kind == CLASSIFICATION:
        lines += [f"negative = {to_toml(target.negative)}", f"positive = {to_toml(target.positive)}"]
    elif target.range is not None:
        lines.append(f"range = {to_toml(target.range)}")
    lines += ["", "[tasks]"]
    if tasks.by == SITE:
        lines.append(f"by = {to_toml(SITE)}  # each site is one task; or the name of a column, with its values")
    else:
        lines += [f"by = {to_toml(tasks.by)}", f"values = {to_toml(tasks.values)}"]
    loss = to_toml("logistic" if target.kind == CLASSIFICATION else "squared")
    held = f"held_out = {to_toml(held_out)}  # 1 in rows that no fit uses\n" if held_out else ""
    lines += _SETTINGS.format(loss=loss, held_out=held).splitlines()
    for column in columns:
        lines += ["", f"[columns.{_key(column.name)}]", f"kind = {to_toml(column.kind)}"]
        if column.levels:
            lines.append(f"levels = {to_toml(column.levels)}")
        if column.range is not None:
            lines.append(f"range = {to_toml(column.range)}")
        if column.correlation is not None:
            lines.append(f"correlation = {column.correlation}  # with the target, here; shows flipped codes")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else to_toml(name)


def _shown(values: Sequence[str]) -> str:
    return ", ".join(map(repr, values[:8])) + (", ..." if len(values) > 8 else "") if values else "no values"


def _either(values: Sequence[str]) -> str:
    return " or ".join(map(repr, values))
