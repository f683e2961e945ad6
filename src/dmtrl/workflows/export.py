"""`dmtrl export` as a library function: a saved model as plain coefficients or an ONNX graph."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmtrl.estimators import export as coefficients
from dmtrl.estimators.model_file import load
from dmtrl.workflows.requests import ExportRequest


@dataclass(frozen=True)
class ExportResult:
    """What was written. coefficients: of each task."""

    out: Path
    tasks: int
    coefficients: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return vars(self) | {"out": str(self.out), "format": self.out.suffix.lower().lstrip(".")}


def export(request: ExportRequest) -> ExportResult:
    """Write the export of a model file."""
    request.check()
    model = load(request.model)
    coefficients.export(model, request.out, request.task, request.force)
    return ExportResult(request.out, len(model.tasks_) if request.task is None else 1, int(model.coef_.shape[-1]))
