"""The coordinator: a loop of rounds over an engine.

Each round sends requests, hands the answers to the method, updates the certificate, keeps a record, calls the
callbacks, and stops on the joint relative gap. Only `solve` creates a coordinator.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dmtrl.engines.base import Engine
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.rounds import Describe, Prepare, Prepared, Restore
from dmtrl.relationship import FreeIntercept
from dmtrl.solver.certificate import Certificate, scaled_dual
from dmtrl.solver.checkpoint.identity import problem_of
from dmtrl.solver.checkpoint.paths import RunSession
from dmtrl.solver.checkpoint.session import FIT, RunInProgress
from dmtrl.solver.checkpoint.state import from_arrays, to_arrays
from dmtrl.solver.checkpoint.versions import Version
from dmtrl.solver.layout import Layout
from dmtrl.solver.methods.alternation import Alternation
from dmtrl.solver.methods.asynchronous import AsynchronousSplitting
from dmtrl.solver.methods.base import (
    GapToClose,
    InitialPoint,
    Method,
    Report,
    RunContext,
    agreed_intercept_step,
    first_step,
)
from dmtrl.solver.methods.splitting import Splitting
from dmtrl.solver.outcome import Callback, DualPoint, Outcome, PrimalPoint, RoundRecord, StartPoint, Watch
from dmtrl.solver.problem import Problem
from dmtrl.solver.settings import Settings
from dmtrl.solver.task_weights import task_weights
from dmtrl.worker.kernels import SDCA
from dmtrl.worker.local_problem import SOLVER_NAMES


@dataclass
class RunState:
    """Where a run stands at the end of a round; a checkpoint holds it."""

    method: Any  # the state of the method
    best: PrimalPoint
    dual: DualPoint
    accuracy: float  # share of the gap at which local gaps aim
    longest_step: float
    intercept_step: np.ndarray | None = None  # of each task
    omega_steps: int = 0
    history: list[RoundRecord] = field(default_factory=list)

    @property
    def certificate(self) -> Certificate:
        return Certificate(self.best.objective, self.dual.bound)


class Coordinator:
    """`layout` says which worker holds which units; by default the workers are asked."""

    def __init__(self, engine: Engine, problem: Problem, settings: Settings, layout: Layout | None = None):
        relationship, m, task_weight = problem.regulariser(), problem.m, problem.task_weight
        self._engine, self._relationship, self._settings = engine, relationship, settings
        self._lam, self._staleness = problem.strengths.reg_lambda, engine.max_staleness
        self._intercept = isinstance(relationship, FreeIntercept)
        self._layout = layout or Layout.from_descriptions(engine.broadcast(Describe()), m)
        relationship.start(m)  # refuses a relationship for another number of tasks
        if isinstance(task_weight, np.ndarray):
            self._task_weight = task_weight
        else:
            self._task_weight = task_weights(task_weight, self._layout.per_task(self._layout.weight))
        if isinstance(relationship, FreeIntercept):
            sizes = self._layout.per_task(self._layout.weight)
            self._relationship = relationship.of_tasks(self._task_weight, sizes)

    def run(
        self,
        session: RunSession,
        name: str = FIT,
        start: StartPoint | None = None,
        callbacks: Sequence[Callback] = (),
        watch: Watch | None = None,
    ) -> Outcome:
        """Rounds until the joint relative gap is at most tol, or max_rounds.

        `start` continues on the same workers from an earlier outcome, whose dual variables are kept. A callback that
        raises KeyboardInterrupt stops the run; if there is a checkpoint, it is written first.
        """
        layout, relationship = self._layout, self._relationship
        problem = {}
        if session.active:
            facts = layout, relationship, self._lam, self._settings, self._task_weight, self._staleness
            problem = problem_of(*facts)
        version = session.resume_run(name, problem)
        method, run = self._begin(start) if version is None else self._resume(version)
        exchange = _Exchange(self._engine, method)

        def state() -> dict[str, np.ndarray]:
            for late in exchange.settle(run.method):
                self._learn(run, late)
            return to_arrays(run)

        under_way = RunInProgress(name, problem, state)
        while not self._is_over(run):
            began = time.perf_counter()
            run.accuracy = _sharpened(run.accuracy, run.history)
            report = exchange.next_report(run.method, self._gap_to_close(run))
            weights = self._learn(run, report)
            record = self._record(run, report, weights.objective, method.name, exchange, time.perf_counter() - began)
            run.history.append(record)
            interrupt = _call(callbacks, record)
            if watch is not None:
                watch(record, weights.W)
            del report, weights  # not kept through the next round
            session.round_done(self._engine, under_way, self._is_over(run), interrupt is not None)
            if interrupt is not None:
                raise interrupt
        best = run.best
        run.method = None  # frees its weights, to make room for Sigma
        covariance = relationship.update(best.W - best.common if best.common.any() else best.W)
        return Outcome(
            W=best.W,
            common=best.common,
            covariance=covariance,
            certificate=run.certificate,
            dual=run.dual,
            history=run.history,
            converged=run.certificate.relative_gap <= self._settings.tol,
            method=method.name,
            task_weight=self._task_weight,
            task_size=layout.per_task(layout.weight),
        )

    def _begin(self, start: StartPoint | None) -> tuple[Method[Any], RunState]:
        layout, settings = self._layout, self._settings
        shape = (layout.m, layout.d + layout.outputs * self._intercept)
        if start is not None and start.W.shape != shape:
            raise ValueError(f"start has weights of shape {start.W.shape}, the data need {shape}")
        answers = self.prepare(start)
        limits = layout.gather(answers, "longest_step")
        finite = limits[np.isfinite(limits) & (layout.weight > 0)]
        longest_step = float(np.median(finite)) if len(finite) else np.inf
        intercept_step = None
        if self._intercept:
            intercept_step = np.full(layout.m, np.inf)
            np.minimum.at(intercept_step, layout.task, layout.gather(answers, "intercept_step"))
            if self._intercept_ridge() is None:
                assert isinstance(self._relationship, FreeIntercept)
                whole = np.bincount(layout.task, minlength=layout.m) == 1
                local = whole & (self._relationship.centre is not None)
                ridge = np.broadcast_to(self._lam * self._relationship.weight, layout.m)
                intercept_step = agreed_intercept_step(intercept_step, ridge, local)
        W, common = (np.zeros(shape), np.zeros(shape[1])) if start is None else start
        loss = layout.gather(answers, "loss_w") if self._staleness else None
        point = InitialPoint(W, common, layout.gather(answers, "b"), layout.gather(answers, "conjugate"), loss)
        at_zero = float(layout.gather(answers, "conjugate_at_zero").sum())
        dual = self._dual_point(layout.per_task(point.b), float(point.conjugate.sum()), at_zero)
        objective = np.inf
        if loss is not None:
            penalty = self._relationship.penalty(W, common) if W.any() else 0.0
            objective = float(loss.sum()) + self._lam * penalty
        method = self._choose_method(longest_step, intercept_step)
        best, accuracy = PrimalPoint(W, common, objective), settings.local_accuracy
        return method, RunState(method.init(point), best, dual, accuracy, longest_step, intercept_step)

    def prepare(self, start: StartPoint | None) -> dict[int, Prepared]:
        """Begin a run on the workers."""
        layout, settings = self._layout, self._settings
        sizes = layout.per_task(layout.weight)
        total, steps = np.where(sizes > 0, sizes, 1.0)[layout.task], self._steps()[layout.task]
        W = None if start is None else layout.per_unit(start.W)
        ridge = self._intercept_ridge()
        equal, weight = bool((self._task_weight == 1.0).all()), self._task_weight[layout.task]
        requests = {
            k: Prepare(
                seed=settings.seed,
                local_solver=settings.local_solver,
                sampling=settings.sampling,
                max_passes=settings.max_passes,
                keep=start is not None,
                density=layout.density,
                first_step=settings.initial_step or first_step(self._lam, layout.m),
                evaluate=self._staleness > 0,
                intercept=self._intercept,
                intercept_ridge=None if ridge is None else layout.scatter(k, ridge),
                total_weight=layout.scatter(k, total),
                steps=layout.scatter(k, steps),
                task_weight=None if equal else layout.scatter(k, weight),
                w=None if W is None else layout.scatter(k, W),
            )
            for k in range(self._engine.n_workers)
        }
        return dict(self._engine.exchange(requests))

    def _intercept_ridge(self) -> np.ndarray | None:
        """The penalty on the intercepts of each task that the workers minimise over; None if the coordinator steps for
        them, because shards or tasks must agree."""
        relationship = self._relationship
        if not isinstance(relationship, FreeIntercept) or self._layout.split:
            return None
        if relationship.shared or relationship.centre is not None:
            return None
        return np.broadcast_to(self._lam * relationship.weight, self._layout.m)

    def _steps(self) -> np.ndarray:
        """H of each task; 0 where a task continues until it is accurate enough."""
        steps = np.asarray(0 if self._settings.steps is None else self._settings.steps, dtype=np.int64)
        if steps.ndim > 0 and steps.shape != (self._layout.m,):
            raise ValueError(f"steps must be one number or one per task: got {steps.size} for {self._layout.m} tasks")
        return np.broadcast_to(steps, self._layout.m)

    def _choose_method(self, longest_step: float, intercept_step: np.ndarray | None) -> Method[Any]:
        layout, settings, relationship = self._layout, self._settings, self._relationship
        ridge = self._intercept_ridge()
        context = RunContext(
            relationship, self._lam, layout, settings, longest_step, intercept_step, ridge, self._staleness
        )
        if self._staleness:
            if settings.method == "dual":
                raise ValueError("max_staleness requires method='splitting': asynchronous dual ascent can stall")
            return AsynchronousSplitting(context)
        if settings.method == "dual" and self._intercept:  # the dual step has one size for all columns
            raise ValueError("method='dual' cannot leave the intercept free; use a bias feature or method='splitting'")
        dual = settings.method == "dual"
        if settings.method == "auto" and not self._intercept and not relationship.learned:
            total = relationship.start(layout.m).plus_common(relationship.tau).plus_own(relationship.kappa)
            dual = total.spectral_rho(layout.task) <= 1.5  # the tasks are hardly coupled
        return Alternation(context) if dual else Splitting(context)

    def _resume(self, version: Version) -> tuple[Method[Any], RunState]:
        """The run of a checkpoint. b comes from the workers, recomputed from their dual variables."""
        longest_step = float(version.arrays["longest_step"])
        method = self._choose_method(longest_step, version.arrays.get("intercept_step"))
        run = from_arrays(RunState, version.arrays, method=method.State)
        b = self._layout.gather(self._engine.broadcast(Restore(source=version.folder)), "b")
        saved = run.method.b
        if not np.allclose(b, saved, rtol=1e-6, atol=1e-9 * float(np.abs(saved).max(initial=0.0))):
            raise ValueError(
                f"{version.folder}: the workers' dual variables do not belong to the coordinator's state; the version "
                "is damaged, resume from another one"
            )
        run.method.b = b.copy()  # b may be a worker's own array, and asynchronous rounds write into it
        return method, run

    def _gap_to_close(self, run: RunState) -> GapToClose:
        finish = 0.5 * self._settings.tol * abs(run.dual.bound) if run.history else np.inf
        return GapToClose(run.best.objective - run.dual.bound, run.accuracy, finish, best=run.best.W)

    def _learn(self, run: RunState, report: Report) -> PrimalPoint:
        """Keep the best of what is known; returns the best point of this report."""
        now = min(report.points, key=lambda point: point.objective)
        run.best = min(run.best, now, key=lambda point: point.objective)
        point = self._dual_point(report.B, report.conjugate, run.dual.conjugate_at_zero)
        run.dual = max(run.dual, point, key=lambda dual: dual.bound)
        run.omega_steps += report.omega
        self._check(run.certificate, run.dual)
        return now

    def _dual_point(self, B: np.ndarray, conjugate: float, at_zero: float) -> DualPoint:
        bound = scaled_dual(self._relationship.conjugate(B) / self._lam, conjugate, at_zero)
        return DualPoint(B, conjugate, at_zero, bound)

    def _check(self, certificate: Certificate, dual: DualPoint) -> None:
        scale = abs(certificate.primal) + abs(dual.conjugate) + abs(dual.conjugate_at_zero)
        if certificate.gap < -1e-6 * scale:
            raise ValueError(
                f"the dual bound {certificate.dual:.6g} lies above the objective {certificate.primal:.6g}, which is "
                "impossible: the conjugate of your own loss (see dmtrl.check_loss) or relationship is wrong"
            )

    def _record(
        self, run: RunState, report: Report, objective: float, method: str, exchange: "_Exchange", seconds: float
    ) -> RoundRecord:
        gap = run.certificate.relative_gap
        w_gap = report.w_gap / (abs(report.w_objective) or 1.0) if np.isfinite(report.w_gap) else np.inf
        if method == Splitting.name:  # for the best pair it is at most the joint gap (docs/math.md section 5)
            w_gap = min(w_gap, gap)
        ascent = report.solver == SDCA
        return RoundRecord(
            round=len(run.history),
            gap=gap,
            primal=run.best.objective,
            dual=run.dual.bound,
            w_gap=float(w_gap),
            objective=objective,
            dual_now=float(report.w_objective - report.w_gap),
            rho=report.rho,
            step=report.step,
            solver="+".join(SOLVER_NAMES[int(code)] for code in np.unique(report.solver)),
            passes=float(report.steps[ascent].sum() / max(self._layout.rows[ascent].sum(), 1)),
            omega=bool(report.omega),
            bytes_sent=exchange.sent,
            bytes_received=exchange.received,
            seconds=seconds,
        )

    def _is_over(self, run: RunState) -> bool:
        if not run.history:
            return False
        settings = self._settings
        last_omega = settings.omega_steps is not None and run.omega_steps >= settings.omega_steps
        enough = run.certificate.relative_gap <= settings.tol or last_omega
        return enough or len(run.history) >= settings.max_rounds


class _Exchange:
    """Sends a method's requests and collects the answers that it waits for."""

    def __init__(self, engine: Engine, method: Method[Any]):
        self._engine, self._method = engine, method
        self.sent = self.received = 0  # bytes of the last round

    def next_report(self, state: Any, gap: GapToClose) -> Report:
        """Exchange messages until a round is complete."""
        self.sent = self.received = 0
        self._send(state, gap)
        while True:
            report = self._method.step(state, self._receive())
            if not self._method.waits_for_all:
                # also after the last answer: workers continue while the coordinator certifies
                self._send(state, replace(gap, new=False))
            if report is not None:
                return report

    def settle(self, state: Any) -> list[Report]:
        """Wait for all pending answers, so that what workers save is what the method knows."""
        reports = []
        while self._engine.pending:
            worker, answer = self._engine.receive()
            report = self._method.step(state, {worker: decode(answer)})
            reports += [] if report is None else [report]
        return reports

    def _send(self, state: Any, gap: GapToClose) -> None:
        idle = [k for k in range(self._engine.n_workers) if k not in self._engine.pending]
        for k, request in self._method.requests(state, idle, gap).items():
            message = encode(request)
            self.sent += message.nbytes
            self._engine.send(k, message)

    def _receive(self) -> dict[int, Any]:
        """The answers of all pending workers, or of those that have arrived."""
        answers: dict[int, Any] = {}
        while self._engine.pending:
            wait = self._method.waits_for_all or not answers
            try:
                worker, message = self._engine.receive(timeout=None if wait else 0)
            except TimeoutError:
                break
            self.received += message.nbytes
            answers[worker] = decode(message)
        return answers


def _call(callbacks: Sequence[Callback], record: RoundRecord) -> KeyboardInterrupt | None:
    """Call the callbacks in order. A KeyboardInterrupt skips the rest and is returned, to be raised once the round is
    saved."""
    try:
        for callback in callbacks:
            callback(record)
    except KeyboardInterrupt as interrupt:
        return interrupt
    return None


def _sharpened(accuracy: float, history: Sequence[RoundRecord]) -> float:
    """Half the local accuracy when four rounds made almost no progress: then local answers are too rough."""
    if len(history) < 5 or history[-1].gap < 0.8 * history[-5].gap:
        return accuracy
    return max(0.5 * accuracy, 1e-4)
