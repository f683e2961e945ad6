"""The declared messages: encoding, decoding, and the checks of a worker's answers."""

import re
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from dmtrl.losses import squared
from dmtrl.protocol import study
from dmtrl.protocol.codec import KINDS, decode, encode, fault_in, name_of
from dmtrl.protocol.message import Message
from dmtrl.protocol.rounds import (
    ANSWERS,
    READ_ONLY,
    WANTED,
    CrossCurvatures,
    Curvatures,
    Describe,
    Description,
    HoldOut,
    Improved,
    Levels,
    Moments,
    Numbers,
    Prepare,
    Prepared,
    Restore,
    Restored,
    Round,
    Save,
    Saved,
    Score,
    Scores,
    Shared,
    SharedCurvatures,
    SharedSlopes,
    SharedUsed,
    SumMoments,
    UseShared,
    Vectors,
)
from dmtrl.worker.worker import Worker
from support.problems import random_problem

UNITS, FEATURES = 4, 3
ALL = [KINDS[name] for name in sorted(KINDS)]  # in the same order in every process
SHAPED = [Levels, Shared, Curvatures, CrossCurvatures, SharedSlopes, SharedCurvatures]
SIZES = {
    "units": UNITS,
    "outputs": 1,
    "pairs": 1,
    "cross": FEATURES,
    "groups": 1,
    "parts": 2,
    "weights": FEATURES,
    "weights_and_intercept": FEATURES + 1,
}
VALUES: dict[Any, Any] = {int: 7, float: 0.25, str: "text", bool: True, str | None: "text"}
PREPARE = Prepare(
    local_solver="sdca",
    max_passes=3,
    total_weight=np.full(UNITS, 9.0),
    steps=np.zeros(UNITS, np.int64),
)
ROUND = Round(round=0, target=0.0, w=np.zeros((UNITS, FEATURES)), step=np.ones(UNITS))


def example(kind: type, optional: bool) -> Any:
    """A message of this class, with or without its optional fields."""
    hints = get_type_hints(kind, include_extras=True)
    rng = np.random.default_rng(0)
    values = {}
    for item in fields(kind):
        hint = hints[item.name]
        if item.default is not MISSING and not optional:
            continue
        if hint in (Numbers, Numbers | None, np.ndarray):
            values[item.name] = rng.normal(size=UNITS)
        elif hint in (Vectors, Vectors | None):
            values[item.name] = rng.normal(size=(UNITS, FEATURES))
        elif hint in SHAPED or hint == Shared | None:
            kind_of = Shared if hint == Shared | None else hint
            values[item.name] = rng.normal(size=[SIZES[word] for word in get_args(kind_of)[1].split()])
        else:
            values[item.name] = VALUES[hint]
    return kind(**values)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and a == b


def test_every_request_has_an_answer() -> None:
    assert {Describe, HoldOut, Prepare, Round, Score, SumMoments, UseShared, Save, Restore} == set(ANSWERS)
    assert {Description, Prepared, Improved, Scores, Moments, SharedUsed, Saved, Restored} == set(ANSWERS.values())
    assert not set(ANSWERS) & set(ANSWERS.values()), "no message is both a request and an answer"
    assert not set(study.ANSWERS) & set(study.ANSWERS.values())
    declared = [*ANSWERS, *dict.fromkeys(ANSWERS.values()), *study.ANSWERS, *study.ANSWERS.values()]
    assert len(KINDS) == len(declared), "names are unique"
    assert set(KINDS.values()) == set(declared)
    assert set(READ_ONLY) <= set(ANSWERS)


def test_an_optional_field_that_a_request_asks_for_is_declared_in_both_messages() -> None:
    for request, (asks, wanted) in WANTED.items():
        assert asks in {item.name for item in fields(request)}
        assert wanted in {item.name for item in fields(ANSWERS[request])}


def test_names_are_snake_case() -> None:
    assert (name_of(Describe), name_of(HoldOut)) == ("describe", "hold_out")
    assert all(re.fullmatch("[a-z_]+", name) for name in KINDS)


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("kind", ALL, ids=name_of)
def test_a_message_survives_the_wire(kind: type, optional: bool) -> None:
    content = example(kind, optional)
    message = encode(content)
    assert message.name == name_of(kind)
    back = decode(Message.decode(message.encode()))
    assert type(back) is kind
    for item in fields(kind):
        assert same(getattr(back, item.name), getattr(content, item.name)), item.name


@pytest.mark.parametrize("kind", ALL, ids=name_of)
def test_an_optional_field_that_is_none_is_not_sent(kind: type) -> None:
    message = encode(example(kind, optional=False))
    sent = {**message.scalars, **message.arrays}
    assert set(sent) == {item.name for item in fields(kind) if item.default is not None}


def test_infinite_numbers_survive_the_wire() -> None:
    back = decode(Message.decode(encode(replace(ROUND, target=np.inf, eta=-np.inf)).encode()))
    assert (back.target, back.eta) == (np.inf, -np.inf)


def test_no_message_has_a_field_for_rows_labels_or_dual_variables() -> None:
    """Arrays have one number or one vector of features per unit, or are sums over units; scalars are Python scalars."""
    hints = {(k, n): h for k in KINDS.values() for n, h in get_type_hints(k, include_extras=True).items()}
    assert not {name for _, name in hints} & {"X", "x", "y", "alpha", "labels", "data", "indices", "indptr"}
    optional = [Numbers | None, Vectors | None, Shared | None]
    allowed = [int, float, str, bool, str | None, np.ndarray, Numbers, Vectors, *optional, *SHAPED]
    assert all(hint in allowed for hint in hints.values())
    # `rows` counts rows and `weight` sums their weights: one number per unit
    assert hints[Description, "rows"] == hints[Description, "weight"] == Numbers


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown message 'dance'; this dmtrl knows begin, .*, scores"):
        decode(Message("dance"))


@pytest.mark.parametrize("kind", ALL, ids=name_of)
def test_an_unknown_field_is_refused(kind: type) -> None:
    message = encode(example(kind, optional=False))
    words = f"message '{message.name}' has the unknown field 'alpha'"
    with pytest.raises(ValueError, match=words):
        decode(Message(message.name, message.scalars, {**message.arrays, "alpha": np.zeros(9)}))
    with pytest.raises(ValueError, match=words):
        decode(Message(message.name, {**message.scalars, "alpha": 1}, message.arrays))


@pytest.mark.parametrize("kind", ALL, ids=name_of)
def test_a_missing_field_is_refused(kind: type) -> None:
    message = encode(example(kind, optional=True))
    for item in fields(kind):
        scalars = {key: value for key, value in message.scalars.items() if key != item.name}
        arrays = {key: value for key, value in message.arrays.items() if key != item.name}
        if item.default is not None:
            with pytest.raises(ValueError, match=f"message '{message.name}' lacks the field '{item.name}'"):
                decode(Message(message.name, scalars, arrays))
        else:
            assert getattr(decode(Message(message.name, scalars, arrays)), item.name) is None


@pytest.mark.parametrize("kind", ALL, ids=name_of)
def test_an_array_in_a_scalar_field_and_a_scalar_in_an_array_field_are_refused(kind: type) -> None:
    """Else a field such as `digest` could carry rows, and `fault_in` would miss a `b` that is a scalar."""
    message = encode(example(kind, optional=True))
    for name in message.scalars:
        scalars = {key: value for key, value in message.scalars.items() if key != name}
        with pytest.raises(ValueError, match=name):
            decode(Message(message.name, scalars, {**message.arrays, name: np.zeros((50, 3))}))
    for name in message.arrays:
        arrays = {key: value for key, value in message.arrays.items() if key != name}
        with pytest.raises(ValueError, match=name):
            decode(Message(message.name, {**message.scalars, name: 1.0}, arrays))


@pytest.mark.parametrize("kind", ALL, ids=name_of)
def test_a_scalar_of_another_type_is_refused(kind: type) -> None:
    message = encode(example(kind, optional=True))
    for name, value in message.scalars.items():
        wrong = 3 if isinstance(value, str | bool) else "3"
        with pytest.raises(ValueError, match=f"the field '{name}' must be"):
            decode(Message(message.name, {**message.scalars, name: wrong}, message.arrays))


# What is checked of an answer


def new_worker() -> Worker:
    data = random_problem("squared", m=UNITS, d=FEATURES)
    return Worker(data.sources(1)[0], squared())


def fault(request: Any, answer: object) -> str:
    return fault_in(encode(request), answer, UNITS, FEATURES)


def with_array(answer: Message, name: str, array: np.ndarray) -> Message:
    return Message(answer.name, answer.scalars, {**answer.arrays, name: array})


def without(answer: Message, name: str) -> Message:
    return Message(answer.name, answer.scalars, {key: a for key, a in answer.arrays.items() if key != name})


def test_a_worker_needs_only_messages_and_its_answers_have_no_fault(tmp_path: Any) -> None:
    """Every request and answer passes the wire on the way."""
    worker = new_worker()
    for request in (
        Describe(digest=True),
        HoldOut(fold=0, folds=3, seed=0),
        PREPARE,
        replace(PREPARE, evaluate=True, w=np.ones((UNITS, FEATURES))),
        ROUND,
        replace(ROUND, probe=np.ones((UNITS, FEATURES)), evaluate_u=True, most=np.full(UNITS, 2.0)),
        Score(w=np.ones((UNITS, FEATURES))),
        Save(to=str(tmp_path)),
        Restore(source=str(tmp_path)),
    ):
        sent = Message.decode(encode(request).encode())
        answer = Message.decode(worker.answer(sent).encode())
        assert fault(request, answer) == ""
        assert type(decode(answer)) is ANSWERS[type(request)]
    with pytest.raises(ValueError, match="unknown message 'dance'"):
        worker.answer(Message("dance"))
    for wrong in (Scores, study.Begin):
        with pytest.raises(ValueError, match=f"a worker cannot be sent '{name_of(wrong)}'"):
            worker.answer(encode(example(wrong, optional=False)))


@pytest.mark.parametrize("request_kind", ANSWERS, ids=name_of)
def test_an_answer_with_the_wrong_name_is_a_fault(request_kind: type) -> None:
    request, expected = example(request_kind, optional=False), name_of(ANSWERS[request_kind])
    assert fault(request, Message("nonsense")).endswith(f"with 'nonsense' instead of '{expected}'")
    assert fault(request, encode(request)).endswith(f"instead of '{expected}'")
    assert fault(request, None).endswith("with a NoneType instead of a message")


ARRAY_FIELDS = [
    (request, item.name)
    for request, answer in ANSWERS.items()
    for item in fields(answer)
    if isinstance(getattr(example(answer, optional=True), item.name), np.ndarray)
]


@pytest.mark.parametrize(("request_kind", "name"), ARRAY_FIELDS)
def test_an_array_with_the_wrong_shape_or_with_nan_is_a_fault(request_kind: type, name: str) -> None:
    request, good = example(request_kind, optional=False), encode(example(ANSWERS[request_kind], optional=True))
    assert fault(request, good) == ""
    shape = good.arrays[name].shape
    found = fault(request, with_array(good, name, np.zeros((7, 7))))
    assert found == f"answered {name_of(request_kind)!r} with {name!r} of shape (7, 7) instead of {shape}"
    bad = good.arrays[name].copy()
    bad.flat[-1] = np.nan
    found = fault(request, with_array(good, name, bad))
    assert found == f"answered {name_of(request_kind)!r} with NaN or infinity in {name!r}"


def test_only_numbers_may_be_infinite() -> None:
    """A loss or a longest step can be infinite; a vector of features cannot."""
    good = encode(example(Improved, optional=False))
    assert fault(ROUND, with_array(good, "loss_w", np.full(UNITS, np.inf))) == ""
    assert "infinity in 'b'" in fault(ROUND, with_array(good, "b", np.full((UNITS, FEATURES), -np.inf)))


def test_an_answer_without_a_declared_field_is_a_fault() -> None:
    answer = without(encode(example(Improved, optional=False)), "conjugate")
    assert fault(ROUND, answer) == "answered 'round' with a bad message: message 'improved' lacks the field 'conjugate'"


@pytest.mark.parametrize(
    ("asking", "plain", "wanted"),
    [
        (replace(ROUND, probe=np.ones((UNITS, FEATURES))), ROUND, "loss_probe"),
        (replace(PREPARE, evaluate=True), PREPARE, "loss_w"),
    ],
)
def test_an_optional_field_that_was_asked_for_must_be_in_the_answer(asking: Any, plain: Any, wanted: str) -> None:
    worker = new_worker()
    worker.answer(encode(PREPARE))
    answer = worker.answer(encode(asking))
    assert fault(asking, answer) == ""
    assert fault(asking, without(answer, wanted)) == f"answered {name_of(type(asking))!r} without {wanted!r}"
    assert fault(plain, without(answer, wanted)) == ""


def test_a_worker_saved_before_its_first_run_restores_without_b() -> None:
    assert fault(Restore(source="folder"), encode(Restored())) == ""


@pytest.mark.parametrize("damage", [lambda a: a[:-1], lambda a: a[:, None], lambda a: a.T], ids=["short", "deep", "T"])
def test_vectors_must_have_one_row_per_unit(damage: Callable[[np.ndarray], np.ndarray]) -> None:
    good = encode(example(Restored, optional=True))
    assert "'b' of shape" in fault(Restore(source="folder"), with_array(good, "b", damage(good.arrays["b"])))
