"""Features and coordinates of a study with noise: what its file declares, nothing from the rows."""

import numpy as np

from dmtrl.data.coordinates import Coordinates
from dmtrl.estimators.base import SHIFT_INVARIANT
from dmtrl.exceptions import RefusedBySiteError
from dmtrl.federation.study.preparation import (
    PARTS,
    coordinates_from,
    coordinates_to_json,
    first_day,
    roles_of,
    to_json,
)
from dmtrl.federation.study.study_file import Study
from dmtrl.protocol.study import Begin
from dmtrl.tables.preparation import Category, Column, Date, Dropped, Number, Preparation


def declared(study: Study) -> tuple[Preparation, Coordinates]:
    """Features and coordinates of a private study: its ranges and levels, nothing from the rows.

    A number in the middle of its range becomes 0 and its ends -1 and 1; a missing one counts as the middle.
    """
    columns: list[Column] = []
    for column in study.columns:
        if column.kind == "ignored":
            columns.append(Dropped(column.name, "as requested"))
        elif column.kind == "category":
            columns.append(Category(column.name, column.levels, column.other))
        elif column.kind == "number":
            assert column.range is not None
            columns.append(_scaled_by_range(column.name, *column.range))
        else:
            assert column.range is not None
            days = float((np.datetime64(column.range[1]) - np.datetime64(column.range[0])) / np.timedelta64(1, "D"))
            scaled = _scaled_by_range(f"{column.name} days", 0.0, max(days, 1.0))
            columns.append(Date(column.name, first_day(column), scaled, PARTS))
    prepared = Preparation(tuple(columns), *roles_of(study))
    low, high = study.target.range or (-1.0, 1.0)
    centre = (low + high) / 2 if study.loss.name in SHIFT_INVARIANT else 0.0
    x_centre = np.zeros(len(prepared.feature_names))
    return prepared, Coordinates(x_centre, centre, intercept=True, y_scale=(high - low) / 2 or 1.0)


def _scaled_by_range(name: str, low: float, high: float) -> Number:
    middle = (low + high) / 2
    return Number(name, middle, middle, (high - low) / 2, flagged=False)


def check_declared(study: Study, begin: Begin) -> None:
    """Refuse a preparation that is not the one that the file of the study declares."""
    prepared, declared_coordinates = declared(study)
    coordinates = coordinates_from(begin)
    same = coordinates_to_json(coordinates) == coordinates_to_json(declared_coordinates)
    if begin.preparation != to_json(prepared) or not same or coordinates.x_centre.any():
        raise RefusedBySiteError("the coordinator prepared a private study in another way than its file declares")
