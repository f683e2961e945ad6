"""From the `cv` argument to what each row does in each split.

A number of folds is drawn within each task and class. A scikit-learn splitter, or an iterable of (train, test), splits
the rows as they were passed to `fit`.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from dmtrl.data.folds import TEST, TRAIN, UNUSED, draw_splits
from dmtrl.data.labels import check_one_per_row, plain
from dmtrl.estimators.inputs import LabelledRows
from dmtrl.numerics.checks import is_whole


def given_splits(cv: Any, rows: LabelledRows, groups: Any) -> np.ndarray | None:
    """(splits, rows of X): what each row does in the splits of a splitter or an iterable; None for a number of folds.

    `rows` are as they were passed, before any is left out.
    """
    if isinstance(cv, str) or not (is_whole(cv) or hasattr(cv, "split") or isinstance(cv, Iterable)):
        raise ValueError(
            f"cv must be a number of folds, a scikit-learn splitter or an iterable of (train, test), got {cv!r}"
        )
    if is_whole(cv):
        if groups is not None:
            raise ValueError("groups is used by splitters only: pass cv=GroupKFold(...), or leave groups out")
        return None
    n = len(rows.codes)
    if groups is not None:
        check_one_per_row("groups", np.asarray(groups), n)
    pairs = cv.split(np.zeros((n, 1)), rows.y, groups) if hasattr(cv, "split") else cv
    splits = [_roles(k, pair, n) for k, pair in enumerate(pairs)]
    if not splits:
        raise ValueError("cv has no split; an iterable can be used only once, so pass a list of (train, test)")
    return np.array(splits)


def _roles(number: int, pair: Any, n: int) -> np.ndarray:
    try:
        train, test = (np.arange(n)[np.asarray(part, dtype=None if len(part) else int)] for part in pair)
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"split {number} of cv must be two arrays (train, test) of row numbers from 0 to {n - 1}: {error}"
        ) from None
    if len(train) == 0 or len(test) == 0:
        raise ValueError(f"split {number} of cv has no {'training' if len(train) == 0 else 'test'} rows")
    roles = np.full(n, UNUSED, dtype=np.int8)
    roles[train] = TRAIN
    both = test[roles[test] == TRAIN]
    if len(both):
        raise ValueError(f"split {number} of cv trains on row {both[0]} and tests it; a row can do only one of the two")
    roles[test] = TEST
    return roles


def with_splits(cv: Any, rows: LabelledRows, classes: bool, seed: int, over_all: bool = False) -> LabelledRows:
    """Checked rows with splits: those that they have, or folds that are drawn, within tasks or over all rows.

    Raises ValueError if there are more folds than rows, or if a split does not train on every task. With `over_all` a
    split may lack tasks: what all tasks share predicts them.
    """
    if rows.splits is None:
        groups = np.zeros_like(rows.codes) if over_all else rows.codes
        sizes = np.bincount(groups)
        if cv < 2:
            raise ValueError(f"cross-validation needs at least two folds, got {cv}")
        if sizes.max() < 2:
            raise ValueError("every task has only one sample, so nothing can be held out; choose lambda yourself")
        if sizes.max() < cv:
            few, name = sizes.max(), plain(rows.names[int(np.argmax(sizes))])
            where = "there are only" if len(sizes) == 1 else f"the largest task, {name!r}, has only"
            raise ValueError(f"cv={cv} is more folds than rows: {where} {few} rows; use cv={few} or less")
        labels = np.unique(rows.y, return_inverse=True)[1] if classes else None
        return replace(rows, splits=draw_splits(groups, labels, int(cv), seed))
    for k, roles in enumerate(rows.splits):
        if not (roles == TEST).any():
            raise ValueError(f"split {k} of cv has no test rows with a positive sample weight")
        if over_all:
            continue
        missing = np.setdiff1d(np.arange(len(rows.names)), rows.codes[roles == TRAIN])
        if len(missing):
            name = plain(rows.names[missing[0]])
            raise ValueError(
                f"split {k} of cv has no training rows of task {name!r}; every split must train on every task: "
                "shuffle the rows, or sort them by time instead of by task"
            )
    return rows
