"""What a search measured on held-out rows, and the rule by which it chooses."""

from dataclasses import dataclass

import numpy as np

from dmtrl.solver.problem import Strengths

MEASURES = ("loss", "squared_error", "wrong")  # errors: sums over held-out rows
SCORE = "score"  # of a scorer, one number for all held-out rows of a split, greater is better
BEST, ONE_SE = RULES = ("best", "one_se")


class NoScoreError(ValueError):
    """The scorer is not defined on the held-out rows of any fold."""


@dataclass(frozen=True)
class CvResults:
    """Held-out sums of a search: arrays are (pairs, lambdas, folds, m). They are zero for fits that a race left out. A
    pair is a common with an own: commons[i] was tried with owns[i]."""

    lambdas: np.ndarray
    commons: np.ndarray
    owns: np.ndarray
    weight: np.ndarray
    loss: np.ndarray
    squared_error: np.ndarray
    wrong: np.ndarray
    rounds: np.ndarray  # (pairs, lambdas, folds); zero for fits that were left out
    score: np.ndarray  # (pairs, lambdas, folds): of a scorer; NaN without one

    @property
    def complete(self) -> np.ndarray:
        """(pairs, lambdas): whether a candidate was tried on all folds."""
        return np.asarray((self.rounds > 0).all(axis=2))

    @property
    def scored(self) -> np.ndarray:
        """(folds,): whether the score of every candidate is finite. AUC, for example, needs rows of both classes."""
        return np.asarray(np.isfinite(self.score[self.complete]).all(axis=0))

    def mean(self, measure: str, over: str = "rows") -> np.ndarray:
        """(pairs, lambdas): the mean over held-out rows, or over tasks of each task's mean; of scores, over folds.

        For a candidate that is not `complete` it is the mean over the folds on which it was tried. Scores count on the
        folds where those of all candidates are finite; the mean is NaN if there is none.
        """
        if measure == SCORE:
            scored = self.scored
            return np.asarray(np.where(scored, self.score, 0.0).sum(axis=2) / (scored.sum() or np.nan))
        return _mean(getattr(self, measure).sum(axis=2), self.weight.sum(axis=2), over)

    def errors(self, measure: str, over: str = "rows") -> np.ndarray:
        """(pairs, lambdas): the mean error, or the score with the other sign."""
        mean = self.mean(measure, over)
        return -mean if measure == SCORE else mean

    def standard_error(self, measure: str, over: str = "rows") -> np.ndarray:
        """(pairs, lambdas): of the mean, from the variation between folds; zero for a single fold."""
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
        first, second = self.errors(measure, over), self.mean("loss", over)
        if not np.isfinite(first[self.complete]).any():
            one, kind = ("no fold", NoScoreError) if measure == SCORE else ("no candidate", ValueError)
            raise kind(f"{one} has a finite {measure.replace('_', ' ')} on the held-out rows")
        strength = -np.broadcast_to(self.lambdas, first.shape)
        order = np.lexsort((strength.ravel(), second.ravel(), np.round(first.ravel(), 12), ~self.complete.ravel()))
        pair, lam = np.unravel_index(order[0], first.shape)
        if rule == ONE_SE:
            limit = first[pair, lam] + self.standard_error(measure, over)[pair, lam]
            lam = np.flatnonzero(self.complete[pair] & (first[pair] <= limit))[0]  # the strongest comes first
        return Strengths(float(self.lambdas[lam]), float(self.commons[pair]), float(self.owns[pair]))

    def index_of(self, strengths: Strengths) -> tuple[int, int]:
        """The index of a candidate, for the first two axes of the arrays."""
        pair = (self.commons == strengths.common) & (self.owns == strengths.own)
        found = np.argwhere(pair[:, None] & (self.lambdas == strengths.reg_lambda))
        if not len(found):
            raise ValueError(
                f"lambda {strengths.reg_lambda:g} with common {strengths.common:g} and own {strengths.own:g} is not on "
                "the grid of the cross-validation"
            )
        return int(found[0, 0]), int(found[0, 1])


def _mean(total: np.ndarray, weight: np.ndarray, over: str) -> np.ndarray:
    """The mean over rows, or over tasks of each task's mean; the last axis of both arguments is tasks."""
    if over == "rows":
        return np.asarray(total.sum(axis=-1) / weight.sum(axis=-1))
    by_task = np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)
    return np.asarray(by_task.sum(axis=-1) / (weight > 0).sum(axis=-1))
