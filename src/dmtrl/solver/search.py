"""`search`: cross-validation of lambda, common and own, on the workers that hold the rows.

Rows either come with their splits, or every worker holds out its own folds, stratified by task and class. Only sums
over the held-out rows come back. The fits of a fold are a path: each starts where the one before ended. Paths are
independent of each other and run at the same time where the engine can share its rows between them; the results do not
depend on that.

The weights that a fold has fitted are kept until another candidate is chosen, so that nothing is fitted twice. If those
of all candidates would take more than `KEPT_BYTES`, none are kept, and the folds are fitted again at the choice, from
zero. This depends on the sizes of the problem and of the grid only. Weights that are kept are part of a checkpoint.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from dmtrl import storage
from dmtrl.engines import LocalOptions, thread_count
from dmtrl.engines.base import Engine
from dmtrl.numerics.blas import single_threaded_blas
from dmtrl.progress import bar
from dmtrl.protocol.rounds import HoldOut, Score, UseShared
from dmtrl.solver.api import on_engine, solve_on
from dmtrl.solver.checkpoint.paths import PathGroup, PathSession
from dmtrl.solver.checkpoint.session import CheckpointSession, FitKey, PathEnd
from dmtrl.solver.cv_results import MEASURES, SCORE, CvResults
from dmtrl.solver.deviations import shared_part, stripped
from dmtrl.solver.execution import Execution
from dmtrl.solver.grid import Candidate, Grid
from dmtrl.solver.layout import Layout
from dmtrl.solver.outcome import Outcome, RoundRecord, StartPoint
from dmtrl.solver.path_threads import Turns, in_threads
from dmtrl.solver.problem import Problem, Strengths
from dmtrl.solver.race import FIRST_FOLDS
from dmtrl.solver.shared_fit import SharedFit, fit_shared

KEPT_BYTES = 1 << 27  # of the weights of all candidates and folds
_PATHS_PER_THREAD = 2  # up to here all paths of a stage share the threads evenly; each needs memory for its weights


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes
    ----------
    results : CvResults
        The held-out sums of all candidates.
    choice : Strengths
        The candidate that was chosen.
    points : list of StartPoint
        The weights that each fold has fitted at the choice; empty unless the grid asks for them.
    shared : SharedFit or None
        The shared part of all rows, if the problem has one.
    fold_shared : list of SharedFit or None
        The shared part of each fold; one per entry of `points`.
    """

    results: CvResults
    choice: Strengths
    points: list[StartPoint]
    shared: SharedFit | None = None
    fold_shared: list[SharedFit | None] = field(default_factory=list)


def search(problem: Problem, grid: Grid, execution: Execution | None = None) -> SearchResult:
    """Choose the strengths of a problem by cross-validation.

    Callbacks of the execution that have methods `on_cv_round(record)` and `on_cv_fit(done, total)` are called after
    every round and fit, one at a time and from any thread. Either may raise KeyboardInterrupt; then new results are
    written to the checkpoint first. Fits that the checkpoint has finished are not repeated.

    Parameters
    ----------
    problem : Problem
        The problem. Of its strengths only `level` is used, and its start is not. A shared part is fitted for each
        fold, with the strengths of all rows unless the loss is squared.
    grid : Grid
        What is tried, and how candidates are compared.
    execution : Execution, default=None
        Where and how. None means Execution().

    Returns
    -------
    SearchResult
        Held-out errors, the choice, and the weights of its folds.
    """
    if grid.folds < 2 and problem.splits is None:
        raise ValueError(f"cross-validation needs at least two folds, got {grid.folds}")
    return on_engine(problem, execution or Execution(), lambda problem, execution: _search(problem, grid, execution))


def for_search(execution: Execution, folds: int, race: bool) -> Execution:
    """The execution of a search and of the fit after it. Threads of this process share the folds, not the tasks, as far
    as there are folds enough."""
    options = execution.engine
    if not isinstance(options, LocalOptions) or options.workers is not None:
        return execution
    at_once = min(FIRST_FOLDS, folds) if race else folds
    return replace(execution, engine=replace(options, workers=max(1, thread_count(options.n_jobs) // at_once)))


def _search(problem: Problem, grid: Grid, execution: Execution) -> SearchResult:
    engine = execution.running_engine
    shared = shared_part(engine, problem)
    paths, fits, total = _Paths(problem, grid, execution, shared), execution.session.fits, len(grid.candidates)
    total *= grid.folds
    execution.session.resume_search(_identity(problem, grid, execution))
    # BLAS: also between the runs of the paths, which would set and reset it in turn
    with bar(execution.verbose, "choosing lambda, common and own", total) as step, single_threaded_blas():
        paths.show_fit = step
        first = grid.first_folds
        paths.run(range(first), grid.candidates, after=grid.folds - first)
        if first < grid.folds:
            remaining = grid.contenders(_results(problem, grid, execution.session))
            fits.keep_points({grid.strengths(candidate) for candidate in remaining})
            paths.run(range(first, grid.folds), remaining)
        results = _results(problem, grid, execution.session)
        while (more := grid.extended(results)) is not None:
            grid, candidates = more
            paths.grid = grid
            paths.run(range(grid.folds), candidates)
            results = _results(problem, grid, execution.session)
        fits.ends.clear()
        if not results.weight.any():
            raise ValueError("every task has only one sample, so nothing can be held out; choose lambda yourself")
        criterion = grid.criterion
        choice = results.best(criterion.measure, criterion.over, criterion.rule)
        fits.keep_points({choice})
        points = paths.points_of(choice) if grid.keep_points else []
        chosen = replace(choice, level=problem.strengths.level)
    engine.broadcast(HoldOut(fold=-1, folds=grid.folds, seed=execution.settings.seed))
    if shared is None:
        return SearchResult(results, chosen, points, None, [None] * len(points))
    engine.broadcast(UseShared())
    return SearchResult(results, chosen, points, shared, [paths.fold_shared[fold] for fold in range(len(points))])


def _identity(problem: Problem, grid: Grid, execution: Execution) -> dict[str, object]:
    """What a checkpoint must agree on."""
    (commons, owns), splits, criterion = grid.pairs, problem.splits, grid.criterion
    return {
        "lambdas": np.asarray(grid.lambdas).tolist(),
        "commons": commons.tolist(),
        "owns": owns.tolist(),
        "folds": grid.folds,
        "splits_digest": None if splits is None else storage.digest(np.ascontiguousarray(splits))[:16],
        "has_scorer": criterion.scorer is not None,
        "race": [criterion.measure, criterion.over] if criterion.race else None,
        "keep_points": grid.keep_points,
        "may_grow": [grid.stronger, grid.weaker],
        "shared": problem.shared is not None,
        "level": problem.strengths.level,
        "tasks": problem.m,
        "task_weight": np.asarray(problem.task_weight).tolist(),
        **asdict(execution.settings),
    }


def _results(problem: Problem, grid: Grid, session: CheckpointSession) -> CvResults:
    """The held-out sums of all fits so far."""
    commons, owns = grid.pairs
    shape = (len(commons), len(grid.lambdas), grid.folds)
    sums = {name: np.zeros((*shape, problem.m)) for name in ("weight", *MEASURES)}
    rounds, score = np.zeros(shape, dtype=int), np.full(shape, np.nan)
    for i, j in np.ndindex(shape[:2]):
        strengths = grid.strengths((i, j))
        for fold in range(grid.folds):
            scores = session.fits.scores.get(FitKey(strengths, fold))
            if scores is not None:
                rounds[i, j, fold], score[i, j, fold] = scores["rounds"], scores[SCORE]
                for name, values in sums.items():
                    values[i, j, fold] = scores[name]
    return CvResults(np.asarray(grid.lambdas), commons, owns, **sums, rounds=rounds, score=score)


@dataclass
class _Paths:
    """The paths of a search. `done` and `total` count fits; the lock is for callbacks."""

    problem: Problem
    grid: Grid
    execution: Execution
    shared: SharedFit | None = None  # of all rows
    fold_shared: dict[int, SharedFit] = field(default_factory=dict)
    show_fit: Callable[..., None] = lambda total=None: None
    done: int = 0
    total: int = 0
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def run(self, folds: Sequence[int], candidates: list[Candidate], after: int = 0) -> None:
        """The paths of some folds; `after` more folds may follow."""
        self.total = self.done + len(candidates) * (len(folds) + after)
        remaining = [fold for fold in folds if not self._pass_over(fold, candidates)]
        if remaining:
            self._in_parallel(remaining, lambda group, fold, engine: self._follow(group, fold, engine, candidates))

    def _pass_over(self, fold: int, candidates: list[Candidate]) -> bool:
        """Whether the checkpoint has all these fits of a fold. A path that it left after the last of them does not
        continue; one that it left in candidates that were added later does."""
        fits = self.execution.session.fits
        mine = [key for key in fits.scores if key.fold == fold]
        wanted = [FitKey(self.grid.strengths(candidate), fold) for candidate in candidates]
        if not all(key in fits.scores for key in wanted):
            return False
        tried = {self.grid.strengths(candidate) for candidate in self.grid.candidates}
        if all(key.strengths in tried for key in mine):
            self.execution.session.pass_over_path(fold)
        for _ in wanted:
            interrupt = self._count_fit()
            if interrupt is not None:
                raise interrupt
        return True

    def points_of(self, choice: Strengths) -> list[StartPoint]:
        """The weights of each fold at the choice. Those that were not kept are fitted again, from zero."""
        points, folds = self.execution.session.fits.points, range(self.grid.folds)

        def fit(group: PathGroup, fold: int, engine: Engine) -> None:
            layout = self._hold_out(engine, fold)
            if FitKey(choice, fold) in points:
                return
            problem, shared = replace(self.problem, strengths=choice), self.fold_shared.get(fold)
            session, settings = CheckpointSession(), self.execution.settings
            outcome = solve_on(engine, problem, settings, session, shared=shared, layout=layout)
            points[FitKey(choice, fold)] = StartPoint(outcome.W, outcome.common)

        unshared = self.shared is not None  # after a checkpoint, a fold may be finished without its shared part
        missing = [
            fold for fold in folds if FitKey(choice, fold) not in points or (unshared and fold not in self.fold_shared)
        ]
        if missing:
            self._in_parallel(missing, fit)
        return [points[FitKey(choice, fold)] for fold in folds]

    def _in_parallel(self, folds: Sequence[int], work: Callable[[PathGroup, int, Engine], None]) -> None:
        """Do some work for each fold, at the same time where the engine allows it."""
        engine = self.execution.running_engine
        threads = engine.paths
        inner = max(1, threads // len(folds))
        group = PathGroup(self.execution.session, Turns(max(1, threads // inner)))

        def follow(fold: int) -> None:
            sibling = engine.sibling(fold, inner)
            with group.turns, nullcontext(engine) if sibling is None else sibling as own:
                work(group, fold, own)

        if threads == 1:
            for fold in folds:
                follow(fold)
        else:
            at_once = len(folds) if len(folds) <= _PATHS_PER_THREAD * threads else threads
            in_threads(follow, folds, at_once, group.stop)

    def _follow(self, group: PathGroup, fold: int, engine: Engine, candidates: list[Candidate]) -> None:
        """One path."""
        layout = self._hold_out(engine, fold)
        path, fits = group.enter(fold, engine), self.execution.session.fits
        for candidate in candidates:
            key = FitKey(self.grid.strengths(candidate), fold)
            if key in fits.scores:
                interrupt = self._count_fit()
            else:
                problem = replace(self.problem, strengths=key.strengths)
                outcome = self._fit(path, engine, problem, layout, fold, fits.ends.get(fold))
                scores = self._scores(engine, layout, outcome)
                scores[SCORE] = np.array(self._score(fold, problem, outcome))
                end = PathEnd(StartPoint(outcome.W, outcome.common), outcome.history[-1].step)
                interrupt = self._count_fit()
                path.fit_done(key, scores, end, self._keeps(outcome.W), interrupt is not None)
            if interrupt is not None:
                raise interrupt
            with group.turns.given_away():
                pass
        group.leave(fold, for_good=self.grid.stronger + self.grid.weaker == 0)

    def _hold_out(self, engine: Engine, fold: int) -> Layout:
        """Tell the workers which rows train, and what all tasks share there."""
        request = HoldOut(fold=fold, folds=self.grid.folds, seed=self.execution.settings.seed)
        layout = Layout.from_descriptions(engine.broadcast(request), self.problem.m, may_lack_rows=True)
        if self.shared is not None:
            if fold not in self.fold_shared:
                self.fold_shared[fold] = self._shared_of_fold(engine, layout)
            engine.broadcast(UseShared(shared=self.fold_shared[fold].weights))
        return layout

    def _shared_of_fold(self, engine: Engine, layout: Layout) -> SharedFit:
        """One exchange suffices for the squared loss to estimate the strengths again; other losses keep them."""
        assert self.shared is not None
        if isinstance(self.problem.shared, SharedFit):
            return self.shared
        losses, level, ridge = self.problem.losses, self.problem.strengths.level, None
        every = losses if isinstance(losses, list) else [losses]
        if any(loss.name != "squared" for loss in every):
            level, ridge = self.shared.level, self.shared.ridge
        return fit_shared(engine, self.problem.m, losses, level=level, ridge=ridge, layout=layout)

    def _fit(
        self,
        path: PathSession,
        engine: Engine,
        problem: Problem,
        layout: Layout,
        fold: int,
        before: PathEnd | None,
    ) -> Outcome:
        strengths, settings = problem.strengths, self.execution.settings
        if before is not None and settings.initial_step is None and np.isfinite(before.step):
            settings = replace(settings, initial_step=before.step)
        return solve_on(
            engine,
            problem,
            settings,
            path,
            name=f"common={strengths.common:g} own={strengths.own:g} lambda={strengths.reg_lambda:g} fold={fold}",
            shared=self.fold_shared.get(fold),
            start=None if before is None or np.isinf(strengths.reg_lambda) else before.point,
            callbacks=[self._round_done] if self._hooks("on_cv_round") else [],
            layout=layout,
        )

    @staticmethod
    def _scores(engine: Engine, layout: Layout, outcome: Outcome) -> dict[str, np.ndarray]:
        """The held-out sums of a fit."""
        point = StartPoint(outcome.W, outcome.common)
        W = (point if outcome.shared is None else stripped(point, outcome.shared)).W[layout.task]
        answers = dict(engine.exchange({k: Score(w=layout.scatter(k, W)) for k in range(engine.n_workers)}))
        scores = {name: layout.per_task(layout.gather(answers, name)) for name in ("weight", *MEASURES)}
        return scores | {"rounds": np.array(len(outcome.history))}

    def _score(self, fold: int, problem: Problem, outcome: Outcome) -> float:
        scorer = self.grid.criterion.scorer
        if scorer is None:
            return float("nan")
        with self.one_at_a_time:
            return float(scorer(fold, problem, outcome))

    def _keeps(self, W: np.ndarray) -> bool:
        """Whether the weights of the fits are kept."""
        grid = self.grid
        return grid.keep_points and W.nbytes * grid.most_candidates * grid.folds <= KEPT_BYTES

    def _hooks(self, name: str) -> list[Callable[..., object]]:
        return [getattr(callback, name) for callback in self.execution.callbacks if hasattr(callback, name)]

    def _round_done(self, record: RoundRecord) -> None:
        with self.one_at_a_time:
            for callback in self._hooks("on_cv_round"):
                callback(record)

    def _count_fit(self) -> KeyboardInterrupt | None:
        with self.one_at_a_time:
            self.done += 1
            self.show_fit(self.total)
            try:
                for callback in self._hooks("on_cv_fit"):
                    callback(self.done, self.total)
            except KeyboardInterrupt as interrupt:
                return interrupt
        return None
