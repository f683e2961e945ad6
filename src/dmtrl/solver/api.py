"""`solve`: from a problem to a certified answer.

`solve` and `search` (search.py) are the only ways in. Both run on the engine of their `Execution`, or start one
(`on_engine`). `solve_on` is the only place that creates a coordinator.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeVar

import numpy as np

from dmtrl.engines.base import Engine
from dmtrl.exceptions import NotConvergedWarning, TasksLeftOutWarning, WorkerLostError
from dmtrl.numerics.blas import single_threaded_blas
from dmtrl.numerics.rowwise import threads
from dmtrl.progress import live_line
from dmtrl.solver.checkpoint.paths import RunSession
from dmtrl.solver.checkpoint.session import FIT
from dmtrl.solver.coordinator import Coordinator
from dmtrl.solver.deviations import in_offsets, shared_part, solve_given
from dmtrl.solver.execution import Execution
from dmtrl.solver.layout import Layout
from dmtrl.solver.outcome import Callback, Outcome, StartPoint, Watch
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings
from dmtrl.solver.shared_fit import SharedFit

logger = logging.getLogger("dmtrl")
T = TypeVar("T")


def solve(problem: Problem, execution: Execution | None = None) -> Outcome:
    """Learn one linear model per task and the covariance between tasks.

    Parameters
    ----------
    problem : Problem
        What is minimised.
    execution : Execution, default=None
        Where and how. None means Execution(): in this process, with the default settings.

    Returns
    -------
    Outcome
        Weights, task covariance, certificate and history.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"solve needs a Problem, such as Problem.of(data, loss=...), got {type(problem).__name__}")
    execution = execution or Execution()
    outcome = on_engine(problem, execution, _solve)
    if execution.warn:
        warn_unless_converged(outcome, execution.settings)
    return outcome


def _solve(problem: Problem, execution: Execution) -> Outcome:
    engine, settings = execution.running_engine, execution.settings
    shared = shared_part(engine, problem)
    with (
        live_line(execution.verbose, settings.tol) as show,
        nullcontext() if shared is None else in_offsets(engine, shared),
    ):
        callbacks = [*execution.callbacks, *show]
        outcome = solve_on(
            engine,
            problem,
            settings,
            execution.session,
            shared=shared,
            start=problem.start,
            callbacks=callbacks,
            watch=execution.watch,
        )
    return replace(outcome, tasks=problem.numbers)


def solve_on(
    engine: Engine,
    problem: Problem,
    settings: Settings,
    session: RunSession,
    *,
    shared: SharedFit | None = None,
    name: str = FIT,
    start: StartPoint | None = None,
    callbacks: Sequence[Callback] = (),
    watch: Watch | None = None,
    layout: Layout | None = None,
) -> Outcome:
    """One run on an engine whose workers hold the tasks. `name` identifies the run in the session's checkpoints.

    `shared`: the shared part, which must be in the offsets of the workers.
    """
    with single_threaded_blas(), threads(getattr(engine, "threads", 1)):
        if shared is None:
            return Coordinator(engine, problem, settings, layout).run(session, name, start, callbacks, watch)
        return solve_given(
            engine,
            problem,
            shared,
            settings,
            session,
            name=name,
            start=start,
            callbacks=callbacks,
            watch=watch,
            layout=layout,
        )


def on_engine(problem: Problem, execution: Execution, compute: Callable[[Problem, Execution], T]) -> T:
    """Compute something on a running engine with an open checkpoint session: those of `execution`, or new ones.

    With on_lost="go_on" it is computed again, without the tasks of workers that are lost.
    """
    execution = execution.opened()
    if execution.is_running:
        try:
            return compute(problem, execution)
        except WorkerLostError as lost:
            lost.checkpoint = execution.session.last  # where to resume
            raise
    if execution.engine.on_lost == "go_on" and not execution.keep_all_tasks:
        problem.check_divisible()
    while True:
        assert not isinstance(problem.data, int), "a number of tasks needs an engine whose workers hold them"
        try:
            with execution.engine.start(problem.data.sources, problem.losses, problem.names) as running:
                return compute(problem, replace(execution, engine=running))
        except WorkerLostError as lost:
            lost.checkpoint = execution.session.last
            problem, execution = _start_again(problem, execution, lost)


def _start_again(problem: Problem, execution: Execution, lost: WorkerLostError) -> tuple[Problem, Execution]:
    """What to compute on the workers that are left; raises `lost` if there is nothing."""
    m, keep_all = problem.m, execution.keep_all_tasks
    # after a restart, a worker that could not start has lost no task: fewer workers may find room for all
    crowded = (keep_all or (problem.numbers is not None and not lost.tasks)) and lost.alive > 0
    able = crowded or (not keep_all and 0 < len(set(lost.tasks)) < m)
    if execution.engine.on_lost == "stop" or not able:
        raise lost
    execution = execution.after_loss(lost, keep_fits=crowded)
    workers = execution.engine.workers
    if crowded:
        logger.warning("%s; the fit starts again with workers=%d", lost.args[0], workers)
        return problem, execution
    numbers = np.arange(m) if problem.numbers is None else problem.numbers
    kept = np.setdiff1d(np.arange(m), lost.tasks)
    tasks = ", ".join(repr(problem.names[i]) for i in sorted(set(lost.tasks)))
    message = (
        f"{lost.args[0]}; the fit starts again without task {tasks}, with workers={workers}: the rows of its weights "
        "are the other tasks in order, and `tasks` of the outcome holds their numbers"
    )
    warnings.warn(TasksLeftOutWarning(message, np.delete(numbers, kept).tolist()), stacklevel=caller_level())
    return problem.only(kept), execution.only(kept)


def warn_unless_converged(outcome: Outcome, settings: Settings) -> None:
    """Emit a NotConvergedWarning if a run with a tolerance ended at max_rounds, or its shared part did."""
    shared = outcome.shared
    if shared is not None and not shared.converged:
        warnings.warn(
            f"the shared part did not converge in {shared.rounds} exchanges, and the certificate is of the deviations "
            "given this part; scale the features, or set level to a number",
            NotConvergedWarning,
            stacklevel=caller_level(),
        )
    if not outcome.converged and settings.tol > 0 and outcome.certificate.relative_gap > settings.tol:
        warnings.warn(
            f"stopped after max_rounds={settings.max_rounds} rounds at a relative gap of "
            f"{outcome.certificate.relative_gap:.2g} (tol={settings.tol:g}); "
            "scale the features, choose a larger lambda, or raise max_rounds or tol",
            NotConvergedWarning,
            stacklevel=caller_level(),
        )


def caller_level() -> int:
    """The `stacklevel` with which a warning of the calling function names the first line outside dmtrl."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "dmtrl":
        frame, level = frame.f_back, level + 1
    return level
