"""From task data to a certified answer in one call: partition, engine, coordinator.

Room: above the engines, below the estimators, which are this function in scikit-learn's clothes.
"""

import os
import warnings
from collections.abc import Sequence
from typing import Any

from dmtrl.blocks import ArraySource
from dmtrl.coordinator import Callback, Coordinator, Outcome, Watch
from dmtrl.data import TaskData
from dmtrl.engines.local import LocalEngine
from dmtrl.losses import AnyLoss, get_loss
from dmtrl.progress import live_line
from dmtrl.relationship import FreeIntercept, get_relationship
from dmtrl.settings import Settings


class NotConvergedWarning(UserWarning):
    """The fit stopped on max_rounds; its message says how far the answer can be from the best."""


def solve(
    data: TaskData,
    *,
    loss: str | AnyLoss | Sequence[str | AnyLoss],
    reg_lambda: float,
    relationship: Any = "learned",
    common: float = 0.0,
    settings: Settings | None = None,
    n_jobs: int | None = None,
    workers: int | None = None,
    shards: int | Sequence[int] = 1,
    intercept_ridge: float | None = None,
    callbacks: Sequence[Callback] = (),
    watch: Watch | None = None,
    verbose: int = 0,
) -> Outcome:
    """Learn one linear model per task and the covariance between tasks.

    loss: one for all tasks, or one per task. workers: how many pieces the tasks are laid in (default: one per thread;
    `data.m` is one task per worker). intercept_ridge: the last column of X is a constant whose weights stay outside
    the relationship and carry only this much ridge. shards: into how many pieces each task is cut first. n_jobs:
    threads, -1 for all cores. callbacks get the record of every round, watch also its weights.
    """
    settings = settings or Settings()
    losses = _losses(loss, data.m)
    threads = thread_count(n_jobs)
    sources = [ArraySource(blocks) for blocks in data.partition(threads if workers is None else workers, shards)]
    with LocalEngine(sources, losses, threads) as engine:
        relation = get_relationship(relationship, data.m, common)
        if intercept_ridge is not None and reg_lambda > 0:
            relation = FreeIntercept(relation, intercept_ridge / reg_lambda)
        coordinator = Coordinator(engine, data.m, relation, reg_lambda, settings)
        with live_line(verbose, settings.tol) as show:
            outcome = coordinator.run([*callbacks, *show], watch=watch)
    warn_unless_converged(outcome, settings)
    return outcome


def warn_unless_converged(outcome: Outcome, settings: Settings) -> None:
    if not outcome.converged and settings.tol > 0:
        warnings.warn(
            f"stopped after max_rounds={settings.max_rounds} rounds at a relative gap of "
            f"{outcome.certificate.relative_gap:.2g} (tol={settings.tol:g}); "
            "scale the features, choose a stronger lambda, or raise max_rounds or tol",
            NotConvergedWarning,
            stacklevel=3,
        )


def thread_count(n_jobs: int | None) -> int:
    if n_jobs is None:
        return 1
    if n_jobs == 0:
        raise ValueError("n_jobs must not be 0; use -1 for all cores")
    return n_jobs if n_jobs > 0 else max((os.cpu_count() or 1) + 1 + n_jobs, 1)


def _losses(loss: str | AnyLoss | Sequence[str | AnyLoss], m: int) -> AnyLoss | list[AnyLoss]:
    if isinstance(loss, list | tuple):
        if len(loss) != m:
            raise ValueError(f"got {len(loss)} losses for {m} tasks; give one for all, or one per task")
        return [get_loss(one) for one in loss]
    return get_loss(loss)  # type: ignore[arg-type]
