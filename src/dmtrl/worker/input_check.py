"""Refuses rows that the solver cannot use, with the task, row and column."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dmtrl.data.blocks import Blocks, all_finite
from dmtrl.losses import AnyLoss, CustomLoss


def check_blocks(blocks: Blocks, losses: Sequence[AnyLoss], squares: np.ndarray) -> None:
    """Raise ValueError for rows that the solver cannot use.

    `squares` holds |x|^2 of each row, which is needed anyway and shows whether all numbers are finite.
    """
    clean = all_finite(squares) and all_finite(blocks.y)
    weight = blocks.sample_weight
    clean = clean and (weight is None or (all_finite(weight) and bool((weight >= 0).all())))
    clean = clean and (blocks.offset is None or all_finite(blocks.offset))
    if clean and _labels_fit(blocks, losses):  # else unit by unit, to say where
        return
    for i in range(blocks.n_units):
        rows = slice(blocks.starts[i], blocks.starts[i + 1])
        where = f"task {blocks.names[i]!r}"
        if not clean:
            _check_finite(blocks.X[rows], blocks.y[rows], where)
        if weight is not None:
            wrong = ~(np.isfinite(weight[rows]) & (weight[rows] >= 0))
            if wrong.any():
                row = int(np.argmax(wrong))
                raise ValueError(
                    f"{where}, row {row}: a sample weight must be finite and not negative, got {weight[rows][row]}"
                )
        if blocks.offset is not None and not np.isfinite(blocks.offset[rows]).all():
            bad = ~np.isfinite(blocks.offset[rows].reshape(rows.stop - rows.start, -1)).all(axis=1)
            raise ValueError(f"{where}, row {int(np.argmax(bad))}: the offset is NaN or infinite; drop the row")
        losses[i].check_labels(np.asarray(blocks.y[rows], dtype=float), where)


def _labels_fit(blocks: Blocks, losses: Sequence[AnyLoss]) -> bool:
    """Whether one built-in loss serves all units and every label suits it."""
    if len(set(losses)) != 1 or isinstance(losses[0], CustomLoss):
        return False
    try:
        losses[0].check_labels(blocks.y, "")
    except ValueError:
        return False
    return True


def _check_finite(X: Any, y: np.ndarray, where: str) -> None:
    if not all_finite(X.data if sparse.issparse(X) else X):
        entries = sparse.coo_matrix(X)
        bad = np.flatnonzero(~np.isfinite(entries.data))
        row, column = entries.row[bad[0]], entries.col[bad[0]]
        raise ValueError(f"{where}, row {row}, column {column}: X holds NaN or infinity; fill it in or drop the row")
    if not np.isfinite(y).all():
        row = int(np.argmax(~np.isfinite(y)))
        raise ValueError(f"{where}, row {row}: y holds NaN or infinity; drop the row")
    X = X.astype(float)
    with np.errstate(over="ignore"):
        squares = np.asarray((X.multiply(X) if sparse.issparse(X) else X * X).sum(axis=1)).ravel()
    if not all_finite(squares):
        row = int(np.argmax(~np.isfinite(squares)))
        raise ValueError(f"{where}, row {row}: the numbers of X are so large that their squares overflow; scale X")
