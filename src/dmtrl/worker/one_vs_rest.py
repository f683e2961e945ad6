"""The local problems of units with several classes, one-vs-rest: a local problem for each unit and possible class.

The coordinator sees one vector of weights per unit: d numbers for each of k classes, then the k intercepts. Here it is
taken apart into k units with the labels -1 and 1, which the kernels for one score solve.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from dmtrl.data.blocks import Blocks
from dmtrl.losses import AnyLoss, OneVsRest
from dmtrl.protocol.codec import with_arrays
from dmtrl.protocol.rounds import Improved, Prepare, Round, Scores
from dmtrl.worker.exact import GramFactors
from dmtrl.worker.local_problem import LocalProblem
from dmtrl.worker.local_rows import LocalRows, sum_by_unit
from dmtrl.worker.rounds import DualState


class OneVsRestRows(LocalRows):
    """The rows of a worker, once for each possible class. `own`: the row of the worker's blocks behind each row."""

    def __init__(self, blocks: Blocks, losses: list[OneVsRest]):
        self.whole = blocks
        self.possible = np.array([loss.mask for loss in losses]).reshape(len(losses), -1)
        k = self.possible.shape[1]
        n = np.diff(blocks.starts)
        sizes = (n[:, None] * self.possible).ravel()
        starts = np.concatenate([[0], np.cumsum(sizes)])
        self.own = np.arange(starts[-1]) + np.repeat(np.repeat(blocks.starts[:-1], k) - starts[:-1], sizes)
        self._class = classes = np.repeat(np.tile(np.arange(k), len(losses)), sizes)
        weight = blocks.sample_weight
        expanded = Blocks(
            X=blocks.X[self.own],
            y=np.where(blocks.y[self.own] == classes, 1.0, -1.0),
            sample_weight=None if weight is None else weight[self.own],
            starts=starts,
            tasks=(blocks.tasks[:, None] * k + np.arange(k)).ravel(),
            shards=np.repeat(blocks.shards, k),
            names=[name for name in blocks.names for _ in range(k)],
            offset=None if blocks.offset is None else blocks.offset[self.own, classes],
        )
        binary: list[AnyLoss] = [loss.binary for loss in losses for _ in range(k)]
        super().__init__(expanded, binary)

    def _set_offset(self, offset: np.ndarray | None) -> None:
        self.whole = replace(self.whole, offset=offset)
        super()._set_offset(None if offset is None else offset[self.own, self._class])


class OneVsRestProblem:
    """See local_problem.LocalProblem: the same questions, for units with several classes."""

    def __init__(self, rows: OneVsRestRows, held: np.ndarray, order: Prepare, gram: GramFactors | None = None):
        self._rows, self._k, self._intercept = rows, rows.possible.shape[1], bool(order.intercept)
        self._problem = LocalProblem(rows, held[rows.own], self._of_classes(order), gram)

    @property
    def gram(self) -> GramFactors | None:
        return self._problem.gram

    def _of_classes(self, order: Any) -> Any:
        """A request to units, as one to the units of each class."""
        return with_arrays(order, lambda numbers: np.repeat(numbers, self._k), self._apart)

    def _apart(self, W: np.ndarray) -> np.ndarray:
        """A row of weights for each unit and class."""
        n, k = len(W), self._k
        if not self._intercept:
            return W.reshape(n * k, -1)
        return np.concatenate([W[:, :-k].reshape(n, k, -1), W[:, -k:, None]], axis=2).reshape(n * k, -1)

    def _together(self, W: np.ndarray) -> np.ndarray:
        """The inverse of `_apart`."""
        n = len(W) // self._k
        if not self._intercept:
            return W.reshape(n, -1)
        return np.hstack([W[:, :-1].reshape(n, -1), W[:, -1].reshape(n, -1)])

    def _sums(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(-1, self._k).sum(axis=1)

    def begin(self, alpha: np.ndarray | None = None) -> DualState:
        return self._problem.begin(alpha)

    def improve(self, state: DualState, order: Round) -> Improved:
        k = self._k
        found = self._problem.improve(state, replace(self._of_classes(order), target=order.target / k))
        sums: Improved = with_arrays(found, self._sums, self._together)
        return replace(sums, steps=sums.steps // k, solver=np.ascontiguousarray(found.solver[::k]))

    def dual_vectors(self, state: DualState) -> np.ndarray:
        return self._together(state.B)

    def conjugates(self, alpha: np.ndarray) -> np.ndarray:
        return self._sums(self._problem.conjugates(alpha))

    def losses_at(self, W: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        return self._sums(self._problem.losses_at(self._apart(W), alpha))

    def held_out(self, W: np.ndarray, weight: np.ndarray) -> Scores:
        """Errors of W on rows with these weights. An answer is the class with the largest score."""
        rows, whole, k = self._rows, self._rows.whole, self._k
        apart = self._apart(W)
        found = self._problem.held_out(apart, weight[rows.own])
        wrong = np.zeros(len(W))
        for i in range(whole.n_units):
            own = whole.starts[i] + np.flatnonzero(weight[whole.starts[i] : whole.starts[i + 1]] > 0)
            d = whole.X.shape[1]
            part = apart[i * k : (i + 1) * k]
            scores = whole.X[own] @ part[:, :d].T + (part[:, d] if self._intercept else 0.0)
            if whole.offset is not None:
                scores += whole.offset[own]
            scores[:, ~rows.possible[i]] = -np.inf
            wrong[i] = weight[own] @ (scores.argmax(axis=1) != whole.y[own])
        return Scores(
            weight=sum_by_unit(weight, whole.starts),
            loss=self._sums(found.loss),
            squared_error=np.zeros(len(W)),
            wrong=wrong,
        )

    def at_zero(self) -> tuple[np.ndarray, np.ndarray]:
        value, conjugate = self._problem.at_zero()
        return self._sums(value), self._sums(conjugate)

    def longest_step(self) -> np.ndarray:
        steps = np.where(self._rows.possible, self._problem.longest_step().reshape(-1, self._k), np.inf)
        return np.asarray(steps.min(axis=1))

    def intercept_step(self) -> np.ndarray | None:
        steps = self._problem.intercept_step()
        if steps is None:
            return None
        return np.asarray(np.where(self._rows.possible, steps.reshape(-1, self._k), np.inf).min(axis=1))
