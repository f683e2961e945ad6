"""`dmtrl export` as a library function: a saved model as plain coefficients or an ONNX graph."""

from pathlib import Path
from typing import Any

from dmtrl.estimators.export import export
from dmtrl.estimators.model_file import load


def export_file(model: str | Path, out: Path, task: str | None = None, force: bool = False) -> dict[str, Any]:
    """Write the export of a model file, and return a summary of plain values. force: replace an existing file."""
    fitted = load(model)
    export(fitted, out, task, force)
    return {
        "out": str(out),
        "format": out.suffix.lower().lstrip("."),
        "tasks": len(fitted.tasks_) if task is None else 1,
        "coefficients": int(fitted.coef_.shape[-1]),
    }
