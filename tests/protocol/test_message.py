"""The wire format: a message survives it, its size is counted right, and damage is detected."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dmtrl.protocol.message import MAGIC, Message

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


def test_only_arrays_of_numbers_can_be_encoded() -> None:
    with pytest.raises(TypeError, match="only numbers may travel"):
        Message("x", {}, {"a": np.array([object()])}).encode()


def test_a_damaged_message_is_refused() -> None:
    data = Message("x", {"a": 1}, {"b": np.arange(5.0)}).encode()
    for cut in (3, 12, len(data) - 1):
        with pytest.raises(ValueError, match=r"cut short|magic word"):
            Message.decode(data[:cut])


@pytest.mark.parametrize(
    "header",
    [
        "5",
        "[{}, {}, []]",
        '["x", 1, []]',
        '["x", {}, 1]',
        '["x", {}, [["b", "<f9", [1]]]]',
        '["x", {}, [["b", "<f8", 5]]]',
        '["x", {}, [["b", "<f8", [-1]]]]',
        '["x", {}, [["b", "<f8", [0.5]]]]',
        '["x", {}, [["b", "|O", [1]]]]',
        '["x", {}, [["b", "f8,(", [1]]]]',
        '["x", {}, [["b", null, [1]]]]',
        '["x", {}, [["b", "<f8", [0, 1180591620717411303424]]]]',
        f'["x", {{}}, [["b", "<f8", {[1] * 66}]]]',
        "[" * 100_000,
    ],
)
def test_a_header_of_another_form_is_refused(header: str) -> None:
    data = MAGIC + struct.pack("<I", len(header)) + header.encode() + bytes(8)
    with pytest.raises(ValueError, match="a dmtrl message was cut short or damaged"):
        Message.decode(data)
