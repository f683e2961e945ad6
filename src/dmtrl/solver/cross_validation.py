"""Cross-validation of lambda and tau, with the rows where they are.

Every worker holds out its own folds, stratified by task and class. For each fold and tau a path of warm-started fits
runs from strong to weak regularisation, and only sums over the held-out rows come back.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dmtrl.engines.base import Engine
from dmtrl.protocol.messages import HoldOut, Score, Scores
from dmtrl.solver.api import ProblemSpec, solve_on
from dmtrl.solver.checkpoint.session import CheckpointSession
from dmtrl.solver.layout import Layout
from dmtrl.solver.outcome import Callback, StartPoint

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
    spec: ProblemSpec,
    lambdas: Sequence[float] | np.ndarray,
    commons: Sequence[float] | np.ndarray,
    folds: int,
    session: CheckpointSession | None = None,
    on_round: Callback | None = None,
    on_fit: Callable[[int, int], object] = lambda done, total: None,
) -> Path:
    """Held-out errors of every lambda and tau, on an engine whose workers hold the tasks.

    `on_round` is called with the record of every round, `on_fit(done, total)` after every fit; either may raise
    KeyboardInterrupt, and then new results are written to the session's checkpoint first. Fits that the session has
    finished are not repeated.
    """
    session = session or CheckpointSession()
    path, taus = np.sort(np.asarray(lambdas, dtype=float))[::-1], np.asarray(commons, dtype=float)
    if folds < 2:
        raise ValueError(f"cross-validation needs at least two folds, got {folds}")
    if len(path) == 0 or len(taus) == 0:
        raise ValueError("cross-validation needs at least one lambda and one tau to try")
    m, settings, callbacks = spec.m, spec.settings, [] if on_round is None else [on_round]
    shape = (len(taus), len(path), folds)
    sums = {name: np.zeros((*shape, m)) for name in ("weight", *MEASURES)}
    rounds = np.zeros(shape, dtype=int)
    done, total = 0, int(np.prod(shape))
    grid = {"lambdas": path.tolist(), "commons": taus.tolist(), "folds": folds, "tasks": m, **asdict(settings)}
    session.resume_cross_validation(engine, grid)
    for fold in range(folds):
        held = engine.broadcast(HoldOut(fold=fold, folds=folds, seed=settings.seed))
        layout = Layout.from_descriptions(held, m)
        for i, tau in enumerate(taus):
            for j, lam in enumerate(path):
                cell = (float(tau), float(lam), fold)
                done += 1
                if cell not in session.fits.scores:
                    # the first fit of a path starts from zero, the others where the one before ended
                    start = None if j == 0 else session.fits.end
                    name = f"tau={tau:g} fold={fold}"
                    outcome = solve_on(
                        engine, spec, lam, tau, session, name=name, start=start, callbacks=callbacks, layout=layout
                    )
                    answers = _score(engine, layout, outcome.W)
                    scores = {name: layout.per_task(layout.gather(answers, name)) for name in sums}
                    scores["rounds"] = np.array(len(outcome.history))
                    end = StartPoint(outcome.W, outcome.common)
                    interrupt = _interrupted(on_fit, done, total)
                    session.fit_done(engine, cell, scores, end, interrupt is not None)
                    if interrupt is not None:
                        raise interrupt
                else:
                    on_fit(done, total)
                for name, values in sums.items():
                    values[i, j, fold] = session.fits.scores[cell][name]
                rounds[i, j, fold] = session.fits.scores[cell]["rounds"]
    if not sums["weight"].any():
        raise ValueError("every task has only one sample, so nothing can be held out; choose lambda yourself")
    engine.broadcast(HoldOut(fold=-1, folds=folds, seed=settings.seed))
    return Path(path, taus, sums["weight"], sums["loss"], sums["squared_error"], sums["wrong"], rounds)


def _interrupted(on_fit: Callable[[int, int], object], done: int, total: int) -> KeyboardInterrupt | None:
    try:
        on_fit(done, total)
    except KeyboardInterrupt as interrupt:
        return interrupt
    return None


def _score(engine: Engine, layout: Layout, W: np.ndarray) -> dict[int, Scores]:
    W = W[layout.task]
    return dict(engine.exchange({k: Score(w=layout.scatter(k, W)) for k in range(engine.n_workers)}))
