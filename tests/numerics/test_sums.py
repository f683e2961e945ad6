"""Sums with twice the precision."""

from fractions import Fraction

import numpy as np

from dmtrl.numerics.sums import DoubleSum


def _terms(n: int = 500) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 4)) * 10.0 ** rng.integers(-12, 12, size=(n, 4))


def test_the_total_is_the_exact_sum_rounded() -> None:
    terms, total = _terms(), DoubleSum((4,))
    total.add(terms)
    exact = [float(sum((Fraction(value) for value in column), Fraction(0))) for column in terms.T.tolist()]
    assert total.total.tolist() == exact


def test_the_order_does_not_matter() -> None:
    terms = _terms()
    whole = DoubleSum((4,))
    whole.add(terms)
    for seed in range(5):
        shuffled, joined = np.random.default_rng(seed).permutation(terms), DoubleSum((4,))
        for part in np.array_split(shuffled, 7):
            one = DoubleSum((4,))
            one.add(part)
            joined.add_parts(one.parts)
        assert np.array_equal(joined.total, whole.total)


def test_no_terms_add_nothing() -> None:
    total = DoubleSum((2, 3))
    total.add(np.empty((0, 2, 3)))
    assert not total.total.any()
