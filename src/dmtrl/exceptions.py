"""Every error and warning of dmtrl.

DmtrlError
├── LossError              a loss violates its contract (also a ValueError)
├── RelationshipError      a relationship violates its contract (also a ValueError)
└── WorkerLostError        a worker could not be brought back (also a RuntimeError)
DmtrlWarning
├── CheckpointWarning      a checkpoint could not be written
├── NotConvergedWarning    a fit stopped at max_rounds
└── TasksLeftOutWarning    tasks were left out because their worker was lost

A wrong argument or wrong data raises a plain ValueError or TypeError, as in scikit-learn, unless a caller needs to tell
it apart: then it has a class here, with typed fields. Messages are written in Python terms; the shell builds its own
from the fields.
"""

from collections.abc import Sequence


class DmtrlError(Exception):
    """Base class of all errors of dmtrl."""


class DmtrlWarning(UserWarning):
    """Base class of all warnings of dmtrl."""


class LossError(DmtrlError, ValueError):
    """A loss violates its contract; the message lists every kind of violation."""


class RelationshipError(DmtrlError, ValueError):
    """A relationship violates its contract; the message lists every kind of violation."""


class WorkerLostError(DmtrlError, RuntimeError):
    """A worker could not be brought back, or keeps sending invalid answers.

    Attributes
    ----------
    worker : int
    tasks : list of int
        The numbers of its tasks, as far as it reported them.
    alive : int
        How many other workers were available.
    checkpoint : str or None
        The checkpoint version from which the run can be resumed.
    """

    def __init__(
        self, message: str, worker: int, tasks: Sequence[int], alive: int = 0, checkpoint: str | None = None
    ) -> None:
        super().__init__(message)
        self.worker, self.tasks, self.alive, self.checkpoint = worker, list(tasks), alive, checkpoint

    def __str__(self) -> str:
        resume = f"; resume from its last checkpoint with resume={self.checkpoint!r}" if self.checkpoint else ""
        return super().__str__() + resume


class CheckpointWarning(DmtrlWarning):
    """A checkpoint could not be written; the run continues and the previous checkpoint is kept."""


class NotConvergedWarning(DmtrlWarning):
    """A fit stopped at max_rounds; the message says how far the answer can be from the optimum."""


class TasksLeftOutWarning(DmtrlWarning):
    """Tasks were left out because their worker was lost; `tasks` holds their numbers."""

    def __init__(self, message: str, tasks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.tasks = list(tasks)
