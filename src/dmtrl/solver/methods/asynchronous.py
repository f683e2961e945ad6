"""Rounds without a barrier: joint splitting in which every answer counts when it comes (docs/math.md section 12).

Room: below the coordinator, beside splitting, whose iteration this is, one worker at a time. The server keeps the last
point (u, b) of every unit; an answer replaces those of its worker, the proximal map is taken anew, and the worker goes
on from there at once. `max_staleness` bounds how far the others may run ahead of one that is at work. A round is as
many answers as there are workers, whoever gave them, or fewer where that of one that lags may be the end.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dmtrl.engines.base import Engine
from dmtrl.protocol.message import Message, Scalar
from dmtrl.relationship import Metric, Relationship, feature_metric
from dmtrl.solver.layout import Layout
from dmtrl.solver.methods.base import Answers, Candidate, Report, put_state, take_state
from dmtrl.solver.methods.splitting import STRIDE, first_step, norm, straight
from dmtrl.solver.settings import Settings

_MOST_STEP_CHANGES = 30  # finitely many, as in splitting
_SMALLER_STEP = 0.5  # of splitting's first step size: the frozen rows of a straggler count as curvature 1/s
_PASSES = 2  # over a unit's rows in one answer: small portions, so that none is made from weights of long ago
_IN_SIGHT = 2.0  # times tol: a gap from which the end may be a look away, or here already by a better bound
_MOST_LOOKS = 3  # of one worker that did not end the run: where convergence is slow more are lost than won
_SHARE_THAT_FOLLOWS = 0.25  # of all units: so few may be fitted into the directions that the others have found
_STATE = (
    "_Z", "_common", "_penalty", "_U", "_conjugate", "_W", "_loss", "_solver", "_steps", "_s", "_changes", "_thoughts",
    "_taken", "_Z_before", "_b_before", "_staleness", "_accuracy", "_passes", "_answered", "_before", "_slowest",
    "_version", "_looks", "_looked",
)  # fmt: skip
_PATIENCE = 4  # rounds of the slowest worker that may bring next to nothing


@dataclass
class _Probe:
    """Weights at which every worker is asked for its loss, where that of whole tasks is not known otherwise."""

    W: np.ndarray
    common: np.ndarray
    penalty: float
    asked: set[int]
    loss: dict[int, float]


class AsynchronousSplitting:
    """`arrivals` of an earlier run are waited for in their order, and the run is the same to the bit."""

    name = "splitting"

    def __init__(
        self,
        engine: Engine,
        relationship: Relationship,
        lam: float,
        layout: Layout,
        settings: Settings,
        W: np.ndarray,
        common: np.ndarray,
        b: np.ndarray,
        loss: np.ndarray,
        conjugate: np.ndarray,
        longest_step: float = np.inf,
        arrivals: Sequence[Sequence[int]] = (),
    ):
        self._engine, self._relationship, self._lam, self._layout = engine, relationship, lam, layout
        self._settings = settings
        self._shards = layout.shards[:, None].astype(float)
        self._Z, self._common = W, common
        self._penalty = relationship.penalty(W, common) if W.any() else 0.0
        self._U, self._b, self._conjugate = layout.per_unit(W).copy(), b.copy(), conjugate.copy()
        self._W, self._loss = self._U.copy(), loss.copy()  # at weights of which each unit last told its loss
        self._solver, self._steps = np.zeros(len(b), dtype=np.int8), np.zeros(len(b), dtype=np.int64)
        self._longest_step = longest_step
        self._s = settings.initial_step or min(_SMALLER_STEP * first_step(lam, layout.m), longest_step)
        self._changes = self._thoughts = 0  # of the step size
        self._taken = 0  # answers since the step size was last thought of
        self._Z_before, self._b_before = W, b.copy()  # as they were then
        self._staleness, self._accuracy = settings.max_staleness, settings.local_accuracy
        self._passes = min(_PASSES, settings.max_passes)
        workers = range(engine.n_workers)
        self._idle, self._at_work = set(workers), dict[int, Message]()
        self._answered = np.zeros(len(workers), dtype=np.int64)  # how often each worker did
        self._before = [self._answered.copy()] * 2  # the same, the last two times that the step size was thought of
        self._slowest = [(0, np.inf)]  # how often everybody had answered, and the gap then
        self._version = 0  # of the weights
        self._versions = [deque[int](maxlen=self._staleness + 1) for _ in workers]  # that each worker was last sent
        self._looks = np.zeros(len(workers), dtype=np.int64)  # how often each was asked for its loss alone
        self._looked = np.zeros(len(workers), dtype=bool)  # who was so with its last message
        self._early: dict[int, Message] = {}  # answers that came before their turn in `arrivals`
        self._again = iter(arrivals)
        self.arrivals: list[tuple[int, ...]] = []
        # a task in pieces has its loss only where all look at the same weights; weights of several versions may lie
        # outside the range of a given Sigma
        self._probes = layout.split or not relationship.learned
        self._probe: _Probe | None = None
        self.sent = self.received = 0  # bytes of the last round

    def round(self, gap: float) -> tuple[Answers, Report]:
        """Take as many answers as there are workers, or up to the one of a worker that lags with which all may be over;
        `gap` is the certified one so far."""
        self.sent = self.received = 0
        self._sharpen(gap)
        target = self._accuracy * gap / len(self._layout.task)
        found: list[Candidate] = []
        over = False
        self._send_all(target)
        while self._taken < self._engine.n_workers and not over:
            batch = self._take()
            over = any(map(self._lags, batch)) and self._gap(self._W, self._loss) <= _IN_SIGHT * self._settings.tol
            found += self._probed()
            self._renew()
            self._send_all(target)  # also after the last: they work while the server makes the certificate
        if self._taken >= self._engine.n_workers:
            self._adapt()
        return self._standing(found)

    def _standing(self, found: Sequence[Candidate]) -> tuple[Answers, Report]:
        """What is known now; `found` are candidates beside the present one."""
        return self._answers(), Report([*found, self._candidate()], np.inf, float("nan"), float("nan"), self._s)

    def work(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each unit: the code of the solver, and the coordinate steps, in its last answer."""
        return self._solver, self._steps

    def settle(self) -> tuple[Answers, Report]:
        """Wait for everybody's answer, so that what a worker writes down now is what the server knows of it."""
        while self._at_work:
            self._take()
        found = list(self._probed())
        self._renew()
        if self._taken >= self._engine.n_workers:
            self._adapt()
        return self._standing(found)

    def state(self) -> dict[str, np.ndarray]:
        """All that the next rounds depend on, once everybody has answered."""
        state, probe = take_state(self, _STATE), self._probe
        if probe is not None:  # whoever was asked has told
            loss = np.array([probe.loss.get(k, np.nan) for k in range(self._engine.n_workers)])
            state |= {"probe.W": probe.W, "probe.common": probe.common, "probe.loss": loss}
            state["probe.penalty"] = np.array(probe.penalty)
        return state

    def restore(self, state: Mapping[str, np.ndarray], b: np.ndarray) -> None:
        put_state(self, _STATE, state)
        self._slowest = [(int(count), float(gap)) for count, gap in self._slowest]
        self._b = b.copy()
        if "probe.W" in state:
            loss = {k: float(value) for k, value in enumerate(state["probe.loss"]) if np.isfinite(value)}
            point = state["probe.W"], state["probe.common"], float(state["probe.penalty"])
            self._probe = _Probe(*point, set(loss), loss)

    def leave(self) -> None:
        """The run is over. An engine that keeps who was asked drops their answers later; with any other they are waited
        for here."""
        waiting = set(self._at_work) - set(self._early)
        while waiting and not self._engine.asked:
            waiting.discard(self._engine.receive()[0])

    # who goes on when

    def _send_all(self, target: float) -> None:
        for k in sorted(self._idle):
            if self._may_go_on(k):
                self._send(k, target)

    def _may_go_on(self, k: int) -> bool:
        """Whether nobody at work would fall behind worker k by more than the staleness allowed."""
        for other in self._at_work:
            since = self._versions[other][-1]
            newer = sum(version > since for version in self._versions[k])
            if self._version > since and newer >= self._staleness:
                return False
        return True

    def _lags(self, k: int) -> bool:
        """Whether worker k answers less than half as often as the others do."""
        return bool(2 * self._answered[k] < np.median(self._answered))

    def _may_end_with(self, k: int) -> bool:
        """Whether the certificate may wait for nothing but the loss of a worker that lags. Never in step, where all
        would wait for it, and not over and over."""
        if not self._staleness or self._probes or self._looked[k] or self._looks[k] == _MOST_LOOKS:
            return False
        return bool(self._answered[k]) and self._lags(k) and self._least_gap(k) <= _IN_SIGHT * self._settings.tol

    def _least_gap(self, k: int) -> float:
        """The relative gap with the rows of worker k at the present weights, if its loss there is the least that it can
        be (7)."""
        units, W, loss = self._layout.positions[k], self._W.copy(), self._loss.copy()
        W[units] = self._Z[self._layout.task[units]]
        loss[units] = -self._conjugate[units] - np.einsum("ij,ij->i", W[units], self._b[units])
        return self._gap(W, loss)

    def _gap(self, W: np.ndarray, loss: np.ndarray) -> float:
        """The relative gap with these weights, and loss there, of each unit; infinite where no such loss is known."""
        if self._probes or not np.isfinite(loss).all():
            return np.inf
        objective = self._objective(W, loss)
        bound = -self._conjugate.sum() - self._relationship.conjugate(self._b) / self._lam
        return float((objective - bound) / abs(objective)) if objective else np.inf

    def _send(self, k: int, target: float) -> None:
        message = self._look(k) or self._catch_up(k) or self._order(k, target)
        self._engine.send(k, message)
        self._idle.discard(k)
        self._at_work[k] = message
        self._versions[k].append(self._version)
        self.sent += message.nbytes

    def _look(self, k: int) -> Message | None:
        """A look alone takes a straggler a fraction of its time for an answer, while the others go on to settle."""
        if not self._may_end_with(k):
            self._looked[k] = False
            return None
        self._looked[k] = True
        self._looks[k] += 1
        weights = self._Z[self._layout.task[self._layout.positions[k]]]
        return Message("look", {"round": self._version}, {"w": weights})

    def _catch_up(self, k: int) -> Message | None:
        """What the second answer of one that lags is asked for, where all tasks lie in few directions (36): the others
        have found these while it made its first."""
        settings, units = self._settings, self._layout.positions[k]
        given = settings.steps is not None or settings.sampling == "uniform" or settings.local_solver != "auto"
        few = len(units) <= _SHARE_THAT_FOLLOWS * len(self._layout.task)
        if given or not few or self._probes or self._answered[k] != 1 or not self._lags(k):
            return None
        metric = feature_metric(self._relationship, self._Z, self._lam, self._s)
        if metric is None or metric.longest > self._longest_step:
            return None
        arrays = {"directions": metric.directions, "centre": metric.centre[self._layout.task[units]]}
        return Message("catch_up", {"round": self._version, "floor": metric.floor}, arrays)

    def _order(self, k: int, target: float) -> Message:
        layout, units = self._layout, self._layout.positions[k]
        # The first answer is made from where the run begins and is to be had soon: one pass, no factors that only pay
        # over many answers, and no look, for the loss there is known. The second of one that lags is as brief, if it
        # cannot catch up; the third has as few passes: the others have not yet settled on what it told them before.
        first, lags = bool(self._answered[k] == 0), self._lags(k)
        brief = first or (self._answered[k] == 1 and lags)
        relax = 0.0 if first else self._settings.relaxation - 1.0
        pace = 0.0 if brief else float(min(self._answered[k] / max(np.median(self._answered), 1.0), 1.0))
        scalars: dict[str, Scalar] = {"relax": relax, "round": self._version, "target": target, "pace": pace}
        scalars["look"] = not (first or self._probes)
        scalars["from_zero"] = first
        arrays = {"w": self._Z[layout.task[units]], "step": self._s * self._shards[units, 0]}
        if self._settings.steps is None:
            arrays["most"] = (1 if first or (lags and self._answered[k] <= 2) else self._passes) * layout.rows[units]
        if self._probe is not None and k not in self._probe.asked:
            self._probe.asked.add(k)
            arrays["probe"] = self._probe.W[layout.task[units]]
        return Message("round", scalars, arrays)

    def _receive(self, timeout: float | None = None) -> None:
        k, answer = self._engine.receive(timeout)
        self.received += answer.nbytes
        self._early[k] = answer

    def _next_batch(self) -> dict[int, Message]:
        """Wait for an answer and take it with all that are there already; or those that were taken together before."""
        batch = next(self._again, None)
        if batch is None:
            if not self._early:
                self._receive()
            for _ in range(len(self._at_work) - len(self._early)):
                try:
                    self._receive(timeout=0)
                except TimeoutError:
                    break
            batch = sorted(self._early)
        elif not set(batch) <= set(self._at_work):
            raise ValueError("these arrivals are of another run: they name a worker that was not asked anything")
        while not set(batch) <= set(self._early):
            self._receive()
        self.arrivals.append(tuple(batch))
        return {k: self._early.pop(k) for k in batch}

    # what an answer changes

    def _take(self) -> Sequence[int]:
        """The next answers, and whose they were."""
        batch = self._next_batch()
        for k, answer in batch.items():
            self._put(k, answer)
        self._taken += len(batch)
        return list(batch)

    def _put(self, k: int, answer: Message) -> None:
        """The worker's rows of U and B, where it arrived from the centre (17), or (37), that it used; or its loss
        alone."""
        units, order, arrays = self._layout.positions[k], self._at_work.pop(k), answer.arrays
        self._idle.add(k)
        if order.name == "look":
            self._W[units], self._loss[units] = order.arrays["w"], arrays["loss_w"]
            return
        b = arrays["b"]
        if not np.isfinite(b).all():
            raise FloatingPointError(f"worker {k} answered NaN or infinity to weights {order.scalars['round']}")
        self._U[units] = self._arrived(units, order, b)
        self._b[units], self._conjugate[units] = b, arrays["conjugate"]
        if order.name == "catch_up":
            if np.isfinite(arrays["loss_u"]).all():
                self._take_if_better(units, self._U[units], arrays["loss_u"])
        elif order.scalars["look"]:
            self._W[units], self._loss[units] = order.arrays["w"], arrays["loss_w"]
        self._solver[units], self._steps[units] = arrays["solver"], arrays["steps"]
        if self._probe is not None and "loss_probe" in arrays:
            self._probe.loss[k] = float(arrays["loss_probe"].sum())
        self._answered[k] += 1

    def _take_if_better(self, units: np.ndarray, W: np.ndarray, loss: np.ndarray) -> None:
        """Take weights of these units, and the loss there, if the objective is lower with them."""
        weights, losses = self._W.copy(), self._loss.copy()
        weights[units], losses[units] = W, loss
        if self._objective(weights, losses) < self._objective(self._W, self._loss):
            self._W, self._loss = weights, losses

    def _objective(self, W: np.ndarray, loss: np.ndarray) -> float:
        return float(loss.sum()) + self._lam * self._relationship.penalty(W, self._common)

    def _arrived(self, units: np.ndarray, order: Message, b: np.ndarray) -> np.ndarray:
        if order.name == "catch_up":
            return Metric.from_message(order).weights(b)
        W, step = order.arrays["w"], order.arrays["step"][:, None]
        relax = float(order.scalars["relax"])
        anchor = W + relax * (W - self._U[units]) if relax else W
        return np.asarray(anchor - step * self._b[units] + step * b)

    def _renew(self) -> None:
        """New weights from the last points of all (16)."""
        V = self._layout.per_task(self._U / self._shards) + self._s * self._layout.per_task(self._b)
        prox = self._relationship.prox(V, self._s * self._lam, self._common)
        self._Z, self._penalty, self._common = prox.W, prox.penalty, prox.common
        self._version += 1
        if self._probes and self._probe is None:
            self._probe = _Probe(self._Z, self._common, self._penalty, set(), {})

    def _probed(self) -> Iterator[Candidate]:
        probe = self._probe
        if probe is not None and len(probe.loss) == self._engine.n_workers:
            loss = sum(probe.loss[k] for k in sorted(probe.loss))
            self._probe = None
            yield Candidate(probe.W, probe.common, loss + self._lam * probe.penalty)

    def _candidate(self) -> Candidate:
        """Of each task the weights at which its worker last told its loss: they need not be of one version."""
        if self._probes or not np.isfinite(self._loss).all():
            return Candidate(self._Z, self._common, np.inf)
        return Candidate(self._W.copy(), self._common, self._objective(self._W, self._loss))

    def _answers(self) -> Answers:
        b = self._b.copy()
        return Answers(
            b, self._layout.per_task(b), float(self._loss.sum()), np.inf, np.inf, float(self._conjugate.sum())
        )

    # how large the steps, how fine the answers

    def _adapt(self) -> None:
        """When as many answers came as there are workers: a long stride where the losses are straight, or every second
        time a balance of the residuals (20). As seen on the tasks of those who answered both times: the rows of one who
        did not stand still, which says nothing about the step."""
        before, self._before = self._before, [self._answered.copy(), self._before[0]]
        Z_before, self._Z_before, self._taken = self._Z_before, self._Z, 0
        b_before, self._b_before = self._b_before, self._b.copy()
        lively = (self._answered > before[0]) & (before[0] > before[1])
        self._thoughts += 1
        if self._changes >= _MOST_STEP_CHANGES or not lively.any():
            return
        units = np.flatnonzero(lively[self._layout.owner])
        tasks = self._layout.task[units]
        U, Z, b = self._U[units], self._Z[tasks], self._b[units]
        moved, size, slope = norm(Z - Z_before[tasks]), norm(Z), max(norm(b), 1e-300)
        change = 1.0
        if straight(moved, size, norm(b - b_before[units]), slope):
            change = STRIDE
        elif self._thoughts > 2 and self._thoughts % 2:
            primal, dual = norm(U - Z) / max(norm(U), size, 1e-300), moved / (self._s * slope)
            if primal > 0 and dual > 0:
                change = float(np.clip(np.sqrt(dual / primal), 0.2, 5.0))
        change = min(change, self._longest_step / self._s)
        if not 1 / 1.5 < change < 1.5:
            self._s *= change
            self._changes += 1

    def _sharpen(self, gap: float) -> None:
        """When four answers of the slowest brought next to nothing, be finer and less stale: in the end as exact and as
        much in step as the theorem on splitting asks for."""
        everybody = int(self._answered.min())
        if everybody == self._slowest[-1][0]:
            return
        self._slowest.append((everybody, gap))
        recent = [before for count, before in self._slowest if count <= everybody - _PATIENCE]
        if recent and not (np.isfinite(gap) and gap <= 0.8 * recent[-1]):
            self._accuracy = max(0.5 * self._accuracy, 1e-4)
            self._passes = min(2 * self._passes, self._settings.max_passes)
            self._staleness //= 2
            self._slowest = [(everybody, gap)]
