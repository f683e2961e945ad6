"""Choosing lambda and tau by cross-validation where the rows lie.

Room: beside the coordinator, above the methods. Every worker sets its own folds aside, stratified by task and
class; for each fold a path of warm-started fits runs from strong to weak regularisation, and only sums over the
held-out rows come back.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dmtrl.engines.base import Engine
from dmtrl.protocol.message import Message
from dmtrl.relationship import Relationship
from dmtrl.solver.checkpoint import Keeper
from dmtrl.solver.coordinator import Coordinator
from dmtrl.solver.layout import Layout
from dmtrl.solver.settings import Settings

MEASURES = ("loss", "squared_error", "wrong")


@dataclass(frozen=True)
class Path:
    """Held-out sums: arrays are (commons, lambdas, folds, m)."""

    lambdas: np.ndarray
    commons: np.ndarray
    weight: np.ndarray
    loss: np.ndarray
    squared_error: np.ndarray
    wrong: np.ndarray
    rounds: np.ndarray  # (commons, lambdas, folds)

    def mean(self, measure: str, over: str = "rows") -> np.ndarray:
        """(commons, lambdas): the mean over all held-out rows, or over tasks of each task's mean."""
        total, weight = getattr(self, measure).sum(axis=2), self.weight.sum(axis=2)
        if over == "rows":
            return total.sum(axis=-1) / weight.sum(axis=-1)
        seen = weight[0, 0] > 0
        return (total[..., seen] / weight[..., seen]).mean(axis=-1)

    def best(self, measure: str, over: str = "rows") -> tuple[float, float]:
        """(lambda, tau) with the least mean; ties by loss, then by the strongest lambda."""
        first, second = self.mean(measure, over), self.mean("loss", over)
        strength = -np.broadcast_to(self.lambdas, first.shape)
        order = np.lexsort((strength.ravel(), second.ravel(), np.round(first.ravel(), 12)))
        tau, lam = np.unravel_index(order[0], first.shape)
        return float(self.lambdas[lam]), float(self.commons[tau])

    def cell(self, reg_lambda: float, common: float) -> tuple[int, int]:
        """The index of a lambda and a tau of the grid, for the first two axes of the arrays."""
        found = np.argwhere((self.commons[:, None] == common) & (self.lambdas == reg_lambda))
        if not len(found):
            raise ValueError(f"lambda {reg_lambda:g} with tau {common:g} is not on the grid of the cross-validation")
        return int(found[0, 0]), int(found[0, 1])


def cross_validate(
    engine: Engine,
    m: int,
    relationship: Callable[[float, float], Relationship],
    lambdas: Sequence[float] | np.ndarray,
    commons: Sequence[float] | np.ndarray,
    folds: int,
    settings: Settings,
    step_done: Callable[[int, int], object] = lambda done, total: None,
    keeper: Keeper | None = None,
) -> Path:
    """`relationship(lambda, tau)` makes the relationship of a fit; `step_done(done, total)` hears of every finished
    fit. What the `keeper` has the scores of is not computed again, and what it was stopped in goes on.
    """
    keeper = keeper or Keeper()
    path, taus = np.sort(np.asarray(lambdas, dtype=float))[::-1], np.asarray(commons, dtype=float)
    if folds < 2:
        raise ValueError(f"cross-validation needs at least two folds, got {folds}")
    if len(path) == 0 or len(taus) == 0:
        raise ValueError("cross-validation needs at least one lambda and one tau to try")
    shape = (len(taus), len(path), folds)
    sums = {name: np.zeros((*shape, m)) for name in ("weight", *MEASURES)}
    rounds = np.zeros(shape, dtype=int)
    done, total = 0, int(np.prod(shape))
    grid = {"lambdas": path.tolist(), "commons": taus.tolist(), "folds": folds, "tasks": m, **asdict(settings)}
    keeper.begin_choosing(engine, grid)
    for fold in range(folds):
        held = {"fold": fold, "folds": folds, "seed": settings.seed}
        layout = Layout.from_descriptions(engine.broadcast(Message("hold_out", held)), m)
        for i, tau in enumerate(taus):
            for j, lam in enumerate(path):
                cell = (float(tau), float(lam), fold)
                if cell not in keeper.scores:
                    coordinator = Coordinator(engine, m, relationship(lam, tau), lam, settings, layout)
                    # the first of a path begins anew, the others where the one before ended
                    start = None if j == 0 else keeper.end
                    outcome = coordinator.run(start=start, keeper=keeper, name=f"tau={tau:g} fold={fold}")
                    answers = _score(engine, layout, outcome.W)
                    found = {name: layout.per_task(layout.gather(answers, name)) for name in sums}
                    keeper.cell_done(engine, cell, found | {"rounds": np.array(len(outcome.history))}, outcome)
                for name, values in sums.items():
                    values[i, j, fold] = keeper.scores[cell][name]
                rounds[i, j, fold] = keeper.scores[cell]["rounds"]
                done += 1
                step_done(done, total)
    if not sums["weight"].any():
        raise ValueError("every task has only one sample, so there is nothing to hold out; give lambda by hand")
    engine.broadcast(Message("hold_out", {"fold": -1, "folds": folds, "seed": settings.seed}))
    return Path(path, taus, sums["weight"], sums["loss"], sums["squared_error"], sums["wrong"], rounds)


def _score(engine: Engine, layout: Layout, W: np.ndarray) -> dict[int, Message]:
    W = W[layout.task]
    return dict(
        engine.exchange({k: Message("score", {}, {"w": layout.scatter(k, W)}) for k in range(engine.n_workers)})
    )
