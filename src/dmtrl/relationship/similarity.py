"""Similar tasks: an order, groups, and the strongest pairs, for reports.

Most functions take unit vectors u_i, whose products are the task correlations, and build no (m, m) array. Only
`similarity_order` and `alike_groups` take one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dmtrl.relationship.covariance import TaskCovariance

WEAK = 0.1  # a smaller correlation, in absolute value, is not reported as a relation
ALIKE = 0.5  # mean correlation from which tasks form a group
_OPTIMAL = 400  # tasks; above it the optimal leaf order takes seconds
_BLOCK = 512  # rows of the correlation at a time


@dataclass(frozen=True)
class Pair:
    """Two tasks by number, and their correlation."""

    first: int
    second: int
    value: float


@dataclass(frozen=True)
class Nearest:
    """For every task, the tasks with the highest and the lowest correlation, and these correlations."""

    alike: np.ndarray
    alike_value: np.ndarray
    opposed: np.ndarray
    opposed_value: np.ndarray


def unit_vectors(covariance: TaskCovariance) -> np.ndarray:
    """Return rows u_i (m, r): u_i . u_j is the correlation of tasks i and j. A task without variance has u_i = 0."""
    scale = np.sqrt(covariance.diagonal())[:, None]
    factor = covariance.factor()
    return np.divide(factor, scale, out=np.zeros_like(factor), where=scale > 0)


def similarity_order(correlation: np.ndarray) -> np.ndarray:
    """Return the tasks in an order that puts related tasks, then their opposites, side by side."""
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering

    m = len(correlation)
    if m < 3:
        return np.arange(m)
    # 0 for correlation 1, 1 for correlation 0, and 0.5 for correlation -1
    distances = _pairwise(1.0 - np.abs(correlation) + 0.5 * np.maximum(-correlation, 0.0))
    tree = linkage(distances, "average")
    if m <= _OPTIMAL:
        tree = optimal_leaf_ordering(tree, distances)
    return np.asarray(leaves_list(tree))


def _pairwise(distance: np.ndarray) -> np.ndarray:
    """A matrix of distances, up to rounding, as scipy's clustering takes it: one number for each pair."""
    from scipy.spatial.distance import squareform

    return np.asarray(squareform(np.maximum((distance + distance.T) / 2, 0.0), checks=False))


def alike_groups(correlation: np.ndarray) -> np.ndarray:
    """Return a group number for each task: merged groups have a mean correlation of at least ALIKE."""
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(correlation) < 2:
        return np.zeros(len(correlation), dtype=int)
    tree = linkage(_pairwise(1.0 - correlation), "average")
    return np.asarray(fcluster(tree, 1.0 - ALIKE, criterion="distance") - 1)


def few_groups(vectors: np.ndarray, most: int) -> np.ndarray:
    """Return a group number for each task, with at most `most` groups, for very many tasks.

    k-means on the unit vectors, for which |u_i - u_j|^2 is 2 - 2 times the correlation.
    """
    from sklearn.cluster import KMeans

    m = len(vectors)
    if m <= most:
        return np.arange(m)
    if vectors.shape[1] == 0:
        return np.zeros(m, dtype=int)
    distinct = len(np.unique(vectors.round(9), axis=0))
    means = KMeans(min(most, distinct), n_init=1, random_state=0, max_iter=50).fit(vectors)
    return np.asarray(np.unique(means.labels_, return_inverse=True)[1])


def group_correlations(vectors: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the mean correlation of every two groups; on the diagonal of the pairs within, or 1 for a single task."""
    sizes = np.bincount(groups).astype(float)
    sums = np.zeros((len(sizes), vectors.shape[1]))
    np.add.at(sums, groups, vectors)
    own = np.bincount(groups, weights=(vectors**2).sum(axis=1))
    mean = sums @ sums.T / np.outer(sizes, sizes)
    pairs = sizes * (sizes - 1)
    within = np.divide((sums**2).sum(axis=1) - own, pairs, out=np.ones(len(sizes)), where=pairs > 0)
    np.fill_diagonal(mean, within)
    return np.asarray(np.clip(mean, -1.0, 1.0))


def _row_blocks(vectors: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, len(vectors), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(vectors)))
        yield rows, np.clip(vectors[rows] @ vectors.T, -1.0, 1.0)


def strongest_pairs(vectors: np.ndarray, k: int) -> tuple[list[Pair], list[Pair]]:
    """Return the k pairs of tasks with the highest positive and the k with the lowest negative correlations."""
    high: list[Pair] = []
    low: list[Pair] = []
    for rows, block in _row_blocks(vectors):
        counted = np.arange(len(vectors))[None, :] > rows[:, None]  # each pair once
        for kept, sign in ((high, 1.0), (low, -1.0)):
            signed = np.where(counted, -sign * block, np.inf).ravel()
            best = np.argpartition(signed, min(k, signed.size) - 1)[:k]
            pairs = [(*divmod(int(index), len(vectors)), float(signed[index])) for index in best]
            kept += [Pair(int(rows[i]), j, -sign * value) for i, j, value in pairs if value < 0]
            kept.sort(key=lambda pair: (-sign * pair.value, pair.first, pair.second))
            del kept[k:]
    return high, low


def nearest_tasks(vectors: np.ndarray) -> Nearest:
    """Return the most similar and the most opposed task of each task. Needs at least two tasks."""
    m = len(vectors)
    alike, opposed = np.zeros(m, dtype=int), np.zeros(m, dtype=int)
    alike_value, opposed_value = np.zeros(m), np.zeros(m)
    for rows, block in _row_blocks(vectors):
        own = np.arange(len(rows)), rows
        block[own] = -np.inf
        alike[rows], alike_value[rows] = block.argmax(axis=1), block.max(axis=1)
        block[own] = np.inf
        opposed[rows], opposed_value[rows] = block.argmin(axis=1), block.min(axis=1)
    return Nearest(alike, alike_value, opposed, opposed_value)
