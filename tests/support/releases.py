"""Data sets of one task that differ in one row, for attacks on private releases."""

import numpy as np

from dmtrl.data.blocks import Blocks
from dmtrl.federation.protection.noise.moments import clip_rows
from dmtrl.losses import CLASSIFICATION, get_loss


def blocks_of(X: np.ndarray, y: np.ndarray) -> Blocks:
    zero = np.zeros(1, dtype=int)
    return Blocks(np.ascontiguousarray(X), y, None, np.array([0, len(y)]), zero, zero, ["task"])


def replaced(rng: np.random.Generator, loss: str, row_norm: float, rows: int, features: int) -> tuple[Blocks, Blocks]:
    """Two neighbours: one row is replaced by another, both of them extreme half of the time."""
    X, y = rng.standard_normal((rows, features)) * 3, _labels(rng, loss, rows)
    other, labels = X.copy(), y.copy()
    if rng.random() < 0.5:
        direction = rng.standard_normal(features)
        X[0], other[0] = 100 * direction, -100 * direction
        if rng.random() < 0.5:
            other[0] = 100 * rng.standard_normal(features)
        y[0], labels[0] = _extreme(rng, loss), _extreme(rng, loss)
    else:
        other[0], labels[0] = rng.standard_normal(features) * 3, _labels(rng, loss, 1)[0]
    return blocks_of(clip_rows(X, row_norm), y), blocks_of(clip_rows(other, row_norm), labels)


def _labels(rng: np.random.Generator, loss: str, count: int) -> np.ndarray:
    if get_loss(loss).kind == CLASSIFICATION:
        return np.where(rng.random(count) < 0.5, 1.0, -1.0)
    return rng.standard_normal(count) * 3


def _extreme(rng: np.random.Generator, loss: str) -> float:
    size = 1.0 if get_loss(loss).kind == CLASSIFICATION else 1e3
    return size * float(rng.choice([-1.0, 1.0]))
