"""A search for numbers in bytes: in messages, and in the memory of a process."""

import numpy as np

_FINE = 2.0**60  # masked sums: a number is an integer multiple of 2^-10 and one of 2^-60


def found_in(data: bytes, numbers: np.ndarray) -> np.ndarray:
    """Which of the numbers occur in the bytes, at any place: as a float, or as the integer that masks are added to.

    A number with few digits can occur by chance, and is not looked for.
    """
    numbers = np.unique(np.ravel(numbers).astype(float))
    fine = np.round((numbers - np.round(numbers * 2.0**10) * 2.0**-10) * _FINE).astype(np.int64)
    words = np.concatenate([numbers.view(np.uint64), fine.view(np.uint64)])
    values = np.concatenate([numbers, numbers])
    long = np.concatenate([numbers.view(np.uint64) & np.uint64(0xFFFFFFFF) != 0, np.abs(fine) > 2**40])
    assert long[: len(numbers)].any(), "there is something to look for"
    words, values = words[long], values[long]
    middles, found = np.zeros(1 << 16, dtype=bool), np.zeros(len(words), dtype=bool)
    middles[_middle(words)] = True
    for offset in range(min(8, len(data) - 7)):
        there = np.frombuffer(data, "<u8", (len(data) - offset) // 8, offset)
        found |= np.isin(words, there[middles[_middle(there)]])
    return np.unique(values[found])


def _middle(words: np.ndarray) -> np.ndarray:
    """16 bits that differ between most numbers, for a fast first look."""
    return (words >> np.uint64(24)).astype(np.uint16)
