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

from dmtrl.federation.study.privacy_terms import Privacy, read_privacy
from dmtrl.federation.study.toml_fields import TomlTable, is_number, parse_toml
from dmtrl.losses import BUILTIN, CLASSIFICATION, REGRESSION, Loss

FORMAT = 1
SITE = "site"  # tasks.by: each site is one task
KINDS = ("number", "category", "date", "ignored")
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_site_name(name: str) -> None:
    """ValueError if this cannot be the name of a site."""
    if not SITE_NAME.fullmatch(name):
        raise ValueError(f"the name of a site may hold letters, digits, - and _ only, got {name!r}")


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

    @property
    def moments(self) -> int:
        """How many numbers a cell becomes whose sums leave a site: a date is its day, the time of year as sine and
        cosine, and seven weekdays."""
        return {"number": 1, "date": 10}.get(self.kind, 0)


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

    sites: with fewer sites the study ends. on_lost: "stop", or "go_on" without a site that does not respond.
    rows_per_task: smaller tasks are left out. rounds: of all fits together.
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
    """A study, as its file describes it."""

    name: str
    columns: tuple[StudyColumn, ...]
    target: Target
    tasks: Tasks
    fit: FitOptions
    limits: Limits
    results: Results
    source: bytes  # the file
    description: str = ""
    missing: tuple[str, ...] = ()  # texts that mean a missing value in every column
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
    def moments(self) -> int:
        """How many numbers of its rows are summed, for number and date columns."""
        return sum(column.moments for column in self.used)

    @property
    def counted_levels(self) -> int:
        """How many levels are counted, for category columns, with missing cells and other values."""
        return sum(len(column.levels) + 2 for column in self.used if column.kind == "category")

    @property
    def declared_features(self) -> int:
        """The number of features if the study alone says how columns become features, as in a private study."""
        return sum(column.moments or len(column.levels) + column.other for column in self.used)

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
    """Read and check a study file. StudyError if it is not a valid study; the message names the line."""
    if not Path(path).exists():
        raise FileNotFoundError(
            f"there is no study file {path}; check its name and folder, or draft one with 'dmtrl study new'"
        )
    return parse_study(Path(path).read_bytes(), str(path))


def parse_study(source: bytes, where: str = "the study") -> Study:
    """A study from the bytes of its file; `where` is the name of the file in error messages."""
    file = parse_toml(source, where)
    tables = ("target", "tasks", "fit", "limits", "privacy", "results", "columns")
    file.require_known(("format", "name", "description", "missing", *tables))
    if file.content.get("format") != FORMAT:
        file.fail(f"format must be {FORMAT}, got {file.content.get('format')!r}", "format")
    name = file.text("name")
    if not SITE_NAME.fullmatch(name):
        file.fail(f"the name {name!r} may hold letters, digits, - and _ only", "name")
    for required in ("target", "fit", "columns"):
        if not isinstance(file.content.get(required), dict):
            file.fail(f"the table [{required}] is missing", required)
    target = _target(file.table("target", _keys(Target)))
    columns = file.table("columns")
    study = Study(
        name,
        tuple(_column(column, columns.table(column, _keys(StudyColumn, without="name"))) for column in columns.content),
        target,
        _tasks(file.table("tasks", _keys(Tasks))),
        _fit(file.table("fit", ["lambda", *_keys(FitOptions, without="reg_lambda")]), target),
        _limits(file.table("limits", _keys(Limits))),
        _results(file.table("results", _keys(Results))),
        source,
        file.text("description", ""),
        file.texts("missing", ()),
    )
    _check_roles(file, study)
    return replace(study, privacy=read_privacy(file, study))


def _keys(kind: type, without: str = "") -> list[str]:
    """The keys of a table: the fields of its dataclass, except `without`."""
    return [field.name for field in fields(kind) if field.name != without]


def _check_roles(file: TomlTable, study: Study) -> None:
    """Every column has one role, and at least one is used."""
    target, by, held_out = study.target.column, study.tasks.by, study.fit.held_out
    if not study.used:
        file.fail("no column is used; give at least one the kind number, category or date", "columns")
    if by in (target, held_out) and by != SITE:
        file.fail(f"{by!r} cannot also be the target or the column held_out", "by", ("tasks",))
    if held_out == target:
        file.fail(f"{target!r} cannot also be the target", "held_out", ("fit",))
    special = {target: "target", by: "tasks", held_out: "fit"}
    for column in study.used:
        if column.name in special and column.name != SITE:
            problem = f"{column.name!r} is also used in [{special[column.name]}]; remove it here"
            file.fail(problem, at=("columns", column.name))


def _target(table: TomlTable) -> Target:
    kind = table.choice("kind", (CLASSIFICATION, REGRESSION))
    column = table.text("column")
    if kind == REGRESSION:
        for key in ("negative", "positive", "names"):
            if key in table.content:
                table.fail(f"{key} is for classification", key)
        return Target(column, kind, range=table.range("number"))
    negative, positive = table.texts("negative"), table.texts("positive")
    both = set(negative) & set(positive)
    if both:
        table.fail(f"{min(both)!r} is both negative and positive", "positive")
    for key, levels in (("negative", negative), ("positive", positive)):
        if not levels:
            table.fail(f"{key} needs at least one value of the target", key)
    names = table.texts("names", ())
    if names and len(names) != 2:
        table.fail("names must be two different names, that of the negative class first", "names")
    return Target(column, kind, negative, positive, names)


def _column(name: str, table: TomlTable) -> StudyColumn:
    kind = table.choice("kind", KINDS)
    levels, other = table.texts("levels", ()), table.flag("other")
    if (kind == "category") != bool(levels):
        table.fail("a category needs levels" if not levels else f"a {kind} has no levels", "levels")
    if other and kind != "category":
        table.fail("other is for categories", "other")
    limits = table.range(kind)
    if kind == "date" and limits is None:
        table.fail("a date needs a range such as [2020-01-01, 2024-12-31]", "range")
    correlation = table.content.get("correlation")
    if correlation is not None and not (is_number(correlation) and -1 <= correlation <= 1):
        table.fail("correlation must be a number between -1 and 1", "correlation")
    return StudyColumn(name, kind, table.text("unit", ""), limits, levels, other, correlation)


def _tasks(table: TomlTable) -> Tasks:
    tasks = Tasks(table.text("by", SITE), table.texts("values", ()))
    if tasks.by == SITE and tasks.values:
        table.fail(f"values is for tasks by a column, not by {SITE!r}", "values")
    if tasks.by != SITE and not tasks.values:
        table.fail(f"by = {tasks.by!r} needs the list values with the tasks of that column", "by")
    return tasks


def _fit(table: TomlTable, target: Target) -> FitOptions:
    loss = table.text("loss", "logistic" if target.kind == CLASSIFICATION else "squared")
    try:
        kind = parse_loss(loss).kind
    except ValueError as error:
        table.fail(str(error), "loss")
    if kind != target.kind:
        table.fail(f"the {loss} loss is for {kind}, but the target is for {target.kind}", "loss")
    tolerance = table.content.get("tolerance", 1e-3)
    if not (is_number(tolerance) and 0 < tolerance < 1):
        table.fail("tolerance must be a number between 0 and 1", "tolerance")
    scoring = None
    if "scoring" in table.content:
        scoring = table.choice("scoring", ("loss", "squared_error", "wrong"))
    return FitOptions(
        loss,
        table.numbers("lambda", zero=False),
        table.numbers("common", zero=True),
        table.whole("folds", 5, 2),
        scoring,
        float(tolerance),
        table.whole("seed", 0, 0),
        table.text("held_out", "") or None,
    )


def _limits(table: TomlTable) -> Limits:
    return Limits(
        table.whole("sites", Limits.sites, 1),
        table.choice("on_lost", ("stop", "go_on"), Limits.on_lost),
        table.whole("rows_per_task", Limits.rows_per_task, 2),
        table.whole("rounds", Limits.rounds, 1),
    )


def _results(table: TomlTable) -> Results:
    return Results(
        table.choice("coordinator", ("weights", "summary"), Results.coordinator),
        table.choice("sites", ("own", "all"), Results.sites),
    )
