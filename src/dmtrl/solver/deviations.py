"""The problem of the deviations, given what all tasks share (docs/math.md section 19).

The workers add the shared score to the offsets of their rows. What is left is the usual problem, with an intercept for
each task that is shrunk by the strength of the levels. An infinite lambda means no deviations but the levels.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np

from dmtrl.engines.base import Engine
from dmtrl.protocol.rounds import Describe, SumMoments, UseShared
from dmtrl.relationship import get_relationship
from dmtrl.solver.certificate import Certificate
from dmtrl.solver.checkpoint.paths import RunSession
from dmtrl.solver.checkpoint.session import FIT
from dmtrl.solver.coordinator import Coordinator
from dmtrl.solver.layout import Layout
from dmtrl.solver.outcome import Callback, DualPoint, Outcome, RoundRecord, StartPoint, Watch
from dmtrl.solver.problem import Intercept, Problem
from dmtrl.solver.settings import Settings
from dmtrl.solver.shared_fit import SharedFit, can_fit_shared, fit_shared
from dmtrl.solver.task_weights import task_weights

LEVELS_ONLY = "levels only"  # the method of a problem without deviations


def shared_part(engine: Engine, problem: Problem, layout: Layout | None = None) -> SharedFit | None:
    """The shared part of a problem, fitted on the training rows of the workers unless it is given. None if there is
    none, or if it cannot be fitted."""
    if problem.shared is None or isinstance(problem.shared, SharedFit):
        return problem.shared
    layout = layout or Layout.from_descriptions(engine.broadcast(Describe()), problem.m)
    if not can_fit_shared(problem.losses, layout.d // layout.outputs):
        return None
    return fit_shared(engine, problem.m, problem.losses, level=problem.strengths.level, layout=layout)


@contextmanager
def in_offsets(engine: Engine, shared: SharedFit) -> Iterator[None]:
    """The workers add the shared score to the offsets of their rows."""
    engine.broadcast(UseShared(shared=shared.weights))
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the engine may be unusable, and the first error matters
            engine.broadcast(UseShared())
        raise
    engine.broadcast(UseShared())


def given_shared(problem: Problem, shared: SharedFit) -> Problem:
    """The problem of the deviations, without a shared part. For an infinite lambda its own is arbitrary."""
    strengths, start = problem.strengths, problem.start
    if np.isinf(strengths.reg_lambda):
        strengths = replace(strengths, reg_lambda=1.0)
    return replace(
        problem,
        strengths=strengths,
        shared=None,
        intercept=Intercept(shared.level, per_row=True) if np.isfinite(shared.level) else None,
        start=None if start is None else stripped(start, shared),
    )


def stripped(point: StartPoint, shared: SharedFit) -> StartPoint:
    """Weights as the workers have them: without levels if these have no variance."""
    if np.isfinite(shared.level):
        return point
    k = len(shared.intercept)
    return StartPoint(point.W[:, :-k], point.common[:-k])


def solve_given(
    engine: Engine,
    problem: Problem,
    shared: SharedFit,
    settings: Settings,
    session: RunSession,
    *,
    name: str = FIT,
    start: StartPoint | None = None,
    callbacks: Sequence[Callback] = (),
    watch: Watch | None = None,
    layout: Layout | None = None,
) -> Outcome:
    """One run for the deviations from a shared part that is in the offsets of the workers."""
    layout = layout or Layout.from_descriptions(engine.broadcast(Describe()), problem.m)
    inner = given_shared(problem, shared)
    if np.isinf(problem.strengths.reg_lambda):
        levels = shared.levels
        if start is not None and isinstance(problem.shared, SharedFit):  # a model with its levels, to be certified
            levels = start.W[:, -layout.outputs :]
        Coordinator(engine, inner, settings, layout).prepare(stripped(_no_deviations(layout, levels), shared))
        return levels_only(engine, problem, shared, layout, levels)
    coordinator = Coordinator(engine, inner, settings, layout)
    outcome = coordinator.run(session, name, None if start is None else stripped(start, shared), callbacks, watch)
    if np.isinf(shared.level):
        outcome = _with_levels(outcome, layout.outputs)
    return replace(outcome, shared=shared)


def levels_only(engine: Engine, problem: Problem, shared: SharedFit, layout: Layout, levels: np.ndarray) -> Outcome:
    """The model without deviations at these levels (m, k), with a certificate from sums (63)."""
    requests = {
        worker: SumMoments(shared=shared.weights, level=layout.scatter(worker, layout.per_unit(levels)))
        for worker in range(engine.n_workers)
    }
    answers = dict(engine.exchange(requests))
    loss, slope = (layout.per_task(layout.gather(answers, name)) for name in ("loss", "slope"))
    sizes = layout.per_task(layout.weight)
    weight = problem.task_weight
    weight = weight if isinstance(weight, np.ndarray) else task_weights(weight, sizes)
    per_row = weight / np.where(sizes > 0, sizes, 1.0)
    primal, gap = float(per_row @ loss), 0.0
    if np.isfinite(shared.level):
        primal += 0.5 * shared.level * float(per_row @ (levels**2).sum(axis=1))
        gap = float(per_row @ ((slope + shared.level * levels) ** 2).sum(axis=1)) / (2.0 * shared.level)
    certificate = Certificate(primal, primal - gap)
    point = _no_deviations(layout, levels)
    relationship = get_relationship(problem.relationship, layout.m, 0.0, 0.0)
    B = np.hstack([np.zeros((layout.m, layout.d)), -per_row[:, None] * slope])
    conjugate = float((per_row[:, None] * levels * slope).sum() - per_row @ loss)
    record = RoundRecord(
        round=0,
        gap=certificate.relative_gap,
        primal=primal,
        dual=certificate.dual,
        w_gap=certificate.relative_gap,
        objective=primal,
        dual_now=certificate.dual,
        rho=1.0,
        step=np.inf,
        solver="newton",
        passes=0.0,
        omega=False,
        bytes_sent=0,
        bytes_received=0,
        seconds=0.0,
    )
    return Outcome(
        W=point.W,
        common=point.common,
        covariance=relationship.update(np.zeros((layout.m, layout.d))),
        certificate=certificate,
        dual=DualPoint(B, conjugate, conjugate, certificate.dual),
        history=[record],
        converged=shared.converged,
        method=LEVELS_ONLY,
        task_weight=weight,
        task_size=sizes,
        shared=shared,
    )


def _no_deviations(layout: Layout, levels: np.ndarray) -> StartPoint:
    W = np.hstack([np.zeros((layout.m, layout.d)), levels])
    return StartPoint(W, np.zeros(W.shape[1]))


def _with_levels(outcome: Outcome, k: int) -> Outcome:
    """The outcome with levels of zero in the last columns."""
    empty = np.zeros((len(outcome.W), k))
    return replace(
        outcome,
        W=np.hstack([outcome.W, empty]),
        common=np.append(outcome.common, np.zeros(k)),
        dual=replace(outcome.dual, B=np.hstack([outcome.dual.B, empty])),
    )
