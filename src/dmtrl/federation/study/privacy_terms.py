"""The table [privacy] of a study: which mode, which guarantee, and the bounds to which rows and slopes are clipped."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dmtrl.federation.study.toml_fields import TomlTable
from dmtrl.losses import AnyLoss

if TYPE_CHECKING:
    from dmtrl.federation.study.study_file import Study

MOMENTS, NEWTON, ROUNDS, NONE, AUTO = "moments", "newton", "rounds", "none", "auto"
MODES = (NONE, AUTO, MOMENTS, NEWTON, ROUNDS)
CLEAR, MASKED = "clear", "masked"
RELEASES = {MOMENTS: 1, NEWTON: 4, ROUNDS: 20}  # how often a site releases something, unless the study says otherwise
_NOISE = ("epsilon", "delta", "row_norm", "slope", "releases")  # keys of modes that add noise
_MOST_FEATURES = 100  # up to which "auto" releases d x d curvatures


@dataclass(frozen=True)
class Privacy:
    """The table [privacy] of a study.

    The guarantee (epsilon, delta) is for the replacement of one row of a task, over all releases of the study together.
    mode: what is released with noise: second moments once (A), slope and curvature a few times (B), or the vector b in
    every round (C).
    """

    mode: str = NONE
    epsilon: float = 0.0
    delta: float = 1e-5
    row_norm: float = 1.0  # rows of features are shortened to it
    slope: float = math.inf  # bound of the slopes: that of the loss, or where they are clipped; squared loss: of labels
    releases: int = 0  # how often a site releases something
    aggregation: str = CLEAR  # whether the server sees what each site sends, or only sums over sites


def choose_mode(loss: AnyLoss, features: int) -> str:
    """The mode for a loss and a number of features: moments for squared loss, few curvatures for smooth losses and up
    to 100 features, else noise in every round."""
    if loss.name == "squared":
        return MOMENTS
    if math.isfinite(loss.smoothness) and (features <= _MOST_FEATURES or not math.isfinite(loss.lipschitz)):
        return NEWTON
    return ROUNDS


def mode_problem(mode: str, loss: AnyLoss, slope: float) -> str:
    """Why a mode is not for a loss; empty if it is."""
    if mode == MOMENTS and loss.name != "squared":
        return f"mode 'moments' is for the squared loss, not for {loss.name!r}; use 'newton', 'rounds' or 'auto'"
    if mode == NEWTON and loss.name == "squared":
        return "mode 'newton' is for other smooth losses; for the squared loss one release is enough: use 'moments'"
    if mode == NEWTON and not math.isfinite(loss.smoothness):
        return f"mode 'newton' needs a smooth loss, and {loss.name!r} is not; use 'rounds' or 'auto'"
    if mode == NEWTON and not math.isfinite(slope):
        return f"the slopes of the {loss.name!r} loss are not bounded; set slope, to which they are clipped"
    if mode == ROUNDS and not math.isfinite(loss.lipschitz):
        return f"mode 'rounds' needs a loss with bounded slopes, and {loss.name!r} has none; use 'auto'"
    return ""


def read_privacy(file: TomlTable, study: "Study") -> Privacy:
    """Check the table for a `study` whose other tables have been read."""
    table = file.table("privacy", ("mode", "aggregation", *_NOISE))
    mode = table.choice("mode", MODES, NONE)
    aggregation = table.choice("aggregation", (CLEAR, MASKED), CLEAR)
    if mode == NONE:
        for key in _NOISE:
            if key in table.content:
                table.fail(f"{key} is for a mode that adds noise, and mode is 'none'", key)
        if aggregation == MASKED:
            _check_masked(file, study)
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
    epsilon, delta = table.positive("epsilon", 100.0), table.positive("delta", 0.1, 1e-5)
    return Privacy(mode, epsilon, delta, table.positive("row_norm", 1e6), slope, releases)


def _check_masked(file: TomlTable, study: "Study") -> None:
    _require_one_lambda(file, study, "sums of single folds are not masked")
    if (study.results.coordinator, study.results.sites) == ("summary", "all"):
        file.fail(
            "sites = 'all' needs coordinator = 'weights': otherwise nobody has all weights", "sites", ("results",)
        )
    if study.limits.on_lost == "go_on":
        why = "the sums with and without a site would show its numbers"
        file.fail(f"on_lost must be 'stop' with masked sums: {why}", "on_lost", ("limits",))
    if study.limits.sites < 3:
        file.fail("sites must be at least 3 with masked sums: with two, each can compute the other's", at=("limits",))


def _require_one_lambda(file: TomlTable, study: "Study", why: str) -> None:
    if len(study.fit.reg_lambda) != 1 or len(study.fit.common) > 1:
        key = "lambda" if len(study.fit.reg_lambda) != 1 else "common"
        file.fail(f"{key} must be one number in such a study: {why}", key, ("fit",))


def _require_ranges(file: TomlTable, study: "Study") -> None:
    """Scales come from the study: means and deviations of the rows would be releases."""
    for column in study.used:
        if column.kind == "number" and not _is_scale(column.range):
            file.fail("a private study needs a range, which sets the scale", "range", ("columns", column.name))
    if not study.classification and not _is_scale(study.target.range):
        file.fail("a private study needs a range of the target, with two different ends", "range", ("target",))


def _is_scale(ends: tuple[float, float] | None) -> bool:
    return ends is not None and 0 < ends[1] - ends[0] < math.inf
