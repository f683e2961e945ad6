"""The comparison of printed output with the documentation accepts a flipped digit, and nothing more."""

import pytest

from support.printed import difference, same_line


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("rows below: 87%", "rows below: 88%"),
        ("gap 0.07%", "gap 0.06%"),
        ("objective 2.0256", "objective 2.0257"),
        ("north -0.84   1.00", "north -0.85   1.00"),
        ("[ 0.16 -1.09]", "[ 0.17 -1.08]"),
        ("gap 8e-05 at last", "gap 9e-05 at last"),
        ("1,234.5 rows", "1,234.6 rows"),
        ("sum 0.00", "sum -0.01"),
        ("-0.00", "0.00"),
        ("0.10", "0.099"),
        ("fitted in 0.7 s", "fitted in 31.25 s"),
        ("tau 9.99  x", "tau 10.00 x"),
    ],
)
def test_a_flipped_last_digit_is_accepted(shown: str, printed: str) -> None:
    assert difference([shown], printed + "\n") is None


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("rows below: 87%", "rows below: 89%"),
        ("33 rounds", "34 rounds"),
        ("1,200 rows", "1,201 rows"),
        ("objective 2.0256", "objective 2.0258"),
        ("north -0.84", "north 0.84"),
        ("tau 0.1", "tau 0"),
        ("tau 0.1", "tau 0.2"),
        ("gap 8e-05", "gap 8e-04"),
        ("gap 1e-06", "gap 2e-06"),
        ("sum 0.00", "sum 0.02"),
        ("task two", "task three"),
        ("x1 0.5", "x2 0.5"),
        ("version-000001", "version-000002"),
        ("0.5 0.5", "0.5"),
        ("0.5 ms", "0.5 s"),
    ],
)
def test_anything_else_is_not(shown: str, printed: str) -> None:
    assert not same_line(shown, printed)
    found = difference([shown], printed + "\n")
    assert found is not None
    assert shown in found
    assert printed in found


def test_dots_stand_for_any_lines() -> None:
    assert difference(["first", "...", "last 0.5"], "first\nsecond 3\nthird\nlast 0.6\n") is None
    assert difference(["first", "...", "last"], "first\nlast\n") is None
    assert difference(["...", "last"], "first\nsecond\n") is not None
    assert difference(["first"], "first\nsecond\n") is not None
    assert difference([], "") is None
