"""The server: a plain loop of rounds over an engine it knows nothing about.

Room: above the methods, below the engines. Each round sends an order, gathers the answers in task order, updates
the certificate, keeps a record, tells the callbacks, and stops on the joint relative gap.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache, partial
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from dmtrl.engines.base import Engine
from dmtrl.numerics.rowwise import threads
from dmtrl.protocol.message import Message, Scalar
from dmtrl.relationship import FreeIntercept, Relationship
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.solver.certificate import Certificate, scaled_dual
from dmtrl.solver.checkpoint import FIT, Keeper, State, problem_of, restore_workers
from dmtrl.solver.layout import Layout
from dmtrl.solver.methods.alternation import Alternation
from dmtrl.solver.methods.asynchronous import AsynchronousSplitting
from dmtrl.solver.methods.base import Answers, Candidate, Method, Order, Report, Start
from dmtrl.solver.methods.splitting import Splitting
from dmtrl.solver.pace import Balance, Trace
from dmtrl.solver.settings import Settings
from dmtrl.worker.worker import SOLVER_NAMES


@dataclass(frozen=True)
class RoundRecord:
    """One round, as stored in `history_`. Gaps are relative.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    gap : float
        Gap between the best primal and dual values so far.
    primal : float
        Best joint objective so far.
    dual : float
        Best lower bound so far.
    w_gap : float
        Gap of the W-step. With the default method the smaller of the W-step gap of the round and the joint gap of the
        best pair, which bounds the W-step gap of that pair.
    objective : float
        Joint objective at the weights of the round.
    dual_now : float
        Dual objective of the W-step before the round.
    rho : float
        Coupling of the tasks.
    step : float
        Step size of the splitting.
    solver : str
        Local solvers that the workers used.
    passes : float
        Mean number of passes over the rows.
    omega : bool
        Whether the task covariance was updated.
    bytes_sent : int
        Bytes of the messages to the workers.
    bytes_received : int
        Bytes of the answers of the workers.
    seconds : float
        Duration of the round.
    """

    round: int
    gap: float
    primal: float
    dual: float
    w_gap: float
    objective: float  # joint objective at this round's weights
    dual_now: float  # W-step dual objective before the round
    rho: float
    step: float
    solver: str
    passes: float
    omega: bool
    bytes_sent: int
    bytes_received: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return the record as a dict."""
        return asdict(self)


Callback = Callable[[RoundRecord], object]
Watch = Callable[[RoundRecord, np.ndarray], object]


@dataclass(frozen=True)
class DualPoint:
    """What a dual bound is made of: B and the conjugate sums. It says nothing about single rows."""

    B: np.ndarray  # (m, d)
    conjugate: float
    conjugate_at_zero: float
    bound: float


@dataclass(frozen=True)
class Outcome:
    """The result of `solve`.

    Attributes
    ----------
    W : ndarray of shape (m, d)
        Weights of each task.
    common : ndarray of shape (d,)
        The part of every row of W that all tasks share.
    covariance : TaskCovariance
        Covariance of the part of W that is not shared, with trace one.
    certificate : Certificate
        Proven bounds of the optimum.
    dual : DualPoint
        The point of the dual bound.
    history : list of RoundRecord
        One record per round.
    converged : bool
        Whether the relative gap reached tol.
    method : str
        The method that was used.
    trace : Trace
        Events that depended on time; empty unless the settings allow such events.
    tasks : ndarray of int or None
        Numbers of the tasks in the rows of W. None means all tasks, in order.
    """

    W: np.ndarray  # (m, d)
    common: np.ndarray  # (d,): the part of every row of W that all tasks share
    covariance: TaskCovariance  # of the tasks' own part, trace one
    certificate: Certificate
    dual: DualPoint  # the point at which the certificate's dual bound was found
    history: list[RoundRecord]
    converged: bool
    method: str
    trace: Trace = field(default_factory=Trace)  # what depended on time: nothing, unless the settings ask for it
    tasks: np.ndarray | None = None  # numbers of the tasks that the rows of W are of; None: all, in order


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def single_threaded_blas(wanted: bool = True) -> Any:
    """A context in which linear algebra uses one thread: a small SVD is faster so than on several that wait for each
    other, and what is large is threaded in pieces by `rowwise`.
    """
    return _blas().limit(limits=1 if wanted else None)


@dataclass
class _Run:
    """What a run has reached, beside the state of its method."""

    best: Candidate
    dual: DualPoint
    accuracy: float  # the local accuracy asked for, see _sharpened
    b: np.ndarray  # of each unit, after the last round
    omega_steps: int = 0
    history: list[RoundRecord] = field(default_factory=list)

    @property
    def certificate(self) -> Certificate:
        return Certificate(self.best.objective, self.dual.bound)

    def state(self) -> State:
        best, dual = vars(self.best), vars(self.dual)
        state = {f"best.{name}": value for name, value in best.items()}
        state |= {f"dual.{name}": value for name, value in dual.items()}
        for column in fields(RoundRecord):
            state[f"history.{column.name}"] = [getattr(record, column.name) for record in self.history]
        state |= {"accuracy": self.accuracy, "b": self.b, "omega_steps": self.omega_steps}
        return {name: np.asarray(value) for name, value in state.items()}

    @classmethod
    def from_state(cls, state: State) -> "_Run":
        def number(name: str) -> float:
            return float(state[name])

        best = Candidate(state["best.W"], state["best.common"], number("best.objective"))
        sums = (number(f"dual.{name}") for name in ("conjugate", "conjugate_at_zero", "bound"))
        columns = [state[f"history.{column.name}"].tolist() for column in fields(RoundRecord)]
        history = [RoundRecord(*values) for values in zip(*columns, strict=True)]
        dual = DualPoint(state["dual.B"], *sums)
        return cls(best, dual, number("accuracy"), state["b"], int(state["omega_steps"]), history)


def _sharpened(accuracy: float, history: Sequence[RoundRecord]) -> float:
    """Half the local accuracy when four rounds brought next to nothing: then the local answers are too rough to go on
    from.
    """
    if len(history) < 5 or history[-1].gap < 0.8 * history[-5].gap:
        return accuracy
    return max(0.5 * accuracy, 1e-4)


class Coordinator:
    """`describe` asks every worker what it holds; pass an earlier `layout` where that is known."""

    def __init__(
        self,
        engine: Engine,
        m: int,
        relationship: Relationship,
        reg_lambda: float,
        settings: Settings,
        layout: Layout | None = None,
    ):
        if not (np.isfinite(reg_lambda) and reg_lambda > 0):
            raise ValueError(f"reg_lambda must be positive and finite, got {reg_lambda!r}")
        self._engine, self._relationship, self._lam, self._settings = engine, relationship, float(reg_lambda), settings
        self._layout = layout or Layout.from_descriptions(engine.broadcast(Message("describe")), m)
        relationship.start(m)  # refuses a relationship for another number of tasks
        self._sent = self._received = 0

    def _exchange(self, messages: Mapping[int, Message]) -> dict[int, Message]:
        self._sent = sum(message.nbytes for message in messages.values())
        began, answers, self._seconds = time.perf_counter(), {}, dict[int, float]()
        own = getattr(self._engine, "seconds", {})  # of an engine whose workers wait for each other's threads
        for k, answer in self._engine.exchange(messages):
            answers[k], self._seconds[k] = answer, own.get(k, time.perf_counter() - began)
        self._received = sum(message.nbytes for message in answers.values())
        return answers

    def _prepare(self, start: Outcome | Start | None) -> np.ndarray:
        layout, settings = self._layout, self._settings
        total = layout.per_task(layout.weight)[layout.task]
        scalars: dict[str, Scalar] = {
            "seed": settings.seed,
            "local_solver": settings.local_solver,
            "sampling": settings.sampling,
            "max_passes": settings.max_passes,
            "keep": start is not None,
            "look": settings.max_staleness > 0,
            "filled": layout.filled,
        }
        arrays = {"total_weight": total, "steps": self._steps()[layout.task]}
        if start is not None:
            arrays["w"] = layout.per_unit(start.W)
        answers = self._exchange(
            {
                k: Message("prepare", scalars, {name: layout.scatter(k, values) for name, values in arrays.items()})
                for k in range(self._engine.n_workers)
            }
        )
        self._conjugates = layout.gather(answers, "conjugate")
        self._conjugate = float(self._conjugates.sum())
        self._at_zero = float(layout.gather(answers, "conjugate_at_zero").sum())
        if settings.max_staleness:
            self._losses = layout.gather(answers, "loss_w")
        limits = layout.gather(answers, "longest_step")
        self._longest_step = float(np.median(limits[np.isfinite(limits)])) if np.isfinite(limits).any() else np.inf
        return layout.gather(answers, "b")

    def _steps(self) -> np.ndarray:
        """H of each task; 0 where a task goes on until it is accurate enough."""
        steps = np.asarray(0 if self._settings.steps is None else self._settings.steps, dtype=np.int64)
        if steps.ndim > 0 and steps.shape != (self._layout.m,):
            raise ValueError(f"steps must be one number or one per task: got {steps.size} for {self._layout.m} tasks")
        return np.broadcast_to(steps, self._layout.m)

    def _method(self, b: np.ndarray, W: np.ndarray, common: np.ndarray) -> Method:
        layout, settings, relationship = self._layout, self._settings, self._relationship
        name = settings.method
        plain = not isinstance(relationship, FreeIntercept)  # the dual step has one size for all columns
        if name == "dual" and not plain:
            raise ValueError("method='dual' cannot leave the intercept free; use a bias feature or method='splitting'")
        if name == "auto":
            loose = (plain and not relationship.learned) and (
                relationship.start(layout.m).plus_common(relationship.tau).spectral_rho(layout.task) <= 1.5
            )
            name = "dual" if loose else "splitting"
        if name == "dual":
            return Alternation(relationship, self._lam, layout, settings, b)
        return Splitting(relationship, self._lam, layout, settings, W, common, b, self._longest_step)

    def run(
        self,
        callbacks: Sequence[Callback] = (),
        start: Outcome | Start | None = None,
        watch: Watch | None = None,
        keeper: Keeper | None = None,
        name: str = FIT,
        replay: Trace | None = None,
    ) -> Outcome:
        """Rounds until the joint relative gap is at most tol, or max_rounds. `start` goes on from an earlier
        outcome on the same workers, whose dual variables are kept. `watch` sees the weights (m, d) of every round. The
        `keeper` writes checkpoints; where it was given one of the run of this name, that goes on. `replay` is the
        trace of an earlier run, which is then repeated to the bit although it depended on time."""
        self._replay = replay or Trace()
        with single_threaded_blas(), threads(getattr(self._engine, "threads", 1)):
            return self._rounds(callbacks, start, watch, keeper or Keeper(), name)

    def _rounds(
        self,
        callbacks: Sequence[Callback],
        start: Outcome | Start | None,
        watch: Watch | None,
        keeper: Keeper,
        name: str,
    ) -> Outcome:
        layout, settings, relationship = self._layout, self._settings, self._relationship
        problem = {} if keeper.idle else problem_of(layout, relationship, self._lam, settings)
        saved = keeper.begin_run(name, problem)
        self._balance = Balance(layout, self._replay.work) if settings.balance else None
        method, run = self._begin(start) if saved is None else self._go_on(*saved)
        while not self._over(run):
            began, number = time.perf_counter(), len(run.history)
            answers, report, (solver, passes) = self._round(method, run, number)
            now = self._learn(run, answers, report)
            certificate = run.certificate
            self._check(certificate, run.dual)
            w_gap = report.w_gap / (abs(report.w_objective) or 1.0) if np.isfinite(report.w_gap) else np.inf
            if method.name == Splitting.name:  # of the best pair it is at most the joint gap (docs/math.md section 5)
                w_gap = min(w_gap, certificate.relative_gap)
            record = RoundRecord(
                number, certificate.relative_gap, run.best.objective, run.dual.bound, float(w_gap), now.objective,
                float(report.w_objective - report.w_gap), report.rho, report.step, solver, passes, bool(report.omega),
                self._sent, self._received, time.perf_counter() - began,
            )  # fmt: skip
            run.history.append(record)
            for callback in callbacks:
                callback(record)
            if watch is not None:
                watch(record, now.W)
            run.omega_steps += report.omega
            del answers, report, now  # their weights: not kept through the next round
            keeper.round_done(self._engine, name, problem, partial(self._state, method, run), self._over(run))
        if isinstance(method, AsynchronousSplitting):
            method.leave()
        trace = self._trace(method, keeper) if saved is None else Trace()  # of the part before nothing is known here
        best, used = run.best, method.name
        del method  # its weights: room for making Sigma
        covariance = relationship.update(best.W - best.common)
        converged = run.certificate.relative_gap <= settings.tol
        return Outcome(best.W, best.common, covariance, run.certificate, run.dual, run.history, converged, used, trace)

    def _learn(self, run: "_Run", answers: Answers, report: Report) -> Candidate:
        """Keep the best of what is known; the best candidate of these answers."""
        now = min(report.candidates, key=lambda candidate: candidate.objective)
        run.best = min(run.best, now, key=lambda candidate: candidate.objective)
        run.dual = max(run.dual, self._dual_point(answers.B, answers.conjugate), key=lambda point: point.bound)
        run.b = answers.b
        return now

    def _trace(self, method: Method | AsynchronousSplitting, keeper: Keeper) -> Trace:
        if isinstance(method, AsynchronousSplitting):  # all were waited for wherever a checkpoint was written
            return Trace() if keeper.writes else Trace(arrivals=method.arrivals)
        return Trace(work=self._balance.work if self._balance else ())

    def _round(
        self, method: Method | AsynchronousSplitting, run: "_Run", number: int
    ) -> tuple[Answers, Report, tuple[str, float]]:
        gap = run.best.objective - run.dual.bound
        if isinstance(method, AsynchronousSplitting):
            answers, report = method.round(gap)
            self._sent, self._received = method.sent, method.received
            return answers, report, self._work(*method.work())
        order = method.order()
        run.accuracy = _sharpened(run.accuracy, run.history)
        target = run.accuracy * gap
        if number > 0 and order.decoupled:  # the local problems are the whole one: go all the way at once
            target = min(target, 0.5 * self._settings.tol * abs(run.dual.bound))
        raw = self._exchange(self._messages(order, number, target / len(self._layout.task)))
        answers = self._read(raw, number)
        solver, steps = (self._layout.gather(raw, name) for name in ("solver", "steps"))
        del raw  # the workers' b: joined in `answers`
        run.b = answers.b  # and not the one before beside it, while the method makes new weights
        if self._balance:
            self._balance.learn(self._seconds, np.where(solver == 0, steps, 0))
        return answers, method.absorb(answers), self._work(solver, steps)

    def _work(self, codes: np.ndarray, steps: np.ndarray) -> tuple[str, float]:
        """Which local solvers were at work, and how many passes coordinate ascent took over the rows it was given."""
        used = "+".join(SOLVER_NAMES[int(code)] for code in np.unique(codes))
        sdca = codes == 0
        return used, float(steps[sdca].sum() / max(self._layout.rows[sdca].sum(), 1))

    def _over(self, run: "_Run") -> bool:
        if not run.history:
            return False
        settings = self._settings
        enough = run.certificate.relative_gap <= settings.tol or run.omega_steps == settings.omega_steps
        return enough or len(run.history) >= settings.max_rounds

    def _begin(self, start: Outcome | Start | None) -> tuple[Method | AsynchronousSplitting, "_Run"]:
        layout = self._layout
        b = self._prepare(start)
        W, common = (np.zeros((layout.m, layout.d)), np.zeros(layout.d)) if start is None else (start.W, start.common)
        dual = self._dual_point(layout.per_task(b), self._conjugate)
        run = _Run(Candidate(W, common, np.inf), dual, self._settings.local_accuracy, b)
        if self._settings.max_staleness == 0:
            return self._method(b, W, common), run
        penalty = self._relationship.penalty(W, common) if W.any() else 0.0
        run.best = Candidate(W, common, float(self._losses.sum()) + self._lam * penalty)
        return self._without_barrier(W, common, b, self._losses, self._conjugates), run

    def _without_barrier(
        self, W: np.ndarray, common: np.ndarray, b: np.ndarray, losses: np.ndarray, conjugates: np.ndarray
    ) -> AsynchronousSplitting:
        return AsynchronousSplitting(
            self._engine, self._relationship, self._lam, self._layout, self._settings, W, common, b, losses, conjugates,
            self._longest_step, self._replay.arrivals,
        )  # fmt: skip

    def _state(self, method: Method | AsynchronousSplitting, run: "_Run") -> State:
        """Where a run stands at the end of a round."""
        if isinstance(method, AsynchronousSplitting):
            self._learn(run, *method.settle())
        state = run.state() | {f"method.{name}": values for name, values in method.state().items()}
        return state | {"longest_step": np.array(self._longest_step)}

    def _go_on(self, folder: str, state: State) -> tuple[Method | AsynchronousSplitting, "_Run"]:
        """The same run again. B comes from the workers, so that it is what their dual variables say."""
        layout = self._layout
        run = _Run.from_state(state)
        b = layout.gather(restore_workers(self._engine, folder), "b")
        if not np.allclose(b, run.b, rtol=1e-6, atol=1e-9 * float(np.abs(run.b).max(initial=0.0))):
            raise ValueError(f"{folder}: the dual variables of the workers do not belong to the coordinator's state")
        self._conjugate, self._at_zero = run.dual.conjugate, run.dual.conjugate_at_zero
        self._longest_step = float(state["longest_step"])
        W, common, nothing = np.zeros((layout.m, layout.d)), np.zeros(layout.d), np.zeros(len(b))
        method: Method | AsynchronousSplitting = (
            self._without_barrier(W, common, b, nothing, nothing)
            if self._settings.max_staleness
            else self._method(b, W, common)
        )
        method.restore({k.removeprefix("method."): v for k, v in state.items() if k.startswith("method.")}, b)
        return method, run

    def _check(self, certificate: Certificate, dual: DualPoint) -> None:
        scale = abs(certificate.primal) + abs(dual.conjugate) + abs(self._at_zero)
        if certificate.gap < -1e-6 * scale:
            raise ValueError(
                f"the dual bound {certificate.dual:.6g} lies above the objective {certificate.primal:.6g}, which "
                "cannot be: a conjugate is wrong, that of your own loss (see dmtrl.check_loss) or relationship"
            )

    def _dual_point(self, B: np.ndarray, conjugate: float) -> DualPoint:
        bound = scaled_dual(self._relationship.conjugate(B) / self._lam, conjugate, self._at_zero)
        return DualPoint(B, conjugate, self._at_zero, bound)

    def _messages(self, order: Order, number: int, target: float) -> dict[int, Message]:
        layout = self._layout
        scalars = {**order.scalars, "round": number, "target": target}
        limits = self._balance.limits() if self._balance else {}
        messages, W = {}, layout.per_unit(order.W)
        for k in range(self._engine.n_workers):
            arrays = {"w": layout.scatter(k, W), "step": layout.scatter(k, order.step)}
            if order.factor is not None:
                arrays["factor"] = layout.scatter(k, order.factor)
            if k in limits:
                arrays["most"] = limits[k]
            messages[k] = Message("round", scalars, arrays)
        return messages

    def _read(self, raw: Mapping[int, Message], number: int) -> Answers:
        layout = self._layout
        b = layout.gather(raw, "b")
        if not np.isfinite(b).all():
            unit = int(np.flatnonzero(~np.isfinite(b).all(axis=1))[0])
            raise FloatingPointError(
                f"round {number}: worker {layout.owner[unit]} answered NaN or infinity "
                f"for task number {layout.task[unit]}"
            )

        def total(name: str) -> float:
            return float(layout.gather(raw, name).sum())

        return Answers(b, layout.per_task(b), total("loss_w"), total("bracket_w"), total("loss_u"), total("conjugate"))
