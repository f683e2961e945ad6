"""The server: a plain loop of rounds over an engine it knows nothing about.

Room: above the methods, below the engines. Each round sends an order, gathers the answers in task order, updates
the certificate, keeps a record, tells the callbacks, and stops on the joint relative gap.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from dmtrl.alternation import Alternation
from dmtrl.certificate import Certificate, scaled_dual
from dmtrl.covariance import TaskCovariance
from dmtrl.layout import Layout
from dmtrl.message import Engine, Message, Scalar
from dmtrl.method import Answers, Candidate, Method, Order
from dmtrl.relationship import FreeIntercept, Relationship
from dmtrl.settings import Settings
from dmtrl.splitting import Splitting
from dmtrl.worker import SOLVER_NAMES


@dataclass(frozen=True)
class RoundRecord:
    """One round, as kept in history_. Gaps are relative; `primal` and `dual` are the best so far. With the default
    method `w_gap` is the smaller of this round's W-step gap and the best pair's joint gap, which bounds that
    pair's W-step gap."""

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
    W: np.ndarray  # (m, d)
    common: np.ndarray  # (d,): the part of every row of W that all tasks share
    covariance: TaskCovariance  # of the tasks' own part, trace one
    certificate: Certificate
    dual: DualPoint  # the point at which the certificate's dual bound was found
    history: list[RoundRecord]
    converged: bool
    method: str


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def single_threaded_blas(wanted: bool = True) -> Any:
    """A context in which linear algebra uses one thread: a small SVD is faster so than on several that wait for each
    other.
    """
    return _blas().limit(limits=1 if wanted else None)


def broadcast(engine: Engine, message: Message) -> dict[int, Message]:
    """The same message to every worker."""
    return dict(engine.exchange({k: message for k in range(engine.n_workers)}))


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
        self._layout = layout or Layout.from_descriptions(broadcast(engine, Message("describe")), m)
        relationship.start(m)  # refuses a relationship for another number of tasks
        self._sent = self._received = 0

    def _exchange(self, messages: Mapping[int, Message]) -> dict[int, Message]:
        self._sent = sum(message.nbytes for message in messages.values())
        answers = dict(self._engine.exchange(messages))
        self._received = sum(message.nbytes for message in answers.values())
        return answers

    def _prepare(self, start: Outcome | None) -> np.ndarray:
        layout, settings = self._layout, self._settings
        total = layout.per_task(layout.weight)[layout.task]
        scalars: dict[str, Scalar] = {
            "seed": settings.seed,
            "local_solver": settings.local_solver,
            "sampling": settings.sampling,
            "max_passes": settings.max_passes,
            "keep": start is not None,
        }
        arrays = {"total_weight": total, "steps": self._steps()[layout.task]}
        if start is not None:
            arrays["w"] = start.W[layout.task]
        answers = self._exchange(
            {
                k: Message("prepare", scalars, {name: layout.scatter(k, values) for name, values in arrays.items()})
                for k in range(self._engine.n_workers)
            }
        )
        self._conjugate = float(layout.gather(answers, "conjugate").sum())
        self._at_zero = float(layout.gather(answers, "conjugate_at_zero").sum())
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
        self, callbacks: Sequence[Callback] = (), start: Outcome | None = None, watch: Watch | None = None
    ) -> Outcome:
        """Rounds until the joint relative gap is at most tol, or max_rounds. `start` goes on from an earlier
        outcome on the same workers, whose dual variables are kept. `watch` sees the weights (m, d) of every round."""
        small = self._layout.m * self._layout.d * min(self._layout.m, self._layout.d) < 1e8
        with single_threaded_blas(small):
            return self._rounds(callbacks, start, watch)

    def _rounds(self, callbacks: Sequence[Callback], start: Outcome | None, watch: Watch | None) -> Outcome:
        layout, settings, relationship = self._layout, self._settings, self._relationship
        b = self._prepare(start)
        W, common = (np.zeros((layout.m, layout.d)), np.zeros(layout.d)) if start is None else (start.W, start.common)
        method = self._method(b, W, common)
        B = layout.per_task(b)
        best = Candidate(W, common, np.inf)
        dual = self._dual_point(B, self._conjugate)
        history: list[RoundRecord] = []
        accuracy, omega_steps = settings.local_accuracy, 0
        for number in range(settings.max_rounds):
            began = time.perf_counter()
            order = method.order()
            accuracy = _sharpened(accuracy, history)
            target = accuracy * (best.objective - dual.bound) / len(layout.task)
            raw = self._exchange(self._messages(order, number, target))
            answers, solver, passes = self._read(raw, number)
            report = method.absorb(answers)
            now = min(report.candidates, key=lambda candidate: candidate.objective)
            best = min(best, now, key=lambda candidate: candidate.objective)
            dual = max(dual, self._dual_point(answers.B, answers.conjugate), key=lambda point: point.bound)
            certificate = Certificate(best.objective, dual.bound)
            self._check(certificate, dual)
            w_gap = report.w_gap / (abs(report.w_objective) or 1.0) if np.isfinite(report.w_gap) else np.inf
            if isinstance(
                method, Splitting
            ):  # the best pair's W-step gap is at most its joint gap (docs/math.md section 5)
                w_gap = min(w_gap, certificate.relative_gap)
            record = RoundRecord(
                number, certificate.relative_gap, best.objective, dual.bound, w_gap, now.objective,
                report.w_objective - report.w_gap, report.rho, report.step, solver, passes, report.omega,
                self._sent, self._received, time.perf_counter() - began,
            )  # fmt: skip
            history.append(record)
            for callback in callbacks:
                callback(record)
            if watch is not None:
                watch(record, now.W)
            omega_steps += report.omega
            if certificate.relative_gap <= settings.tol or omega_steps == settings.omega_steps:
                break
        own = best.W - best.common
        covariance = relationship.update(own)
        converged = certificate.relative_gap <= settings.tol
        return Outcome(best.W, best.common, covariance, certificate, dual, history, converged, method.name)

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
        messages = {}
        for k in range(self._engine.n_workers):
            arrays = {"w": order.W[layout.task[layout.positions[k]]], "step": layout.scatter(k, order.step)}
            if order.factor is not None:
                arrays["factor"] = layout.scatter(k, order.factor)
            messages[k] = Message("round", scalars, arrays)
        return messages

    def _read(self, raw: Mapping[int, Message], number: int) -> tuple[Answers, str, float]:
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

        codes = layout.gather(raw, "solver")
        used = "+".join(SOLVER_NAMES[int(code)] for code in np.unique(codes))
        sdca = codes == 0
        passes = layout.gather(raw, "steps")[sdca].sum() / max(layout.rows[sdca].sum(), 1)
        answers = Answers(
            b, layout.per_task(b), total("loss_w"), total("bracket_w"), total("loss_u"), total("conjugate")
        )
        return answers, used, float(passes)
