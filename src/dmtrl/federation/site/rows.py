"""The rows of a site in the problem of a study, their worker, and the errors on those that it holds out."""

import json
from typing import Any

import numpy as np

from dmtrl.data.blocks import Blocks
from dmtrl.data.coordinates import Coordinates
from dmtrl.federation.protection.noise.moments import clip_rows
from dmtrl.federation.site.data_check import SiteTable
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol import study as messages
from dmtrl.protocol.codec import decode, encode
from dmtrl.protocol.rounds import Prepare
from dmtrl.solver.settings import Settings
from dmtrl.worker.worker import Worker


def coordinates_of(begin: messages.Begin) -> Coordinates:
    """The coordinates of a problem."""
    try:
        return Coordinates(x_centre=begin.x_centre, **json.loads(begin.coordinates))
    except (ValueError, TypeError) as error:
        raise ValueError(f"the coordinator sent coordinates that this dmtrl cannot read: {error}") from None


def blocks_of(study: Study, site: str, data: SiteTable, begin: messages.Begin, X: np.ndarray) -> Blocks:
    """The rows of the tasks that are fitted, in the coordinates of a problem; clipped if the study is private.

    X: the features of all rows of the fit, sorted by task.
    """
    names = study.task_names(site)
    used, mine = np.flatnonzero(data.fitted), data.fitted[data.codes[data.train]]
    X, y = X[mine], data.train_y[mine]
    starts = np.concatenate([[0], np.cumsum(data.rows_per_task[used])])
    coordinates, zero = coordinates_of(begin), np.zeros(len(used), dtype=int)
    if study.privacy.private and study.target.range is not None:
        y = np.clip(y, *study.target.range)
    rows, y = coordinates.rows(X), y - coordinates.y_centre
    if study.privacy.private:
        rows = clip_rows(rows, study.privacy.row_norm)
    return Blocks(rows, y, None, starts, begin.numbers[used], zero, [names[i] for i in used])


def first_request(blocks: Blocks, settings: Settings, ridge: float, first_step: float = np.inf) -> Prepare:
    """What begins a run of a worker with these rows, from dual variables zero. ridge: on the intercepts."""
    return Prepare(
        seed=settings.seed,
        local_solver=settings.local_solver,
        sampling=settings.sampling,
        max_passes=settings.max_passes,
        keep=False,
        density=1.0,
        first_step=first_step,
        intercept=True,
        intercept_ridge=np.full(blocks.n_units, ridge),
        total_weight=np.diff(blocks.starts).astype(float),
        steps=np.zeros(blocks.n_units, dtype=np.int64),
    )


def ask_worker(worker: Worker, request: Any) -> Any:
    """The answer of a worker in this process, as a dataclass."""
    return decode(worker.answer(encode(request)))


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
