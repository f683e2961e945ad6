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
    """Where a study stands. done: share of the stage, 0 to 1. round, gap: of the fit under way."""

    stage: str
    done: float = 0.0
    detail: str = ""
    round: int | None = None
    gap: float | None = None
    sites: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The event as plain values."""
        return asdict(self)


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
    """What the coordinator has at the end.

    Attributes
    ----------
    study, hash : str
        The name and the hash of the study.
    sites : tuple of str
        The sites that took part to the end.
    lost : tuple of str
        The sites that were left out because they stayed away.
    tasks : tuple of TaskResult
    reg_lambda, tau : float
        The chosen strengths.
    primal, dual, relative_gap : float
        The certificate.
    rounds : int
        Rounds of the final fit.
    noisy : bool
        Whether the sites added noise, so that the certificate is that of a noisy problem, or infinite.
    privacy : str
        The guarantee for the rows of the sites, in one sentence.
    model : MTRLClassifier, MTRLRegressor or their CV versions, or None
        The model of all tasks; None if the study gives the coordinator only a summary.
    """

    study: str
    hash: str
    sites: tuple[str, ...]
    lost: tuple[str, ...]
    tasks: tuple[TaskResult, ...]
    reg_lambda: float
    tau: float
    primal: float
    dual: float
    relative_gap: float
    rounds: int
    noisy: bool
    privacy: str
    model: Any = field(default=None, repr=False)

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
