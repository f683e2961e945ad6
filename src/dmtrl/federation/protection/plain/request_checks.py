"""What a site checks in the requests of the rounds before its worker sees them.

A study fixes how its fits run. A request that asks for something else is refused: with one coordinate step, or with
other row weights, the vector b of a task would be one of its rows.
"""

from typing import Any

import numpy as np

from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.study.approval_text import MOST_FOLDS
from dmtrl.federation.study.preparation import are_finite
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol.rounds import Description, HoldOut, Prepare, Round, Score
from dmtrl.solver.settings import Settings


def check_request(study: Study, held: Description, request: Any) -> None:
    """Refuse a request of the rounds that the study does not imply. held: what the worker holds now."""
    if isinstance(request, Prepare):
        _check_prepare(study, held, request)
    elif isinstance(request, Round):
        _check_round(held, request)
    elif isinstance(request, Score):
        _require(are_finite(request.w, _weights(held)), request, "w")


def check_folds(study: Study, held: Description, request: HoldOut, minimum_rows: int) -> None:
    """Refuse other folds than those of the study, and folds with too few rows: their errors would tell the rows."""
    fit = study.fit
    if (request.folds, request.seed) != (fit.folds, fit.seed) or request.fold not in range(-1, fit.folds):
        raise RefusedBySiteError("the coordinator asked to hold out other rows than the study says")
    if request.fold < 0:
        return
    if fit.folds > MOST_FOLDS:
        raise RefusedBySiteError(f"the study has {fit.folds} folds; a site allows at most {MOST_FOLDS}")
    if (held.rows // fit.folds < minimum_rows).any():
        raise RefusedBySiteError(
            f"a fold of a task would have fewer than {minimum_rows} rows at this site; use fewer folds, or give lambda"
        )


def _check_prepare(study: Study, held: Description, request: Prepare) -> None:
    settings = Settings(seed=study.fit.seed)
    for name in ("seed", "local_solver", "sampling"):
        _require(getattr(request, name) == getattr(settings, name), request, name)
    passes = request.max_passes
    _require(type(passes) is int and 1 <= passes <= settings.max_passes, request, "max_passes")
    _require(request.evaluate is False, request, "evaluate")
    _require(request.intercept is True, request, "intercept")
    _require(type(request.keep) is bool, request, "keep")
    _require(are_finite(request.density, ()) and 0 <= request.density <= 1, request, "density")
    first = request.first_step
    _require(type(first) in (int, float) and first > 0, request, "first_step")
    ridge = request.intercept_ridge
    _require(ridge is None or (are_finite(ridge, held.rows.shape) and (ridge >= 0).all()), request, "intercept_ridge")
    _require(np.array_equal(request.total_weight, held.weight), request, "total_weight")
    _require(request.task_weight is None, request, "task_weight")
    _require(are_finite(request.steps, held.rows.shape) and not request.steps.any(), request, "steps")
    _require(request.w is None or are_finite(request.w, _weights(held)), request, "w")


def _check_round(held: Description, request: Round) -> None:
    settings = Settings()
    _require(request.most is None, request, "most")
    _require(request.probe is None, request, "probe")
    _require(request.eta == settings.eta, request, "eta")
    _require(request.pace == 1, request, "pace")
    _require(request.relax in (0.0, settings.relaxation - 1.0), request, "relax")
    _require(type(request.round) is int and request.round >= 0, request, "round")
    _require(type(request.target) in (int, float) and not np.isnan(request.target), request, "target")
    _require(are_finite(request.w, _weights(held)), request, "w")
    for name in ("step", "intercept_step"):
        sizes = getattr(request, name)
        _require(are_finite(sizes, held.rows.shape) and (sizes > 0).all(), request, name)


def _weights(held: Description) -> tuple[int, int]:
    """The shape of weights: every unit has an intercept after the features."""
    return len(held.rows), held.features + 1


def _require(fits: Any, request: object, field: str) -> None:
    if not fits:
        kind = type(request).__name__.lower()
        raise RefusedBySiteError(f"the coordinator sent a message {kind!r} whose {field!r} does not fit the study")
