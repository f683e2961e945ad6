"""What an experiment is: its runs, how to measure one, and how to show the records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dmtrl.lab.experiments.records import Params, Record, run_key
from dmtrl.report.content import Section


@dataclass(frozen=True)
class Run:
    """One measurement. `seconds` is its estimated duration on 2 cores."""

    params: Params
    seconds: float

    def in_words(self) -> str:
        """Return the parameters as the progress display shows them."""
        return ", ".join(str(value) for name, value in self.params.items() if name != "quick")


@dataclass(frozen=True)
class Experiment:
    """A named set of runs, how to measure one, and how to show their records.

    Attributes
    ----------
    name : str
    runs : callable
        runs(quick) returns the runs of the quick or the full version.
    measure : callable
        measure(**run.params) returns the figures of one run.
    section : callable
        section(records) returns a section of the page from the records of all runs.
    settings : dict
        What all runs have in common. Part of every record and its key.
    """

    name: str
    runs: Callable[[bool], Sequence[Run]]
    measure: Callable[..., Mapping[str, Any]]
    section: Callable[[Sequence[Record]], Section]
    settings: Params = field(default_factory=dict)

    def key(self, run: Run) -> str:
        return run_key(self.name, run.params, self.settings)
