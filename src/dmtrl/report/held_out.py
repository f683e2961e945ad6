"""Report room: how well a model predicts, in figures and in words.

The error was measured on held-out rows while lambda was chosen, or by a comparison; nothing is fitted here. Beside it
stands what a guess that looks at no feature would cost, where the answers are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dmtrl.estimators.diagnostics import Comparison
from dmtrl.losses.builtin import CLASSIFICATION, get_loss
from dmtrl.report.displays import MEASURES

SHARE = MEASURES["wrong"]


@dataclass(frozen=True)
class HeldOut:
    """`error` is the mean of `measure` (in words) over all held-out `over`: rows, or tasks that count alike. `guess`:
    what the same mean would be without any feature, None where it is not known. chosen: whether these very rows chose
    lambda and tau."""

    measure: str
    error: float
    over: str
    chosen: bool
    guess: float | None = None

    @property
    def guess_in_words(self) -> str:
        """What the guess predicts."""
        return "each task's most frequent class" if self.measure == SHARE else "each task's mean"

    def shown(self, value: float) -> str:
        return in_measure(value, self.measure)


def in_measure(value: float, measure: str) -> str:
    """An error as it is read: shares in percent with two digits after the point, all else in four digits."""
    if measure == SHARE:
        return f"{value:.2%}".replace("%", " %")
    text = f"{value:.4g}"
    return text if "e" in text else text.replace("-", "−")


def held_out(
    model: Any, comparison: Comparison | None, X: Any = None, y: Any = None, tasks: Any = None
) -> HeldOut | None:
    """What cross-validation measured at the chosen lambda and tau, or else the comparison; None without either."""
    path = getattr(model, "cv_path_", None)
    if path is not None:
        common, strength = path.commons == model.common_strength_, path.lambdas == model.reg_lambda_
        if common.any() and strength.any():
            error = path.mean(model.scoring_)[int(common.argmax()), int(strength.argmax())]
            measure = _in_words(model.scoring_)
            return HeldOut(measure, float(error), "rows", True, _guess(model, measure, "rows", X, y, tasks))
    if comparison is None:
        return None
    measure = _in_words(comparison.measure)
    error = float(np.nanmean(comparison.together))
    return HeldOut(measure, error, "tasks", False, _guess(model, measure, "tasks", X, y, tasks))


def _in_words(measure: str) -> str:
    return MEASURES.get(measure, measure.replace("_", " "))


def _guess(model: Any, measure: str, over: str, X: Any, y: Any, tasks: Any) -> float | None:
    """The error of predicting each task's mean or most frequent class; None for a measure that has no such guess."""
    classes = get_loss(model.loss).kind == CLASSIFICATION
    if X is None or measure != (SHARE if classes else "squared error"):
        return None
    table = model.read_rows(X, y, tasks)
    errors = guess_of_classes(table.y, table.codes) if classes else guess_of_amounts(table.y, table.codes)
    if over == "rows":
        return float(errors.mean())
    counts = np.bincount(table.codes)
    sums = np.bincount(table.codes, weights=errors)
    return float((sums[counts > 0] / counts[counts > 0]).mean())


def guess_of_amounts(y: Any, codes: np.ndarray) -> np.ndarray:
    """For each row the squared distance to the mean of the **other** rows of its task: a row that is predicted is not
    one that is known. The only row of a task is predicted by the mean of all other rows."""
    y = np.asarray(y, dtype=float)
    counts, sums = np.bincount(codes)[codes], np.bincount(codes, weights=y)[codes]
    everybody = (y.sum() - y) / max(len(y) - 1, 1)
    mean = np.divide(sums - y, counts - 1, out=everybody, where=counts > 1)
    return np.asarray((y - mean) ** 2)


def guess_of_classes(y: Any, codes: np.ndarray) -> np.ndarray:
    """For each row, whether it is not of the class that is most frequent in its task. That class is counted with the
    row itself: without it, a task of two equally frequent classes would always be guessed wrong."""
    _, labels = np.unique(np.asarray(y), return_inverse=True)
    width = int(labels.max()) + 1
    pairs, counts = np.unique(codes * width + labels, return_counts=True)
    most = np.zeros(int(codes.max()) + 1, dtype=int)
    for k in np.argsort(counts, kind="stable"):
        most[pairs[k] // width] = pairs[k] % width
    return np.asarray(labels != most[codes], dtype=float)


def headline(found: HeldOut | None) -> str:
    """One sentence for the top of the page; empty where nothing was held out."""
    if found is None:
        return ""
    guess = "" if found.guess is None else f"; predicting {found.guess_in_words}: {found.shown(found.guess)}"
    return f"Held-out {found.measure}: {found.shown(found.error)} (mean over {found.over}{guess})."


def paragraph(found: HeldOut) -> str:
    """How well the model predicts, and what that is measured against."""
    over = "all rows" if found.over == "rows" else "tasks, each of which counts the same"
    text = (
        f"**How well it predicts.** On rows that were held out, the {found.measure} is "
        f"**{found.shown(found.error)}** (mean over {over}). "
    )
    if found.guess is not None:
        text += f"Predicting {found.guess_in_words} instead, without any feature, has {found.shown(found.guess)}. "
        if found.error >= found.guess:
            text += "**The model predicts no better than that.** "
        elif found.guess > 0:
            text += f"The model's error is {1 - found.error / found.guess:.0%} lower. ".replace("%", " %")
    if found.chosen:
        text += "Lambda and tau were chosen by these very rows, so the error on new ones may be a little larger."
    return text.strip()
