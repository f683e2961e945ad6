"""Estimators from a study: the one that the coordinator fits, and the one that a site receives."""

from dataclasses import replace
from typing import Any

import numpy as np

from dmtrl.data.coordinates import Coordinates
from dmtrl.estimators.cv import MTRLClassifierCV, MTRLRegressorCV
from dmtrl.estimators.grids import COMMONS, lambda_grid
from dmtrl.estimators.mtrl import MTRLClassifier, MTRLRegressor
from dmtrl.federation.study.study_file import Study
from dmtrl.losses import get_loss
from dmtrl.relationship import Learned
from dmtrl.solver.certificate import Certificate
from dmtrl.solver.outcome import DualPoint, Outcome
from dmtrl.solver.problem import Problem, Strengths, Tasks
from dmtrl.tables.preparation import Preparation


def unfitted(study: Study, mean_square: float) -> Any:
    """The estimator of the study, with its lambda or with cross-validation. mean_square: mean squared norm of a row."""
    shared, lambdas, commons = _shared(study), study.fit.reg_lambda, study.fit.common
    if len(lambdas) == 1 and len(commons) <= 1:
        common: Any = commons[0] if commons else "auto"
        return (MTRLClassifier if study.classification else MTRLRegressor)(
            reg_lambda=lambdas[0], common=common, **shared
        )
    search: dict[str, Any] = {"lambdas": lambdas or lambda_grid(mean_square).tolist(), "cv": study.fit.folds}
    search |= {"owns": (0.0,), "commons": commons or COMMONS}
    kind = MTRLClassifierCV if study.classification else MTRLRegressorCV
    return kind(scoring=study.fit.scoring, **search, **shared)


def intercept_ridge(study: Study, coordinates: Coordinates) -> float:
    """The penalty on an intercept in the problem of the study."""
    return float(unfitted(study, 1.0).intercept_ridge(coordinates))


def received(
    study: Study,
    preparation: Preparation,
    coordinates: Coordinates,
    names: list[str],
    W: np.ndarray,
    common: np.ndarray,
    strengths: Strengths,
    certificate: Certificate,
) -> Any:
    """The model of the tasks that a site receives. Its certificate is that of the whole study."""
    kind = MTRLClassifier if study.classification else MTRLRegressor
    model = kind(reg_lambda=strengths.reg_lambda, common=strengths.common, **_shared(study))
    nothing = DualPoint(np.zeros_like(W), 0.0, 0.0, certificate.dual)  # the dual variables stay with the coordinator
    covariance = Learned().update((W - common)[:, :-1])
    ones = np.ones(len(W))  # every task counts the same in a study, and sizes stay with the coordinator
    outcome = Outcome(W, common, covariance, certificate, nothing, [], True, "splitting", ones, ones)
    problem = problem_of(model, study, coordinates, names, np.zeros(len(names)))
    model.set_outcome(replace(problem, strengths=strengths), outcome)
    model.preparation_ = preparation
    return model


def problem_of(model: Any, study: Study, coordinates: Coordinates, names: list[str], constant: np.ndarray) -> Problem:
    """The problem of these tasks for an estimator, without rows: the sites hold them.

    constant: the score of each task that always predicts one class; 0 for the others, which are fitted.
    """
    tasks = Tasks(np.array(names), np.flatnonzero(constant == 0), constant, classes_of(study))
    problem: Problem = model.describe(len(tasks.used), coordinates, tasks)
    return problem


def most_features(study: Study) -> int:
    """The largest number of features that the columns can become."""
    return sum(column.moments + 1 if column.moments else len(column.levels) + 2 for column in study.used)


def number_of_fits(study: Study) -> int:
    """Fits of the cross-validation, and the final one."""
    model = unfitted(study, 1.0)
    if not hasattr(model, "lambdas"):
        return 1
    return len(model.lambdas) * len(model.commons) * study.fit.folds + 1


def classes_of(study: Study) -> np.ndarray | None:
    """The class labels, the positive one last: integers if both are whole numbers, else text."""
    if not study.classification:
        return None
    names = study.class_names
    return np.array([int(name) for name in names] if all(_is_whole(name) for name in names) else names)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit() and str(int(text)) == text


def _shared(study: Study) -> dict[str, Any]:
    loss = study.loss
    named = loss == get_loss(loss.name)  # a name is easier to read in a saved model
    # a site checks that its tasks have the weight one
    return {
        "task_weight": "equal",
        "loss": loss.name if named else loss,
        "tol": study.fit.tolerance,
        "random_state": study.fit.seed,
    }
