"""The messages of the rounds, between the coordinator and a worker. Their fields are declared here and nowhere else.

A request is a dataclass; `ANSWERS` names the class of the answer to it. Fields that hold arrays have one number, or one
vector of weights, for each unit of the worker. `codec.py` converts to and from the `Message` that travels. Rows, labels
and dual variables never appear in one.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

Numbers = Annotated[np.ndarray, "one number per unit"]
Vectors = Annotated[np.ndarray, "one vector of weights per unit"]
# Arrays of other shapes: the words are sizes, which `codec.py` knows.
Levels = Annotated[np.ndarray, "units outputs"]
Shared = Annotated[np.ndarray, "outputs weights_and_intercept"]
Curvatures = Annotated[np.ndarray, "units pairs"]
CrossCurvatures = Annotated[np.ndarray, "units cross"]
SharedSlopes = Annotated[np.ndarray, "groups parts weights"]
SharedCurvatures = Annotated[np.ndarray, "groups parts weights weights"]


@dataclass(frozen=True, kw_only=True)
class Describe:
    """Asks what a worker holds. `digest`: also for a digest of its rows."""

    digest: bool = False


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a worker holds; `weight` counts only rows that are not held out.

    `outputs` is the number of scores of a row: one, or one for each class. A unit has `features` weights for each.

    `chunks` blocks of neighbouring features were sampled from dense rows, `chunks_used` of them are not all zero.
    """

    features: int
    chunks: int
    chunks_used: int
    outputs: int = 1
    digest: str | None = None
    tasks: Numbers
    shards: Numbers
    rows: Numbers
    weight: Numbers


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Sets aside fold `fold` of `folds`; fold -1 sets nothing aside. The answer is a `Description`."""

    fold: int
    folds: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Begins a run. `keep`: start from the dual variables of the run before; else from zero, or from weights `w`."""

    seed: int = 0
    max_passes: int = 100
    local_solver: str = "auto"
    sampling: str = "shuffled"
    keep: bool = False
    density: float = 1.0  # share of the sampled chunks of all workers that are not all zero
    first_step: float = np.inf  # about the step size of the first round
    evaluate: bool = False  # answer with the loss at the start
    intercept: bool = False  # weights have an intercept for each output after the features
    total_weight: Numbers  # of the whole task
    steps: Numbers  # coordinate steps a round; 0: passes until accurate enough
    task_weight: Numbers | None = None  # of the whole task in the objective; None: one
    intercept_ridge: Numbers | None = None  # on the intercepts in the local problems; None: the coordinator's matter
    w: Vectors | None = None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    b: Vectors
    conjugate: Numbers
    conjugate_at_zero: Numbers
    longest_step: Numbers
    intercept_step: Numbers | None = None  # a step size that suits the intercept
    loss_w: Numbers | None = None


@dataclass(frozen=True, kw_only=True)
class Round:
    """Weights and step sizes; the worker improves its dual variables on the local problem (6) around them."""

    round: int
    target: float  # local gap at which a unit may stop
    relax: float = 0.0  # over-relaxation of the centre (17), minus one
    eta: float = 1.0  # share of the change of the dual variables that is kept
    evaluate_w: bool = True
    evaluate_u: bool = False
    pace: float = 1.0  # answers of this worker per answer of the median worker, at most one
    w: Vectors
    step: Numbers
    intercept_step: Numbers | None = None
    most: Numbers | None = None  # coordinate steps at most
    probe: Vectors | None = None  # weights at which the loss is wanted


@dataclass(frozen=True, kw_only=True)
class Improved:
    """The answer to a round. What was not evaluated is infinite."""

    b: Vectors
    loss_w: Numbers
    bracket_w: Numbers
    loss_u: Numbers
    conjugate: Numbers
    steps: Numbers
    solver: Numbers
    loss_probe: Numbers | None = None


@dataclass(frozen=True, kw_only=True)
class Score:
    """Asks for the errors of these weights on the rows that are held out."""

    w: Vectors


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Sums over held-out rows; `wrong` counts wrong signs, or with several classes wrong answers."""

    weight: Numbers
    loss: Numbers
    squared_error: Numbers
    wrong: Numbers


@dataclass(frozen=True, kw_only=True)
class SumMoments:
    """Asks for the quadratic model of the loss of the training rows around shared weights and the levels of the units.

    The sums over tasks are made for `groups` groups of tasks: task i belongs to group i modulo `groups`.
    """

    groups: int = 1
    shared: Shared  # for each output the weights of the features, then the intercept
    level: Levels


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Sums of sample weight times loss, slope and curvature. `cross` is the curvature between the levels of a unit and
    the shared weights; sums over units come as the two parts of a DoubleSum (numerics/sums.py)."""

    loss: Numbers
    slope: Levels
    curvature: Curvatures
    cross: CrossCurvatures
    shared_slope: SharedSlopes
    matrix: SharedCurvatures


@dataclass(frozen=True, kw_only=True)
class UseShared:
    """Adds the score of weights that all tasks share to the offsets of the rows; None forgets it again.

    It lasts until the next one, also through other folds. `SumMoments` asks about the rows without it.
    """

    shared: Shared | None = None  # for each output the weights of the features, then the intercept


@dataclass(frozen=True, kw_only=True)
class SharedUsed:
    """The offsets are set."""


@dataclass(frozen=True, kw_only=True)
class Save:
    """Asks for a checkpoint file in the folder `to`. In the folder `last` every worker's file is complete."""

    to: str
    last: str = ""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The name of the file that was written, or why it could not be. `kept`: the coordinator cannot see the file."""

    file: str | None = None
    error: str | None = None
    kept: bool = False


@dataclass(frozen=True, kw_only=True)
class Restore:
    """Continues from the worker's file in the folder `source`."""

    source: str


@dataclass(frozen=True, kw_only=True)
class Restored:
    """`b` is recomputed from the dual variables; None if the file was saved before the first `Prepare`."""

    b: Vectors | None = None


ANSWERS: dict[type, type] = {
    Describe: Description,
    HoldOut: Description,
    Prepare: Prepared,
    Round: Improved,
    Score: Scores,
    SumMoments: Moments,
    UseShared: SharedUsed,
    Save: Saved,
    Restore: Restored,
}
READ_ONLY = (Describe, Score, SumMoments)  # requests that leave the worker as it was
WANTED = {Prepare: ("evaluate", "loss_w"), Round: ("probe", "loss_probe")}  # with this field, the answer has that one
