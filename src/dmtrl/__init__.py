"""dmtrl: one linear model per task and the covariance between tasks, learned where the data lies, and certified.

A name is loaded when it is first used, so that `import dmtrl` and the shell's help are there at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmtrl.certificate import Certificate
    from dmtrl.checkpoint import Checkpoint, CheckpointWarning
    from dmtrl.coordinator import Outcome, RoundRecord
    from dmtrl.covariance import TaskCovariance
    from dmtrl.data import TaskData
    from dmtrl.displays import ConvergenceDisplay, TaskComparisonDisplay, TaskCorrelationDisplay
    from dmtrl.engines import RayOptions, WorkerLostError
    from dmtrl.estimators import MTRLClassifier, MTRLRegressor
    from dmtrl.feature_maps import RFF
    from dmtrl.loss_check import LossError, check_loss
    from dmtrl.losses import CustomLoss, Loss, get_loss
    from dmtrl.metrics import per_task_scores, task_scorer
    from dmtrl.persistence import load, verify
    from dmtrl.selection import MTRLClassifierCV, MTRLRegressorCV
    from dmtrl.settings import Settings
    from dmtrl.solver import NotConvergedWarning, TasksLeftOutWarning, solve
    from dmtrl.sources import SourcePlan

__version__ = "0.1.0"

_HOMES = {
    "certificate": ["Certificate"],
    "checkpoint": ["Checkpoint", "CheckpointWarning"],
    "coordinator": ["Outcome", "RoundRecord"],
    "covariance": ["TaskCovariance"],
    "data": ["TaskData"],
    "displays": ["ConvergenceDisplay", "TaskComparisonDisplay", "TaskCorrelationDisplay"],
    "engines": ["RayOptions", "WorkerLostError"],
    "estimators": ["MTRLClassifier", "MTRLRegressor"],
    "feature_maps": ["RFF"],
    "loss_check": ["LossError", "check_loss"],
    "losses": ["CustomLoss", "Loss", "get_loss"],
    "metrics": ["per_task_scores", "task_scorer"],
    "persistence": ["load", "verify"],
    "selection": ["MTRLClassifierCV", "MTRLRegressorCV"],
    "settings": ["Settings"],
    "solver": ["NotConvergedWarning", "TasksLeftOutWarning", "solve"],
    "sources": ["SourcePlan"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "RFF",
    "Certificate",
    "Checkpoint",
    "CheckpointWarning",
    "ConvergenceDisplay",
    "CustomLoss",
    "Loss",
    "LossError",
    "MTRLClassifier",
    "MTRLClassifierCV",
    "MTRLRegressor",
    "MTRLRegressorCV",
    "NotConvergedWarning",
    "Outcome",
    "RayOptions",
    "RoundRecord",
    "Settings",
    "SourcePlan",
    "TaskComparisonDisplay",
    "TaskCorrelationDisplay",
    "TaskCovariance",
    "TaskData",
    "TasksLeftOutWarning",
    "WorkerLostError",
    "check_loss",
    "get_loss",
    "load",
    "per_task_scores",
    "solve",
    "task_scorer",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dmtrl' has no attribute {name!r}")
    value = getattr(import_module(f"dmtrl.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
