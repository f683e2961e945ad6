"""Checkpoints of a cross-validation whose paths run at the same time.

A version holds every path in progress, at the end of a round or of a fit. When one is due, each path waits there until
the others have arrived, and the last one writes it.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmtrl.engines.base import Engine
from dmtrl.protocol.rounds import Restore
from dmtrl.solver.checkpoint.session import CheckpointSession, FitKey, PathEnd, RunInProgress, require_same_run
from dmtrl.solver.checkpoint.versions import Arrays, Version
from dmtrl.solver.outcome import StartPoint
from dmtrl.solver.path_threads import PathStopped, Turns


class PathGroup:
    """The paths that are in progress. `turns`: of the threads that run them; a path that waits gives its turn away."""

    def __init__(self, session: CheckpointSession, turns: Turns):
        self.session, self.turns = session, turns
        self._changed = threading.Condition()
        self._engines: dict[int, Engine] = {}
        self._waiting: dict[int, tuple[RunInProgress, Arrays]] = {}
        self._save_wanted = self._stopped = False

    def enter(self, fold: int, engine: Engine) -> "PathSession":
        """A path begins, or continues where a checkpoint left it."""
        with self._changed:
            self._engines[fold] = engine
            self.session.not_entered.discard(fold)
        path = PathSession(self, fold)
        resumed = self.session.take_resumed_path(fold)
        if resumed is not None and resumed.header["run"] is None:  # it was saved between two fits
            engine.broadcast(Restore(source=resumed.folder))
        elif resumed is not None:
            path.resumed = resumed
        return path

    def leave(self, fold: int, for_good: bool = True) -> None:
        """A path is finished, or with `for_good` false waits for more candidates, which start where it ended."""
        with self._changed:
            del self._engines[fold]
            if for_good:
                self.session.fits.ends.pop(fold, None)
            self._save_if_all_wait()

    def stop(self) -> None:
        """Ends every path at the end of its round."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def pause(self, fold: int, path: RunInProgress, stopping: bool) -> None:
        """At the end of a round or fit: take part in a checkpoint if one is due, or if the computation is stopping."""
        writer = self.session.writer
        with self._changed:
            if self._stopped:
                raise PathStopped
            # a version without the paths that are still to continue would lose them: the one before stays until then
            if writer is None or self.session.not_entered:
                return
            self._save_wanted |= stopping or writer.is_due()
            if not self._save_wanted:
                return
            self._waiting[fold] = path, path.state()
            self._save_if_all_wait()
            if fold not in self._waiting:
                return
        with self.turns.given_away(), self._changed:
            self._changed.wait_for(lambda: self._stopped or fold not in self._waiting)
            if fold in self._waiting:
                raise PathStopped

    def count_round(self) -> None:
        if self.session.writer is not None:
            with self._changed:
                self.session.writer.count_round()

    def keep(self, key: FitKey, scores: dict[str, np.ndarray], end: PathEnd, keep_point: bool) -> None:
        with self._changed:
            fits = self.session.fits
            fits.scores[key], fits.ends[key.fold] = scores, end
            if keep_point:  # a copy, because the next fit of the path may write over the weights
                fits.points[key] = StartPoint(end.point.W.copy(), end.point.common.copy())

    def _save_if_all_wait(self) -> None:
        if self._save_wanted and self._engines and self._waiting.keys() == self._engines.keys():
            self.session.save_paths(self._engines, self._waiting)
            self._save_wanted = False
            self._waiting.clear()
            self._changed.notify_all()


@dataclass
class PathSession:
    """The session of one path, through all its fits."""

    group: PathGroup
    fold: int
    resumed: Version | None = None  # until a fit continues from it

    @property
    def active(self) -> bool:
        return self.group.session.active

    def resume_run(self, name: str, problem: Mapping[str, Any]) -> Version | None:
        """The version from which the fit of this name continues; None: it starts at its beginning."""
        resumed, self.resumed = self.resumed, None
        if resumed is not None:
            require_same_run(resumed, name, problem)
        return resumed

    def round_done(self, engine: Engine, run: RunInProgress, over: bool, stopping: bool) -> None:
        """After every round."""
        self.group.count_round()
        if stopping or not over:  # else fit_done comes next
            self.group.pause(self.fold, run, stopping)

    def fit_done(
        self, key: FitKey, scores: dict[str, np.ndarray], end: PathEnd, keep_point: bool, stopping: bool
    ) -> None:
        """After every finished fit. `keep_point`: its weights may be those of the choice."""
        self.group.keep(key, scores, end, keep_point)
        self.group.pause(self.fold, RunInProgress(), stopping)


RunSession = CheckpointSession | PathSession  # what a coordinator gets as its session
