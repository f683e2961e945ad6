"""From task data to a certified answer in one call: partition, engine, coordinator.

Room: above the engines, below the estimators, which are this function in scikit-learn's clothes.
"""

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dmtrl.data.sources import SourcePlan
from dmtrl.data.task_data import TaskData
from dmtrl.engines import choose_engine
from dmtrl.engines.base import Engine
from dmtrl.exceptions import NotConvergedWarning, TasksLeftOutWarning, WorkerLostError
from dmtrl.losses import AnyLoss, get_loss
from dmtrl.progress import live_line
from dmtrl.relationship import FreeIntercept, get_relationship
from dmtrl.solver.checkpoint import Checkpoint, Keeper, Place, keeper_for, within
from dmtrl.solver.coordinator import Callback, Coordinator, Outcome, Watch
from dmtrl.solver.settings import Settings

logger = logging.getLogger("dmtrl")


def solve(
    data: TaskData | SourcePlan,
    *,
    loss: str | AnyLoss | Sequence[str | AnyLoss],
    reg_lambda: float,
    relationship: Any = "learned",
    common: float = 0.0,
    settings: Settings | None = None,
    engine: Any = "local",
    n_jobs: int | None = None,
    workers: int | None = None,
    shards: int | Sequence[int] = 1,
    intercept_ridge: float | None = None,
    callbacks: Sequence[Callback] = (),
    watch: Watch | None = None,
    verbose: int = 0,
    checkpoint: Place | Checkpoint | None = None,
    resume: Place | bool | None = None,
    on_lost: str = "stop",
) -> Outcome:
    """Learn one linear model per task and the covariance between tasks.

    Parameters
    ----------
    data : TaskData or SourcePlan
        Rows in this process, or a plan of sources that each worker reads itself.
    loss : str, Loss, CustomLoss or sequence of them
        One loss for all tasks, or one per task.
    reg_lambda : float
        Strength of the regularisation.
    relationship : str, array, sparse matrix, TaskCovariance or Relationship, default="learned"
        "learned", "independent", "shared", a covariance, the adjacency of a graph, or a Relationship.
    common : float, default=0.0
        Strength of a component that all tasks share.
    settings : Settings, default=None
        Settings of the algorithm. None means Settings().
    engine : {"local", "ray"}, RayOptions or Engine, default="local"
        Where workers run. An Engine already holds the tasks; it is not closed.
    n_jobs : int, default=None
        Threads of the local engine. None means 1, and -1 means all cores.
    workers : int, default=None
        Number of pieces into which tasks are partitioned. None means one per thread or CPU; `data.m` is one task per
        worker.
    shards : int or sequence of int, default=1
        Number of pieces into which each task is cut first, so that a task can be spread over several workers.
    intercept_ridge : float, default=None
        The last column of X is a constant whose weights stay outside the relationship and carry only this ridge.
    callbacks : sequence of callable, default=()
        Functions that are called with the RoundRecord of each round.
    watch : callable, default=None
        Called with the RoundRecord and the weights of each round.
    verbose : int, default=0
        1 shows a progress line on a terminal, 2 prints a line per round.
    checkpoint : str, path or Checkpoint, default=None
        Folder or fsspec URL to write checkpoints to. A Checkpoint also sets how often.
    resume : str, path or bool, default=None
        A checkpoint to resume from; True means the one at `checkpoint`, if it exists. The result is bitwise equal to
        that of an uninterrupted run, unless the work depends on time (max_staleness, balance).
    on_lost : {"stop", "go_on"}, default="stop"
        What to do when a worker cannot be replaced. "stop" raises WorkerLostError. "go_on" starts again without its
        tasks on the remaining workers and emits a TasksLeftOutWarning. The rows of W are then the remaining tasks
        (their numbers are `tasks` of the outcome), and checkpoints continue in the subfolder `again-1`; to resume from
        there, pass the remaining tasks as data and the number of workers that the warning names.

    Returns
    -------
    Outcome
        Weights, task covariance, certificate and history.
    """
    if on_lost not in ("stop", "go_on"):
        raise ValueError(f"on_lost must be 'stop' or 'go_on', got {on_lost!r}")
    given = _Given(data, _losses(loss, data.m), relationship, settings or Settings(), shards)
    if on_lost == "go_on":
        given.check_can_be_cut()
    keeping, threads, tasks = keeper_for(checkpoint, resume), thread_count(n_jobs), None
    while True:
        try:
            with _started(engine, given.data, given.losses, threads, workers, given.shards) as running:
                relation = get_relationship(given.relationship, given.data.m, common)
                if intercept_ridge is not None and reg_lambda > 0:
                    relation = FreeIntercept(relation, float(intercept_ridge / reg_lambda))
                coordinator = Coordinator(running, given.data.m, relation, reg_lambda, given.settings)
                with live_line(verbose, given.settings.tol) as show, naming_checkpoint(keeping):
                    outcome = coordinator.run([*callbacks, *show], watch=watch, keeper=keeping)
            break
        except WorkerLostError as lost:
            m = given.data.m
            # going on, who could not start has taken no task away: all may find room on fewer workers
            crowded = tasks is not None and not lost.tasks and lost.alive > 0
            able = crowded or 0 < len(set(lost.tasks)) < m
            if on_lost == "stop" or not able or hasattr(engine, "exchange"):
                raise
            workers = max(lost.alive, 1)  # as many as before may not find room any more
            if crowded:
                logger.warning("%s; the fit begins again with workers=%d", lost, workers)
                continue
            tasks = np.arange(m) if tasks is None else tasks
            kept = np.setdiff1d(np.arange(m), lost.tasks)
            left_out = TasksLeftOutWarning(_told(lost, given.data.names, workers), np.delete(tasks, kept).tolist())
            warnings.warn(left_out, stacklevel=2)
            given, tasks = given.only(kept), tasks[kept]
            if keeping is not None:
                keeping = Keeper(None if keeping.place is None else within(keeping.place))
    warn_unless_converged(outcome, given.settings)
    return replace(outcome, tasks=tasks)


def _told(lost: WorkerLostError, names: np.ndarray, workers: int) -> str:
    left_out = ", ".join(repr(str(names[i])) for i in sorted(set(lost.tasks)))
    return (
        f"{lost}; the fit begins again without task {left_out}, with workers={workers}: the rows of its weights are "
        "the other tasks in their order, and `tasks` of the outcome has their numbers"
    )


@dataclass(frozen=True)
class _Given:
    """What is given task by task."""

    data: TaskData | SourcePlan
    losses: AnyLoss | list[AnyLoss]
    relationship: Any
    settings: Settings
    shards: int | Sequence[int]

    def check_can_be_cut(self) -> None:
        if hasattr(self.relationship, "prox") and not hasattr(self.relationship, "only"):
            raise ValueError(
                f"on_lost='go_on' leaves tasks out, and a {type(self.relationship).__name__} does not say what then "
                "becomes of it; give it a method only(tasks) that returns the relationship of these tasks"
            )

    def only(self, tasks: np.ndarray) -> "_Given":
        """The same for these tasks, by number."""
        losses, relationship, steps, shards = self.losses, self.relationship, self.settings.steps, self.shards
        if hasattr(relationship, "only"):
            relationship = relationship.only(tasks)
        elif hasattr(relationship, "tocsr"):
            relationship = relationship.tocsr()[tasks][:, tasks]
        elif not isinstance(relationship, str):
            relationship = np.asarray(relationship)[np.ix_(tasks, tasks)]
        return _Given(
            self.data.only(tasks),
            [losses[i] for i in tasks] if isinstance(losses, list) else losses,
            relationship,
            replace(self.settings, steps=tuple(steps[i] for i in tasks)) if isinstance(steps, tuple) else self.settings,
            shards if np.ndim(shards) == 0 else np.asarray(shards)[tasks].tolist(),
        )


@contextmanager
def naming_checkpoint(keeper: Keeper | None) -> Iterator[None]:
    """A run that ends because a worker cannot be brought back says where it can go on from."""
    try:
        yield
    except WorkerLostError as error:
        if keeper is not None:
            error.checkpoint = keeper.last
        raise


def _started(
    engine: Any,
    data: TaskData | SourcePlan,
    losses: AnyLoss | Sequence[AnyLoss],
    threads: int,
    workers: int | None,
    shards: int | Sequence[int],
) -> AbstractContextManager[Engine]:
    if hasattr(engine, "exchange"):  # whoever made it closes it
        return nullcontext(engine)
    return choose_engine(engine, threads).start(
        lambda processors: data.sources(processors if workers is None else workers, shards),
        losses,
        [str(name) for name in data.names],
    )


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
