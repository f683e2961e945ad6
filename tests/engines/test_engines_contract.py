"""Answers the server must not believe: what is checked of those that only some messages ask for."""

import numpy as np
import pytest

from dmtrl.engines.contract import fault_in
from dmtrl.protocol.message import Message
from support.problems import random_problem
from support.virtual_time import prepared

UNITS, FEATURES = 4, 5


def without(answer: Message, name: str) -> Message:
    return Message(answer.name, answer.scalars, {key: a for key, a in answer.arrays.items() if key != name})


def in_another_shape(answer: Message, name: str) -> Message:
    return Message(answer.name, answer.scalars, {**answer.arrays, name: np.zeros((7, 7))})


@pytest.fixture
def probed() -> tuple[Message, Message]:
    """A question that asks for the loss at other weights as well, and a worker's answer."""
    worker, _ = prepared(random_problem("hinge", m=UNITS, d=FEATURES), "hinge")
    W = np.ones((UNITS, FEATURES))
    question = Message("round", {"round": 0, "target": 0.0}, {"w": W, "step": np.ones(UNITS), "probe": 2 * W})
    return question, worker.answer(question)


def test_the_loss_at_weights_to_be_probed(probed: tuple[Message, Message]) -> None:
    question, answer = probed
    assert fault_in(question, answer, UNITS, FEATURES) == ""
    left_out = without(answer, "loss_probe")
    assert "left 'loss_probe' out" in fault_in(question, left_out, UNITS, FEATURES)
    assert "'loss_probe' of shape (7, 7)" in fault_in(question, in_another_shape(answer, "loss_probe"), UNITS, FEATURES)
    plain = Message("round", question.scalars, {key: a for key, a in question.arrays.items() if key != "probe"})
    assert fault_in(plain, left_out, UNITS, FEATURES) == ""


def test_b_of_one_that_was_restored() -> None:
    question, answer = Message("restore"), Message("restored", {}, {"b": np.ones((UNITS, FEATURES))})
    assert fault_in(question, answer, UNITS, FEATURES) == ""
    assert "'b' of shape (7, 7) instead of (4, 5)" in fault_in(question, in_another_shape(answer, "b"), UNITS, FEATURES)
    assert fault_in(question, Message("restored"), UNITS, FEATURES) == "", "it was saved before it was prepared"
