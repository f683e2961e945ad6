"""What a search tries, and what it measures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dmtrl.solver.cv_results import BEST, CvResults
from dmtrl.solver.outcome import Outcome
from dmtrl.solver.problem import Problem, Strengths
from dmtrl.solver.race import FIRST_FOLDS, contenders

EXTENSION = 10.0**0.5  # between neighbours that are added to a grid
Candidate = tuple[int, int]  # the numbers of a pair (common, own) and of a lambda of the grid
Scorer = Callable[[int, Problem, Outcome], float]  # of a fold, the problem with the candidate's strengths, and the fit


@dataclass(frozen=True)
class Criterion:
    """What a search optimises on held-out rows.

    Parameters
    ----------
    measure : {"loss", "squared_error", "wrong", "score"}, default="loss"
        The error, or "score" for that of a scorer.
    over : {"rows", "tasks"}, default="rows"
        What errors are averaged over.
    rule : {"best", "one_se"}, default="best"
        How the choice follows from the means.
    race : bool, default=False
        Whether candidates that are significantly worse than the best after two folds are tried on no other fold.
    scorer : callable, default=None
        scorer(fold, problem, outcome) returns the score of a fit on the rows that its fold holds out. It is called one
        at a time and from any thread.
    """

    measure: str = "loss"
    over: str = "rows"
    rule: str = BEST
    race: bool = False
    scorer: Scorer | None = None


@dataclass(frozen=True)
class Grid:
    """The candidates of a search, all combinations of the strengths, and how they are compared.

    Parameters
    ----------
    lambdas : sequence of float
        Values of lambda to try, from strong to weak. Infinity means no deviations from a shared part.
    commons, owns : sequence of float, default=(0.0,)
        Values of common and own to try.
    folds : int, default=5
        Number of folds; if rows come with splits, the number of splits.
    criterion : Criterion, default=Criterion()
        What is optimised.
    keep_points : bool, default=True
        Whether the weights that each fold has fitted at the choice are wanted.
    stronger, weaker : int, default=0
        How many values may be added at either end, by factors of `EXTENSION`, while the best finite lambda is there.
    """

    lambdas: Sequence[float] | np.ndarray
    commons: Sequence[float] | np.ndarray = (0.0,)
    owns: Sequence[float] | np.ndarray = (0.0,)
    folds: int = 5
    criterion: Criterion = field(default_factory=Criterion)
    keep_points: bool = True
    stronger: int = 0
    weaker: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "lambdas", np.sort(np.asarray(self.lambdas, dtype=float))[::-1])
        for name in ("commons", "owns"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=float))
        if not (len(self.lambdas) and len(self.commons) and len(self.owns)):
            raise ValueError("a search needs at least one lambda, one common and one own to try")

    @property
    def most_candidates(self) -> int:
        """The number of candidates with all that may be added."""
        return len(self.candidates) + len(self.pairs[0]) * (self.stronger + self.weaker)

    def extended(self, results: CvResults) -> "tuple[Grid, list[Candidate]] | None":
        """The grid with another lambda at the end where the best finite one is, and its new candidates; None if the
        best is inside, or if enough were added."""
        finite = np.flatnonzero(np.isfinite(self.lambdas))
        if not len(finite) or not self.stronger + self.weaker:
            return None
        errors = results.errors(self.criterion.measure, self.criterion.over)
        errors = np.where(results.complete, errors, np.inf)[:, finite].min(axis=0)
        if not np.isfinite(errors).any():
            return None
        best = int(np.argmin(np.where(np.isfinite(errors), errors, np.inf)))
        strongest, weakest = float(self.lambdas[finite[0]]), float(self.lambdas[finite[-1]])
        if best == 0 and self.stronger > 0:
            new = strongest * EXTENSION
            grid = replace(self, lambdas=np.append(self.lambdas, new), stronger=self.stronger - 1)
        elif best == len(finite) - 1 and self.weaker > 0:
            new = weakest / EXTENSION
            grid = replace(self, lambdas=np.append(self.lambdas, new), weaker=self.weaker - 1)
        else:
            return None
        return grid, [candidate for candidate in grid.candidates if grid.lambdas[candidate[1]] == new]

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """The common and the own of each pair of them."""
        commons, owns = np.meshgrid(self.commons, self.owns)
        return commons.ravel(), owns.ravel()

    @cached_property
    def candidates(self) -> list[Candidate]:
        """All candidates in the order of a path: from strong to weak lambda, over the pairs (common, own) upwards and
        downwards in turn, so that each is a neighbour of the one before."""
        commons, owns = self.pairs
        turned = np.searchsorted(np.unique(owns), owns) % 2 == 1
        upwards = np.lexsort((np.where(turned, -commons, commons), owns))
        turns = (upwards if j % 2 == 0 else upwards[::-1] for j in range(len(self.lambdas)))
        return [(int(i), j) for j, turn in enumerate(turns) for i in turn]

    def strengths(self, candidate: Candidate) -> Strengths:
        """The strengths of a candidate."""
        (commons, owns), (i, j) = self.pairs, candidate
        return Strengths(float(self.lambdas[j]), float(commons[i]), float(owns[i]))

    @property
    def first_folds(self) -> int:
        """The number of folds on which all candidates are tried."""
        return min(FIRST_FOLDS, self.folds) if self.criterion.race else self.folds

    def contenders(self, results: CvResults) -> list[Candidate]:
        """The candidates that remain after the first folds."""
        criterion, (i, j) = self.criterion, np.transpose(self.candidates)
        total, weight = (getattr(results, name)[i, j, : self.first_folds] for name in (criterion.measure, "weight"))
        kept = contenders(total.sum(axis=1), weight.sum(axis=1), criterion.over)
        return [candidate for candidate, keep in zip(self.candidates, kept, strict=True) if keep]
