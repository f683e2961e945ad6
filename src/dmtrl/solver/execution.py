"""`Execution`: everything that decides where and how a problem is solved. `Problem` (problem.py) says what it is."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dmtrl.engines import choose_engine, is_running
from dmtrl.engines.base import Engine
from dmtrl.exceptions import WorkerLostError
from dmtrl.solver.checkpoint.options import Checkpoint, PathLike
from dmtrl.solver.checkpoint.session import CheckpointSession, open_session
from dmtrl.solver.outcome import Callback, Watch
from dmtrl.solver.settings import Settings


@dataclass(frozen=True)
class Execution:
    """Where and how a problem is solved.

    Parameters
    ----------
    engine : {"local", "ray"}, LocalOptions, RayOptions or Engine, default="local"
        Where workers run. An Engine already holds the tasks; it is not closed.
    settings : Settings, default=Settings()
        Settings of the algorithm.
    checkpoint : str, path or Checkpoint, default=None
        Folder or fsspec URL to write checkpoints to. A Checkpoint also sets how often.
    resume : str, path or bool, default=None
        A checkpoint to resume from; True means the one at `checkpoint`, if it exists. The result is bitwise equal to
        that of an uninterrupted run, unless the work depends on time (max_staleness).
    callbacks : sequence of callable, default=()
        Functions that are called with the RoundRecord of each round. One that raises KeyboardInterrupt stops the run;
        the checkpoint is written first. In a search, the methods `on_cv_round(record)` and `on_cv_fit(done, total)` of
        a callback are called instead, if it has them.
    watch : callable, default=None
        Called with the RoundRecord and the weights of each round, which a later round may write over: copy what you
        keep.
    verbose : int, default=0
        1 shows a progress line on a terminal, 2 prints a line per round.
    keep_all_tasks : bool, default=False
        With on_lost="go_on": start again with all tasks, not without those of the lost worker.
    warn : bool, default=True
        Whether a run that ends at max_rounds emits a NotConvergedWarning.
    """

    engine: Any = "local"
    settings: Settings = field(default_factory=Settings)
    checkpoint: PathLike | Checkpoint | CheckpointSession | None = None
    resume: PathLike | bool | None = None
    callbacks: Sequence[Callback] = ()
    watch: Watch | None = None
    verbose: int = 0
    keep_all_tasks: bool = False
    warn: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "engine", choose_engine(self.engine))

    @property
    def is_running(self) -> bool:
        """Whether the engine runs already."""
        return is_running(self.engine)

    @property
    def running_engine(self) -> Engine:
        """The engine, which must be running."""
        assert self.is_running, "the engine was not started"
        engine: Engine = self.engine
        return engine

    @property
    def session(self) -> CheckpointSession:
        """The checkpoint session, which must have been opened."""
        assert isinstance(self.checkpoint, CheckpointSession), "the checkpoint session was not opened"
        return self.checkpoint

    def opened(self) -> "Execution":
        """Return the same execution with an open checkpoint session."""
        return replace(self, checkpoint=open_session(self.checkpoint, self.resume), resume=None)

    def only(self, tasks: np.ndarray) -> "Execution":
        """Return the same execution for some of the tasks.

        Parameters
        ----------
        tasks : ndarray of int
            Task numbers.
        """
        steps, shards = self.settings.steps, self.engine.shards
        changed = self
        if isinstance(steps, tuple):
            changed = replace(changed, settings=replace(self.settings, steps=tuple(steps[i] for i in tasks)))
        if np.ndim(shards) > 0:
            changed = replace(changed, engine=replace(self.engine, shards=np.asarray(shards)[tasks].tolist()))
        return changed

    def after_loss(self, lost: WorkerLostError, keep_fits: bool) -> "Execution":
        """Return the execution that starts again on the workers that are left.

        Parameters
        ----------
        lost : WorkerLostError
            The loss.
        keep_fits : bool
            Whether the tasks are the same, so that finished fits of a search are not repeated.
        """
        engine = replace(self.engine, workers=max(lost.alive, 1))
        return replace(self, engine=engine, checkpoint=self.session.start_again(keep_fits))
