"""dmtrl: one linear model per task and the covariance between tasks, learned where the data lies, and certified.

A name is imported when it is first used, so that `import dmtrl` and `dmtrl --help` are fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmtrl.data.sources import SourcePlan
    from dmtrl.data.task_data import TaskData
    from dmtrl.engines import LocalOptions, RayOptions
    from dmtrl.estimators.cv import MTRLClassifierCV, MTRLRegressorCV
    from dmtrl.estimators.export import export
    from dmtrl.estimators.feature_maps import RFF, Splines
    from dmtrl.estimators.metrics import per_task_scores, task_scorer
    from dmtrl.estimators.model_file import load, verify
    from dmtrl.estimators.mtrl import MTRLClassifier, MTRLRegressor
    from dmtrl.exceptions import (
        CheckpointWarning,
        LossError,
        NotConvergedWarning,
        RelationshipError,
        ScaleWarning,
        TasksLeftOutWarning,
        WorkerLostError,
    )
    from dmtrl.federation.protection.noise.coordinator import private_moments
    from dmtrl.losses import CustomLoss, Loss, get_loss
    from dmtrl.losses.check import check_loss
    from dmtrl.relationship.check import check_relationship
    from dmtrl.relationship.covariance import TaskCovariance
    from dmtrl.report.displays import ConvergenceDisplay, TaskComparisonDisplay, TaskCorrelationDisplay
    from dmtrl.solver.api import solve
    from dmtrl.solver.certificate import Certificate
    from dmtrl.solver.checkpoint import Checkpoint
    from dmtrl.solver.execution import Execution
    from dmtrl.solver.outcome import Outcome, RoundRecord
    from dmtrl.solver.problem import Problem, Strengths
    from dmtrl.solver.settings import Settings

__version__ = "0.1.0.dev0"

_HOMES = {
    "exceptions": [
        "CheckpointWarning",
        "LossError",
        "NotConvergedWarning",
        "RelationshipError",
        "ScaleWarning",
        "TasksLeftOutWarning",
        "WorkerLostError",
    ],
    "solver.certificate": ["Certificate"],
    "solver.checkpoint": ["Checkpoint"],
    "solver.execution": ["Execution"],
    "solver.outcome": ["Outcome", "RoundRecord"],
    "solver.problem": ["Problem", "Strengths"],
    "relationship.check": ["check_relationship"],
    "relationship.covariance": ["TaskCovariance"],
    "data.task_data": ["TaskData"],
    "report.displays": ["ConvergenceDisplay", "TaskComparisonDisplay", "TaskCorrelationDisplay"],
    "engines": ["LocalOptions", "RayOptions"],
    "estimators.mtrl": ["MTRLClassifier", "MTRLRegressor"],
    "estimators.export": ["export"],
    "estimators.feature_maps": ["RFF", "Splines"],
    "federation.protection.noise.coordinator": ["private_moments"],
    "losses.check": ["check_loss"],
    "losses.builtin": ["CustomLoss", "Loss", "get_loss"],
    "estimators.metrics": ["per_task_scores", "task_scorer"],
    "estimators.model_file": ["load", "verify"],
    "estimators.cv": ["MTRLClassifierCV", "MTRLRegressorCV"],
    "solver.settings": ["Settings"],
    "solver.api": ["solve"],
    "data.sources": ["SourcePlan"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "RFF",
    "Certificate",
    "Checkpoint",
    "CheckpointWarning",
    "ConvergenceDisplay",
    "CustomLoss",
    "Execution",
    "LocalOptions",
    "Loss",
    "LossError",
    "MTRLClassifier",
    "MTRLClassifierCV",
    "MTRLRegressor",
    "MTRLRegressorCV",
    "NotConvergedWarning",
    "Outcome",
    "Problem",
    "RayOptions",
    "RelationshipError",
    "RoundRecord",
    "ScaleWarning",
    "Settings",
    "SourcePlan",
    "Splines",
    "Strengths",
    "TaskComparisonDisplay",
    "TaskCorrelationDisplay",
    "TaskCovariance",
    "TaskData",
    "TasksLeftOutWarning",
    "WorkerLostError",
    "check_loss",
    "check_relationship",
    "export",
    "get_loss",
    "load",
    "per_task_scores",
    "private_moments",
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
