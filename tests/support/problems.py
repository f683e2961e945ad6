"""Small problems that many tests share."""

import numpy as np
from scipy import sparse

from dmtrl import Loss, TaskData, get_loss
from dmtrl.losses import CLASSIFICATION


def random_problem(
    loss: str | Loss = "squared",
    m: int = 4,
    d: int = 5,
    rows: int = 12,
    seed: int = 0,
    dtype: type = np.float64,
    csr: bool = False,
    repeated: bool = False,
    weighted: bool = False,
) -> TaskData:
    """Tasks of unequal size around a low-rank truth; with `repeated` the last task is a copy of the first."""
    rng = np.random.default_rng(seed)
    loss = get_loss(loss)
    truth = rng.normal(size=(m, 2)) @ rng.normal(size=(2, d))
    parts = []
    for i in range(m):
        n = rows + int(rng.integers(0, 5))
        X = rng.normal(size=(n, d))
        if csr:
            X *= rng.random(X.shape) < 0.5
        z = X @ truth[i] + 0.3 * rng.normal(size=n)
        if loss.kind == CLASSIFICATION:
            y = np.where(z > 0, 1.0, -1.0)
        elif loss.name == "poisson":
            y = rng.poisson(np.exp(np.clip(0.3 * z, -3, 2))).astype(float)
        else:
            y = z
        X = X.astype(dtype)
        X = sparse.csr_matrix(X) if csr else X
        parts.append((X, y, rng.random(n) + 0.2) if weighted else (X, y))
    if repeated:
        parts[-1] = parts[0]
    return TaskData.from_list(parts)


def rows_of(data: TaskData, i: int) -> slice:
    return slice(data.starts[i], data.starts[i + 1])


def mean_losses(data: TaskData, W: np.ndarray, loss: str | Loss) -> float:
    """sum_i of task i's (weighted) mean loss, written without the kernels' loops."""
    loss = get_loss(loss)
    total = 0.0
    for i in range(data.m):
        rows = rows_of(data, i)
        p = np.ones(len(data.y[rows])) if data.sample_weight is None else data.sample_weight[rows]
        z = data.X[rows] @ W[i]
        total += float(np.sum(p * loss.value(z, data.y[rows])) / p.sum())
    return total
