"""The contract of a worker's local problems, and the choice between them: one score per row, softmax, one-vs-rest."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dmtrl.data.blocks import Blocks
from dmtrl.losses import AnyLoss, OneVsRest, Softmax
from dmtrl.protocol.messages import Improved, Prepare, Round, Scores
from dmtrl.worker.local_problem import LocalProblem
from dmtrl.worker.local_rows import LocalRows
from dmtrl.worker.one_vs_rest import OneVsRestProblem, OneVsRestRows
from dmtrl.worker.rounds import DualState
from dmtrl.worker.softmax import SoftmaxProblem


class UnitProblem(Protocol):
    """The local problems (6) of one run. Arrays of weights have a row per unit, as in messages."""

    @property
    def gram(self) -> Any:
        """Factors that a later run on the same rows can use."""

    def begin(self, alpha: np.ndarray | None = None) -> DualState:
        """The state at the start of a run, from dual variables that were kept, else from zero or the weights given."""

    def improve(self, state: DualState, order: Round) -> Improved:
        """Improve the dual variables on the local problems around the weights that came."""

    def dual_vectors(self, state: DualState) -> np.ndarray:
        """b of each unit."""

    def conjugates(self, alpha: np.ndarray) -> np.ndarray:
        """The sum of p l*(-alpha) of each unit."""

    def losses_at(self, W: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """The weighted loss of each unit at W."""

    def held_out(self, W: np.ndarray, weight: np.ndarray) -> Scores:
        """Errors of W on rows with these weights."""

    def at_zero(self) -> tuple[np.ndarray, np.ndarray]:
        """The loss at zero weights and the conjugate at zero dual variables."""

    def longest_step(self) -> np.ndarray:
        """The step size beyond which a unit's local problem is too stiff."""

    def intercept_step(self) -> np.ndarray | None:
        """The step size of the intercepts, if there are any."""


def hold_rows(blocks: Blocks, losses: Sequence[AnyLoss]) -> LocalRows:
    """The rows of a worker, as its losses need them."""
    if len({(loss.outputs, isinstance(loss, Softmax)) for loss in losses}) > 1:
        raise ValueError("all tasks must have the same number of classes, and all the softmax loss or none")
    if losses and isinstance(losses[0], OneVsRest):
        return OneVsRestRows(blocks, [loss for loss in losses if isinstance(loss, OneVsRest)])
    return LocalRows(blocks, losses)


def begin_problem(rows: LocalRows, held: np.ndarray, order: Prepare, gram: Any = None) -> UnitProblem:
    """The local problems of one run. `held` marks the rows that are held out; `gram` comes from an earlier run."""
    if isinstance(rows, OneVsRestRows):
        return OneVsRestProblem(rows, held, order, gram)
    if rows.losses and isinstance(rows.losses[0], Softmax):
        return SoftmaxProblem(rows, held, order)
    return LocalProblem(rows, held, order, gram)
