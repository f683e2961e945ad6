"""What the coordinator of a study has: events while it runs, and the result."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dmtrl import storage

MODEL, RESULT = "model.dmtrl", "result.json"


@dataclass(frozen=True)
class StudyEvent:
    """Where a study stands. done: share of the stage, 0 to 1. round, gap: of the current fit."""

    stage: str
    done: float = 0.0
    detail: str = ""
    round: int | None = None
    gap: float | None = None
    sites: tuple[str, ...] = ()


OnEvent = Callable[[StudyEvent], object]


@dataclass(frozen=True)
class TaskResult:
    """One task of a study. rows: rounded down to a multiple of the study's threshold, as is `held_out_rows`.
    single_class: whether all its rows have one class, which its model always predicts.

    error: on the task's held-out rows, None if it has none; cv_error: of the cross-validation at the chosen lambda.
    Error rates for classification, mean squared errors for regression.
    """

    name: str
    site: str
    rows: int
    held_out_rows: int = 0
    error: float | None = None
    cv_error: float | None = None
    single_class: bool = False


@dataclass(frozen=True)
class StudyResult:
    """What the coordinator has at the end."""

    study: str
    hash: str  # of the study
    sites: tuple[str, ...]  # that took part to the end
    lost: tuple[str, ...]  # sites that were left out because they did not respond
    tasks: tuple[TaskResult, ...]
    reg_lambda: float
    common: float  # strength of the common component
    primal: float
    dual: float
    relative_gap: float
    rounds: int  # of the final fit
    noisy: bool  # whether the sites added noise, so that the certificate is that of a noisy problem, or infinite
    privacy: str  # the guarantee for the rows of the sites, in one sentence
    model: Any = field(default=None, repr=False)  # of all tasks; None if the coordinator gets only a summary

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the model."""
        values = {name: value for name, value in vars(self).items() if name not in ("model", "tasks")}
        for name in ("primal", "dual", "relative_gap"):  # JSON has no infinity
            values[name] = values[name] if math.isfinite(values[name]) else None
        return {**values, "tasks": [asdict(task) for task in self.tasks]}

    def write(self, folder: Path) -> None:
        """Write the model, if there is one, and the result."""
        if self.model is not None:
            self.model.save(folder / MODEL)
        storage.write(str(folder / RESULT), json.dumps(self.as_dict(), indent=1).encode())
