"""`solve`: from task data to a certified answer.

Everything goes through this file: it is the only place that creates a coordinator. Estimators and `verify` call
`solve_problem`, the part of `solve` that takes a `ProblemSpec`; cross-validation and `add_task` call `solve_on`, the
part that runs on an engine.
"""

import logging
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dmtrl.data.sources import SourcePlan
from dmtrl.data.task_data import TaskData
from dmtrl.engines import choose_engine
from dmtrl.engines.base import Engine
from dmtrl.exceptions import NotConvergedWarning, TasksLeftOutWarning, WorkerLostError
from dmtrl.losses import AnyLoss, get_loss
from dmtrl.numerics.blas import single_threaded_blas
from dmtrl.numerics.checks import require
from dmtrl.numerics.rowwise import threads
from dmtrl.progress import live_line
from dmtrl.relationship import FreeIntercept, Relationship, get_relationship
from dmtrl.relationship.base import check_kappa, check_tau
from dmtrl.solver.checkpoint.options import Checkpoint, PathLike
from dmtrl.solver.checkpoint.paths import RunSession
from dmtrl.solver.checkpoint.session import FIT, CheckpointSession, open_session
from dmtrl.solver.coordinator import Coordinator
from dmtrl.solver.layout import Layout
from dmtrl.solver.outcome import Callback, Outcome, StartPoint, Watch
from dmtrl.solver.settings import Settings
from dmtrl.solver.task_weights import check_task_weight

logger = logging.getLogger("dmtrl")
T = TypeVar("T")


def solve(
    data: TaskData | SourcePlan,
    *,
    loss: str | AnyLoss | Sequence[str | AnyLoss],
    reg_lambda: float,
    relationship: Any = "learned",
    common: float = 0.0,
    own: float = 0.0,
    task_weight: str | float = "equal",
    settings: Settings | None = None,
    engine: Any = "local",
    n_jobs: int | None = None,
    workers: int | None = None,
    shards: int | Sequence[int] = 1,
    intercept_ridge: float | np.ndarray | None = None,
    start: Outcome | StartPoint | None = None,
    callbacks: Sequence[Callback] = (),
    watch: Watch | None = None,
    verbose: int = 0,
    checkpoint: PathLike | Checkpoint | CheckpointSession | None = None,
    resume: PathLike | bool | None = None,
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
        Strength of a component that all tasks share, in units of 1/m: 1 makes it as strong as the average task's own
        part, whose variance is 1/m because Sigma has trace one.
    own : float, default=0.0
        Strength of a part of each task's weights that is not related to other tasks, in units of 1/m like `common`. It
        keeps what the relationship would shrink away; with a large value each task is learned alone.
    task_weight : {"equal", "rows"} or float, default="equal"
        How much a task counts in the objective. "equal" is the problem of the paper: the mean loss of each task counts
        the same. With "rows" every row counts the same. A number gamma between 0 (equal) and 1 (rows) gives a task
        with n rows a weight proportional to n^gamma, with mean one over the tasks. With sample weights, n is their sum.
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
    intercept_ridge : float or ndarray of shape (m,), default=None
        Give every task an intercept that stays outside the relationship and carries only this ridge, or the ridge of
        its task. It is the last column of the weights; the rows have no column for it. None means no intercept.
    start : Outcome or StartPoint, default=None
        Weights from which to start.
    callbacks : sequence of callable, default=()
        Functions that are called with the RoundRecord of each round. One that raises KeyboardInterrupt stops the run;
        the checkpoint is written first.
    watch : callable, default=None
        Called with the RoundRecord and the weights of each round, which a later round may write over: copy what you
        keep.
    verbose : int, default=0
        1 shows a progress line on a terminal, 2 prints a line per round.
    checkpoint : str, path or Checkpoint, default=None
        Folder or fsspec URL to write checkpoints to. A Checkpoint also sets how often.
    resume : str, path or bool, default=None
        A checkpoint to resume from; True means the one at `checkpoint`, if it exists. The result is bitwise equal to
        that of an uninterrupted run, unless the work depends on time (max_staleness).
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
    if not hasattr(data, "sources"):
        raise TypeError(f"data must be a TaskData or a SourcePlan, got {type(data).__name__}")
    first = None if start is None else checked_start(start, data.m)
    settings = settings or Settings()
    spec = ProblemSpec(
        data,
        losses_of(loss, data.m),
        relationship,
        settings,
        shards,
        intercept_ridge,
        start=first,
        own=own,
        task_weight=check_task_weight(task_weight),
    )
    place = Placement(engine, n_jobs, workers, on_lost, open_session(checkpoint, resume))
    outcome = solve_problem(spec, reg_lambda, common, place, callbacks=callbacks, watch=watch, verbose=verbose)
    warn_unless_converged(outcome, settings, stacklevel=3)
    return outcome


@dataclass
class Placement:
    """Where a computation runs, with the parameters of `solve`. A restart after a lost worker changes `workers` and
    `session`."""

    engine: Any = "local"
    n_jobs: int | None = None
    workers: int | None = None
    on_lost: str = "stop"
    session: CheckpointSession = field(default_factory=CheckpointSession)


def solve_problem(
    spec: "ProblemSpec",
    reg_lambda: float,
    common: float,
    place: Placement | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    watch: Watch | None = None,
    verbose: int = 0,
) -> Outcome:
    """`solve` for a problem that is already described, without its NotConvergedWarning."""

    def run(engine: Engine, spec: ProblemSpec, session: CheckpointSession) -> Outcome:
        with live_line(verbose, spec.settings.tol) as show:
            return solve_on(
                engine, spec, reg_lambda, common, session, start=spec.start, callbacks=[*callbacks, *show], watch=watch
            )

    outcome, tasks = on_engine(spec, run, place or Placement())
    return replace(outcome, tasks=tasks)


def solve_on(
    engine: Engine,
    spec: "ProblemSpec",
    reg_lambda: float,
    common: float,
    session: RunSession,
    *,
    name: str = FIT,
    start: StartPoint | None = None,
    callbacks: Sequence[Callback] = (),
    watch: Watch | None = None,
    layout: Layout | None = None,
) -> Outcome:
    """One run on an engine whose workers hold the tasks. `name` identifies the run in the session's checkpoints."""
    relationship = spec.relationship_for(reg_lambda, common)
    coordinator = Coordinator(engine, spec.m, relationship, reg_lambda, spec.settings, layout, spec.task_weight)
    with single_threaded_blas(), threads(getattr(engine, "threads", 1)):
        return coordinator.run(session, name, start, callbacks, watch)


class Strengths(NamedTuple):
    """Lambda, and the strengths of the common and own parts in units of 1/m."""

    reg_lambda: float
    common: float
    own: float = 0.0


@dataclass(frozen=True)
class ProblemSpec:
    """A problem: data, and everything that is given task by task."""

    data: TaskData | SourcePlan | int  # a number of tasks where the workers of an engine hold them already
    losses: AnyLoss | list[AnyLoss]
    relationship: Any
    settings: Settings
    shards: int | Sequence[int] = 1
    intercept_ridge: float | np.ndarray | None = None
    shared_intercept: bool = False  # all tasks have the same intercept
    start: StartPoint | None = None
    own: float = 0.0  # strength of the tasks' own parts, in units of 1/m
    task_weight: float | np.ndarray = 0.0  # the exponent of the task sizes, or the weights of the tasks themselves
    keep_all_tasks: bool = False  # with on_lost="go_on": start again with all tasks, whose rows are in this process

    @property
    def m(self) -> int:
        return self.data if isinstance(self.data, int) else self.data.m

    @property
    def outputs(self) -> int:
        """Scores of a row: one, or one for each class."""
        return self.losses[0].outputs if isinstance(self.losses, list) else self.losses.outputs

    def relationship_for(self, reg_lambda: float, common: float) -> Relationship:
        """The relationship with lambda and a common component of strength `common`, in units of 1/m."""
        require(_is_positive(reg_lambda), "reg_lambda", "positive and finite", reg_lambda)
        tau, kappa = check_tau(common) / self.m, check_kappa(self.own) / self.m
        relationship, ridge = get_relationship(self.relationship, self.m, tau, kappa), self.intercept_ridge
        if ridge is None:
            return relationship
        several = isinstance(ridge, np.ndarray) and ridge.shape == (self.m,)
        fits = _is_positive(ridge) or (several and bool((np.isfinite(ridge) & (ridge > 0)).all()))
        require(fits, "intercept_ridge", "None, or positive and finite", ridge)
        weight = ridge / reg_lambda if several else float(ridge / reg_lambda)
        return FreeIntercept(relationship, weight, self.shared_intercept, self.outputs)

    def check_divisible(self) -> None:
        if hasattr(self.relationship, "prox") and not hasattr(self.relationship, "only"):
            raise ValueError(
                f"on_lost='go_on' leaves tasks out, but {type(self.relationship).__name__} cannot be restricted to "
                "some tasks; give it a method only(tasks) that returns the relationship of these tasks"
            )

    def only(self, tasks: np.ndarray) -> "ProblemSpec":
        """The same problem for these tasks, by number."""
        assert not isinstance(self.data, int)
        losses, relationship, steps, shards = self.losses, self.relationship, self.settings.steps, self.shards
        weight, ridge = self.task_weight, self.intercept_ridge
        if hasattr(relationship, "only"):
            relationship = relationship.only(tasks)
        elif hasattr(relationship, "tocsr"):
            relationship = relationship.tocsr()[tasks][:, tasks]
        elif not isinstance(relationship, str):
            relationship = np.asarray(relationship)[np.ix_(tasks, tasks)]
        settings = self.settings
        if isinstance(steps, tuple):
            settings = replace(settings, steps=tuple(steps[i] for i in tasks))
        return replace(
            self,
            data=self.data.only(tasks),
            losses=[losses[i] for i in tasks] if isinstance(losses, list) else losses,
            relationship=relationship,
            settings=settings,
            shards=shards if np.ndim(shards) == 0 else np.asarray(shards)[tasks].tolist(),
            task_weight=weight[tasks] if isinstance(weight, np.ndarray) else weight,
            intercept_ridge=ridge[tasks] if isinstance(ridge, np.ndarray) else ridge,
            start=None if self.start is None else StartPoint(self.start.W[tasks], self.start.common),
        )


def on_engine(
    spec: ProblemSpec, compute: Callable[[Engine, ProblemSpec, CheckpointSession], T], place: Placement
) -> tuple[T, np.ndarray | None]:
    """Compute something on an engine; with on_lost="go_on" again without the tasks of workers that are lost.

    Returns the result and the numbers of its tasks (None: all).
    """
    if place.on_lost not in ("stop", "go_on"):
        raise ValueError(f"on_lost must be 'stop' or 'go_on', got {place.on_lost!r}")
    if place.on_lost == "go_on" and not spec.keep_all_tasks:
        spec.check_divisible()
    tasks: np.ndarray | None = None
    while True:
        try:
            with _started(spec, place) as running:
                return compute(running, spec, place.session), tasks
        except WorkerLostError as lost:
            lost.checkpoint, m = place.session.last, spec.m  # where to resume
            # after a restart, a worker that could not start has lost no task: fewer workers may find room for all
            crowded = (spec.keep_all_tasks or (tasks is not None and not lost.tasks)) and lost.alive > 0
            able = crowded or (not spec.keep_all_tasks and 0 < len(set(lost.tasks)) < m)
            if place.on_lost == "stop" or not able or hasattr(place.engine, "exchange"):
                raise
            place.workers = max(lost.alive, 1)
            place.session = place.session.start_again(keep_fits=crowded)
            if crowded:
                logger.warning("%s; the fit starts again with workers=%d", lost.args[0], place.workers)
                continue
            tasks = np.arange(m) if tasks is None else tasks
            kept = np.setdiff1d(np.arange(m), lost.tasks)
            left_out = np.delete(tasks, kept).tolist()
            message = _left_out(lost, spec.data, place.workers)
            warnings.warn(TasksLeftOutWarning(message, left_out), stacklevel=4)
            spec, tasks = spec.only(kept), tasks[kept]


def _left_out(lost: WorkerLostError, data: Any, workers: int) -> str:
    tasks = ", ".join(repr(str(data.names[i])) for i in sorted(set(lost.tasks)))
    return (
        f"{lost.args[0]}; the fit starts again without task {tasks}, with workers={workers}: the rows of its weights "
        "are the other tasks in order, and `tasks` of the outcome holds their numbers"
    )


def _started(spec: ProblemSpec, place: Placement) -> AbstractContextManager[Engine]:
    if hasattr(place.engine, "exchange"):  # the caller closes it
        return nullcontext(place.engine)
    data = spec.data
    assert not isinstance(data, int), "a number of tasks needs an engine whose workers hold them"
    return choose_engine(place.engine, thread_count(place.n_jobs)).start(
        lambda cpus: data.sources(cpus if place.workers is None else place.workers, spec.shards),
        spec.losses,
        [str(name) for name in data.names],
    )


def warn_unless_converged(outcome: Outcome, settings: Settings, stacklevel: int) -> None:
    """Emit a NotConvergedWarning if a run with a tolerance ended at max_rounds."""
    if not outcome.converged and settings.tol > 0:
        warnings.warn(
            f"stopped after max_rounds={settings.max_rounds} rounds at a relative gap of "
            f"{outcome.certificate.relative_gap:.2g} (tol={settings.tol:g}); "
            "scale the features, choose a larger lambda, or raise max_rounds or tol",
            NotConvergedWarning,
            stacklevel=stacklevel,
        )


def checked_start(start: Outcome | StartPoint, m: int) -> StartPoint:
    """The `start` argument: finite weights (m, d) and the common part (d,)."""
    if not hasattr(start, "W") or not hasattr(start, "common"):
        raise TypeError(f"start must be an Outcome or a StartPoint, got {type(start).__name__}")
    W, common = np.asarray(start.W, dtype=float), np.asarray(start.common, dtype=float)
    if W.ndim != 2 or len(W) != m or common.shape != W.shape[1:]:
        raise ValueError(f"start must have weights of shape ({m}, d) and a common part of shape (d,)")
    if not (np.isfinite(W).all() and np.isfinite(common).all()):
        raise ValueError("start must have finite weights")
    return StartPoint(W, common)


def _is_positive(value: Any) -> bool:
    return np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biuf" and 0 < value < np.inf


def thread_count(n_jobs: int | None) -> int:
    """The number of threads that `n_jobs` means."""
    if n_jobs is None:
        return 1
    require(isinstance(n_jobs, Integral), "n_jobs", "None or an integer", n_jobs)
    if n_jobs == 0:
        raise ValueError("n_jobs must not be 0; use -1 for all cores")
    return n_jobs if n_jobs > 0 else max((os.cpu_count() or 1) + 1 + n_jobs, 1)


def losses_of(loss: str | AnyLoss | Sequence[str | AnyLoss], m: int) -> AnyLoss | list[AnyLoss]:
    """The `loss` argument: one loss, or a list with one per task."""
    if isinstance(loss, list | tuple):
        if len(loss) != m:
            raise ValueError(f"got {len(loss)} losses for {m} tasks; give one for all, or one per task")
        found = [get_loss(one) for one in loss]
        if len({one.outputs for one in found}) > 1:
            raise ValueError("all losses must have the same number of classes")
        return found
    return get_loss(loss)  # type: ignore[arg-type]
