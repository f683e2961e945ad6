"""Sums over the training rows of a worker, from which the shared part of a model is fitted (docs/math.md section 19).

Around given scores, the loss of a row is replaced by its quadratic model, which is exact for the squared loss. What
leaves the worker are the sums of these models: for each unit the value, slope and curvature in its level, and over all
units the slope and curvature in the weights that all tasks share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import Blocks
from dmtrl.losses import AnyLoss, CustomLoss, Loss, OneVsRest, Softmax, scalar
from dmtrl.losses.scalar import loss_curvature, loss_slope, loss_value
from dmtrl.numerics.compile_cache import KERNEL, discard_stale, njit
from dmtrl.numerics.sums import DoubleSum
from dmtrl.protocol.rounds import Moments, SumMoments

_NUMBERS_AT_ONCE = 1 << 20  # of the matrices of several units, in memory
_BLAS_FROM = 2000  # numbers in a unit

discard_stale(__file__, scalar.__file__)


@dataclass
class _RowModels:
    """The quadratic model of the loss of every row: k slopes and k x k curvatures, times the weight of the row."""

    value: np.ndarray  # (n,)
    slope: np.ndarray  # (n, k)
    curvature: np.ndarray  # (n, k, k)


def sum_moments(blocks: Blocks, losses: Sequence[AnyLoss], weight: np.ndarray, request: SumMoments) -> Moments:
    """The sums that `request` asks for. `weight` is zero for rows that do not train."""
    k, d = (losses[0].outputs if losses else 1), blocks.X.shape[1]
    unit = np.repeat(np.arange(blocks.n_units), np.diff(blocks.starts))
    scores = shared_scores(blocks, request.shared) + request.level.reshape(-1, k)[unit]
    models = _row_models(blocks, losses, scores + _offsets(blocks, k), weight)
    cross = np.empty((blocks.n_units, k, k, d))
    shared_slope, matrix = _shared_sums(blocks, models, request.groups, cross)
    return Moments(
        loss=_by_unit(models.value, blocks.starts)[:, 0],
        slope=_by_unit(models.slope, blocks.starts),
        curvature=_by_unit(models.curvature, blocks.starts),
        cross=cross.reshape(-1, k * k * d),
        shared_slope=shared_slope,
        matrix=matrix,
    )


def shared_scores(blocks: Blocks, shared: np.ndarray) -> np.ndarray:
    """The scores (n, k) of weights (k, d + 1) that all tasks share, the intercepts last."""
    d = blocks.X.shape[1]
    shared = shared.reshape(-1, d + 1)
    return np.asarray(_scores(blocks.X, np.ascontiguousarray(shared[:, :d])) + shared[:, d])


def _scores(X: Any, weights: np.ndarray) -> np.ndarray:
    """X weights^T. Each row on its own, unlike BLAS, whose last bits depend on where a row stands."""
    if sparse.issparse(X):
        return np.asarray(X @ weights.T)
    scores = np.empty((X.shape[0], len(weights)))
    _score_rows(X, weights, scores)
    return scores


@njit(**KERNEL)
def _score_rows(X, weights, scores):  # type: ignore[no-untyped-def]
    for j in range(X.shape[0]):
        for c in range(weights.shape[0]):
            total = 0.0
            for a in range(X.shape[1]):
                total += X[j, a] * weights[c, a]
            scores[j, c] = total


def _offsets(blocks: Blocks, k: int) -> np.ndarray | float:
    """What is added to the scores of the rows and not learned."""
    return 0.0 if blocks.offset is None else blocks.offset.reshape(-1, k)


def _by_unit(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Sums over the rows of each unit, in the order of the rows; a unit may be empty."""
    sums = np.zeros((len(starts) - 1, values[:1].size if len(values) else 1))
    _sum_rows(np.ascontiguousarray(values.reshape(len(values), -1)), starts, sums)
    return sums


@njit(**KERNEL)
def _sum_rows(values, starts, sums):  # type: ignore[no-untyped-def]
    for i in range(sums.shape[0]):
        for j in range(starts[i], starts[i + 1]):
            for c in range(sums.shape[1]):
                sums[i, c] += values[j, c]


def _row_models(blocks: Blocks, losses: Sequence[AnyLoss], z: np.ndarray, weight: np.ndarray) -> _RowModels:
    n, k = z.shape
    models = _RowModels(np.zeros(n), np.zeros((n, k)), np.zeros((n, k, k)))
    first = 0
    for loss, neighbours in groupby(losses):
        last = first + len(list(neighbours))
        rows = slice(int(blocks.starts[first]), int(blocks.starts[last]))
        _fill(loss, blocks.y[rows], z[rows], weight[rows], models, rows)
        first = last
    return models


def _fill(loss: Any, y: np.ndarray, z: np.ndarray, weight: np.ndarray, models: _RowModels, rows: slice) -> None:
    value, slope, curvature = models.value[rows], models.slope[rows], models.curvature[rows]
    if isinstance(loss, Softmax):
        _softmax_models(loss, y, z, weight, value, slope, curvature)
        return
    binary = loss.binary if isinstance(loss, OneVsRest) else loss
    if isinstance(binary, CustomLoss) or not binary.differentiable:
        raise ValueError(f"the {loss.name} loss has no quadratic model; fit the shared part with relationship='shared'")
    assert isinstance(binary, Loss)
    for c in range(z.shape[1]):
        if isinstance(loss, OneVsRest) and not loss.mask[c]:
            continue
        labels = np.where(y == c, 1.0, -1.0) if isinstance(loss, OneVsRest) else y.astype(float)
        of_class = np.empty((3, len(y)))
        _binary_models(binary.id, binary.param, z[:, c].copy(), labels, weight.astype(float), of_class)
        value += of_class[0]
        slope[:, c], curvature[:, c, c] = of_class[1], of_class[2]


@njit(**KERNEL)
def _binary_models(loss, param, z, y, weight, found):  # type: ignore[no-untyped-def]
    for j in range(z.shape[0]):
        if weight[j] > 0:
            found[0, j] = weight[j] * loss_value(loss, param, z[j], y[j])
            found[1, j] = -weight[j] * loss_slope(loss, param, z[j], y[j])
            found[2, j] = weight[j] * loss_curvature(loss, param, z[j], y[j])
        else:
            found[0, j] = found[1, j] = found[2, j] = 0.0


def _softmax_models(
    loss: Softmax,
    y: np.ndarray,
    z: np.ndarray,
    weight: np.ndarray,
    value: np.ndarray,
    slope: np.ndarray,
    curvature: np.ndarray,
) -> None:
    z = np.where(loss.mask, z, -np.inf)
    top = z.max(axis=1, keepdims=True)
    chance = np.exp(z - top)
    total = chance.sum(axis=1, keepdims=True)
    chance /= total
    own, rows = y.astype(int), np.arange(len(y))
    value[:] = weight * (top[:, 0] + np.log(total[:, 0]) - z[rows, own])
    slope[:] = weight[:, None] * chance
    slope[rows, own] -= weight
    curvature[:] = -weight[:, None, None] * chance[:, :, None] * chance[:, None, :]
    classes = np.arange(z.shape[1])
    curvature[:, classes, classes] += weight[:, None] * chance


def _shared_sums(blocks: Blocks, models: _RowModels, groups: int, cross: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The slope (groups, 2, k d) and curvature (groups, 2, k d, k d) in the shared weights, each as the two parts of a
    `DoubleSum`, for every group of tasks; fills `cross`, the curvature between levels and weights.

    Every unit is summed on its own, and the units with twice the precision: so the sum does not depend on how tasks
    are spread over workers.
    """
    k, d = models.slope.shape[1], blocks.X.shape[1]
    slopes = [DoubleSum((k * d,)) for _ in range(groups)]
    matrices = [DoubleSum((k * d, k * d)) for _ in range(groups)]
    group = np.asarray(blocks.tasks) % groups
    for units, X, rows in _dense_parts(blocks, k):
        starts = blocks.starts[units.start : units.stop + 1] - rows.start
        slope, matrix, between = _unit_products(X, models.slope[rows], models.curvature[rows], starts)
        cross[units] = between
        for g in range(groups):
            chosen = group[units] == g
            slopes[g].add(slope[chosen])
            matrices[g].add(matrix[chosen])
    return np.stack([one.parts for one in slopes]), np.stack([one.parts for one in matrices])


def _dense_parts(blocks: Blocks, k: int) -> Iterator[tuple[slice, np.ndarray, slice]]:
    """Neighbouring units, a few at a time, and their rows as an array of their own."""
    d = blocks.X.shape[1]
    most = max(_NUMBERS_AT_ONCE // max((k * d) ** 2, 1), 1)
    for first in range(0, blocks.n_units, most):
        units = slice(first, min(first + most, blocks.n_units))
        rows = slice(int(blocks.starts[units.start]), int(blocks.starts[units.stop]))
        part = blocks.X[rows]
        X = part.toarray() if sparse.issparse(part) else part
        yield units, np.array(X, dtype=float, order="C"), rows


def _unit_products(
    X: np.ndarray, slope: np.ndarray, curvature: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each unit: slope (k d), curvature (k d, k d) and cross curvature (k, k, d)."""
    n_units, k, d = len(starts) - 1, slope.shape[1], X.shape[1]
    slopes, matrices = np.zeros((n_units, k, d)), np.zeros((n_units, k, d, k, d))
    between = np.zeros((n_units, k, k, d))
    large = np.diff(starts) * (k * d) >= _BLAS_FROM
    _small_products(X, slope, curvature, starts, large, slopes, matrices, between)
    for i in np.flatnonzero(large):
        rows = slice(int(starts[i]), int(starts[i + 1]))
        # copies: the address of a view depends on the neighbours of the unit, and on some CPUs the last bits do, too
        A, g, C = X[rows].copy(), slope[rows].copy(), curvature[rows].copy()
        slopes[i] = g.T @ A
        for c in range(k):
            for e in range(c + 1):
                weighted = A * C[:, c, e, None]
                between[i, c, e] = between[i, e, c] = weighted.sum(axis=0)
                product = A.T @ weighted
                matrices[i, c, :, e], matrices[i, e, :, c] = product, product.T
    return slopes.reshape(n_units, k * d), matrices.reshape(n_units, k * d, k * d), between


@njit(**KERNEL)
def _small_products(X, slope, curvature, starts, large, slopes, matrices, between):  # type: ignore[no-untyped-def]
    """`_unit_products` for the units that are not large: calling BLAS for each would take longer."""
    k, d = slope.shape[1], X.shape[1]
    for i in range(starts.shape[0] - 1):
        if large[i]:
            continue
        for j in range(starts[i], starts[i + 1]):
            for c in range(k):
                for a in range(d):
                    slopes[i, c, a] += slope[j, c] * X[j, a]
                for e in range(k):
                    h = curvature[j, c, e]
                    if h == 0.0:
                        continue
                    for a in range(d):
                        hx = h * X[j, a]
                        between[i, c, e, a] += hx
                        for b in range(d):
                            matrices[i, c, a, e, b] += hx * X[j, b]
