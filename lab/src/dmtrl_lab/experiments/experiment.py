"""What an experiment is: its runs, how to measure one, and how to show the records."""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dmtrl.report.content import Item, Section, Table

Params = Mapping[str, Any]
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One measurement. `seconds` is its estimated duration on 2 cores."""

    params: Params
    seconds: float

    def in_words(self) -> str:
        """Return the parameters as the progress display shows them."""
        return ", ".join(str(value) for name, value in self.params.items() if name != "quick")


def grid(quick: bool, seconds: float, **values: Iterable[Any]) -> list[Run]:
    """Return a run for each combination of the values of the parameters. The last parameter varies fastest."""
    combinations = itertools.product(*values.values())
    return [Run({**dict(zip(values, one, strict=True)), "quick": quick}, seconds) for one in combinations]


@dataclass(frozen=True)
class Record:
    """One finished run of an experiment."""

    experiment: str
    params: Params  # what distinguishes this run from the others of its experiment
    settings: Params  # what all runs have in common: loss, lambdas, seed, rounds
    figures: Figures  # the results: numbers, lists of numbers, names
    seconds: float
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""

    @property
    def key(self) -> str:
        return run_key(self.experiment, self.params, self.settings)


Records = Sequence[Record]


def select(records: Records, **params: Any) -> list[Record]:
    """Return the records whose parameters have these values."""
    return [one for one in records if all(one.params.get(name) == value for name, value in params.items())]


def machines(records: Records) -> str:
    """Return where the runs took place."""
    return "; ".join(sorted({record.machine for record in records}))


def table(title: str, rows: Sequence[Mapping[str, object]], caption: str = "") -> Table:
    """Return a table from rows that map the name of each column to a cell."""
    columns = list(rows[0]) if rows else []
    return Table(title, columns, [[row[name] for name in columns] for row in rows], caption)


@dataclass(frozen=True)
class Experiment:
    """A named set of runs, how to measure one, and how to show their records."""

    name: str
    title: str  # of its section of the page
    runs: Callable[[bool], Sequence[Run]]  # runs(quick): those of the quick or the full version
    measure: Callable[..., Figures]  # measure(**run.params)
    items: Callable[[Records], Sequence[Item]]  # the content of its section, from the records of all runs
    settings: Params = field(default_factory=dict)  # what all runs have in common; part of every record and its key

    def key(self, run: Run) -> str:
        return run_key(self.name, run.params, self.settings)

    def section(self, records: Records) -> Section:
        return Section(self.title, self.items(records))


def run_key(experiment: str, params: Params, settings: Params) -> str:
    """Two runs with the same key are the same run. Other settings give another key."""
    return json.dumps([experiment, plain(params), plain(settings)], sort_keys=True)


def plain(value: Any) -> Any:
    """Convert numpy numbers and arrays, tuples and mappings to JSON types. Floats keep seven digits."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value
