"""The rows of a worker, and the contract of a source that loads them.

`Blocks` are the rows of a worker's units, one unit after the other. A unit is a task or a shard of a task. A `Source`
is sent to the worker and loads the blocks there, so rows need not pass through the coordinator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import sparse


@dataclass(frozen=True)
class Blocks:
    """The rows of the units of one worker."""

    X: Any  # (n, d) array or CSR matrix, float32 or float64
    y: np.ndarray
    sample_weight: np.ndarray | None
    starts: np.ndarray  # unit i owns rows starts[i]:starts[i+1]
    tasks: np.ndarray  # number of each unit's task in the whole problem
    shards: np.ndarray  # number of the shard within its task; 0 for a whole task
    names: Sequence[str]  # name of each unit's task, for error messages
    splits: np.ndarray | None = None  # (splits, n): what each row does in a split of a cross-validation; data/folds.py
    offset: np.ndarray | None = None  # added to the score of each row: (n,), or (n, k) with k classes

    def __post_init__(self) -> None:
        n = self.X.shape[0]
        if len(self.y) != n or self.starts[-1] != n or len(self.tasks) != len(self.starts) - 1:
            raise ValueError(
                f"inconsistent blocks: X has {n} rows, y has {len(self.y)}, the last unit ends at row {self.starts[-1]}"
            )
        if self.offset is not None and len(self.offset) != n:
            raise ValueError(f"inconsistent blocks: X has {n} rows, offset has {len(self.offset)}")
        if len(np.unique(self.tasks)) != len(self.tasks):
            raise ValueError("a worker has several shards of one task; join them into one unit")

    @property
    def n_units(self) -> int:
        return len(self.tasks)

    def load(self) -> "Blocks":
        """Return the blocks themselves: rows in memory are a source that needs no reading."""
        return self


class Source(Protocol):
    """Loads the rows of one worker.

    An engine calls `load` where the worker runs, and calls it again when it replaces a lost worker. It must return the
    same blocks each time. A source must be picklable if the engine uses processes.
    """

    def load(self) -> Blocks: ...


def as_rows(X: Any) -> Any:
    """X as the kernels read it: C-ordered, or CSR with sorted and unique indices; float32 or else float64."""
    if sparse.issparse(X):
        X = X.tocsr()
        if not X.has_canonical_format:
            X = X.copy()
            X.sum_duplicates()
        return X if X.dtype in (np.float32, np.float64) else X.astype(np.float64)
    X = np.asarray(X)
    if X.dtype.kind not in "biufO":
        raise ValueError(f"X must hold real numbers, got {X.dtype}; encode text and split complex numbers first")
    if X.dtype not in (np.float32, np.float64):
        X = X.astype(np.float64)
    return np.ascontiguousarray(X)


def stack_rows(parts: Sequence[Any]) -> Any:
    """Concatenate arrays, or CSR matrices if at least one part is sparse."""
    if any(sparse.issparse(part) for part in parts):
        return sparse.vstack([sparse.csr_matrix(part) for part in parts], format="csr")
    return np.concatenate([np.asarray(part) for part in parts])


def all_finite(numbers: np.ndarray) -> bool:
    """Whether there is no NaN or infinity. Checks the sum first, which needs no temporary array."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = numbers.sum() if numbers.dtype.kind == "f" else 0.0
    return bool(np.isfinite(total)) or bool(np.isfinite(numbers).all())
