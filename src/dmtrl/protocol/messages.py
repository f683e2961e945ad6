"""Every message between the coordinator and a worker. Its fields are declared here and nowhere else.

A request is a dataclass; `ANSWERS` names the class of the answer to it. Fields that hold arrays have one number, or one
vector of weights, for each unit of the worker. A field that may be None is optional; a message has all others,
whatever their defaults. `encode` and `decode` convert to and from the `Message` that travels. Rows, labels and dual
variables never appear in one.
"""

import re
from collections.abc import Callable
from dataclasses import Field, dataclass, fields, replace
from typing import Annotated, Any, get_args, get_type_hints

import numpy as np

from dmtrl.protocol.message import Message

Numbers = Annotated[np.ndarray, "one number per unit"]
Vectors = Annotated[np.ndarray, "one vector of weights per unit"]
# Arrays of other shapes: the words are sizes, which `_shape` knows.
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
    intercept_ridge: float = -1.0  # its penalty in the local problems; negative: the coordinator steps for it
    total_weight: Numbers  # of the whole task
    steps: Numbers  # coordinate steps a round; 0: passes until accurate enough
    task_weight: Numbers | None = None  # of the whole task in the objective; None: one
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
    Save: Saved,
    Restore: Restored,
}
READ_ONLY = (Describe, Score, SumMoments)  # requests that leave the worker as it was
WANTED = {Prepare: ("evaluate", "loss_w"), Round: ("probe", "loss_probe")}  # with this field, the answer has that one


def name_of(kind: type) -> str:
    """The name of a message on the wire: the class name in snake case."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


KINDS: dict[str, type] = {name_of(kind): kind for kind in (*ANSWERS, *ANSWERS.values())}
_FIELDS: dict[type, tuple[Field[Any], ...]] = {kind: fields(kind) for kind in KINDS.values()}
_SHAPES = (Numbers, Vectors, Levels, Shared, Curvatures, CrossCurvatures, SharedSlopes, SharedCurvatures)
_ARRAYS: dict[type, dict[str, Any]] = {  # fields that hold arrays, and of what shape
    kind: {
        name: shape
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for shape in _SHAPES
        if hint in (shape, shape | None)
    }
    for kind in KINDS.values()
}


def encode(content: Any) -> Message:
    """A message from the dataclass that declares it."""
    scalars: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for item in _FIELDS[type(content)]:
        value = getattr(content, item.name)
        if value is not None:
            (arrays if item.name in _ARRAYS[type(content)] else scalars)[item.name] = value
    return Message(name_of(type(content)), scalars, arrays)


def decode(message: Message) -> Any:
    """The dataclass of a message; ValueError if it is unknown or does not have the fields that its class declares."""
    kind = KINDS.get(message.name)
    if kind is None:
        raise ValueError(f"unknown message {message.name!r}; this dmtrl knows {', '.join(sorted(KINDS))}")
    given = {**message.scalars, **message.arrays}
    known = {item.name: item for item in _FIELDS[kind]}
    extra = sorted(set(given) - set(known))
    missing = [name for name, item in known.items() if name not in given and item.default is not None]
    misplaced = [name for name in known if name in (message.scalars if name in _ARRAYS[kind] else message.arrays)]
    if misplaced:
        wanted = "an array" if misplaced[0] in _ARRAYS[kind] else "a scalar"
        raise ValueError(f"message {message.name!r}: the field {misplaced[0]!r} must be {wanted}")
    if extra or missing:
        problem = f"has the unknown field {extra[0]!r}" if extra else f"lacks the field {missing[0]!r}"
        raise ValueError(f"message {message.name!r} {problem}")
    return kind(**given)


def with_arrays(content: Any, numbers: Callable[[Any], Any], vectors: Callable[[Any], Any]) -> Any:
    """The same message with other arrays: `numbers` and `vectors` of those that have one number or vector per unit."""
    change = {Numbers: numbers, Vectors: vectors}
    kinds = {name: kind for name, kind in _ARRAYS[type(content)].items() if kind in change}
    given = {name: getattr(content, name) for name in kinds}
    return replace(content, **{name: change[kinds[name]](value) for name, value in given.items() if value is not None})


def _columns(request: Message, array: np.ndarray, features: int, outputs: int) -> int:
    """How many columns weights should have: for each output one more than features if there is an intercept."""
    if "w" in request.arrays:
        return int(request.arrays["w"].shape[1])
    with_intercept = (features + 1) * outputs
    if KINDS[request.name] is Restore:  # which run it restores is not in the request
        return with_intercept if array.shape[1:] == (with_intercept,) else features * outputs
    return with_intercept if request.scalars.get("intercept") else features * outputs


def _shape(kind: Any, request: Message, array: np.ndarray, units: int, features: int, outputs: int) -> tuple[int, ...]:
    """The shape that a field of an answer should have."""
    if kind is Numbers:
        return (units,)
    if kind is Vectors:
        return units, _columns(request, array, features, outputs)
    sizes = {
        "units": units,
        "outputs": outputs,
        "pairs": outputs**2,
        "cross": outputs**2 * features,
        "groups": request.scalars.get("groups", 1),
        "parts": 2,
        "weights": outputs * features,
    }
    return tuple(sizes[word] for word in get_args(kind)[1].split())


def fault_in(request: Message, answer: object, units: int, features: int, outputs: int = 1) -> str:
    """What is wrong with an answer, as words that follow the worker's name; empty if nothing is.

    Checks names, shapes and NaN only. A worker that fails this check is broken, or the carrier damaged its answer.
    """
    if not isinstance(answer, Message):
        return f"answered {request.name!r} with a {type(answer).__name__} instead of a message"
    expected = ANSWERS[KINDS[request.name]]
    if answer.name != name_of(expected):
        return f"answered {request.name!r} with {answer.name!r} instead of {name_of(expected)!r}"
    try:
        decode(answer)
    except ValueError as error:
        return f"answered {request.name!r} with a bad message: {error}"
    asks, wanted = WANTED.get(KINDS[request.name], ("", ""))
    if (asks in request.arrays or request.scalars.get(asks)) and wanted not in answer.arrays:
        return f"answered {request.name!r} without {wanted!r}"
    for name, kind in _ARRAYS[expected].items():
        array = answer.arrays.get(name)
        if array is None:
            continue
        shape = _shape(kind, request, array, units, features, outputs)
        if array.shape != shape:
            return f"answered {request.name!r} with {name!r} of shape {array.shape} instead of {shape}"
        if array.dtype.kind == "f" and (np.isnan(array).any() or (kind is not Numbers and np.isinf(array).any())):
            return f"answered {request.name!r} with NaN or infinity in {name!r}"
    return ""
