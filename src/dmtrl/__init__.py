"""dmtrl: one linear model per task and the covariance between tasks, learned where the data lies, and certified."""

from dmtrl.certificate import Certificate
from dmtrl.coordinator import Outcome, RoundRecord
from dmtrl.covariance import TaskCovariance
from dmtrl.data import TaskData
from dmtrl.displays import ConvergenceDisplay, TaskComparisonDisplay, TaskCorrelationDisplay
from dmtrl.estimators import MTRLClassifier, MTRLRegressor
from dmtrl.feature_maps import RFF
from dmtrl.loss_check import LossError, check_loss
from dmtrl.losses import CustomLoss, Loss, get_loss
from dmtrl.metrics import per_task_scores, task_scorer
from dmtrl.persistence import load, verify
from dmtrl.selection import MTRLClassifierCV, MTRLRegressorCV
from dmtrl.settings import Settings
from dmtrl.solve import NotConvergedWarning, solve

__version__ = "0.1.0"

__all__ = [
    "RFF",
    "Certificate",
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
    "RoundRecord",
    "Settings",
    "TaskComparisonDisplay",
    "TaskCorrelationDisplay",
    "TaskCovariance",
    "TaskData",
    "check_loss",
    "get_loss",
    "load",
    "per_task_scores",
    "solve",
    "task_scorer",
    "verify",
]
