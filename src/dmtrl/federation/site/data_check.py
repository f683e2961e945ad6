"""A site's file as the study describes it, and what is wrong with it.

Nothing here leaves the site. A finding has two texts: `text` for the site's staff, which may quote a cell, and
`public`, which names only what the study file names and may leave the site in a refusal.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dmtrl.federation.protection.choice import protection_of
from dmtrl.federation.study.correlation import correlation
from dmtrl.federation.study.study_file import SITE, Study, StudyColumn
from dmtrl.tables import TableFiles, nearest, open_files
from dmtrl.tables import columns as read
from dmtrl.tables.cells import summarize_cells
from dmtrl.tables.learning import LARGEST
from dmtrl.tables.names import listed
from dmtrl.tables.preparation import without_missing

ERROR, WARNING, NOTE = "error", "warning", "note"
_SIGNIFICANT = 3.0  # correlations below this many standard errors say nothing about their sign
_CLEAR = 0.1  # correlations of the study below this size say nothing about a coding


@dataclass(frozen=True)
class Finding:
    """Something about a site's file. level: an "error" keeps the site out of the study."""

    level: str
    text: str
    public: str = ""


@dataclass(frozen=True)
class SiteTable:
    """The rows of a site that have a target and a task of the study."""

    table: Any  # a pyarrow.Table of the used columns: numbers as floats, categories as texts, dates as timestamps
    y: np.ndarray  # numbers, or -1 and 1
    codes: np.ndarray  # the task of each row, as an index into the study's tasks of this site
    held_out: np.ndarray  # whether a row is one that no fit uses
    usable: np.ndarray  # for each task of the study: whether the site takes part with it
    single: np.ndarray  # for each task: -1 or 1 if all rows have this class, which its model always predicts; else 0

    @property
    def fitted(self) -> np.ndarray:
        """For each task of the study: whether its weights are fitted."""
        return self.usable & (self.single == 0)

    @property
    def train(self) -> np.ndarray:
        """The numbers of the rows that the fit uses, sorted by task."""
        rows = np.flatnonzero(~self.held_out & self.usable[self.codes])
        return rows[np.argsort(self.codes[rows], kind="stable")]

    @property
    def train_table(self) -> Any:
        """The columns of these rows."""
        return self.table.take(self.train)

    @property
    def train_y(self) -> np.ndarray:
        """Their targets."""
        return self.y[self.train]

    @property
    def rows_per_task(self) -> np.ndarray:
        counts = np.bincount(self.codes[~self.held_out], minlength=len(self.usable))
        return np.where(self.usable, counts, 0)


@dataclass
class SiteCheck:
    """What a site's staff see before anything leaves."""

    rows: int = 0
    findings: list[Finding] = field(default_factory=list)
    data: SiteTable | None = None  # None if the file cannot be used

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == ERROR]

    def add(self, level: str, text: str, public: str = "") -> None:
        self.findings.append(Finding(level, text, public or text))


def check_file(study: Study, path: Path, minimum_rows: int = 1) -> SiteCheck:
    """Compare a site's file with the study: findings and, if none is an error, the rows.

    minimum_rows: of the site's policy. Tasks with fewer rows are left out, as are those below the threshold of the
    study.
    """
    check = SiteCheck()
    source = open_files([path])
    wanted = [column.name for column in study.used] + [study.target.column]
    wanted += [name for name in (study.fit.held_out, study.tasks.by if study.tasks.by != SITE else None) if name]
    for name in wanted:
        if name not in source.names:
            close = nearest(name, source.names)
            hint = f"; is it {close!r} here?" if close else ""
            check.add(ERROR, f"the column {name!r} is missing{hint}", f"the column {name!r} is missing")
    unlisted = sorted(set(source.names) - set(wanted) - {column.name for column in study.columns})
    if unlisted:
        check.add(NOTE, f"not in the study, and not used: {listed(unlisted)}")
    if check.errors:
        return check
    frame = without_missing(source.read().columns.select(wanted), study.missing)
    check.rows = frame.num_rows
    if check.rows == 0:
        check.add(ERROR, "the file has no rows")
        return check
    return _Checker(study, source, frame, check).run(max(minimum_rows, study.limits.rows_per_task))


class _Checker:
    """Reads the columns one by one and collects findings."""

    def __init__(self, study: Study, source: TableFiles, frame: Any, check: SiteCheck):
        self._study, self._source, self._frame, self._check = study, source, frame, check

    def run(self, minimum_rows: int) -> SiteCheck:
        import pyarrow as pa

        study, check = self._study, self._check
        parsed = {column.name: self._column(column) for column in study.used}
        y, known = self._target()
        codes, in_task = self._tasks()
        held_out = self._held_out()
        if check.errors:
            return check
        keep = known & in_task
        for what, mask in (("a target", ~known), ("a task of the study", known & ~in_task)):
            if mask.any():
                check.add(NOTE, f"left out: {int(mask.sum()):,} of {check.rows:,} rows without {what}")
        table = pa.table({name: pa.array(values, from_pandas=True) for name, values in parsed.items()})
        table = table.filter(pa.array(keep))
        y, codes, held_out = y[keep], codes[keep], held_out[keep]
        self._correlations({name: values[keep] for name, values in parsed.items()}, y)
        usable, single = self._usable(y, codes, held_out, minimum_rows)
        if not check.errors:
            check.data = SiteTable(table, y, codes, held_out, usable, single)
        return check

    def _column(self, column: StudyColumn) -> np.ndarray:
        name, check = column.name, self._check
        cells = self._frame.column(name)
        if column.kind == "category":
            words = read.texts(cells)
            self._levels(column, words)
            missing = np.array([word is None for word in words], dtype=bool)
        elif column.kind == "date":
            format = self._date_format(name, cells)
            words = self._read(name, "a date", lambda: read.dates(cells, name, format), np.datetime64("NaT", "us"))
            missing = np.isnat(words)
            self._range(column, words[~missing])
        else:
            words = self._read(name, "a number", lambda: read.numbers(cells, name, self._comma(cells)), np.nan)
            missing = np.isnan(words)
            self._range(column, words[~missing])
        if missing.all():
            check.add(WARNING, f"column {name!r} is empty")
        elif missing.any():
            check.add(NOTE, f"column {name!r}: {int(missing.sum()):,} of {len(words):,} cells are missing")
        return words

    def _comma(self, cells: Any) -> bool | None:
        if not read.is_text(cells.type):
            return None
        return summarize_cells(cells, self._source.has_semicolons).decimal_comma or None

    def _date_format(self, name: str, cells: Any) -> str | None:
        """How the file writes its dates; a warning if they could be other days."""
        if not read.is_text(cells.type):
            return None
        summary = summarize_cells(cells)
        if summary.other_format is not None:
            self._check.add(
                WARNING,
                f"column {name!r}: dates such as {summary.example!r} are ambiguous and are read as "
                f"{summary.date_format}; write them like 2024-01-31",
                f"column {name!r} holds ambiguous dates",
            )
        return summary.date_format

    def _read(self, name: str, what: str, reader: Callable[[], np.ndarray], empty: Any) -> np.ndarray:
        """The values of a column, or an error finding; only the site sees the cell that is wrong."""
        public = f"column {name!r} holds a cell that is not {what}"
        try:
            with self._source.located():
                return reader()
        except ValueError as error:
            self._check.add(ERROR, str(error), public)
        return np.full(self._frame.num_rows, empty)

    def _levels(self, column: StudyColumn, words: np.ndarray) -> None:
        counts = Counter(word for word in words if word is not None and word not in column.levels)
        if not counts:
            return
        shown = listed([f"{word!r} ({count:,} rows)" for word, count in counts.items()], 5)
        listing = f"the study lists {', '.join(map(repr, column.levels))}"
        if column.other:
            self._check.add(NOTE, f"column {column.name!r}: {shown} share one feature; {listing}")
            return
        self._check.add(
            ERROR,
            f"column {column.name!r} holds {shown}, but {listing}; translate the codes, or ask for another study",
            f"column {column.name!r} holds a level that the study does not list",
        )

    def _range(self, column: StudyColumn, values: np.ndarray) -> None:
        name = column.name
        if values.dtype.kind == "f" and len(values) and np.abs(values).max() > LARGEST:
            self._check.add(ERROR, f"column {name!r} holds numbers beyond {LARGEST:g}")
        if column.range is None or len(values) == 0:
            return
        low, high = column.range
        if values.dtype.kind == "M":
            values, low, high = values.astype("datetime64[D]"), np.datetime64(low, "D"), np.datetime64(high, "D")
        outside = int(((values < low) | (values > high)).sum())
        where = f"{outside:,} of {len(values):,} cells are outside the study's range, {low} to {high}"
        unit = f" {column.unit}" if column.unit else ""
        hint = "; is it measured in another unit here, or is a number a code for missing?"
        if outside:
            self._check.add(WARNING, f"column {name!r}: {where}{unit}{hint if outside > len(values) / 2 else ''}")

    def _target(self) -> tuple[np.ndarray, np.ndarray]:
        target, cells = self._study.target, self._frame.column(self._study.target.column)
        if not self._study.classification:
            name = target.column
            y = self._read(name, "a number", lambda: read.numbers(cells, name, self._comma(cells)), np.nan)
            known = ~np.isnan(y)
            self._range(StudyColumn(name, "number", range=target.range), y[known])
            return np.where(known, y, 0.0), known
        words = read.texts(cells)
        sign = {**dict.fromkeys(target.negative, -1.0), **dict.fromkeys(target.positive, 1.0)}
        unknown = sorted({word for word in words if word is not None and word not in sign})
        if unknown:
            self._check.add(
                ERROR,
                f"the target {target.column!r} holds {listed([repr(word) for word in unknown], 5)}, but the study "
                f"lists {', '.join(map(repr, sign))}; translate the codes",
                f"the target {target.column!r} is coded in another way than the study says",
            )
        y = np.array([sign.get(word, 0.0) for word in words])
        return y, y != 0

    def _tasks(self) -> tuple[np.ndarray, np.ndarray]:
        tasks, n = self._study.tasks, self._frame.num_rows
        if tasks.by == SITE:
            return np.zeros(n, dtype=int), np.ones(n, dtype=bool)
        number = {value: i for i, value in enumerate(tasks.values)}
        codes = np.array([number.get(word, -1) for word in read.texts(self._frame.column(tasks.by))], dtype=int)
        return codes, codes >= 0

    def _held_out(self) -> np.ndarray:
        name = self._study.fit.held_out
        if name is None:
            return np.zeros(self._frame.num_rows, dtype=bool)
        cells = self._frame.column(name)
        flags = self._read(name, "a number", lambda: read.numbers(cells, name), 0.0)
        if not np.isin(flags, (0, 1)).all():
            self._check.add(ERROR, f"column {name!r} must hold 1 for held-out rows and 0 for all others")
        return flags == 1

    def _correlations(self, parsed: dict[str, np.ndarray], y: np.ndarray) -> None:
        """Warn of codes that are probably flipped: a clear correlation with the target, of the opposite sign."""
        clear, opposite = 0, []
        for column in self._study.used:
            if column.correlation is None or abs(column.correlation) < _CLEAR:
                continue
            here, n = correlation(column, parsed[column.name], y)
            if abs(here) * np.sqrt(max(n, 1)) < _SIGNIFICANT:
                continue
            clear += 1
            if here * column.correlation < 0:
                opposite.append(
                    f"column {column.name!r}: its correlation with the target is {here:+.2f} here and "
                    f"{column.correlation:+.2f} in the study; are its codes flipped?"
                )
        if len(opposite) >= 3 and len(opposite) > 0.75 * clear:
            self._check.add(
                ERROR,
                f"{len(opposite)} of {clear} columns have the opposite correlation with the target "
                f"{self._study.target.column!r} than in the study; its codes are probably flipped here",
                f"the target {self._study.target.column!r} is probably coded the other way round",
            )
            return
        for text in opposite:
            self._check.add(WARNING, text)

    def _usable(
        self, y: np.ndarray, codes: np.ndarray, held_out: np.ndarray, minimum_rows: int
    ) -> tuple[np.ndarray, np.ndarray]:
        names = self._study.task_names("this site")
        usable, single = np.ones(len(names), dtype=bool), np.zeros(len(names), dtype=np.int64)
        level = ERROR if len(names) == 1 else WARNING
        for i, name in enumerate(names):
            mine = (codes == i) & ~held_out
            rows = int(mine.sum())
            if rows < minimum_rows:
                usable[i] = False
                text = f"{name} has {rows:,} rows with a target, fewer than {minimum_rows}"
                self._check.add(level, text, f"{name} has fewer rows than the threshold")
            elif self._study.classification and len(np.unique(y[mine])) < 2:
                if not protection_of(self._study).tells_classes:
                    continue
                single[i] = int(y[mine][0])
                only = self._study.class_names[int(single[i] > 0)]
                self._check.add(WARNING, f"{name} has only rows of the class {only!r}; its model always predicts it")
        if not usable.any() and level == WARNING:
            self._check.add(ERROR, "no task of this site has enough rows")
        return usable, single
