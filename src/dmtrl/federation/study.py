"""The study file: a TOML file that says which columns, which target, which thresholds, and who receives what.

Every site approves the file by its hash, so the bytes of the file are the study. `read_study` checks the file and names
the line of a mistake.
"""

import hashlib
import re
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

from dmtrl.federation.privacy.table import read_privacy
from dmtrl.federation.privacy.terms import Privacy
from dmtrl.federation.toml_fields import TomlFields, is_number, parse_toml
from dmtrl.losses import BUILTIN, CLASSIFICATION, REGRESSION, Loss

FORMAT = 1
SITE = "site"  # tasks.by: each site is one task
KINDS = ("number", "category", "date", "ignored")
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class StudyColumn:
    """A column that every site must have.

    kind: number, category, date or ignored. unit: for the reader. range: values outside it are reported to the site.
    levels: the values of a category; other: whether other values are accepted, which then share one feature.
    correlation: with the target, in the file from which the study was drafted; a site with the opposite sign is warned.
    """

    name: str
    kind: str
    unit: str = ""
    range: tuple[Any, Any] | None = None
    levels: tuple[str, ...] = ()
    other: bool = False
    correlation: float | None = None


@dataclass(frozen=True)
class Target:
    """The column to predict. Classification: values that count as negative and as positive, and names for the two."""

    column: str
    kind: str
    negative: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Tasks:
    """by: "site", or a column whose `values` are the tasks of every site."""

    by: str = SITE
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class FitOptions:
    """How the model is fitted.

    reg_lambda: values to choose from by cross-validation; empty: the default grid; one value: no cross-validation.
    common: the same for the strength of the component that all tasks share. held_out: a column that is 1 in rows that
    no fit uses and on which each site measures the error of its model.
    """

    loss: str
    reg_lambda: tuple[float, ...] = ()
    common: tuple[float, ...] = ()
    folds: int = 5
    scoring: str | None = None
    tolerance: float = 1e-3
    seed: int = 0
    held_out: str | None = None


@dataclass(frozen=True)
class Limits:
    """Thresholds of the study; a site's policy may be stricter.

    sites: with fewer sites the study ends. on_lost: "stop", or "go_on" without a site that stays away. rows_per_task:
    smaller tasks are left out. rounds: of all fits together.
    """

    sites: int = 2
    on_lost: str = "stop"
    rows_per_task: int = 10
    rounds: int = 20_000


@dataclass(frozen=True)
class Results:
    """Who receives what. coordinator: "weights" of all tasks and their relations, or a "summary" without them.
    sites: the weights of their "own" tasks, or of "all" tasks with the relations."""

    coordinator: str = "weights"
    sites: str = "own"


@dataclass(frozen=True)
class Study:
    """A study, as its file describes it.

    Attributes
    ----------
    name, description : str
    columns : tuple of StudyColumn
    target : Target
    tasks : Tasks
    fit : FitOptions
    limits : Limits
    results : Results
    source : bytes
        The bytes of the file.
    privacy : Privacy
        Which noise is added, and what the server sees.
    missing : tuple of str
        Texts that mean a missing value in every column.
    """

    name: str
    columns: tuple[StudyColumn, ...]
    target: Target
    tasks: Tasks
    fit: FitOptions
    limits: Limits
    results: Results
    source: bytes
    description: str = ""
    missing: tuple[str, ...] = ()
    privacy: Privacy = field(default_factory=Privacy)

    @property
    def hash(self) -> str:
        """SHA-256 of the bytes of the file. Sites approve this hash."""
        return hashlib.sha256(self.source).hexdigest()

    @property
    def used(self) -> tuple[StudyColumn, ...]:
        """The columns from which features are computed."""
        return tuple(column for column in self.columns if column.kind != "ignored")

    @property
    def declared_features(self) -> int:
        """The number of features if the study alone says how columns become features, as in a private study."""
        numbers = {"number": 1, "date": 10}
        return sum(numbers.get(column.kind, len(column.levels) + column.other) for column in self.used)

    @property
    def loss(self) -> Loss:
        return parse_loss(self.fit.loss)

    @property
    def classification(self) -> bool:
        return self.target.kind == CLASSIFICATION

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the two classes, the negative one first; empty for regression."""
        target = self.target
        if target.names or not self.classification:
            return target.names
        negative, positive = (" or ".join(levels) for levels in (target.negative, target.positive))
        return negative, positive if len(target.positive) < 3 else f"not {negative}"

    def task_names(self, site: str) -> list[str]:
        """The names of a site's tasks, one for each of `tasks.values`."""
        return [site] if self.tasks.by == SITE else [f"{site}: {value}" for value in self.tasks.values]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file, with the same bytes."""
        Path(path).write_bytes(self.source)


def parse_loss(text: str) -> Loss:
    """A loss by name, with its parameter if it has one: logistic, huber=2."""
    name, _, number = text.partition("=")
    if name not in BUILTIN:
        raise ValueError(f"there is no loss {name!r}; the losses are {', '.join(BUILTIN)}")
    try:
        parameter = float(number) if number else None
    except ValueError:
        raise ValueError(f"{text!r}: a number such as {name}=2 must follow the sign =, got {number!r}") from None
    try:
        return BUILTIN[name]() if parameter is None else BUILTIN[name](parameter)
    except TypeError:
        raise ValueError(f"the {name} loss has no parameter") from None


def read_study(path: str | PathLike[str]) -> Study:
    """Read and check a study file.

    Parameters
    ----------
    path : str or path
        The TOML file.

    Returns
    -------
    Study

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    StudyError
        If the file is not a valid study; the message names the line.
    """
    if not Path(path).exists():
        raise FileNotFoundError(
            f"there is no study file {path}; check its name and folder, or draft one with 'dmtrl study new'"
        )
    return parse_study(Path(path).read_bytes(), str(path))


def parse_study(source: bytes, where: str = "the study") -> Study:
    """A study from the bytes of its file; `where` is the name of the file in error messages."""
    text, content = parse_toml(source, where)
    return _Reader(where, text).study(content, source)


class _Reader(TomlFields):
    """Checks the content of a study file. Every error names a line."""

    def study(self, content: dict[str, Any], source: bytes) -> Study:
        tables = ("target", "tasks", "fit", "limits", "privacy", "results", "columns")
        self.known((), content, ("format", "name", "description", "missing", *tables))
        if content.get("format") != FORMAT:
            self.fail(f"format must be {FORMAT}, got {content.get('format')!r}", (), "format")
        name = self.text((), content, "name")
        if not SITE_NAME.fullmatch(name):
            self.fail(f"the name {name!r} may hold letters, digits, - and _ only", (), "name")
        for table in ("target", "fit", "columns"):
            if not isinstance(content.get(table), dict):
                self.fail(f"the table [{table}] is missing", (), table)
        target = self._target(content["target"])
        columns = tuple(self._column(name, column) for name, column in content["columns"].items())
        tasks = self._tasks(content.get("tasks", {}))
        fit = self._fit(content["fit"], target)
        study = Study(
            name, columns, target, tasks, fit, self._limits(content.get("limits", {})),
            self._results(content.get("results", {})), source, self.text((), content, "description", ""),
            self.texts((), content, "missing", ()),
        )  # fmt: skip
        if not study.used:
            self.fail("no column is used; give at least one the kind number, category or date", (), "columns")
        if tasks.by in (target.column, fit.held_out) and tasks.by != SITE:
            self.fail(f"{tasks.by!r} cannot also be the target or the column held_out", ("tasks",), "by")
        if fit.held_out == target.column:
            self.fail(f"{target.column!r} cannot also be the target", ("fit",), "held_out")
        special = {target.column: "target", tasks.by: "tasks", fit.held_out: "fit"}
        for column in study.used:
            if column.name in special and column.name != SITE:
                table = special[column.name]
                self.fail(f"{column.name!r} is also used in [{table}]; remove it here", ("columns", column.name))
        study = replace(study, privacy=read_privacy(self, content.get("privacy", {}), study))
        if study.privacy.masked and study.results == Results("summary", "all"):
            self.fail("sites = 'all' needs coordinator = 'weights': nobody knows them else", ("results",), "sites")
        if study.privacy.masked and study.limits.on_lost == "go_on":
            why = "the sums with and without a site would show its numbers"
            self.fail(f"on_lost must be 'stop' with masked sums: {why}", ("limits",), "on_lost")
        if study.privacy.masked and study.limits.sites < 3:
            self.fail("sites must be at least 3 with masked sums: with two, each can compute the other's", ("limits",))
        return study

    def _target(self, table: dict[str, Any]) -> Target:
        at = ("target",)
        self.known(at, table, [field.name for field in fields(Target)])
        kind = self.choice(at, table, "kind", (CLASSIFICATION, REGRESSION))
        column = self.text(at, table, "column")
        if kind == REGRESSION:
            for key in ("negative", "positive", "names"):
                if key in table:
                    self.fail(f"{key} is for classification", at, key)
            return Target(column, kind, range=self.range(at, table, "number"))
        negative, positive = (self.texts(at, table, key) for key in ("negative", "positive"))
        both = set(negative) & set(positive)
        if both:
            self.fail(f"{min(both)!r} is both negative and positive", at, "positive")
        for key, levels in (("negative", negative), ("positive", positive)):
            if not levels:
                self.fail(f"{key} needs at least one value of the target", at, key)
        names = self.texts(at, table, "names", ())
        if names and (len(names) != 2 or names[0] == names[1]):
            self.fail("names must be two different names, that of the negative class first", at, "names")
        return Target(column, kind, negative, positive, names)

    def _column(self, name: str, table: Any) -> StudyColumn:
        at = ("columns", name)
        if not isinstance(table, dict):
            self.fail(f"columns.{name} must be a table such as [columns.{name}]", ("columns",), name)
        self.known(at, table, [field.name for field in fields(StudyColumn) if field.name != "name"])
        kind = self.choice(at, table, "kind", KINDS)
        levels = self.texts(at, table, "levels", ())
        other = table.get("other", False)
        if (kind == "category") != bool(levels):
            self.fail("a category needs levels" if not levels else f"a {kind} has no levels", at, "levels")
        if not isinstance(other, bool) or (other and kind != "category"):
            self.fail("other must be true or false, and is for categories", at, "other")
        limits = self.range(at, table, kind)
        if kind == "date" and limits is None:
            self.fail("a date needs a range such as [2020-01-01, 2024-12-31]", at, "range")
        correlation = table.get("correlation")
        if correlation is not None and not (is_number(correlation) and -1 <= correlation <= 1):
            self.fail("correlation must be a number between -1 and 1", at, "correlation")
        return StudyColumn(name, kind, self.text(at, table, "unit", ""), limits, levels, other, correlation)

    def _tasks(self, table: dict[str, Any]) -> Tasks:
        at = ("tasks",)
        self.known(at, table, ("by", "values"))
        tasks = Tasks(self.text(at, table, "by", SITE), self.texts(at, table, "values", ()))
        if (tasks.by == SITE) == bool(tasks.values):
            self.fail(
                f"by = {tasks.by!r} needs the list values with the tasks of that column"
                if tasks.by != SITE
                else f"values is for tasks by a column, not by {SITE!r}",
                at, "values" if tasks.values else "by",
            )  # fmt: skip
        return tasks

    def _fit(self, table: dict[str, Any], target: Target) -> FitOptions:
        at = ("fit",)
        known = ("loss", "lambda", "common", "folds", "scoring", "tolerance", "seed", "held_out")
        self.known(at, table, known)
        loss = self.text(at, table, "loss", "logistic" if target.kind == CLASSIFICATION else "squared")
        try:
            kind = parse_loss(loss).kind
        except ValueError as error:
            self.fail(str(error), at, "loss")
        if kind != target.kind:
            self.fail(f"the {loss} loss is for {kind}, but the target is for {target.kind}", at, "loss")
        folds, seed = self.whole(at, table, "folds", 5, 2), self.whole(at, table, "seed", 0, 0)
        tolerance = table.get("tolerance", 1e-3)
        if not (is_number(tolerance) and 0 < tolerance < 1):
            self.fail("tolerance must be a number between 0 and 1", at, "tolerance")
        scoring = table.get("scoring")
        if scoring is not None:
            scoring = self.choice(at, table, "scoring", ("loss", "squared_error", "wrong"))
        lambdas, commons = self.numbers(at, table, "lambda", 0.0), self.numbers(at, table, "common", -1.0)
        held_out = self.text(at, table, "held_out", "") or None
        return FitOptions(loss, lambdas, commons, folds, scoring, float(tolerance), seed, held_out)

    def _limits(self, table: dict[str, Any]) -> Limits:
        at = ("limits",)
        self.known(at, table, [field.name for field in fields(Limits)])
        defaults = Limits()
        return Limits(
            self.whole(at, table, "sites", defaults.sites, 1),
            self.choice(at, table, "on_lost", ("stop", "go_on"), defaults.on_lost),
            self.whole(at, table, "rows_per_task", defaults.rows_per_task, 2),
            self.whole(at, table, "rounds", defaults.rounds, 1),
        )

    def _results(self, table: dict[str, Any]) -> Results:
        at = ("results",)
        self.known(at, table, ("coordinator", "sites"))
        return Results(
            self.choice(at, table, "coordinator", ("weights", "summary"), "weights"),
            self.choice(at, table, "sites", ("own", "all"), "own"),
        )
