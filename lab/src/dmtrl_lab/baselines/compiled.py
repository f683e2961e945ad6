"""Compiled kernels of the baselines."""

import numpy as np

from dmtrl.losses import scalar
from dmtrl.losses.scalar import loss_step
from dmtrl.numerics.compile_cache import KERNEL_FAST, discard_stale, njit
from dmtrl.worker import rows, streams
from dmtrl.worker.rows import row_axpy, row_dot
from dmtrl.worker.streams import below, next_state, shuffle, stream

discard_stale(__file__, scalar.__file__, rows.__file__, streams.__file__)


@njit(**KERNEL_FAST)
def predictions(units, W, z):  # type: ignore[no-untyped-def]
    """Compute z_ij = w_i . x_ij of every row."""
    for i in range(W.shape[0]):
        for j in range(units.starts[i], units.starts[i + 1]):
            z[j] = row_dot(units.X, j, W[i])


@njit(**KERNEL_FAST)
def uniform_steps(units, task, alpha, W, sigma, steps, seed, number):  # type: ignore[no-untyped-def]
    """Take coordinate steps (5) on rows drawn uniformly from all tasks, and update W (3). `sigma` is Sigma / lambda.

    Steps are sequential, so rho is one. A step that changes alpha changes the weights of every task.
    """
    n, state = alpha.shape[0], stream(seed, 0, number)
    for _ in range(steps):
        state = next_state(state)
        j = below(state, n)
        p, a, i = units.p[j], alpha[j], task[j]
        if p <= 0:
            continue
        z = np.float64(row_dot(units.X, j, W[i]))
        new = loss_step(units.loss[i], units.param[i], a, z, units.y[j], sigma[i, i] * p * units.q[j])
        if new != a:
            alpha[j] = new
            for k in range(W.shape[0]):
                f = p * (new - a) * sigma[i, k]
                if f != 0:
                    row_axpy(units.X, j, f, W[k])


@njit(**KERNEL_FAST)
def gram_pass(units, task, alpha, z, gram, sigma, order, seed, number, inner):  # type: ignore[no-untyped-def]
    """Shuffle `order`, then take one coordinate step (5) on every row of it. `sigma` is Sigma / lambda.

    A changed coordinate updates the predictions z of all rows through one row of the symmetric Gram matrix. The rows
    that changed come first in `order`; returns their number.
    """
    m, n = sigma.shape[0], order.shape[0]
    shuffle(order, n, stream(seed, inner, number))
    moved = 0
    for k in range(n):
        j = order[k]
        p, a, i = units.p[j], alpha[j], task[j]
        if p <= 0:
            continue
        new = loss_step(units.loss[i], units.param[i], a, z[j], units.y[j], sigma[i, i] * p * units.q[j])
        if new == a:
            continue
        alpha[j] = new
        order[k], order[moved] = order[moved], order[k]
        moved += 1
        row = gram[j]
        for t in range(m):
            f = p * (new - a) * sigma[i, t]
            if f != 0:
                for r in range(units.starts[t], units.starts[t + 1]):
                    z[r] += f * row[r]
    return moved
