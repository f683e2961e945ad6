"""The two baselines without relations: every task alone, and all rows as if they were one task.

Room: baselines. Both are the library's own solver with a fixed relationship, and certified by it.
"""

import numpy as np

from dmtrl.data.task_data import TaskData
from dmtrl.lab.baselines.alternating import Fitted
from dmtrl.losses import AnyLoss
from dmtrl.relationship import shared
from dmtrl.solver.api import solve
from dmtrl.solver.settings import Settings


def single_task(
    data: TaskData,
    loss: str | AnyLoss,
    reg_lambda: float,
    *,
    settings: Settings | None = None,
    n_jobs: int | None = None,
) -> Fitted:
    """Each task alone: Sigma is held at I / m.

    Task i minimises its mean loss + (lambda m / 2) |w_i|^2, so one lambda means the same as in the joint problem.
    """
    outcome = solve(
        data, loss=loss, reg_lambda=reg_lambda, relationship="independent", settings=settings, n_jobs=n_jobs
    )
    return Fitted(outcome.W, outcome.covariance, outcome.certificate, outcome.history)


def pooled(data: TaskData, loss: str | AnyLoss, reg_lambda: float, *, settings: Settings | None = None) -> Fitted:
    """One model for the rows of all tasks: w minimises the mean loss over all rows + (lambda / 2) |w|^2.

    Every row counts the same (or by its sample weight), so a task counts by its number of rows; in the joint problem
    every task counts the same. The m rows of W are equal, and Sigma is 1 1^T / m.
    """
    together = TaskData(data.X, data.y, data.sample_weight, np.array([0, len(data.y)]), np.array(["all tasks"]))
    outcome = solve(together, loss=loss, reg_lambda=reg_lambda, relationship="independent", settings=settings)
    W = np.repeat(outcome.W, data.m, axis=0)
    return Fitted(W, shared(data.m, correlation=1.0).covariance, outcome.certificate, outcome.history)
