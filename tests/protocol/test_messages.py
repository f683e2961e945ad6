"""Messages: what is counted is what a wire would carry, and what arrives is what was sent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dmtrl.losses.builtin import squared
from dmtrl.protocol.message import Message
from dmtrl.worker.worker import Worker
from support.problems import random_problem

SCALARS = st.dictionaries(
    st.text(max_size=8), st.integers(-9, 9) | st.floats(allow_nan=False) | st.booleans() | st.text(), max_size=4
)
ARRAYS = st.dictionaries(
    st.text(max_size=8),
    st.sampled_from([np.float32, np.float64, np.int8, np.int64, np.bool_]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    ),
    max_size=3,
)


@given(st.text(max_size=10), SCALARS, ARRAYS)
def test_round_trip_and_size(name: str, scalars: dict, arrays: dict) -> None:
    message = Message(name, scalars, arrays)
    data = message.encode()
    assert len(data) == message.nbytes
    back = Message.decode(data)
    assert (back.name, back.scalars) == (name, scalars)
    assert list(back.arrays) == list(arrays)
    for key, array in arrays.items():
        assert back.arrays[key].dtype == array.dtype
        assert back.arrays[key].shape == array.shape
        assert back.arrays[key].tobytes() == array.tobytes()


def test_objects_may_not_travel() -> None:
    with pytest.raises(TypeError, match="only numbers may travel"):
        Message("x", {}, {"a": np.array([object()])}).encode()


def test_damage_is_noticed() -> None:
    data = Message("x", {"a": 1}, {"b": np.arange(5.0)}).encode()
    for cut in (3, 12, len(data) - 1):
        with pytest.raises(ValueError, match=r"cut short|magic word"):
            Message.decode(data[:cut])


def test_a_worker_needs_nothing_but_messages() -> None:
    """Every message and answer survives the wire; rows, labels and alpha are in none of them."""
    data = random_problem("squared", m=2, d=3)
    worker = Worker(data.partition(1)[0], squared())

    def ask(message: Message) -> Message:
        return Message.decode(worker.answer(Message.decode(message.encode())).encode())

    described = ask(Message("describe"))
    assert described.scalars["features"] == 3
    scalars = {"seed": 0, "local_solver": "sdca", "sampling": "shuffled", "max_passes": 3, "keep": False}
    ask(Message("prepare", scalars, {"total_weight": described.arrays["weight"], "steps": np.zeros(2, np.int64)}))
    order = {"w": np.zeros((2, 3)), "step": np.ones(2)}
    answer = ask(Message("round", {"round": 0, "target": 0.0}, order))
    assert answer.arrays["b"].shape == (2, 3)
    assert all(array.shape[0] == 2 for array in answer.arrays.values())
    with pytest.raises(ValueError, match="does not know: 'dance'"):
        ask(Message("dance"))
