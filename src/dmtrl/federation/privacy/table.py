"""The table [privacy] of a study file."""

import math
from collections.abc import Mapping
from typing import Any

from dmtrl.federation.privacy.terms import (
    AUTO,
    CLEAR,
    MASKED,
    MODES,
    MOMENTS,
    NEWTON,
    NONE,
    RELEASES,
    Privacy,
    choose_mode,
    mode_problem,
)
from dmtrl.federation.toml_fields import TomlFields, is_number

_AT = ("privacy",)


def read_privacy(reader: TomlFields, table: Any, study: Any) -> Privacy:
    """Check the table for a `study` whose other tables have been read."""
    reader.known(_AT, table, ("mode", "epsilon", "delta", "row_norm", "slope", "releases", "aggregation"))
    mode = reader.choice(_AT, table, "mode", MODES, NONE)
    aggregation = reader.choice(_AT, table, "aggregation", (CLEAR, MASKED), CLEAR)
    if mode == NONE:
        for key in ("epsilon", "delta", "row_norm", "slope", "releases"):
            if key in table:
                reader.fail(f"{key} is for a mode that adds noise, and mode is 'none'", _AT, key)
        if aggregation == MASKED:
            _require_one_lambda(reader, study, "sums of single folds are not masked")
        return Privacy(aggregation=aggregation)
    if aggregation == MASKED:
        reader.fail("aggregation = 'masked' cannot be combined with noise yet; use one of the two", _AT, "aggregation")
    loss, features = study.loss, study.declared_features
    mode = choose_mode(loss, features) if mode == AUTO else mode
    _require_one_lambda(reader, study, "the errors of a cross-validation would be further releases")
    _require_ranges(reader, study)
    slope = loss.lipschitz
    if mode == MOMENTS:
        low, high = study.target.range or (-1.0, 1.0)
        slope = (high - low) / 2
        if not slope > 0:
            reader.fail("range must have two different ends in a private study", ("target",), "range")
    if "slope" in table:
        if mode != NEWTON:
            reader.fail(f"slope is for mode 'newton'; mode {mode!r} knows its bound", _AT, "slope")
        slope = min(slope, _positive(reader, table, "slope", math.inf))
    problem = mode_problem(mode, loss, slope)
    if problem:
        reader.fail(problem, _AT, "mode")
    releases = reader.whole(_AT, table, "releases", RELEASES[mode], 1)
    if mode == MOMENTS and releases != 1:
        reader.fail("releases must be 1 in mode 'moments': more tell nothing new", _AT, "releases")
    epsilon, delta = _positive(reader, table, "epsilon", 100.0), _positive(reader, table, "delta", 0.1, 1e-5)
    return Privacy(mode, epsilon, delta, _positive(reader, table, "row_norm", 1e6), slope, releases)


def _positive(
    reader: TomlFields, table: Mapping[str, Any], key: str, most: float, default: float | None = None
) -> float:
    value = table.get(key, default)
    if value is None:
        reader.fail(f"{key} is missing: a mode that adds noise needs it", _AT)
    if not (is_number(value) and 0 < value <= most):
        reader.fail(f"{key} must be a positive number of at most {most:g}, got {value!r}", _AT, key)
    return float(value)


def _require_one_lambda(reader: TomlFields, study: Any, why: str) -> None:
    if len(study.fit.reg_lambda) != 1 or len(study.fit.common) > 1:
        key = "lambda" if len(study.fit.reg_lambda) != 1 else "common"
        reader.fail(f"{key} must be one number in such a study: {why}", ("fit",), key)


def _require_ranges(reader: TomlFields, study: Any) -> None:
    """Scales come from the study: means and deviations of the rows would be releases."""
    for column in study.used:
        if column.kind == "number" and (column.range is None or column.range[0] == column.range[1]):
            reader.fail("a private study needs a range, which sets the scale", ("columns", column.name), "range")
    if not study.classification and study.target.range is None:
        reader.fail("a private study needs a range of the target", ("target",), "range")
