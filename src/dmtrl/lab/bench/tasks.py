"""Random classification tasks for benchmarks."""

import numpy as np

from dmtrl.data.task_data import TaskData


def low_rank_tasks(m: int, d: int, rows: int) -> TaskData:
    """Return m float32 tasks whose true weights have rank three, with noisy labels."""
    rng = np.random.default_rng(0)
    W = rng.standard_normal((m, 3)) @ rng.standard_normal((3, d))
    X = rng.standard_normal((m * rows, d), dtype=np.float32) / np.float32(np.sqrt(d))
    task = np.repeat(np.arange(m), rows)
    score = np.einsum("ij,ij->i", X, W[task])
    return TaskData.from_long(X, np.where(score + rng.standard_normal(len(score)) > 0, 1.0, -1.0), task)
