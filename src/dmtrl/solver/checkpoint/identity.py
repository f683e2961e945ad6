"""Whether a checkpoint belongs to the problem and settings at hand."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from dmtrl import storage
from dmtrl.exceptions import InputError, Setting
from dmtrl.relationship import Fixed, FreeIntercept, Learned, Relationship
from dmtrl.relationship.covariance import TaskCovariance
from dmtrl.solver.layout import Layout
from dmtrl.solver.settings import Settings

_WHEN_TO_STOP = {"tol", "max_rounds", "omega_steps"}
_TRIED = ("lambdas", "commons", "owns")  # what a search tries
# what a key of a checkpoint means, for messages; other keys are the names of settings
_MEANING = {
    "tasks": "the number of tasks",
    "features": "the number of features",
    "workers": "the number of workers",
    "partition_digest": "the partition (rows and weights of each worker)",
    "task_weights_digest": "the weights of the tasks",
    "reg_lambda": "lambda",
    "relationship": "the relationship",
    "relationship_at_sample": "the relationship at sample weights",
    "run": "the run",
    "lambdas": "lambda",
    "commons": "common",
    "owns": "own",
    "splits_digest": "the digest of the splits",
    "has_scorer": "whether there is a scorer",
}


def problem_of(
    layout: Layout,
    relationship: Relationship,
    lam: float,
    settings: Settings,
    task_weight: np.ndarray,
    max_staleness: int,
) -> dict[str, Any]:
    """What a checkpoint must agree on, as far as the coordinator knows it; each worker checks its own rows.
    When to stop may differ: a finished run can continue with a smaller tol or more rounds."""
    options = {name: value for name, value in asdict(settings).items() if name not in _WHEN_TO_STOP}
    return {
        "tasks": layout.m,
        "features": layout.d,
        "workers": len(layout.positions),
        "partition_digest": _digest(*layout.positions, layout.task, layout.rows, layout.weight),
        "task_weights_digest": _digest(task_weight),
        "reg_lambda": lam,
        "relationship": _relation(relationship),
        **_sample(relationship, layout.m, layout.d),
        "max_staleness": max_staleness,
        **options,
    }


def require_same(folder: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    """Raise InputError if a checkpoint disagrees in something that is given here."""
    here = json.loads(json.dumps(here))  # tuples become lists, as in the file
    different = [name for name in here if here[name] != there.get(name)]
    if not different:
        return
    plain = [name for name in different if _distinct(name, here[name]) != _distinct(name, there.get(name))]
    name = (plain or different)[0]
    # the numbers themselves if none is new: they are repeated or in another order
    ours, theirs = ((_distinct(name, one.get(name)) if plain else one.get(name)) for one in (here, there))
    raise InputError(
        f"{folder} is a checkpoint of another problem or of other settings: {_MEANING.get(name, name)} is "
        f"{_short(ours)} here and {_short(theirs)} there; repeat exactly what was stopped, or leave out ",
        Setting("resume"),
        " to start again",
    )


def _distinct(name: str, value: Any) -> Any:
    """Each number that a search tries, once: a grid holds them for all pairs of common and own."""
    return list(dict.fromkeys(value)) if name in _TRIED and isinstance(value, list) else value


def _relation(relationship: Any) -> list[Any]:
    names = ("weight", "centre", "shared", "columns")
    strengths = relationship.tau, relationship.kappa, *(getattr(relationship, name, None) for name in names)
    facts = [type(relationship).__name__, relationship.name, *strengths]
    facts = [_as_json(fact) for fact in facts]
    covariance, base = getattr(relationship, "covariance", None), getattr(relationship, "base", None)
    if isinstance(covariance, TaskCovariance):
        facts.append(_digest(covariance.basis, covariance.values, np.array(covariance.floor)))
    return facts if base is None else [*facts, _relation(base)]


def _as_json(fact: Any) -> Any:
    """A custom relationship may hold numpy numbers, or anything."""
    if isinstance(fact, np.ndarray | np.generic) and fact.dtype.kind in "biufU":
        return fact.item() if fact.ndim == 0 else _digest(np.asarray(fact))
    if isinstance(fact, list | tuple):
        return [_as_json(part) for part in fact]
    return fact if fact is None or isinstance(fact, str | int | float) else type(fact).__name__


def _sample(relationship: Any, m: int, d: int) -> dict[str, Any]:
    """What a custom relationship returns for fixed weights, which tells apart two with the same name. In so few digits
    that rounding on another machine does not matter."""
    if type(relationship) is FreeIntercept:
        return _sample(relationship.base, m, d)
    if type(relationship) in (Fixed, Learned):
        return {}
    V, common = np.cos(np.arange(m * d, dtype=float)).reshape(m, d), np.zeros(d)
    W = relationship.prox(V.copy(), 1.0, common).W
    numbers = (relationship.penalty(W, common), relationship.conjugate(V), np.vdot(V, W))
    return {"relationship_at_sample": [f"{round(float(number), 9) + 0.0:.6g}" for number in numbers]}


def _digest(*arrays: np.ndarray) -> str:
    """Short enough to be shown."""
    return storage.digest(*arrays)[:16]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
