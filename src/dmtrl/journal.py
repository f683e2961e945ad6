"""What a fit has established so far: written while it runs, and read when it goes on after an interruption.

Room: the ground. Plain arrays and numbers; who keeps them in a file, and where, is decided above (checkpoint.py). A
journal tells its listeners of every score and round, which is also how progress is shown.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

Cell = tuple[float, float, int]  # tau, lambda, fold


@dataclass
class Journal:
    """scores: the held-out sums of each finished cross-validation fit, by task. end: the weights and their common part
    of the last of them, where its path goes on. weights: what the fit on all rows has reached, with the strengths
    lambda and tau."""

    scores: dict[Cell, dict[str, np.ndarray]] = field(default_factory=dict)
    last: Cell | None = None
    end: tuple[np.ndarray, np.ndarray] | None = None
    weights: np.ndarray | None = None
    strengths: tuple[float, float] | None = None
    on_score: Callable[[int, int], object] = lambda done, total: None
    on_round: Callable[[Any], object] = lambda record: None

    def keep(self, cell: Cell, sums: dict[str, np.ndarray], outcome: Any) -> None:
        self.scores[cell] = {name: np.array(values) for name, values in sums.items()}
        self.last, self.end = cell, (outcome.W, outcome.common)

    def end_of_path(self, before: Cell) -> Any:
        """A start for what comes after a cell, as far as the coordinator asks of one; None where it is not known."""
        if self.end is None or self.last != before:
            return None
        return SimpleNamespace(W=self.end[0], common=self.end[1])

    def begin(self, lam: float, tau: float) -> Any:
        """Note the strengths of the fit on all rows; where it stopped before, if that was with the same ones."""
        if self.strengths != (lam, tau):
            self.strengths, self.weights = (lam, tau), None
        if self.weights is None:
            return None
        # any common part may be a start; the mean is near the best one
        common = self.weights.mean(axis=0) if tau > 0 else np.zeros(self.weights.shape[1])
        return SimpleNamespace(W=self.weights, common=common)

    def watch(self, record: Any, W: np.ndarray) -> None:
        self.weights = W
        self.on_round(record)


@contextmanager
def journaled(model: Any, journal: Journal) -> Iterator[None]:
    """While this lasts, a fit of the estimator writes into the journal and does not repeat what stands there."""
    model._journal = journal
    try:
        yield
    finally:
        del model._journal
