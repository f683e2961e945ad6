"""Cross-validation of lambda, common and own, on the workers that hold the rows.

Rows either come with their splits, or every worker holds out its own folds, stratified by task and class. Only sums
over the held-out rows come back. The fits of a split are a path: each starts where the one before ended. Paths are
independent of each other and run at the same time where the engine can share its rows between them; the results do not
depend on that.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from dmtrl import storage
from dmtrl.engines.base import Engine
from dmtrl.numerics.blas import single_threaded_blas
from dmtrl.protocol.rounds import HoldOut, Score
from dmtrl.solver.api import Placement, ProblemSpec, Strengths, solve_on, thread_count
from dmtrl.solver.checkpoint.paths import PathGroup, PathSession
from dmtrl.solver.checkpoint.session import Cell, CheckpointSession, PathEnd
from dmtrl.solver.layout import Layout
from dmtrl.solver.outcome import Callback, Outcome, RoundRecord, StartPoint
from dmtrl.solver.path_threads import Turns, in_threads
from dmtrl.solver.race import FIRST_FOLDS, Race

MEASURES = ("loss", "squared_error", "wrong")  # errors: sums over held-out rows
SCORE = "score"  # of a scorer, one number for all held-out rows of a split, greater is better
BEST, ONE_SE = RULES = ("best", "one_se")
Candidate = tuple[int, int]  # the numbers of a pair (common, own) and of a lambda of the grid
Scorer = Callable[[int, Strengths, Outcome], float]  # of a fold, its strengths and the fit
_PATHS_PER_THREAD = 2  # up to here all paths of a stage share the threads evenly; each needs memory for its weights


@dataclass(frozen=True)
class Path:
    """Held-out sums: arrays are (commons, lambdas, folds, m). They are zero for fits that a race left out. The first
    axis is for pairs: commons[i] was tried with owns[i]."""

    lambdas: np.ndarray
    commons: np.ndarray
    owns: np.ndarray
    weight: np.ndarray
    loss: np.ndarray
    squared_error: np.ndarray
    wrong: np.ndarray
    rounds: np.ndarray  # (commons, lambdas, folds); zero for fits that were left out
    score: np.ndarray  # (commons, lambdas, folds): of a scorer; NaN without one

    @property
    def complete(self) -> np.ndarray:
        """(commons, lambdas): whether a candidate was tried on all folds."""
        return np.asarray((self.rounds > 0).all(axis=2))

    @property
    def scored(self) -> np.ndarray:
        """(folds,): whether the score of every candidate is finite. AUC, for example, needs rows of both classes."""
        return np.asarray(np.isfinite(self.score[self.complete]).all(axis=0))

    def mean(self, measure: str, over: str = "rows") -> np.ndarray:
        """(commons, lambdas): the mean over held-out rows, or over tasks of each task's mean; of scores, over folds.

        For a candidate that is not `complete` it is the mean over the folds on which it was tried. Scores count on the
        folds where those of all candidates are finite; the mean is NaN if there is none.
        """
        if measure == SCORE:
            scored = self.scored
            return np.asarray(np.where(scored, self.score, 0.0).sum(axis=2) / (scored.sum() or np.nan))
        return _mean(getattr(self, measure).sum(axis=2), self.weight.sum(axis=2), over)

    def standard_error(self, measure: str, over: str = "rows") -> np.ndarray:
        """(commons, lambdas): of the mean, from the variation between folds; zero for a single fold."""
        if measure == SCORE:
            folds = np.where(self.scored, self.score, np.nan)
        else:
            with np.errstate(invalid="ignore"):
                folds = _mean(getattr(self, measure), self.weight, over)  # NaN where a fold holds nothing out
        count = np.isfinite(folds).sum(axis=2)
        centred = folds - np.nansum(folds, axis=2, keepdims=True) / np.maximum(count, 1)[..., None]
        return np.asarray(np.sqrt(np.nansum(centred**2, axis=2) / np.maximum(count * (count - 1), 1)))

    def best(self, measure: str, over: str = "rows", rule: str = BEST) -> Strengths:
        """The candidate with the least mean error, or the greatest score, of those tried on all folds.

        Ties are broken by the loss, then by the strongest lambda. The rule "one_se" takes the strongest lambda whose
        mean is within one standard error of the best, at the same common and own.
        """
        first, second = self.mean(measure, over), self.mean("loss", over)
        if measure == SCORE:
            first = -first
        if not np.isfinite(first[self.complete]).any():
            one = "no fold" if measure == SCORE else "no candidate"
            raise ValueError(f"{one} has a finite {measure.replace('_', ' ')} on the held-out rows")
        strength = -np.broadcast_to(self.lambdas, first.shape)
        order = np.lexsort((strength.ravel(), second.ravel(), np.round(first.ravel(), 12), ~self.complete.ravel()))
        pair, lam = np.unravel_index(order[0], first.shape)
        if rule == ONE_SE:
            limit = first[pair, lam] + self.standard_error(measure, over)[pair, lam]
            lam = np.flatnonzero(self.complete[pair] & (first[pair] <= limit))[0]  # the strongest comes first
        return Strengths(float(self.lambdas[lam]), float(self.commons[pair]), float(self.owns[pair]))

    def cell(self, reg_lambda: float, common: float, own: float = 0.0) -> tuple[int, int]:
        """The index of a candidate of the grid, for the first two axes of the arrays."""
        pair = (self.commons == common) & (self.owns == own)
        found = np.argwhere(pair[:, None] & (self.lambdas == reg_lambda))
        if not len(found):
            raise ValueError(
                f"lambda {reg_lambda:g} with common {common:g} and own {own:g} is not on the grid of the "
                "cross-validation"
            )
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
    race: Race | None = None,
    scorer: Scorer | None = None,
    owns: Sequence[float] | np.ndarray | None = None,
) -> Path:
    """Held-out errors of every lambda, common and own, on an engine whose workers hold the tasks.

    `on_round` is called with the record of every round, `on_fit(done, total)` after every fit, one call at a time and
    from any thread; either may raise KeyboardInterrupt, and then new results are written to the session's checkpoint
    first. Fits that the session has finished are not repeated. With a `race`, candidates that are significantly worse
    than the best after two folds are not tried on the others, and `total` becomes smaller. `scorer(fold,
    strengths, outcome)` returns the score of a fit with these strengths on the rows that its fold holds out; it is
    called one at a time and from any thread. Without `owns`, that of the problem is used.
    """
    path = np.sort(np.asarray(lambdas, dtype=float))[::-1]
    kappas = np.asarray([spec.own] if owns is None else owns, dtype=float)
    taus, kappas = (pairs.ravel() for pairs in np.meshgrid(np.asarray(commons, dtype=float), kappas))
    if folds < 2 and _splits(spec) is None:
        raise ValueError(f"cross-validation needs at least two folds, got {folds}")
    if len(path) == 0 or len(taus) == 0:
        raise ValueError("cross-validation needs at least one lambda, one common and one own to try")
    search = _Search(engine, spec, path, taus, kappas, folds, session or CheckpointSession(), on_round, on_fit, scorer)
    search.session.resume_cross_validation(search.grid() | {"race": None if race is None else asdict(race)})
    everything = search.in_order()
    first = folds if race is None else min(FIRST_FOLDS, folds)
    with single_threaded_blas():  # also between the runs of the paths, which would set and reset it in turn
        search.run(range(first), everything, after=folds - first)
        if race is not None and first < folds:
            tried, (pairs, lams) = search.result(), np.transpose(everything)
            sums = (getattr(tried, name)[pairs, lams, :first].sum(axis=1) for name in (race.measure, "weight"))
            kept = race.contenders(*sums)
            search.run(range(first, folds), [cell for cell, keep in zip(everything, kept, strict=True) if keep])
    result = search.result()
    if not result.weight.any():
        raise ValueError("every task has only one sample, so nothing can be held out; choose lambda yourself")
    engine.broadcast(HoldOut(fold=-1, folds=folds, seed=spec.settings.seed))
    return result


def fit_folds(
    engine: Engine,
    spec: ProblemSpec,
    strengths: Strengths,
    folds: int,
    receive: Callable[[int, Outcome], None],
) -> None:
    """Fit one candidate on the training rows of each fold.

    `receive(fold, outcome)` is called one at a time and from any thread. Every fit starts from zero, so the results do
    not depend on what the engine did before.
    """
    lam, common, own = strengths
    spec = replace(spec, own=own)
    search = _Search(engine, spec, np.array([lam]), np.array([common]), np.array([own]), folds, CheckpointSession())

    def follow(group: PathGroup, fold: int, engine: Engine) -> None:
        layout = search.hold_out(engine, fold)
        outcome = solve_on(engine, spec, lam, common, CheckpointSession(), layout=layout)
        with search.one_at_a_time:
            receive(fold, outcome)

    with single_threaded_blas():
        search.in_paths(range(folds), follow)
    engine.broadcast(HoldOut(fold=-1, folds=folds, seed=spec.settings.seed))


def _splits(spec: ProblemSpec) -> np.ndarray | None:
    """The splits that come with the rows."""
    return getattr(spec.data, "splits", None)


def _mean(total: np.ndarray, weight: np.ndarray, over: str) -> np.ndarray:
    """The mean over rows, or over tasks of each task's mean; the last axis of both arguments is tasks."""
    if over == "rows":
        return np.asarray(total.sum(axis=-1) / weight.sum(axis=-1))
    by_task = np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)
    return np.asarray(by_task.sum(axis=-1) / (weight > 0).sum(axis=-1))


def for_paths(place: Placement, folds: int, race: Race | None = None) -> Placement:
    """The placement of a cross-validation. Threads of this process share the folds, not the tasks, as far as there are
    folds enough."""
    if place.engine != "local" or place.workers is not None:
        return place
    at_once = folds if race is None else min(FIRST_FOLDS, folds)
    return replace(place, workers=max(1, thread_count(place.n_jobs) // at_once))


@dataclass
class _Search:
    """The fits of a cross-validation."""

    engine: Engine
    spec: ProblemSpec
    lambdas: np.ndarray  # strongest first
    taus: np.ndarray
    kappas: np.ndarray  # of the same length: candidates are pairs
    folds: int
    session: CheckpointSession
    on_round: Callback | None = None
    on_fit: Callable[[int, int], object] = lambda done, total: None
    scorer: Scorer | None = None
    done: int = 0
    total: int = 0
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)  # for callbacks

    def grid(self) -> dict[str, object]:
        """What a checkpoint must agree on."""
        settings, splits = asdict(self.spec.settings), _splits(self.spec)
        return {
            "lambdas": self.lambdas.tolist(),
            "commons": self.taus.tolist(),
            "owns": self.kappas.tolist(),
            "folds": self.folds,
            "the digest of the splits": None if splits is None else storage.digest(np.ascontiguousarray(splits))[:16],
            "a scorer": self.scorer is not None,
            "tasks": self.spec.m,
            "task_weight": np.asarray(self.spec.task_weight).tolist(),
            **settings,
        }

    def in_order(self) -> list[Candidate]:
        """All candidates in the order of a path: from strong to weak lambda, over the pairs (common, own) upwards and
        downwards in turn, so that each is a neighbour of the one before."""
        turned = np.searchsorted(np.unique(self.kappas), self.kappas) % 2 == 1
        upwards = np.lexsort((np.where(turned, -self.taus, self.taus), self.kappas))
        turns = (upwards if j % 2 == 0 else upwards[::-1] for j in range(len(self.lambdas)))
        return [(int(i), j) for j, turn in enumerate(turns) for i in turn]

    def run(self, folds: Sequence[int], candidates: list[Candidate], after: int = 0) -> None:
        """The paths of some folds; `after` more folds may follow."""
        self.total = self.done + len(candidates) * (len(folds) + after)
        self.in_paths(folds, lambda group, fold, engine: self._follow(group, fold, engine, candidates))

    def in_paths(self, folds: Sequence[int], work: Callable[[PathGroup, int, Engine], None]) -> None:
        """Do some work for each fold, at the same time where the engine allows it."""
        threads = self.engine.paths
        inner = max(1, threads // len(folds))
        group = PathGroup(self.session, Turns(max(1, threads // inner)))

        def follow(fold: int) -> None:
            sibling = self.engine.sibling(fold, inner)
            with group.turns, nullcontext(self.engine) if sibling is None else sibling as engine:
                work(group, fold, engine)

        if threads == 1:
            for fold in folds:
                follow(fold)
        else:
            at_once = len(folds) if len(folds) <= _PATHS_PER_THREAD * threads else threads
            in_threads(follow, folds, at_once, group.stop)

    def _follow(self, group: PathGroup, fold: int, engine: Engine, candidates: Iterable[Candidate]) -> None:
        """One path."""
        layout = self.hold_out(engine, fold)
        path = group.enter(fold, engine)
        fits = self.session.fits
        for i, j in candidates:
            cell = self._cell(i, j, fold)
            if cell in fits.scores:
                interrupt = self._count_fit()
                if interrupt is not None:
                    raise interrupt
                continue
            outcome = self._fit(path, engine, layout, cell, fits.ends.get(fold))
            W = outcome.W[layout.task]
            answers = dict(engine.exchange({k: Score(w=layout.scatter(k, W)) for k in range(engine.n_workers)}))
            scores = {name: layout.per_task(layout.gather(answers, name)) for name in ("weight", *MEASURES)}
            scores["rounds"] = np.array(len(outcome.history))
            scores[SCORE] = np.array(self._score(cell, outcome))
            end = PathEnd(StartPoint(outcome.W, outcome.common), outcome.history[-1].step)
            interrupt = self._count_fit()
            path.fit_done(cell, scores, end, interrupt is not None)
            if interrupt is not None:
                raise interrupt
            with group.turns.given_away():
                pass
        group.leave(fold)

    def hold_out(self, engine: Engine, fold: int) -> Layout:
        """Tell the workers which rows train."""
        held = engine.broadcast(HoldOut(fold=fold, folds=self.folds, seed=self.spec.settings.seed))
        return Layout.from_descriptions(held, self.spec.m)

    def _score(self, cell: Cell, outcome: Outcome) -> float:
        if self.scorer is None:
            return float("nan")
        tau, kappa, lam, fold = cell
        with self.one_at_a_time:
            return float(self.scorer(fold, Strengths(lam, tau, kappa), outcome))

    def _fit(self, path: PathSession, engine: Engine, layout: Layout, cell: Cell, before: PathEnd | None) -> Outcome:
        tau, kappa, lam, fold = cell
        spec = replace(self.spec, own=kappa)
        if before is not None and spec.settings.initial_step is None and np.isfinite(before.step):
            spec = replace(spec, settings=replace(spec.settings, initial_step=before.step))
        return solve_on(
            engine,
            spec,
            lam,
            tau,
            path,
            name=f"common={tau:g} own={kappa:g} lambda={lam:g} fold={fold}",
            start=None if before is None else before.point,
            callbacks=[] if self.on_round is None else [self._call_on_round],
            layout=layout,
        )

    def _cell(self, pair: int, lam: int, fold: int) -> Cell:
        return float(self.taus[pair]), float(self.kappas[pair]), float(self.lambdas[lam]), fold

    def _call_on_round(self, record: RoundRecord) -> None:
        assert self.on_round is not None
        with self.one_at_a_time:
            self.on_round(record)

    def _count_fit(self) -> KeyboardInterrupt | None:
        with self.one_at_a_time:
            self.done += 1
            try:
                self.on_fit(self.done, self.total)
            except KeyboardInterrupt as interrupt:
                return interrupt
        return None

    def result(self) -> Path:
        """The held-out sums of all fits so far."""
        shape = (len(self.taus), len(self.lambdas), self.folds)
        sums = {name: np.zeros((*shape, self.spec.m)) for name in ("weight", *MEASURES)}
        rounds, score = np.zeros(shape, dtype=int), np.full(shape, np.nan)
        for i, j, fold in np.ndindex(shape):
            scores = self.session.fits.scores.get(self._cell(i, j, fold))
            if scores is not None:
                rounds[i, j, fold], score[i, j, fold] = scores["rounds"], scores[SCORE]
                for name, values in sums.items():
                    values[i, j, fold] = scores[name]
        return Path(self.lambdas, self.taus, self.kappas, **sums, rounds=rounds, score=score)
