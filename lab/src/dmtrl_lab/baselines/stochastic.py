"""SSDCA: stochastic dual coordinate ascent over the rows of all tasks, the paper's single-machine DMTRL."""

import time
from typing import Any

import numpy as np

from dmtrl.data.task_data import TaskData
from dmtrl.losses import Loss
from dmtrl.solver.outcome import Watch
from dmtrl_lab.baselines import compiled
from dmtrl_lab.baselines.alternating import Fitted, Problem, Schedule, alternate


def ssdca(
    data: TaskData,
    loss: str | Loss,
    reg_lambda: float,
    *,
    omega_steps: int = 10,
    passes: int = 10,
    w_tol: float = 0.0,
    smoothing: float = 1e-7,
    relationship: Any = "learned",
    seed: int = 0,
    watch: Watch | None = None,
) -> Fitted:
    """Multi-task relationship learning by coordinate steps on rows drawn uniformly from all tasks.

    Each step updates the weights of all tasks, so no safety factor is needed (rho = 1). A pass is as many steps as
    there are rows. A W-step ends after `passes` passes, or at the relative W-step gap `w_tol`. After each W-step Sigma
    is updated from W, smoothed as in `Settings`. If `relationship` is a covariance, only W is learned.
    `watch(record, W)` is called after every pass.
    """
    began = time.perf_counter()
    schedule = Schedule(omega_steps, passes, w_tol, smoothing)

    def improve(problem: Problem, number: int) -> float:
        # a copy in the precision of X, as on a worker; `measure` recomputes W from alpha after every pass
        W = np.array(problem.W, dtype=data.X.dtype, order="C")
        n = len(problem.alpha)
        compiled.uniform_steps(problem.units, problem.task, problem.alpha, W, problem.sigma, n, seed, number)
        return 1.0

    return alternate(Problem(data, loss, reg_lambda, relationship), "ssdca", improve, schedule, watch, began)
