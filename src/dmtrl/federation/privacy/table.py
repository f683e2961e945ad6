"""The table [privacy] of a study file."""

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
from dmtrl.federation.toml_fields import TomlTable

_NOISE = ("epsilon", "delta", "row_norm", "slope", "releases")  # keys of modes that add noise


def read_privacy(file: TomlTable, study: Any) -> Privacy:
    """Check the table for a `study` whose other tables have been read."""
    table = file.table("privacy", ("mode", "aggregation", *_NOISE))
    mode = table.choice("mode", MODES, NONE)
    aggregation = table.choice("aggregation", (CLEAR, MASKED), CLEAR)
    if mode == NONE:
        for key in _NOISE:
            if key in table.content:
                table.fail(f"{key} is for a mode that adds noise, and mode is 'none'", key)
        if aggregation == MASKED:
            _require_one_lambda(file, study, "sums of single folds are not masked")
        return Privacy(aggregation=aggregation)
    if aggregation == MASKED:
        table.fail("aggregation = 'masked' cannot be combined with noise yet; use one of the two", "aggregation")
    loss, features = study.loss, study.declared_features
    mode = choose_mode(loss, features) if mode == AUTO else mode
    _require_one_lambda(file, study, "the errors of a cross-validation would be further releases")
    _require_ranges(file, study)
    slope = loss.lipschitz
    if mode == MOMENTS:
        low, high = study.target.range or (-1.0, 1.0)
        slope = (high - low) / 2
        if not slope > 0:
            file.fail("range must have two different ends in a private study", "range", ("target",))
    if "slope" in table.content:
        if mode != NEWTON:
            table.fail(f"slope is for mode 'newton'; mode {mode!r} knows its bound", "slope")
        slope = min(slope, table.positive("slope"))
    problem = mode_problem(mode, loss, slope)
    if problem:
        table.fail(problem, "mode")
    releases = table.whole("releases", RELEASES[mode], 1)
    if mode == MOMENTS and releases != 1:
        table.fail("releases must be 1 in mode 'moments': more tell nothing new", "releases")
    for key in ("epsilon", "row_norm"):
        if key not in table.content:
            table.fail(f"{key} is missing: a mode that adds noise needs it")
    epsilon, delta = table.positive("epsilon", 100.0), table.positive("delta", 0.1, 1e-5)
    return Privacy(mode, epsilon, delta, table.positive("row_norm", 1e6), slope, releases)


def _require_one_lambda(file: TomlTable, study: Any, why: str) -> None:
    if len(study.fit.reg_lambda) != 1 or len(study.fit.common) > 1:
        key = "lambda" if len(study.fit.reg_lambda) != 1 else "common"
        file.fail(f"{key} must be one number in such a study: {why}", key, ("fit",))


def _require_ranges(file: TomlTable, study: Any) -> None:
    """Scales come from the study: means and deviations of the rows would be releases."""
    for column in study.used:
        if column.kind == "number" and (column.range is None or column.range[0] == column.range[1]):
            file.fail("a private study needs a range, which sets the scale", "range", ("columns", column.name))
    if not study.classification and study.target.range is None:
        file.fail("a private study needs a range of the target", "range", ("target",))
