"""The rows of a site in the problem of a study, and the errors on those that it holds out."""

from typing import Any

import numpy as np

from dmtrl.data.blocks import Blocks
from dmtrl.federation.protection.base import Bounds
from dmtrl.federation.protection.noise.moments import clip_rows
from dmtrl.federation.site.data_check import SiteTable
from dmtrl.federation.study.preparation import coordinates_from
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol import study as messages


def blocks_of(
    study: Study, site: str, data: SiteTable, begin: messages.Begin, X: np.ndarray, bounds: Bounds | None
) -> Blocks:
    """The rows of the tasks that are fitted, in the coordinates of a problem; clipped to bounds, if there are any.

    X: the features of all rows of the fit, sorted by task.
    """
    names = study.task_names(site)
    used, mine = np.flatnonzero(data.fitted), data.fitted[data.codes[data.train]]
    X, y = X[mine], data.train_y[mine]
    starts = np.concatenate([[0], np.cumsum(data.rows_per_task[used])])
    coordinates, zero = coordinates_from(begin), np.zeros(len(used), dtype=int)
    if bounds is not None and bounds.target is not None:
        y = np.clip(y, *bounds.target)
    rows, y = coordinates.rows(X), y - coordinates.y_centre
    if bounds is not None:
        rows = clip_rows(rows, bounds.row_norm)
    return Blocks(rows, y, None, starts, begin.numbers[used], zero, [names[i] for i in used])


def held_out_errors(study: Study, site: str, data: SiteTable, model: Any, minimum: int) -> messages.Finished:
    """Errors on the rows that no fit used, summed over each task that has at least `minimum` of them; else 0."""
    names = study.task_names(site)
    sums = np.zeros((4, len(names)))
    enough = np.bincount(data.codes[data.held_out], minlength=len(names)) >= minimum
    held = data.held_out & (data.usable & enough)[data.codes]
    if held.any():
        X = model.preparation_.transform(data.table.take(np.flatnonzero(held)))
        y, codes = data.y[held], data.codes[held]
        tasks = np.array(names)[codes]
        z = model.decision_function(X, tasks) if study.classification else model.predict(X, tasks)
        per_row = np.ones(len(y)), study.loss.value(z, y), (y - z) ** 2, (y * z <= 0).astype(float)
        sums = np.array([np.bincount(codes, weights=values, minlength=len(names)) for values in per_row])
    return messages.Finished(rows=sums[0], loss=sums[1], squared_error=sums[2], wrong=sums[3])
