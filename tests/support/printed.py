"""Compare printed output with what a page of the documentation shows, so that it holds on every CPU.

Text has to be equal, up to the width of spaces. A whole number (a count of rows or rounds) has to be equal too.
Any other number (with a decimal point, an exponent or a percent sign) may differ by one unit of its last printed
digit, but not by more than half of itself: rounding errors differ between CPUs, and a digit may flip.
A number of seconds ("0.7 s") may be any number. A line "..." stands for any lines.
"""

import re
from collections.abc import Sequence
from decimal import Decimal

SECONDS = re.compile(r"\b\d+(\.\d+)? s\b")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?:(?=%)|(?!\w))")


def difference(shown: Sequence[str], printed: str) -> str | None:
    """Return why the printed text is not what the page shows, or None if it is."""
    if _matches([_plain(line) for line in shown], [_plain(line) for line in printed.splitlines()]):
        return None
    return "the page shows\n" + "\n".join(shown) + f"\nbut the output is\n{printed}"


def _plain(line: str) -> str:
    return " ".join(SECONDS.sub("0 s", line).split())


def _matches(shown: list[str], printed: list[str]) -> bool:
    if not shown:
        return not printed
    if shown[0] == "...":
        return any(_matches(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and same_line(shown[0], printed[0]) and _matches(shown[1:], printed[1:])


def same_line(shown: str, printed: str) -> bool:
    """Whether two lines have the same words, and numbers that are equal or close enough."""
    if NUMBER.split(shown) != NUMBER.split(printed):
        return False
    pairs = zip(NUMBER.finditer(shown), NUMBER.finditer(printed), strict=True)
    return all(_close(one.group(), two.group(), shown[one.end() : one.end() + 1] == "%") for one, two in pairs)


def _close(shown: str, printed: str, percent: bool) -> bool:
    expected, found = (Decimal(text.replace(",", "")) for text in (shown, printed))
    whole = not percent and "." not in shown and "e" not in shown
    unit = Decimal(1).scaleb(int(expected.as_tuple().exponent))
    allowed = Decimal(0) if whole else unit if expected == 0 else min(unit, abs(expected) / 2)
    return abs(expected - found) <= allowed
