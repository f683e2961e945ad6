"""Read the target column: decide between numbers and classes, and choose the loss.

A target that is neither raises an error that names the first bad cell.
"""

from typing import Any

import numpy as np

from dmtrl.exceptions import CellError, InputError, Note, Setting
from dmtrl.losses import BUILTIN, CLASSIFICATION, REGRESSION, Loss
from dmtrl.tables import columns as read
from dmtrl.tables import nearest
from dmtrl.tables.cells import DATE, NUMBER, TEXT, CellSummary, summarize_cells
from dmtrl.tables.learning import LARGEST, reading_notes

MAX_CLASSES = 50
FEW_VALUES = 20  # up to this many different whole numbers may be classes


def parse_loss(text: str) -> Loss:
    """A loss by name, with its parameter if it has one: huber, huber=2, quantile=0.9."""
    name, _, number = text.partition("=")
    if name not in BUILTIN:
        close = nearest(name, list(BUILTIN))
        hint = f"did you mean {close!r}?" if close else f"the losses are {', '.join(BUILTIN)}"
        raise ValueError(f"there is no loss {name!r}; {hint}")
    try:
        return BUILTIN[name](float(number)) if number else BUILTIN[name]()
    except (TypeError, ValueError) as error:
        problem = f"the {name} loss has no parameter" if isinstance(error, TypeError) else str(error)
        raise InputError(Setting("loss", text), f": {problem}") from None


def read_target(
    column: Any, name: str, untyped: bool, kind: str | None, loss_name: str | None, semicolons: bool, notes: list[str]
) -> tuple[np.ndarray, np.ndarray, Loss, CellSummary]:
    """The target, where it is missing, the loss, and the format of the cells."""
    is_text = read.is_text(column.type)
    summary = summarize_cells(column, semicolons) if is_text else CellSummary(read.kind_of(column))
    holds = TEXT if is_text and not untyped else summary.kind
    if holds not in (NUMBER, TEXT):
        raise ValueError(
            f"the target {name!r} holds {'dates' if holds == DATE else column.type}; it must hold numbers or text"
        )
    loss = None if loss_name is None else parse_loss(loss_name)
    kind = kind or (None if loss is None else loss.kind)
    if loss is not None and loss.kind != kind:
        raise InputError(f"the {loss.name} loss is for {loss.kind}, which contradicts ", Setting("kind", kind))
    if holds == TEXT and untyped and summary.mostly == NUMBER and kind != CLASSIFICATION:
        raise summary.mixed_error(name, is_target=True)
    if kind is None:
        kind = _infer_kind(column, name, summary if holds == summary.kind else CellSummary(holds), notes)
    if kind == REGRESSION:
        if holds == TEXT:
            what = f"the {loss.name} loss" if loss is not None else "regression"
            raise _not_numbers(name, column, summary, what)
        y = read.numbers(column, name, summary.decimal_comma or None)
        if loss is not None:
            check_numbers(y, column, name, loss)
        notes += reading_notes({name: summary})
        if loss is None:
            _suggest_poisson(y[~np.isnan(y)], name, notes)
        return y, np.isnan(y), loss or BUILTIN["squared"](), summary
    y, missing = read.labels(column, untyped)
    return y, missing, loss or BUILTIN["logistic"](), summary


def _not_numbers(name: str, column: Any, summary: CellSummary, what: str) -> ValueError:
    needs, classes = f", but {what} needs numbers; for classes, pass ", Setting("kind", CLASSIFICATION)
    if summary.n_bad:
        more = f" (like {summary.n_bad:,} of {summary.n_cells:,} cells)" if summary.n_bad > 1 else ""
        return summary.cell_error(f"the target {name!r} holds", Note(f", which is not a number{more}{needs}", classes))
    example = next(text for text in read.texts(column) if text is not None)  # a code such as 007, or a text column
    return InputError(f"the target {name!r} holds text such as {example!r}{needs}", classes)


def check_numbers(y: np.ndarray, column: Any, name: str, loss: Loss) -> None:
    """Raise CellError if the loss is not defined for a number of the target; NaN is missing."""
    wrong, rule = loss.invalid_labels(y)
    if wrong.any():
        row = int(np.argmax(wrong))
        problem = f", but the {loss.name} loss needs {rule}; correct it, or choose another "
        raise CellError(f"the target {name!r} holds", str(column[row]), row, Note(problem, Setting("loss")))


def read_weights(column: Any, name: str) -> np.ndarray:
    """The weights of rows, NaN if missing. Raises CellError for a negative one."""
    weight = read.numbers(column, name)
    if (weight < 0).any():
        row = int(np.argmax(weight < 0))
        problem = ", but a weight must not be negative; correct it, or choose another column"
        raise CellError(f"the column of weights {name!r} holds", str(column[row]), row, problem)
    return weight


def _infer_kind(column: Any, name: str, summary: CellSummary, notes: list[str]) -> str:
    if summary.kind == TEXT:
        notes.append(f"target {name!r} is text: classification")
        return CLASSIFICATION
    values = read.numbers(column, name, summary.decimal_comma or None)
    values = np.unique(values[~np.isnan(values)])
    if len(values) == 2:
        notes.append(f"target {name!r} has two values, {values[0]:g} and {values[1]:g}: classification")
        return CLASSIFICATION
    whole = (values == np.floor(values)).all()
    if 2 < len(values) <= FEW_VALUES and whole:
        words = f"target {name!r} has {len(values)} whole numbers, {values[0]:g} to {values[-1]:g}: regression; if "
        notes.append(Note(words, "they are classes, pass ", Setting("kind", CLASSIFICATION)))
    else:
        notes.append(f"target {name!r} has {len(values):,} different numbers: regression")
    return REGRESSION


def _suggest_poisson(y: np.ndarray, name: str, notes: list[str]) -> None:
    """A remark if the target looks like counts, most of them small."""
    if len(y) < FEW_VALUES or y.min() not in (0, 1) or y.std() == 0 or (y != np.floor(y)).any():
        return
    if ((y - y.mean()) ** 3).mean() > y.std() ** 3:  # skewness above 1
        notes.append(
            Note(
                f"target {name!r} holds counts from {y.min():g} to {y.max():g}, most of them small (median "
                f"{np.median(y):g}); the Poisson loss often suits them better: pass ",
                Setting("loss", "poisson"),
            )
        )


def check_target(y: np.ndarray, name: str, loss: Loss, summary: CellSummary) -> None:
    """Raise ValueError if nothing can be learned from the target."""
    distinct = np.unique(y)
    if len(distinct) == 1:
        raise ValueError(f"the target {name!r} has only one value, {distinct.tolist()[0]!r}; there is nothing to learn")
    if loss.kind == REGRESSION and np.abs(distinct).max() > LARGEST:
        raise ValueError(f"the target {name!r} holds numbers as large as {np.abs(distinct).max():.3g}; correct them")
    if loss.kind == CLASSIFICATION and len(distinct) > MAX_CLASSES:
        many = f"{len(distinct):,} different values, too many for classes (at most {MAX_CLASSES})"
        if 0 < summary.n_bad < summary.n_cells:  # numbers may have been meant
            cells = f"{summary.n_bad:,} of its {summary.n_cells:,} cells are not numbers"
            subject = f"the target {name!r} has {many}, and {cells}; the first is"
            raise summary.cell_error(subject, "; correct the file or choose another target")
        message = f"the target {name!r} has {many}"
        if distinct.dtype.kind == "i" or summary.kind == NUMBER:
            raise InputError(
                f"{message}; for numbers, pass ", Setting("kind", "regression"), " and no loss that is for classes"
            )
        raise ValueError(message)
