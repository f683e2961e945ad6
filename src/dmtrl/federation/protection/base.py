"""The contract of a protection: in which form the numbers of sites reach the coordinator of a study.

A `Protection` belongs to one study. It has a half at the coordinator, which turns what the sites send into a fitted
model, and a half at each site, which answers the requests of that half and no others. The rest of `federation/` is the
same for all of them: approval, ledger, policy, `Hello`, `Begin` and `Finish`.

To add one: declare its messages in `protocol/study.py`, let the table [privacy] of a study choose it
(`study/privacy_terms.py`, `protection/choice.py`), implement the three classes below, and run
`protection/conformance.py: check_protection`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from dmtrl.data.blocks import Blocks
from dmtrl.data.coordinates import Coordinates
from dmtrl.engines.base import Engine
from dmtrl.federation.study.approval_text import Leaving
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol.study import Begin, Released
from dmtrl.solver.checkpoint import CheckpointSession
from dmtrl.solver.outcome import Outcome
from dmtrl.solver.problem import Problem
from dmtrl.tables.preparation import Preparation

# What the coordinator and a site offer to a protection


class Asking(Protocol):
    """Asks sites, which are numbered in the order of `names`. A site that is lost meanwhile is asked again."""

    names: Sequence[str]

    @property
    def n_workers(self) -> int: ...

    def ask_all(self, request: Any) -> list[Any]:
        """The answers of all sites to one request, in order."""
        ...

    def ask(self, requests: Mapping[int, Any]) -> dict[int, Any]:
        """The answers to a request for each site."""
        ...


class Report(Protocol):
    """Tells the user where the study stands; see `StudyEvent`."""

    def __call__(
        self, stage: str, done: float = 0.0, detail: str = "", *, round: int | None = None, gap: float | None = None
    ) -> None: ...


@dataclass(frozen=True)
class CoordinatorSide:
    """What the coordinator offers. engine: over the workers of some sites, for rounds as `solve` has them, with the
    names of the tasks that are fitted; session: the checkpoints of such rounds."""

    sites: Asking
    report: Report
    engine: Callable[[Sequence[int], Sequence[str]], AbstractContextManager[Engine]]
    session: CheckpointSession


@dataclass(frozen=True)
class Bounds:
    """To which the rows of a site are clipped: the norm of a row of features, and the range of the target."""

    row_norm: float
    target: tuple[float, float] | None


class PrivacyBudget(Protocol):
    """What a site may spend on studies that add noise, and what it has released. Use it under the lock of the site."""

    def check(self, study: str, mu: float) -> None: ...

    def charge(self, study: str, name: str, epsilon: float, delta: float, mu: float) -> None: ...

    def stored(self, study: str, number: int) -> Released | None: ...

    def store(self, study: str, released: Released) -> None: ...

    def has_failed(self, study: str) -> bool: ...

    def store_failure(self, study: str) -> None: ...

    def describe(self) -> str: ...

    def describe_after(self, study: str, mu: float) -> str: ...


class SiteSide(Protocol):
    """What a site offers: its rows in the prepared problem, its folder, its budget.

    epsilon: the largest that it grants a study; minimum_held_out: rows over which errors may be summed.
    """

    @property
    def folder(self) -> Path: ...

    @property
    def study(self) -> Study: ...

    @property
    def epsilon(self) -> float: ...

    @property
    def minimum_held_out(self) -> int: ...

    @property
    def budget(self) -> PrivacyBudget: ...

    def locked(self) -> AbstractContextManager[Any]:
        """Hold the lock of the site: other processes of the same site wait."""
        ...

    def rows(self) -> int:
        """The number of rows of the fit."""
        ...

    def statistics(self, request: Any) -> Any:
        """The exact answer of this site to a request for statistics (`CountCells`, ..., `MeasureNorms`)."""
        ...

    def coordinates(self) -> Coordinates:
        """Those of the prepared problem."""
        ...

    def blocks(self, bounds: Bounds | None = None, begin: Begin | None = None) -> Blocks:
        """The rows of the prepared problem, or of the problem `begin` that was checked but not stored yet."""
        ...


@dataclass(frozen=True)
class Allowance:
    """What a site allows a study: how many runs that differ, and how many rounds. tasks: of the site."""

    tasks: int
    runs: int
    rounds: int


# What a protection must provide


@dataclass(frozen=True)
class PreparedProblem:
    """How columns become features, the coordinates, and the mean squared norm of a row in them."""

    preparation: Preparation
    coordinates: Coordinates
    mean_square: float


class CoordinatorHalf(ABC):
    """The coordinator's half, for one attempt with the sites that are present.

    Obligations:

    - It asks the sites only what the site's half answers.
    - It may be made again at any time with the same sites, after a restart: the sites then answer as before.
    - It depends on the numbers that the sites send and not on when they arrive.
    """

    @abstractmethod
    def prepare(self, rows: int) -> PreparedProblem:
        """The prepared problem. rows: of all tasks, as the sites told it in `Welcome`."""

    @abstractmethod
    def fit(self, model: Any, problem: Problem, owner: np.ndarray) -> Outcome:
        """Fit the model, which has the outcome afterwards. owner: the site of each task."""


class SiteHalf(ABC):
    """A site's half, for one study. `handlers`: the requests that it answers, besides `Hello`, `Begin` and `Finish`.

    Obligations:

    - What a handler returns is all that leaves. It is listed in `Protection.what_leaves`, and never holds rows, labels
      or dual variables.
    - The same request gets the same bytes, also from a half that was made anew in the folder of the site: state that
      an answer depends on is on the disk before the answer is returned.
    - It refuses (`RefusedBySiteError`) any request that the study does not imply, before it computes anything.
    - Handlers that change files hold `SiteSide.locked`.
    """

    handlers: Mapping[type, Callable[[Any], Any]]

    @abstractmethod
    def withheld(self, request: str) -> str:
        """Why a request that it has no handler for is refused."""

    def admit(self) -> None:
        """Refuse the study before anything leaves, for example because the budget is spent."""
        return

    def told_rows(self, rows: np.ndarray) -> np.ndarray:
        """What the coordinator learns about the numbers of rows of the tasks; 0 still means: does not take part."""
        return rows

    def open(self, begin: Begin) -> None:
        """Get ready for a problem that was checked, before it is stored in place of the one before."""
        return

    def own_weights(self) -> np.ndarray | None:
        """The final weights of the fitted tasks of this site if nobody else knows them; None: `Finish` brings them."""
        return None


class Protection(ABC):
    """A protection of one study.

    noisy: whether everything that leaves about rows has noise with a guarantee; tells_classes: whether the coordinator
    learns which tasks have one class only; tells_findings: whether it learns why a file does not fit the study;
    tells_errors: whether it learns the errors on held-out rows.
    """

    name: ClassVar[str]
    noisy: ClassVar[bool] = False
    tells_classes: ClassVar[bool] = False
    tells_findings: ClassVar[bool] = True
    tells_errors: ClassVar[bool] = False

    def __init__(self, study: Study):
        self.study = study

    @abstractmethod
    def guarantee(self, epsilon: float = math.inf) -> str:
        """The guarantee for the rows of a site in one sentence, which also says what is not protected. epsilon: the
        largest that a site grants."""

    @abstractmethod
    def what_leaves(self, allowance: Allowance) -> list[Leaving]:
        """Everything that can leave a site. A site sends neither more numbers nor more often than this."""

    @abstractmethod
    def approval_lines(self, epsilon: float, budget: PrivacyBudget) -> list[str]:
        """Sentences about the protection for the staff of a site. epsilon: the largest that it grants a study."""

    def check_problem(self, begin: Begin) -> None:
        """Refuse a prepared problem, at a site, that the protection does not allow. It fits the study already."""
        return

    @abstractmethod
    def coordinator(self, side: CoordinatorSide) -> CoordinatorHalf: ...

    @abstractmethod
    def site(self, side: SiteSide) -> SiteHalf: ...


def begun_leaves(runs: int) -> Leaving:
    """What leaves in answer to `Begin`, with every protection."""
    return Leaving("begun", "the numbers of features and tasks; a digest of the request", 2, runs)


def no_errors_leave(tasks: int, runs: int) -> Leaving:
    """What leaves in answer to `Finish`, with a protection that does not tell errors."""
    return Leaving("finished", "zeros: errors stay here", 4 * tasks, runs)
