"""Order, groups and strongest pairs of tasks, against brute force and against blocks that are known."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmtrl import TaskCovariance
from dmtrl.relationship.similarity import (
    alike_groups,
    few_groups,
    group_correlations,
    nearest_tasks,
    similarity_order,
    strongest_pairs,
    unit_vectors,
)


def covariance(m: int, rank: int = 4, floor: float = 0.0, seed: int = 0) -> TaskCovariance:
    basis, s, _ = np.linalg.svd(np.random.default_rng(seed).normal(size=(m, rank)), full_matrices=False)
    return TaskCovariance(basis, s**2 / (s**2).sum(), floor)


@given(st.lists(st.integers(1, 7), min_size=2, max_size=6), st.integers(0, 10_000))
def test_shuffled_blocks_come_back_in_blocks(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    block = np.repeat(np.arange(len(sizes)), sizes)
    correlation = np.where(block[:, None] == block, 0.8, 0.0) + rng.uniform(-0.1, 0.1, size=(len(block), len(block)))
    correlation = (correlation + correlation.T) / 2
    np.fill_diagonal(correlation, 1.0)
    shuffle = rng.permutation(len(block))
    shuffled = correlation[np.ix_(shuffle, shuffle)]
    order = similarity_order(shuffled)
    assert sorted(order) == list(range(len(block)))
    shown = block[shuffle][order]
    assert np.count_nonzero(np.diff(shown)) == len(sizes) - 1, "every block is in one piece"
    groups = alike_groups(shuffled)
    assert all(len(set(groups[block[shuffle] == b])) == 1 for b in range(len(sizes)))
    assert len(set(groups)) == len(sizes)


def test_opposites_stand_beside_each_other() -> None:
    side = np.array([1, -1, 1, -1, 1, -1, 1, -1])
    family = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    correlation = np.where(family[:, None] == family, 0.9 * np.outer(side, side), 0.0)
    np.fill_diagonal(correlation, 1.0)
    order = similarity_order(correlation)
    shown = [(family[i], side[i]) for i in order]
    assert sum(a != b for a, b in itertools.pairwise(shown)) == 3, "four pieces"
    assert sum(a[0] != b[0] for a, b in itertools.pairwise(shown)) == 1, "of two families"
    assert len(set(alike_groups(correlation))) == 4, "opposites are no group"


@pytest.mark.parametrize("floor", [0.0, 0.05])
@pytest.mark.parametrize("m", [2, 7, 600])
def test_pairs_and_neighbours_are_those_of_the_whole_matrix(m: int, floor: float) -> None:
    sigma = covariance(m, floor=floor)
    dense, vectors = sigma.correlation(), unit_vectors(sigma)
    above = dense[np.triu_indices(m, 1)]
    alike, opposed = strongest_pairs(vectors, 5)
    assert [pair.value for pair in alike] == pytest.approx(sorted(above[above > 0], reverse=True)[:5])
    assert [pair.value for pair in opposed] == pytest.approx(sorted(above[above < 0])[:5])
    assert all(dense[pair.first, pair.second] == pytest.approx(pair.value) for pair in (*alike, *opposed))
    others = np.where(np.eye(m, dtype=bool), np.nan, dense)
    nearest = nearest_tasks(vectors)
    np.testing.assert_allclose(nearest.alike_value, np.nanmax(others, axis=1))
    np.testing.assert_allclose(nearest.opposed_value, np.nanmin(others, axis=1))
    np.testing.assert_allclose(dense[np.arange(m), nearest.alike], nearest.alike_value)
    np.testing.assert_allclose(dense[np.arange(m), nearest.opposed], nearest.opposed_value)


def test_means_of_groups_are_means_of_the_whole_matrix() -> None:
    sigma = covariance(40, floor=0.01)
    dense, groups = sigma.correlation(), np.arange(40) % 6
    groups[0] = 6  # a group of one
    means = group_correlations(unit_vectors(sigma), groups)
    for g in range(7):
        for h in range(7):
            block = dense[np.ix_(groups == g, groups == h)]
            if g == h:
                block = block[~np.eye(len(block), dtype=bool)] if len(block) > 1 else np.ones(1)
            assert means[g, h] == pytest.approx(block.mean())


def test_few_groups_join_similar_tasks() -> None:
    parents = np.eye(5)
    family = np.arange(400) % 5
    vectors = parents[family] + 0.02 * np.random.default_rng(0).normal(size=(400, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    groups = few_groups(vectors, 30)
    assert groups.max() < 30
    assert all(len(set(family[groups == g])) == 1 for g in set(groups))
    assert len(set(few_groups(np.repeat(parents, 80, axis=0), 30))) == 5, "no more groups than different tasks"
    assert set(few_groups(np.zeros((50, 0)), 30)) == {0}, "tasks that were learned apart"
    assert few_groups(vectors[:20], 30).tolist() == list(range(20))


def test_a_task_without_variance_is_related_to_no_other() -> None:
    sigma = TaskCovariance.from_dense(np.diag([0.5, 0.5, 0.0]))
    assert strongest_pairs(unit_vectors(sigma), 3) == ([], [])
    assert similarity_order(sigma.correlation()).tolist() != []
