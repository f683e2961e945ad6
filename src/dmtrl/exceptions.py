"""Every error and warning of dmtrl.

DmtrlError
├── CellError              a cell of a table cannot be read (also a ValueError)
├── CheckpointExistsError  a folder holds the checkpoint of another run (also a FileExistsError)
├── FederationError        a server, a site or their connection failed (also a RuntimeError)
├── InputError             wrong input that a parameter can fix (also a ValueError)
├── LossError              a loss violates its contract (also a ValueError)
├── NoCheckpointError      there is no checkpoint to resume from (also a FileNotFoundError)
├── NotAModelError         a file is not a saved model (also a ValueError)
├── OutputExistsError      an output file already exists (also a FileExistsError)
├── RefusedBySiteError     a site refused to answer the coordinator (also a RuntimeError)
├── RelationshipError      a relationship violates its contract (also a ValueError)
├── StudyError             a study file or a site's policy is wrong (also a ValueError)
├── StudyStoppedError      a study was stopped by its coordinator (also a RuntimeError)
└── WorkerLostError        a worker could not be brought back (also a RuntimeError)
DmtrlWarning
├── CheckpointWarning      a checkpoint could not be written
├── NotConvergedWarning    a fit stopped at max_rounds
├── ScaleWarning           one column of X is far larger than all others
└── TasksLeftOutWarning    tasks were left out because their worker was lost

A wrong argument or wrong data raises a plain ValueError or TypeError, as in scikit-learn, unless a caller needs to tell
it apart: then it has a class here, with typed fields. Messages are written in Python terms. The command line writes the
parameters that a message names as options.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike


class DmtrlError(Exception):
    """Base class of all errors of dmtrl."""


class DmtrlWarning(UserWarning):
    """Base class of all warnings of dmtrl."""


@dataclass(frozen=True)
class Setting:
    """A parameter that a message advises to set, with a value if the message names one."""

    name: str
    value: object = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value!r}"


class Advice:
    """A message that may name parameters, which the command line writes as options. Subclasses define `message`."""

    @abstractmethod
    def message(self, write: Callable[[Setting], str]) -> str:
        """Return the message.

        Parameters
        ----------
        write : callable
            Turns a `Setting` into text: `str` for Python, or a function that writes a command-line option.
        """

    def __str__(self) -> str:
        return self.message(str)


class _Pieces(Advice):
    """Advice whose message is `parts`, one after the other."""

    parts: tuple[str | Setting, ...]

    def message(self, write: Callable[[Setting], str]) -> str:
        return "".join(write(part) if isinstance(part, Setting) else part for part in self.parts)


class Note(_Pieces, str):
    """A remark for the user."""

    def __new__(cls, *parts: str | Setting) -> "Note":
        note = super().__new__(cls, "".join(map(str, parts)))
        note.parts = parts
        return note


class _PathError(Advice, DmtrlError):
    """Base class of errors about one file or folder, `path`."""

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__(path)
        self.path = path


class CellError(Advice, DmtrlError, ValueError):
    """A cell of a table cannot be read.

    Attributes
    ----------
    subject, problem : str
        How the message begins and ends, such as "column 'age' holds" and ", which is not a number". The end may be a
        `Note`.
    value : str
        The text of the cell.
    row : int
        Counted from 0 in the column that was read.
    where : str or None
        The position in the files, such as "line 42 of sales.csv", once it is known.
    """

    def __init__(self, subject: str, value: str, row: int, problem: str) -> None:
        super().__init__(subject, value, row, problem)
        self.subject, self.value, self.row, self.problem = subject, value, row, problem
        self.where: str | None = None

    def message(self, write: Callable[[Setting], str]) -> str:
        problem = self.problem.message(write) if isinstance(self.problem, Note) else self.problem
        return f"{self.subject} {self.value!r} ({self.where or f'row {self.row + 1}'}){problem}"


class CheckpointExistsError(_PathError, FileExistsError):
    """A run would replace the checkpoint of another one; `path` is where that checkpoint is."""

    def message(self, write: Callable[[Setting], str]) -> str:
        resume = write(Setting("resume", str(self.path)))
        return (
            f"{self.path} already holds the checkpoint of another run; continue that run with {resume}, "
            "or name another folder"
        )


class FederationError(DmtrlError, RuntimeError):
    """A server, a site or the connection between them failed."""


class InputError(_Pieces, DmtrlError, ValueError):
    """Wrong input that a parameter can fix.

    Attributes
    ----------
    parts : tuple of str and Setting
        The message in pieces.
    """

    def __init__(self, *parts: str | Setting) -> None:
        super().__init__(*parts)
        self.parts = parts


class LossError(DmtrlError, ValueError):
    """A loss violates its contract; the message lists every kind of violation."""


class NoCheckpointError(_PathError, FileNotFoundError):
    """A run cannot be resumed, because there is no complete checkpoint at `path`."""

    def message(self, write: Callable[[Setting], str]) -> str:
        problem = f"there is no complete checkpoint at {self.path}"
        return f"{problem}; check the path, or leave out {write(Setting('resume'))} to start again"


class RelationshipError(DmtrlError, ValueError):
    """A relationship violates its contract; the message lists every kind of violation."""


class NotAModelError(_PathError, ValueError):
    """A file is not a saved model; `path` is its path."""

    def message(self, write: Callable[[Setting], str]) -> str:
        return f"{self.path} is not a dmtrl model; load reads files written by save"


class OutputExistsError(_PathError, FileExistsError):
    """An output file already exists; `path` names it."""

    def message(self, write: Callable[[Setting], str]) -> str:
        return f"{self.path} already exists; choose another name, or pass {write(Setting('force', True))} to replace it"


class RefusedBySiteError(DmtrlError, RuntimeError):
    """A site refused to answer: its policy, its approval or its data do not allow it.

    Attributes
    ----------
    reason : str
        A sentence without any value of the site's data. It may leave the site.
    detail : str
        What the site's staff may see; empty if there is nothing to add.
    site : str
        The name of the site, once it is known.
    """

    def __init__(self, reason: str, detail: str = "", site: str = "") -> None:
        super().__init__(reason, detail, site)
        self.reason, self.detail, self.site = reason, detail, site

    def __str__(self) -> str:
        return f"{self.site}: {self.reason}" if self.site else self.detail or self.reason


class StudyError(DmtrlError, ValueError):
    """A study file or the policy of a site is wrong.

    Attributes
    ----------
    problem, where : str
        What is wrong, and the name of the file.
    line : int or None
        The line of the file, counted from 1.
    """

    def __init__(self, problem: str, where: str, line: int | None = None) -> None:
        super().__init__(problem, where, line)
        self.problem, self.where, self.line = problem, where, line

    def __str__(self) -> str:
        return f"{self.where}{'' if self.line is None else f', line {self.line}'}: {self.problem}"


class StudyStoppedError(DmtrlError, RuntimeError):
    """A study was stopped by its coordinator."""


class WorkerLostError(Advice, DmtrlError, RuntimeError):
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
        super().__init__(message, worker, tasks, alive, checkpoint)  # all of them, so that it can be pickled
        self.worker, self.tasks, self.alive, self.checkpoint = worker, list(tasks), alive, checkpoint

    def message(self, write: Callable[[Setting], str]) -> str:
        if not self.checkpoint:
            return str(self.args[0])
        return f"{self.args[0]}; continue from its last checkpoint with {write(Setting('resume', self.checkpoint))}"


class CheckpointWarning(DmtrlWarning):
    """A checkpoint could not be written; the run continues and the previous checkpoint is kept."""


class NotConvergedWarning(DmtrlWarning):
    """A fit stopped at max_rounds; the message says how far the answer can be from the optimum."""


class ScaleWarning(DmtrlWarning):
    """One column of X varies far more than all others, so that cross-validation chooses lambda for it alone."""


class TasksLeftOutWarning(DmtrlWarning):
    """Tasks were left out because their worker was lost.

    Attributes
    ----------
    tasks : list of int
        The numbers of these tasks.
    """

    def __init__(self, message: str, tasks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.tasks = list(tasks)
